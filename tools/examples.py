"""``python -m tools.examples``: run each of the systems in examples/ on a small input, and print a table of what they
did and what their results were compared with.

Exit status 1 if one of them failed. A program is a row of ``PROGRAMS``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from smb3server.process import output
from tools.support.ports import free_port

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PATIENCE = 90.0
"""Seconds that one command may take."""


class Failed(Exception):
    """A program did not do what it says."""


class Done(NamedTuple):
    """What a program did, and what its result was compared with."""

    did: str
    checked: str


class Program(NamedTuple):
    """A row of the table."""

    name: str
    path: str
    """In examples/."""
    run: Callable[[Path], Done]
    """Gets an empty folder. Raises ``Failed``."""


def _start(words: list[str], errors: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a program of examples/, in a session of its own, so that all it starts can be ended with it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / words[0]), *words[1:]],
        env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
    )  # fmt: skip


def _call(*words: object) -> str:
    """Run a program of examples/, and return what it prints. Raise ``Failed`` if it fails or does not end."""
    process = _start([str(word) for word in words])
    try:
        said, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(map(str, words[:2]))} did not end within {PATIENCE:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        last = (errors or said).strip().splitlines()[-1:] or ["it says nothing"]
        raise Failed(f"{' '.join(map(str, words[:2]))}: exit status {process.returncode}: {last[0]}")
    return said


@contextmanager
def _serving(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server for the length of the block. It is there when it has printed its first line."""
    process = _start(list(words), subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise Failed(f"{' '.join(words)} did not start")
        yield process
    finally:
        process.kill()
        process.communicate()


def thirty_lines(_: Path) -> Done:
    """Both ends in one process; the page shows what they print."""
    page = (ROOT / "docs" / "rdma-api.md").read_text()
    shown = re.search(r"^```text\n(.*?)^```", page, re.M | re.S)
    said = _call("rdma_in_thirty_lines.py")
    if shown is None or said != shown[1]:
        raise Failed(f"it printed {said!r}, docs/rdma-api.md says otherwise")
    return Done("a read and a write of another program's memory", "what docs/rdma-api.md shows")


def rstore(folder: Path) -> Done:
    """A file with two copies, and one of the servers killed."""
    source, target = folder / "source", folder / "target"
    source.write_bytes(os.urandom(8 << 20))
    program = ["rstore", "--master", f"127.0.0.1:{free_port()}"]
    serve = [*program, "serve", "--memory", "32M"]
    with (
        _serving(*program, "master", "--state", str(folder / "state")),
        _serving(*serve) as first, _serving(*serve), _serving(*serve),
    ):  # fmt: skip
        deadline = time.monotonic() + 20
        while _call(*program, "ls").count("server") < 3:
            if time.monotonic() > deadline:
                raise Failed("three memory servers did not join")
        _call(*program, "put", "file", source, "--copies", "2")
        first.kill()
        _call(*program, "get", "file", target)
    if target.read_bytes() != source.read_bytes():
        raise Failed("the file that came back is another one")
    return Done("8 MiB in 3 memory servers, 2 copies, one server killed", "the file itself")


def rsort(folder: Path) -> Done:
    """A small sort, against GNU sort."""
    source, target = folder / "source", folder / "target"
    _call("rsort", "gen", source, 100_000)
    _call("rsort", "sort", source, target, "--workers", 2)
    _call("rsort", "check", target)
    gnu = [shutil.which("sort") or "sort", "-s", "-k1.1,1.10", "-o", str(folder / "gnu"), str(source)]
    subprocess.run(gnu, env={"LC_ALL": "C"}, check=True)
    if (folder / "gnu").read_bytes() != target.read_bytes():
        raise Failed("GNU sort has another order")
    return Done("100,000 records sorted by 2 workers", "GNU sort, byte for byte")


def carafe(folder: Path) -> Done:
    """Three programs on a Kronecker graph, which it compares with scipy itself."""
    graph = folder / "graph"
    _call("carafe", "gen", graph, 13)
    for command in ("pagerank", "bfs", "components"):
        said = _call("carafe", command, graph, "--workers", 2, "--check")
        if "scipy has the same" not in said:
            raise Failed(f"{command}: nothing was compared")
    return Done("PageRank, BFS and components of 8,192 vertices, 2 workers", "scipy.sparse on one core")


def flashnet(folder: Path) -> Done:
    """A file of a folder that is lent, read one-sided."""
    text = os.urandom(2 << 20).hex()
    (folder / "file").write_text(text)
    program = ["flashnet", "--address", f"127.0.0.1:{free_port()}"]
    with _serving(*program, "serve", str(folder)):
        if _call(*program, "read", "file") != text:
            raise Failed("the file that was read is another one")
    return Done("4 MiB of a file read by RDMA", "the file itself")


PROGRAMS = (
    Program("RDMA in thirty lines", "rdma_in_thirty_lines.py", thirty_lines),
    Program("RStore", "rstore", rstore),
    Program("RSort", "rsort", rsort),
    Program("Carafe", "carafe", carafe),
    Program("FlashNet", "flashnet", flashnet),
)


class Row(NamedTuple):
    """A line of the table."""

    program: str
    did: str
    checked: str
    seconds: str
    failed: bool = False


def run(program: Program) -> Row:
    """Run a program in a folder of its own."""
    if not (EXAMPLES / program.path).exists():
        return Row(program.name, f"not there yet: examples/{program.path}", "-", "-")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            did, checked = program.run(Path(folder))
            failed = False
        except (Failed, OSError, subprocess.CalledProcessError) as error:
            did, checked, failed = f"FAILED: {error}", "-", True
    return Row(program.name, did, checked, f"{time.perf_counter() - began:.1f}", failed)


def table(rows: list[Row]) -> str:
    """Return the rows as a table."""
    lines = [("program", "what it did", "checked against", "seconds"), *(row[:4] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([shown[0], "  ".join("-" * width for width in widths), *shown[1:]])


def main() -> int:
    """Run the programs whose names begin with one of the words on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m tools.examples", description=__doc__.partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="RStore, Carafe, ...; default: all")
    names = [name.lower() for name in parser.parse_args().names]
    chosen = [p for p in PROGRAMS if not names or any(p.name.lower().startswith(name) for name in names)]
    if not chosen:
        parser.error(f"none of {', '.join(program.name for program in PROGRAMS)}")
    rows = []
    for program in chosen:
        print(f"{program.name} ...", file=sys.stderr, flush=True)
        rows.append(run(program))
    print(table(rows))
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(output.run(main))
