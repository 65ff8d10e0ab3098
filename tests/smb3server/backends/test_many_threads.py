"""State that all servers of a process and their worker threads share. Each test lets another thread in where it hurts.

None depends on chance: what one thread looks at lets the other one run, and waits for it unless it has to wait itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from smb3server.access.known_descriptors import KnownDescriptors
from smb3server.backends.base import FileKey
from smb3server.backends.local import mappings, own_changes, page_cache
from smb3server.backends.local.own_changes import OwnChanges, RecentChanges

PATIENCE = 0.2
"""Seconds in which the other thread has done its work, or waits for a lock."""


class Other:
    """Another thread, which does its work when it is let in."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def let_in(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run)
            self._thread.start()
            self._thread.join(PATIENCE)

    def ended(self) -> None:
        assert self._thread is not None, "it was never let in"
        self._thread.join()
        assert self.error is None


class Moment(float):
    """A time, which lets the other thread in when it is compared."""

    other: Other

    def __lt__(self, than: object) -> bool:
        self.other.let_in()
        return float.__lt__(self, than)  # type: ignore[operator]


def test_a_worker_changes_a_file_while_changes_are_forgotten() -> None:
    changes = RecentChanges()
    asked: list[None] = []
    changes.settle_later = lambda: asked.append(None)
    for inode in range(3):
        changes.touch(FileKey(1, inode))
    until = Moment(0.0)
    until.other = Other(lambda: changes.touch(FileKey(1, 99)))
    changes.settle(until)
    until.other.ended()
    assert changes.is_touched(FileKey(1, 99))


def test_two_servers_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hears of the other's changes, though one begins while the other looks for those that are there."""
    first = OwnChanges(tmp_path)
    made: list[OwnChanges] = []
    other = Other(lambda: made.append(OwnChanges(tmp_path / "b")))
    overlap = own_changes._overlap

    def look(one: str, two: str) -> bool:
        other.let_in()
        return overlap(one, two)

    monkeypatch.setattr(own_changes, "_overlap", look)
    second = OwnChanges(tmp_path)
    other.ended()
    try:
        assert set(second._others) == {first, *made}
        assert set(made[0]._others) == {first, second}
        assert set(first._others) == {second, *made}
    finally:
        for each in (first, second, *made):
            each.close()
    assert not first._others


def test_threads_ask_for_what_is_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one asks for is not overwritten by another before the call."""
    file = tmp_path / "file"
    file.write_bytes(bytes(page_cache.mmap.PAGESIZE))
    descriptor = os.open(file, os.O_RDONLY)
    asked: dict[int, tuple[int, int]] = {}
    other = Other(lambda: page_cache.holds(descriptor, 1 << 20, 2))

    def syscall(_number: int, _descriptor: int, given: int, _result: int, _flags: int) -> int:
        other.let_in()
        data = page_cache.ctypes.string_at(given, page_cache._RANGE.size)
        asked[threading.get_ident()] = page_cache._RANGE.unpack(data)
        return -1

    monkeypatch.setattr(page_cache, "_syscall", syscall)
    try:
        page_cache.holds(descriptor, 0, 1)
        other.ended()
    finally:
        os.close(descriptor)
    assert asked.pop(threading.get_ident()) == (0, 1)
    assert list(asked.values()) == [(1 << 20, 2)]


def test_one_file_makes_room_while_another_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "MAX_WINDOWS", 1)
    monkeypatch.setattr(mappings, "KEEP_SECONDS", 0.0)
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    descriptor = os.open(file, os.O_RDONLY)
    one, two = mappings.MappedFile(), mappings.MappedFile()
    other = Other(lambda: two.part(descriptor, 0, 4, 10))
    try:
        assert one.part(descriptor, 0, 4, 10) == b"0123"
        monotonic = mappings.time.monotonic

        def clock() -> float:
            other.let_in()
            return monotonic()

        monkeypatch.setattr(mappings.time, "monotonic", clock)
        assert one.part(descriptor, 2, 4, 10) == b"2345"
        other.ended()
    finally:
        monkeypatch.undo()
        one.close()
        two.close()
        os.close(descriptor)


class Packed(bytes):
    """A descriptor, which lets the other thread in when it is looked for."""

    other: Other

    def __hash__(self) -> int:
        if hasattr(self, "other"):
            self.looked = getattr(self, "looked", 0) + 1
            if self.looked > 1:
                self.other.let_in()
        return bytes.__hash__(self)


def test_a_descriptor_is_dropped_while_it_is_found() -> None:
    known = KnownDescriptors(limit=2000)
    data = Packed(b"a" * 20)
    known.find(bytes(data))
    data.other = Other(lambda: known.find(b"b" * 90))
    found = known.find(data)
    data.other.ended()
    assert found.data == b"a" * 20
    assert known.size == sum(entry.size for entry in known._entries.values())
