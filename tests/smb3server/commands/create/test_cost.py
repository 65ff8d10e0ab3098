"""What it costs to open a file and to look at it: system calls that look at files, Python calls, and changes from one
source file to another. The numbers of calls are those without the modules in C."""

from __future__ import annotations

import asyncio
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smb3server.backends.local import syscalls
from smb3server.backends.local.backend import LocalBackend
from smb3server.dispatch import dispatcher
from smb3server.process import change_times
from smb3server.state.share import Share
from smb3server.wire.create import Access
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from tests.lab.walks import Walk, walking
from tests.lab.wire_client import NO_FILE, Client, compound, create_body, related, running

READ_WRITE = 0x0012019F


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
    for name in ("statx", "statx_at", "openat2_stat", "find_file"):
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


Cost = tuple[Walk, Counter[str]]


def measure(tmp_path: Path, looked: Counter[str], work: Callable[[Client], Awaitable[Walk]]) -> Cost:
    """Return the cost of what ``work`` has counted last."""

    async def test() -> Cost:
        backend = LocalBackend(tmp_path)
        try:
            async with running() as harness:
                # Off, as it is unless an operator asks for it.
                harness.server.measuring.watchdog = None
                harness.server.add_share(Share("local", backend=backend))
                client = await harness.connect()
                await client.login(share="local")
                return await work(client), Counter(looked)
        finally:
            backend.close()

    return asyncio.run(test())


def opening(tmp_path: Path, looked: Counter[str], *names: str, close: bool = False, access: int = READ_WRITE) -> Cost:
    """Send a CREATE (OPEN_IF) for each of ``names``, and return what the last of them cost; or, with ``close``, what it
    costs to close that."""

    async def work(client: Client) -> Walk:
        for name in names:
            with counting_work(looked) as found:
                reply = await client.open(name, access=access)
            assert reply.status == 0
        if close:
            body = struct.pack("<HHI", 24, 0, 0) + reply.body[64:80]
            with counting_work(looked) as found:
                assert (await client.call(Command.CLOSE, body)).status == 0
        return found

    return measure(tmp_path, looked, work)


def stating(tmp_path: Path, looked: Counter[str]) -> Cost:
    """Ask for all information of a file in one message, as a client does for stat(2), and return what that cost when it
    was asked again."""
    query = struct.pack("<HBBIHHIII", 41, 1, FileInfoClass.ALL, 4096, 0, 0, 0, 0, 0) + NO_FILE + b"\0"
    close = struct.pack("<HHI", 24, 0, 0) + NO_FILE

    async def work(client: Client) -> Walk:
        for _ in range(2):
            message = compound(
                client,
                client.build(Command.CREATE, create_body("a\\file", 1, int(Access.READ_ATTRIBUTES))),
                related(client, Command.QUERY_INFO, query),
                related(client, Command.CLOSE, close),
            )
            with counting_work(looked) as found:
                await client.frame(message)
                replies = await client.receive_compound()
            assert [reply.status for reply in replies] == [0, 0, 0]
        return found

    return measure(tmp_path, looked, work)


@pytest.mark.parametrize("folder", ["", "a\\", "a\\b\\c\\"])
def test_a_new_file_costs_little(tmp_path: Path, looked: Counter[str], folder: str) -> None:
    """However deep it is. The folder's names are known: a file was made there before."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    found, count = opening(tmp_path, looked, f"{folder}first", f"{folder}new")
    assert count["stat"] <= 6
    assert count["xattr"] <= 1
    assert found.calls <= 168
    assert found.changes <= 98


def test_an_existing_file_costs_less(tmp_path: Path, looked: Counter[str]) -> None:
    (tmp_path / "a").mkdir()
    found, count = opening(tmp_path, looked, "a\\file", "a\\file")
    assert count["stat"] <= 1
    assert count["xattr"] <= 2
    assert found.calls <= 109
    assert found.changes <= 72


def test_closing_a_new_file_costs_little(tmp_path: Path, looked: Counter[str]) -> None:
    (tmp_path / "a").mkdir()
    found, count = opening(tmp_path, looked, "a\\first", "a\\new", close=True)
    assert count["stat"] <= 2
    assert count["xattr"] == 0
    assert found.calls <= 54
    assert found.changes <= 36


def test_a_look_at_a_file_costs_one_look(looked: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attributes are known by the second time."""
    # Counting takes so long that the message would give way to others.
    monkeypatch.setattr(dispatcher, "TURN", 10.0)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        file = Path(folder) / "a" / "file"
        file.parent.mkdir()
        file.touch()
        while time.time_ns() - file.stat().st_ctime_ns < change_times.TICK_NS:
            time.sleep(0.01)
        found, count = stating(Path(folder), looked)
    # The second one is that of the descriptor that is closed.
    assert count["stat"] <= 2
    assert count["xattr"] == 0
    assert found.calls <= 76
    assert found.changes <= 60
