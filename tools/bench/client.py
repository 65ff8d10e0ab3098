"""Measure ``smb3server client`` beside smbclient: small files, a large file, a listing, and starting.

    python -m tools.bench.client [--rounds N] [--files N] [--size MIB] [--entries N] [--page docs/client.md]

Both clients run the same jobs against this server and against Samba, in turns in each round; who is first changes. A
job is one command, with its start. Its wall time and the processor time of its process are noted; the medians of the
rounds are shown. Both sign, as this client does by default. This client lets the server write each file to its disk
before the file gets its name, which smbclient does not. Needs root, smbd and smbclient.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.bench import machine, page
from smb3server.lab.bench.errors import BenchError
from smb3server.process import output
from tools.access_differential import servers

PART = "client-bench"
"""What stands between the page's markers."""
_USER = servers.LOGINS[0]
_SMALL = 4096
_LIMIT = 600.0
"""Seconds for one command."""


class Spent(NamedTuple):
    """What one command took, in seconds."""

    wall: float
    processor: float


class Server(NamedTuple):
    """A server that both clients use."""

    name: str
    port: int
    folder: Path
    """What its share shows."""


class Job(NamedTuple):
    """Something that both clients do."""

    name: str
    ours: Callable[[Server, Path], list[str]]
    """The words of ``smb3server client`` for a server and a local folder that is empty before."""
    theirs: Callable[[Server, Path], str] | None
    """The commands of smbclient; None if it has no such job."""
    judge: Callable[[Server, Path, Path], bool]
    """Whether the job was done, by server, local folder, and the folder with the sources."""


def _spend(words: Sequence[str], folder: Path) -> Spent:
    """Run a command in a folder. Raises ``BenchError`` if it fails."""
    environment = {**os.environ, "SMB3SERVER_PASSWORD": _USER.password, "PASSWD": _USER.password}
    # The packages beside this file, wherever the command runs.
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    # An installed program has its bytecode.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    with (folder.parent / "said").open("w+b") as said:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    if process.returncode or b"NT_STATUS" in text:
        raise BenchError(f"{' '.join(words)}: {process.returncode}: {text[-2000:].decode(errors='replace')}")
    return Spent(wall, used.ru_utime + used.ru_stime)


def _ours(job: Job, server: Server, local: Path) -> list[str]:
    return [sys.executable, "-m", "smb3server", "client", *job.ours(server, local)]


def _theirs(job: Job, server: Server, local: Path) -> list[str]:
    assert job.theirs is not None
    place = [f"//127.0.0.1/{servers.SHARE}", "-p", str(server.port), "-U", _USER.name]
    options = ["--client-protection=sign", "--option=client max protocol=SMB3_11", "-d", "0"]
    return ["smbclient", *place, *options, "-c", job.theirs(server, local)]


def _url(server: Server, path: str) -> str:
    return f"smb://{_USER.name}@127.0.0.1:{server.port}/{servers.SHARE}/{path}"


def _same_folders(one: Path, other: Path) -> bool:
    names = sorted(os.listdir(one))
    if names != sorted(os.listdir(other)):
        return False
    return filecmp.cmpfiles(one, other, names, shallow=False)[1:] == ([], [])


def jobs(files: int, size: int, entries: int) -> list[Job]:
    """Return what is measured: so many small files, MiB of the large file, and entries of the listed folder."""
    small, large = "small", "large"
    return [
        Job(
            f"get {files:,} files of 4 KiB",
            lambda server, local: ["get", "-q", "-r", _url(server, small), "."],
            lambda server, local: f"prompt off; recurse on; mget {small}",
            lambda server, local, made: _same_folders(local / small, made / small),
        ),
        Job(
            f"put {files:,} files of 4 KiB",
            lambda server, local: ["put", "-q", "-r", f"{local.parent / 'made' / small}", _url(server, "put/")],
            lambda server, local: f"prompt off; recurse on; cd put; lcd {local.parent / 'made'}; mput {small}",
            lambda server, local, made: _same_folders(server.folder / "put" / small, made / small),
        ),
        Job(
            f"get {size} MiB",
            lambda server, local: ["get", "-q", _url(server, large), "."],
            lambda server, local: f"get {large}",
            lambda server, local, made: filecmp.cmp(local / large, made / large, shallow=False),
        ),
        Job(
            f"put {size} MiB",
            lambda server, local: ["put", "-q", f"{local.parent / 'made' / large}", _url(server, "put/")],
            lambda server, local: f"cd put; lcd {local.parent / 'made'}; put {large}",
            lambda server, local, made: filecmp.cmp(server.folder / "put" / large, made / large, shallow=False),
        ),
        Job(
            f"ls, {entries:,} entries",
            lambda server, local: ["ls", _url(server, "listed")],
            lambda server, local: "cd listed; ls",
            lambda server, local, made: _said(local).count(b"entry-") == entries,
        ),
        Job(
            "ls, an empty folder",
            lambda server, local: ["ls", _url(server, "empty")],
            lambda server, local: "cd empty; ls",
            lambda server, local, made: True,
        ),
        Job(
            "--help",
            lambda server, local: ["--help"],
            None,
            lambda server, local, made: b"Usage" in _said(local),
        ),
    ]


def _said(local: Path) -> bytes:
    """Return what the command printed."""
    return (local.parent / "said").read_bytes()


