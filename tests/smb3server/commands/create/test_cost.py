"""What one CREATE costs: system calls that look at files, Python calls, and changes from one source file to another."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smb3server.backends.local import syscalls
from smb3server.backends.local.backend import LocalBackend
from smb3server.state.share import Share
from smb3server.wire.header import Command
from tests.lab.walks import Walk, walking
from tests.lab.wire_client import running


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts calls of statx(2) and of the getxattr(2) family."""
    count: Counter[str] = Counter()

    def counted(kind: str, call: Callable[..., object]) -> Callable[..., object]:
        def counting(*arguments: object) -> object:
            count[kind] += 1
            return call(*arguments)

        return counting

    # One of these may make several calls of openat2(2), but has one stat of what it opens.
    for name in ("statx", "statx_at", "openat2_stat", "openat2_first"):
        monkeypatch.setattr(syscalls, name, counted("stat", getattr(syscalls, name)))
    for name in ("fgetxattr", "getxattr", "getxattr_at"):
        monkeypatch.setattr(syscalls, name, counted("xattr", getattr(syscalls, name)))
    return count


@contextmanager
def counting_work(count: Counter[str]) -> Iterator[Walk]:
    """Count what the server does in the block, while it handles what has come in over TCP."""
    count.clear()
    with walking("TcpTransport._readable") as walk:
        yield walk
    count["stat"] += walk.stats
    # Shown if the test fails, or with -s.
    print(walk, dict(count))


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
                    with counting_work(looked) as found:
                        reply = await client.open(name)
                    assert reply.status == 0
                if close:
                    body = struct.pack("<HHI", 24, 0, 0) + reply.body[64:80]
                    with counting_work(looked) as found:
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
