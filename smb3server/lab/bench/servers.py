"""The two servers, each with a share of its own, running during a ``with`` block."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from smb3server.lab.bench.cases import FILES
from smb3server.lab.bench.client import PASSWORD, SHARE, USER, Target
from smb3server.lab.bench.errors import BenchError

ROOT = Path(__file__).resolve().parents[3]
SAMBA = "Samba"
FABRICS = {"iwarp": "iWARP", "roce": "RoCEv2"}
"""Fabrics of our software NICs, by their names on the command line."""
RDMA_CLIENT = ("-m", "smb3server.lab.bench.rdma_client", "--fabric")
"""What Python runs to make load over the fabric that follows."""
OUR_ADDRESS = "127.0.0.44"
"""An address of its own: RoCEv2 is served on one fixed UDP port, which the client on this machine needs as well."""
SAMBA_ADDRESS, SAMBA_PORT = "127.0.0.43", 445
IMPACKET_ADDRESS = "127.0.0.45"
SECOND_ADDRESS = "127.0.0.46"
"""For a second server of ours."""
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0
_LIMITS = """# One user has all connections of a run.
[limits]
max_connections = 16384
max_sessions_per_user = 16384
max_user_share = 1.0
"""
_IMPACKET = """
import sys
from impacket.ntlm import compute_lmhash, compute_nthash
from impacket.smbserver import SimpleSMBServer
address, share, folder, user, password = sys.argv[1:]
server = SimpleSMBServer(address, 0)
server.addShare(share, folder)
server.setSMB2Support(True)
server.addCredential(user, 0, compute_lmhash(password).hex(), compute_nthash(password).hex())
print(server.getServer().server_address[1], flush=True)
server.start()
"""
_SMB_CONF = """[global]
workgroup = LAB
netbios name = LABSMB
server role = standalone server
smb ports = {port}
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
[{share}]
path = {folder}
"""


def furnish(folder: Path, megabytes: int) -> None:
    """Make a share's content: a folder of empty files, a file of ``megabytes`` MiB of random bytes, and one of 1 MiB
    of text, which shrinks."""
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "dir10k").mkdir()
    for number in range(FILES):
        (folder / "dir10k" / f"file-{number:05}.dat").touch()
    with (folder / "big.bin").open("wb") as big:
        for _ in range(megabytes):
            big.write(os.urandom(1 << 20))
    (folder / "big.bin").chmod(0o666)
    text = b"".join(b"line %d of the text, with %d words\n" % (number, number % 7) for number in range(1 << 15))
    (folder / "text.bin").write_bytes(text[: 1 << 20])
    if os.geteuid() == 0:
        # Both servers then act as this user: Samba as the client's user, ours as the folder's owner.
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, USER, USER)


def _stop(process: subprocess.Popen[str]) -> None:
    """End a server and the remaining processes of its session."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()