def _make(made: Path, files: int, size: int) -> None:
    """Make the sources."""
    (made / "small").mkdir(parents=True)
    for number in range(files):
        (made / "small" / f"file-{number:06}").write_bytes(os.urandom(_SMALL))
    with (made / "large").open("wb") as file:
        for _ in range(size):
            file.write(os.urandom(1 << 20))
    os.sync()


def _give(server: Server, made: Path, entries: int) -> None:
    """Put onto a server's share what the jobs read."""
    shutil.copytree(made, server.folder, dirs_exist_ok=True)
    for name in ("listed", "empty", "put"):
        (server.folder / name).mkdir()
    for number in range(entries):
        (server.folder / "listed" / f"entry-{number:06}").touch()
    subprocess.run(["chown", "-R", _USER.name, str(server.folder)], check=True)
    os.sync()


@contextlib.contextmanager
def _emptied(server: Server, place: Path) -> Iterator[Path]:
    """Yield an empty local folder; the share's folder ``put`` is empty, too."""
    local = place / "local"
    local.mkdir()
    try:
        yield local
    finally:
        shutil.rmtree(local)
        for entry in (server.folder / "put").iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        # What one command leaves to be written must not be waited for by the next one.
        os.sync()


def _use_memory(place: Path, size: int) -> None:
    """Use as much memory as the largest job. The first use of memory that a virtual machine has given back takes longer
    than the job itself."""
    with tempfile.TemporaryFile(dir=place) as file:
        for _ in range(2 * size):
            file.write(bytes(1 << 20))


Results = dict[tuple[str, str, str], list[Spent]]
"""By job, server and client."""


def measure(place: Path, rounds: int, chosen: Sequence[Job], extent: tuple[int, int, int]) -> Results:
    """Run all jobs ``rounds`` times, in turns, and check each."""
    files, size, entries = extent
    made = place / "made"
    _make(made, files, size)
    found: Results = {}
    with contextlib.ExitStack() as stack:
        running = [
            ("this server", servers.running_own(place / "own", act_as_users=True)),
            ("Samba", servers.running_samba(place / "samba")),
        ]
        targets = [Server(name, *stack.enter_context(started)) for name, started in running]
        for target in targets:
            _give(target, made, entries)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for job in chosen:
                for target in targets:
                    for client, words in (("ours", _ours), ("smbclient", _theirs))[:: -1 if number % 2 else 1]:
                        if client == "smbclient" and job.theirs is None:
                            continue
                        with _emptied(target, place) as local:
                            _use_memory(place, size)
                            spent = _spend(words(job, target, local), local)
                            if not job.judge(target, local, made):
                                raise BenchError(f"{job.name}: {client} did not do it at {target.name}")
                        found.setdefault((job.name, target.name, client), []).append(spent)
    return found


def table(results: Results) -> str:
    """Return the medians, a line for each job and server."""
    lines = [
        ["job", "server", "ours: wall, s", "processor, s", "smbclient: wall, s", "processor, s", "wall", "processor"]
    ]
    for job, server in dict.fromkeys(key[:2] for key in results):
        ours = results[job, server, "ours"]
        theirs = results.get((job, server, "smbclient"))
        cells = [_median(ours, 0), _median(ours, 1)]
        if theirs is None:
            lines.append([job, server, *map(_shown, cells), "", "", "", ""])
            continue
        cells += [_median(theirs, 0), _median(theirs, 1)]
        ratios = [f"{cells[0] / cells[2]:.2f}", f"{cells[1] / cells[3]:.2f}" if cells[3] else ""]
        lines.append([job, server, *map(_shown, cells), *ratios])
    return page.grid(lines, "llrrrrrr")


def _median(samples: Sequence[Spent], value: int) -> float:
    return statistics.median(sample[value] for sample in samples)


def _shown(seconds: float) -> str:
    return f"{seconds:.2f}"


def document(results: Results, rounds: int, load: float) -> str:
    """Return what stands on the page: circumstances and table."""
    measured = machine.briefly(f"medians of {rounds} rounds")
    version = subprocess.run(["smbclient", "--version"], capture_output=True, text=True, check=True).stdout
    return (
        f"{measured} smbclient and smbd: {version.split()[1]}. Load of the machine before: {load:.2f}. The last two"
        f" columns are ours divided by smbclient's.\n\n{table(results)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.client", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=5000, help="small files")
    parser.add_argument("--size", type=int, default=512, metavar="MIB", help="of the large file")
    parser.add_argument("--entries", type=int, default=10000, help="of the folder that is listed")
    parser.add_argument("--only", default="", metavar="WORDS", help="jobs whose names have these words")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="for all files")
    parser.add_argument("--page", type=Path, help="write the table between the markers of this page")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.files, options.size, options.entries) < 1:
        parser.error("--rounds, --files, --size and --entries must be positive")
    load = os.getloadavg()[0]
    try:
        if missing := servers.missing() or ("" if shutil.which("smbclient") else "smbclient is not installed"):
            raise BenchError(missing)
        if options.page:
            page.check_page(options.page, PART)
        extent = (options.files, options.size, options.entries)
        chosen = [job for job in jobs(*extent) if options.only in job.name]
        with machine.workplace(options.folder, 6 * options.size + options.files // 20 + 100) as place:
            results = measure(place, options.rounds, chosen, extent)
        text = document(results, options.rounds, load)
        if options.page:
            page.rewrite(options.page, text, PART)
        else:
            print(text)
    except (BenchError, OSError, RuntimeError) as error:
        print(f"client: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
