"""What one CREATE costs: system calls that look at files, Python calls, and changes from one source file to another."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import smb3server
import smbdirect
from smb3server.backends.local import syscalls
from smb3server.backends.local.backend import LocalBackend
from smb3server.state.share import Share
from smb3server.wire.header import Command
from tests.lab.wire_client import running

_STATS = ("stat", "fstat", "lstat")
_SOURCES = tuple(f"{Path(package.__file__).parent}/" for package in (smb3server, smbdirect))


class Walk:
    """Profiler (``sys.setprofile``) of the server: counts while it handles what has come in over TCP."""

    def __init__(self) -> None:
        self.calls = 0
        """Of Python functions of the server."""
        self.changes = 0
        """Such calls in another file than the one before."""
        self.stats = 0
        """stat(2), fstat(2), lstat(2) by way of ``os``."""
        self.steps: list[str] = []
        """The calls in their order, indented by depth; a star marks a change of file."""
        self._file = ""
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call":
            if self._depth or code.co_qualname == "TcpTransport._readable":
                self._depth += 1
                self._called(code.co_filename, code.co_qualname)
        elif event == "return":
            self._depth -= self._depth > 0
        elif event == "c_call" and self._depth and argument.__name__ in _STATS:
            self.stats += 1

    def _called(self, file: str, name: str) -> None:
        if file.startswith(_SOURCES):
            self.calls += 1
            self.changes += file != self._file
            mark = "*" if file != self._file else " "
            self.steps.append(f"{mark}{' ' * self._depth}{'/'.join(Path(file).parts[-2:])}: {name}")
            self._file = file


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts calls of statx(2) and of the getxattr(2) family."""
    count: Counter[str] = Counter()

    def counted(kind: str, call: Callable[..., int]) -> Callable[..., int]:
        def counting(*arguments: object) -> int:
            count[kind] += 1
            return call(*arguments)

        return counting

    monkeypatch.setattr(syscalls, "_statx", counted("stat", syscalls._statx))
    for name in ("_fgetxattr", "_getxattr", "_lgetxattr", "_getxattrat"):
        monkeypatch.setattr(syscalls, name, counted("xattr", getattr(syscalls, name)))
    return count


@contextmanager
def walking(count: Counter[str]) -> Iterator[Walk]:
    """Count what the server does in the block."""
    found = Walk()
    count.clear()
    sys.setprofile(found)
    try:
        yield found
    finally:
        sys.setprofile(None)
    count["stat"] += found.stats
    # Shown if the test fails, or with -s.
    print(*found.steps, f"{found.calls} calls, {found.changes} changes of file, {dict(count)}", sep="\n")


def measure(tmp_path: Path, looked: Counter[str], *names: str, close: bool = False) -> tuple[Walk, Counter[str]]:
    """Send a CREATE (OPEN_IF, read and write) for each of ``names``, and return what the last of them cost; or, with
    ``close``, what it costs to close that."""

    async def test() -> tuple[Walk, Counter[str]]:
        backend = LocalBackend(tmp_path)
        try:
            async with running() as harness:
                harness.server.add_share(Share("local", backend=backend))
                client = await harness.connect()
                await client.login(share="local")
                for name in names:
                    with walking(looked) as found:
                        reply = await client.open(name)
                    assert reply.status == 0
                if close:
                    body = struct.pack("<HHI", 24, 0, 0) + reply.body[64:80]
                    with walking(looked) as found:
                        assert (await client.call(Command.CLOSE, body)).status == 0
                return found, Counter(looked)
        finally:
            backend.close()

    return asyncio.run(test())


@pytest.mark.parametrize("folder", ["", "a\\", "a\\b\\c\\"])
def test_a_new_file_costs_little(tmp_path: Path, looked: Counter[str], folder: str) -> None:
    """However deep it is. The folder's names are known: a file was made there before."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    found, count = measure(tmp_path, looked, f"{folder}first", f"{folder}new")
    assert count["stat"] <= 6
    assert count["xattr"] <= 1
    assert found.calls <= 200
    assert found.changes <= 100


def test_an_existing_file_costs_less(tmp_path: Path, looked: Counter[str]) -> None:
    (tmp_path / "a").mkdir()
    found, count = measure(tmp_path, looked, "a\\file", "a\\file")
    assert count["stat"] <= 1
    assert count["xattr"] <= 2
    assert found.calls <= 150
    assert found.changes <= 80


def test_closing_a_new_file_costs_little(tmp_path: Path, looked: Counter[str]) -> None:
    (tmp_path / "a").mkdir()
    found, count = measure(tmp_path, looked, "a\\first", "a\\new", close=True)
    assert count["stat"] <= 2
    assert count["xattr"] == 0
    assert found.calls <= 60
    assert found.changes <= 38
