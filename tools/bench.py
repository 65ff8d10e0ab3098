"""Our server against Samba in the same run: the same client (tools/labgen.c), the same cases, in turns.

    python -m tools.bench [--seconds S] [--cases NAME ...] [--no-samba] [--folder DIR] [--rounds N] [--pin]

Only the ratio of the two means anything: both run on the same machine at the same time of day, each case on one right
after the other, ``--rounds`` times; the best of each counts. The server's processor time per operation suffers least
from whatever else the machine does. Needs a C compiler with OpenSSL's headers (libssl-dev),
and for Samba root and Debian's samba. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

USER, PASSWORD = "games", "Passw0rd"
SAMBA_ADDRESS = "127.0.0.43"
FILES = 2000
"""In the folder that is listed and whose files are opened."""
BIG_MEGABYTES = 256
_SMB_CONF = """[global]
workgroup = LAB
netbios name = LABSMB
server role = standalone server
smb ports = 445
bind interfaces only = yes
interfaces = "{address};speed=10000000000,capability=RSS"
disable netbios = yes
{folders}
log file = {root}/log.%m
log level = 0
server min protocol = SMB2_02
server multi channel support = yes
kernel oplocks = no
kernel share modes = no
posix locking = no
load printers = no
disable spoolss = yes
ea support = yes
store dos attributes = yes
map archive = no
map hidden = no
map system = no
map readonly = no
vfs objects = acl_xattr streams_xattr
inherit acls = yes
read only = no
create mask = 0777
directory mask = 0777
[perf]
path = {share}
"""

CASES: dict[str, tuple[str, ...]] = {
    f"{test} 1 MiB q{depth}{f' {name}' if name else ''}": ("-t", test, "-b", "1048576", "-q", str(depth), *protection)
    for name, protection in (("", ()), ("GMAC", ("-S", "gmac")), ("AES-128-GCM", ("-E", "gcm128")))
    for test in ("read", "write")
    for depth in (1, 4)
} | {
    "4 KiB random read q1": ("-t", "randread", "-b", "4096", "-q", "1"),
    "4 KiB random read q32": ("-t", "randread", "-b", "4096", "-q", "32"),
    "echo q1": ("-t", "echo", "-q", "1"),
    "echo q32": ("-t", "echo", "-q", "32"),
    "create + close": ("-t", "create"),
    "open + close": ("-t", "openclose", "-N", str(FILES)),
    "stat, compound": ("-t", "stat", "-N", str(FILES)),
    f"list {FILES} entries": ("-t", "list", "-N", str(FILES)),
    "connect + NTLM + tree": ("-t", "sess",),
}  # fmt: skip


class Target:
    """A server under test."""

    def __init__(self, name: str, pid: int, host: str, port: int, pin: bool) -> None:
        self.name = name
        self._pid = pid
        self._where = ("-h", host, "-p", str(port), "-s", "perf", "-u", USER, "-w", PASSWORD)
        self._prefix = ("taskset", "-c", "0") if pin else ()

    def _cpu(self) -> float:
        """Seconds of processor time, with those of children that have ended (Samba has one per connection)."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def run(self, labgen: Path, *options: str) -> tuple[float, float, float]:
        """Operations and megabytes per second, and the server's processor time per operation in microseconds."""
        before = self._cpu()
        ended = subprocess.run(
            [*self._prefix, str(labgen), *self._where, *options],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
        if ended.returncode or not lines:
            raise RuntimeError(f"{self.name}: {' '.join(options)}: {ended.stderr.strip()}")
        found = json.loads(lines[-1])
        if found["errs"]:
            raise RuntimeError(f"{self.name}: {' '.join(options)}: {found['errs']} errors")
        time.sleep(0.2)
        return found["ops_s"], found["MB_s"], (self._cpu() - before) / max(found["ops"], 1) * 1e6


def build_client(folder: Path) -> Path:
    source = Path(__file__).parent / "labgen.c"
    program = folder / "labgen"
    subprocess.run(["cc", "-O2", "-w", "-o", str(program), str(source), "-lcrypto"], check=True)
    return program


def furnish(share: Path) -> None:
    share.mkdir()
    share.chmod(0o777)
    (share / "dir10k").mkdir()
    for number in range(FILES):
        (share / "dir10k" / f"file-{number:05}.dat").touch()
    with (share / "big.bin").open("wb") as big:
        for _ in range(BIG_MEGABYTES):
            big.write(os.urandom(1 << 20))
    (share / "big.bin").chmod(0o666)
    if os.geteuid() == 0:
        # Both servers act as this user then: Samba as the client's, ours as the folder's owner.
        for path in (share, *share.rglob("*")):
            shutil.chown(path, USER, USER)


@contextlib.contextmanager
def ours(root: Path, pin: bool) -> Iterator[Target]:
    root.mkdir()
    furnish(root / "perf")
    prefix = ("taskset", "-c", "0") if pin else ()
    command = [*prefix, sys.executable, "-m", "smb3server", "--share", f"perf={root / 'perf'}"]
    with (root / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--user", f"{USER}:{PASSWORD}", "--listen", "127.0.0.1", "--port", "0", "--log-level", "error"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        found = None
        for line in process.stdout or ():
            found = re.match(r"ready tcp [^ ]*:(\d+)", line)
            if found:
                break
        if found is None:
            raise RuntimeError((root / "log").read_text())
        print(f"smb3server: process {process.pid}", file=sys.stderr)
        yield Target("smb3server", process.pid, "127.0.0.1", int(found[1]), pin)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def samba(root: Path, pin: bool) -> Iterator[Target]:
    root.mkdir()
    furnish(root / "perf")
    names = {
        "private dir": "private",
        "lock directory": "lock",
        "state directory": "state",
        "cache directory": "cache",
        "ncalrpc dir": "ncalrpc",
        "pid directory": "pid",
    }
    for folder in names.values():
        (root / folder).mkdir()
    lines = "\n".join(f"{key} = {root / folder}" for key, folder in names.items())
    configuration = root / "smb.conf"
    configuration.write_text(_SMB_CONF.format(address=SAMBA_ADDRESS, folders=lines, root=root, share=root / "perf"))
    subprocess.run(
        ["smbpasswd", "-c", str(configuration), "-s", "-a", USER],
        input=f"{PASSWORD}\n{PASSWORD}\n",
        text=True,
        capture_output=True,
        check=True,
    )
    prefix = ("taskset", "-c", "0") if pin else ()
    # Samba listens on addresses of interfaces only.
    address = ("dev", "lo", f"{SAMBA_ADDRESS}/8")
    added = subprocess.run(["ip", "addr", "add", address[2], *address[:2]], capture_output=True, check=False)
    process = subprocess.Popen(
        [*prefix, "smbd", "-F", "--no-process-group", "-s", str(configuration)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 10
        while not (root / "pid" / "smbd.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        yield Target("Samba", process.pid, SAMBA_ADDRESS, 445, pin)
    finally:
        process.terminate()
        process.wait(20)
        if not added.returncode:
            subprocess.run(["ip", "addr", "del", address[2], *address[:2]], capture_output=True, check=False)


def measure(labgen: Path, targets: list[Target], cases: list[str], seconds: float, rounds: int) -> None:
    """Print the table."""
    both = len(targets) == 2
    columns = ["case", "unit", *(target.name for target in targets), *(["ratio"] if both else [])]
    columns += [f"{target.name} µs/op" for target in targets] + (["ratio"] if both else [])
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for case in cases:
        best = [0.0] * len(targets)
        cost = [float("inf")] * len(targets)
        unit = "MB/s" if "MiB" in case else "per s"
        for _ in range(rounds):
            for index, target in enumerate(targets):
                operations, megabytes, cpu = target.run(
                    labgen, "-T", str(seconds), "-z", str(BIG_MEGABYTES), *CASES[case]
                )
                best[index] = max(best[index], megabytes if unit == "MB/s" else operations)
                cost[index] = min(cost[index], cpu)
        cells = [f"{value:,.0f}" for value in best]
        costs = [f"{value:,.0f}" for value in cost]
        if both:
            cells.append(f"{best[0] / best[1]:.2f}")
            costs.append(f"{cost[0] / cost[1]:.2f}" if cost[1] else "")
        print("| " + " | ".join([case, unit, *cells, *costs]) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="per case and server")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--no-samba", action="store_true")
    parser.add_argument("--pin", action="store_true", help="clients and servers on one processor core")
    parser.add_argument(
        "--folder", type=Path, default=Path("/dev/shm"), help="where the data lies (default: %(default)s)"
    )
    options = parser.parse_args()
    with_samba = not options.no_samba
    if with_samba and (os.geteuid() or shutil.which("smbd") is None):
        print("bench: without Samba, which needs root and smbd", file=sys.stderr)
        with_samba = False
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        root.chmod(0o755)
        labgen = build_client(root)
        targets = [stack.enter_context(ours(root / "ours", options.pin))]
        if with_samba:
            targets.append(stack.enter_context(samba(root / "samba", options.pin)))
        measure(labgen, targets, options.cases, options.seconds, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