@contextlib.contextmanager
def _started(name: str, command: Sequence[str], root: Path, ready: str) -> Iterator[tuple[int, str]]:
    """Run a server that writes a line when it is ready, and yield its process and that line.

    ``ready`` is how the line begins. Raises ``BenchError`` if the server ends, or has not written it in time.
    """
    with (root / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        watchdog = threading.Timer(_START_SECONDS, process.kill)
        watchdog.start()
        try:
            line = next((line for line in process.stdout or () if re.match(ready, line)), "")
        finally:
            watchdog.cancel()
        if not line:
            raise BenchError(f"{name} does not start: {(root / 'log').read_text(errors='replace').strip()}")
        yield process.pid, line
    finally:
        _stop(process)


@contextlib.contextmanager
def ours(
    root: Path,
    python: str,
    prefix: Sequence[str],
    megabytes: int,
    rdma: str = "off",
    module: str = "smb3server",
    address: str = OUR_ADDRESS,
    more: Sequence[str] = (),
) -> Iterator[Target]:
    """Run this project's server on the interpreter ``python``, also on the fabrics ``rdma``.

    ``more``: further options of it. ``module`` is what Python runs, with the server's options. Raises ``BenchError`` if
    it does not start.
    """
    root.mkdir()
    folder = root / SHARE
    furnish(folder, megabytes)
    command = [*prefix, python, "-m", module, "--share", f"{SHARE}={folder}", "--user", f"{USER}:{PASSWORD}"]
    command += ["--listen", address, "--port", "0", "--rdma", rdma, "--rdma-port", "0", "--log-level", "error"]
    (root / "limits.toml").write_text(_LIMITS)
    command += ["--config", str(root / "limits.toml"), *more]
    with _started("our server", command, root, r"ready ") as (process, line):
        ports = {kind: int(port) for kind, port in re.findall(r"(\w+) [^ ]*:(\d+)", line)}
        yield Target("smb3server", process, address, ports["tcp"], folder, ports=ports)


def over_fabrics(tcp: Target, fabrics: Sequence[str], python: str) -> list[Target]:
    """Return our server as clients over ``fabrics``, which run on ``python``, reach it."""
    return [
        tcp._replace(name=FABRICS[fabric], port=tcp.ports[fabric], generator=(python, *RDMA_CLIENT, fabric))
        for fabric in fabrics
    ]


@contextlib.contextmanager
def impacket(root: Path, python: str, prefix: Sequence[str], megabytes: int) -> Iterator[Target]:
    """Run impacket's server, which speaks SMB 2.0.2 alone: 64 KiB at a time at most, neither signed nor encrypted.

    Raises ``BenchError`` if it does not start.
    """
    root.mkdir()
    folder = root / SHARE
    furnish(folder, megabytes)
    command = [*prefix, python, "-c", _IMPACKET, IMPACKET_ADDRESS, SHARE, str(folder), USER, PASSWORD]
    with _started("impacket's server", command, root, r"\d+$") as (process, port):
        yield Target("impacket", process, IMPACKET_ADDRESS, int(port), folder, ("-d", "202"))


def samba_version() -> str:
    """Return the version of Samba's server.

    Raises ``BenchError`` if it is not installed with everything that the comparison needs, or may not be started.
    """
    alone = "--no-samba measures our server alone"
    if shutil.which("smbd") is None or shutil.which("smbpasswd") is None:
        raise BenchError(f"no Samba (Debian: samba samba-common-bin samba-vfs-modules); {alone}")
    built = subprocess.run(["smbd", "-b"], capture_output=True, text=True, check=False).stdout
    modules = re.search(r"MODULESDIR: (.+)", built)
    if modules and not (Path(modules[1].strip()) / "vfs" / "acl_xattr.so").exists():
        raise BenchError(f"Samba lacks its modules for ACLs and streams (Debian: samba-vfs-modules); {alone}")
    if os.geteuid():
        raise BenchError(f"Samba needs root: use sudo; {alone}")
    said = subprocess.run(["smbd", "--version"], capture_output=True, text=True, check=False).stdout
    return said.strip().removeprefix("Version ")


def _answers(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


@contextlib.contextmanager
def _address(text: str) -> Iterator[None]:
    """Give the loopback interface an address: Samba listens only on addresses of interfaces."""
    where = [f"{text}/8", "dev", "lo"]
    added = subprocess.run(["ip", "addr", "add", *where], capture_output=True, text=True, check=False)
    if added.returncode and "exist" not in added.stderr and "already" not in added.stderr:
        raise BenchError(f"cannot give the loopback interface an address: {added.stderr.strip()}")
    try:
        yield
    finally:
        if not added.returncode:
            subprocess.run(["ip", "addr", "del", *where], capture_output=True, check=False)


@contextlib.contextmanager
def samba(root: Path, prefix: Sequence[str], megabytes: int) -> Iterator[Target]:
    """Run Debian's Samba with its usual modules. Raises ``BenchError`` if it does not start."""
    root.mkdir()
    folder = root / SHARE
    furnish(folder, megabytes)
    keys = {
        "private dir": "private",
        "lock directory": "lock",
        "state directory": "state",
        "cache directory": "cache",
        "ncalrpc dir": "ncalrpc",
        "pid directory": "pid",
    }
    for name in keys.values():
        (root / name).mkdir()
    configuration = root / "smb.conf"
    configuration.write_text(
        _SMB_CONF.format(
            address=SAMBA_ADDRESS,
            port=SAMBA_PORT,
            folders="\n".join(f"{key} = {root / name}" for key, name in keys.items()),
            root=root,
            share=SHARE,
            folder=folder,
        )
    )
    made = subprocess.run(
        ["smbpasswd", "-c", str(configuration), "-s", "-a", USER],
        input=f"{PASSWORD}\n{PASSWORD}\n",
        text=True,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        raise BenchError(f"smbpasswd does not create the user {USER}: {made.stderr.strip()}")
    if _answers(SAMBA_ADDRESS, SAMBA_PORT):
        raise BenchError(f"{SAMBA_ADDRESS}:{SAMBA_PORT} is in use; stop the program that listens there")
    with _address(SAMBA_ADDRESS), (root / "smbd.log").open("w") as log:
        process = subprocess.Popen(
            [*prefix, "smbd", "-F", "--no-process-group", "-s", str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _answers(SAMBA_ADDRESS, SAMBA_PORT):
                if process.poll() is not None or time.monotonic() > deadline:
                    said = "\n".join(file.read_text(errors="replace") for file in sorted(root.glob("*log*")))
                    raise BenchError(f"Samba does not start: {said.strip()}")
                time.sleep(0.1)
            yield Target(SAMBA, process.pid, SAMBA_ADDRESS, SAMBA_PORT, folder)
        finally:
            _stop(process)
