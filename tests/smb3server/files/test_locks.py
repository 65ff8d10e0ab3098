"""Byte-range locks as a state machine (MS-FSA 2.1.4.10, 2.1.5.7, 2.1.5.8)."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.files import locks
from smb3server.files.locks import MAX_OFFSET, Lock, LockTable, RangeIndex, Waiter, valid_range

A, B, C = object(), object(), object()
offsets = st.one_of(st.integers(0, 12), st.integers(MAX_OFFSET - 12, MAX_OFFSET), st.integers(2**63 - 4, 2**63 + 4))
lengths = st.one_of(st.integers(0, 12), st.just(2**63), st.just(MAX_OFFSET))


def overlaps(offset1: int, length1: int, offset2: int, length2: int) -> bool:
    """The rule (MS-FSA 2.1.4.10): an empty range overlaps only what holds bytes on both sides of it."""
    return offset1 <= offset2 + length2 - 1 and offset2 <= offset1 + length1 - 1


@given(offsets, lengths, offsets, lengths)
def test_overlap_is_symmetric(o1: int, l1: int, o2: int, l2: int) -> None:
    assert overlaps(o1, l1, o2, l2) == overlaps(o2, l2, o1, l1)


@given(st.integers(0, 20), st.integers(1, 10), st.integers(0, 20), st.integers(1, 10))
def test_overlap_of_ranges_with_bytes(o1: int, l1: int, o2: int, l2: int) -> None:
    shared = set(range(o1, o1 + l1)) & set(range(o2, o2 + l2))
    assert overlaps(o1, l1, o2, l2) == bool(shared)


def test_empty_range_overlaps_only_what_surrounds_it() -> None:
    assert not overlaps(5, 0, 5, 0)
    assert not overlaps(5, 0, 5, 10)
    assert overlaps(6, 0, 5, 10)
    assert overlaps(14, 0, 5, 10)
    assert not overlaps(15, 0, 5, 10)
    assert not overlaps(0, 0, 0, MAX_OFFSET)


def test_valid_range_limits() -> None:
    assert valid_range(MAX_OFFSET, 1)
    assert not valid_range(MAX_OFFSET, 2)
    assert valid_range(MAX_OFFSET, 0)
    assert valid_range(2**63, 2**63)
    assert not valid_range(2**63, 2**63 + 1)


def never(callback: Callable[[], None]) -> None:
    """For tables in which nobody waits."""
    raise AssertionError(callback)


def run_all(soon: list[Callable[[], None]]) -> None:
    while soon:
        soon.pop(0)()


def test_exclusive_conflicts_with_everything() -> None:
    table = LockTable(never)
    assert table.acquire(A, 0, 10, True)
    assert not table.acquire(B, 9, 1, False)
    assert not table.acquire(B, 9, 1, True)
    assert not table.acquire(A, 0, 10, True)
    assert table.acquire(A, 0, 10, False), "shared over one's own exclusive lock"
    assert table.acquire(B, 10, 1, True)


def test_shared_locks_coexist_and_unlock_one_by_one() -> None:
    table = LockTable(never)
    assert table.acquire(A, 0, 10, False)
    assert table.acquire(A, 0, 10, False)
    assert table.acquire(B, 0, 10, False)
    assert table.release(A, 0, 10)
    assert table.release(A, 0, 10)
    assert not table.release(A, 0, 10)
    assert len(table.locks) == 1


def test_unlock_needs_the_exact_range_and_takes_the_exclusive_one_first() -> None:
    table = LockTable(never)
    table.acquire(A, 0, 10, True)
    table.acquire(A, 0, 10, False)
    assert not table.release(A, 0, 9)
    assert not table.release(B, 0, 10)
    assert table.release(A, 0, 10)
    assert [lock.exclusive for lock in table.locks] == [False]


def test_io_conflicts() -> None:
    table = LockTable(never)
    table.acquire(A, 10, 10, True)
    assert table.denies_read(B, 15, 1)
    assert table.denies_write(B, 5, 6)
    assert not table.denies_read(A, 15, 1)
    assert not table.denies_write(A, 15, 1)
    assert not table.denies_read(B, 20, 5)
    assert not table.denies_read(B, 12, 0)
    shared = LockTable(never)
    shared.acquire(A, 10, 10, False)
    assert not shared.denies_read(B, 15, 1)
    assert shared.denies_write(A, 15, 1), "a shared lock stops its own holder's writes, too"


def test_waiters_are_granted_in_order_and_end_with_their_owner() -> None:
    soon: list[Callable[[], None]] = []
    events: list[str] = []
    table = LockTable(soon.append)
    table.acquire(A, 0, 1, True)
    first = table.wait(B, 0, 1, True, lambda: events.append("first"), lambda: events.append("first closed"))
    table.wait(B, 0, 1, True, lambda: events.append("second"), lambda: events.append("second closed"))
    table.release(A, 0, 1)
    assert events == [], "nobody goes on while the one who unlocks is at work"
    assert table.locks_of(B), "but the lock is theirs"
    run_all(soon)
    assert events == ["first"]
    assert not table.cancel(first)
    table.release_owner(B)
    run_all(soon)
    assert events == ["first", "second closed"]
    assert not table.locks
    assert not table.waiters


def test_cancelled_waiter_is_never_granted() -> None:
    soon: list[Callable[[], None]] = []
    events: list[str] = []
    table = LockTable(soon.append)
    table.acquire(A, 0, 1, True)
    waiter = table.wait(B, 0, 1, True, lambda: events.append("granted"), lambda: events.append("closed"))
    assert table.cancel(waiter)
    table.release(A, 0, 1)
    run_all(soon)
    assert events == []


@pytest.mark.parametrize(("give_up", "told"), [("cancel", []), ("close", ["closed"]), ("unlock", ["closed"])])
def test_who_holds_a_lock_and_was_not_told_yet_can_give_it_up(give_up: str, told: list[str]) -> None:
    """Nobody is told of a lock that is gone again."""
    soon: list[Callable[[], None]] = []
    events: list[str] = []
    table = LockTable(soon.append)
    table.acquire(A, 0, 1, True)
    waiter = table.wait(B, 0, 1, True, lambda: events.append("granted"), lambda: events.append("closed"))
    table.wait(C, 0, 1, True, lambda: events.append("next"), lambda: events.append("next closed"))
    table.release(A, 0, 1)
    if give_up == "cancel":
        assert table.cancel(waiter)
        assert not table.cancel(waiter)
    elif give_up == "close":
        table.release_owner(B)
    else:
        assert table.release(B, 0, 1)
    run_all(soon)
    assert sorted(events) == sorted(["next", *told])
    assert [lock.owner for lock in table.locks] == [C]


@given(st.lists(st.tuples(st.sampled_from([A, B]), offsets, lengths, st.booleans(), st.booleans()), max_size=30))
def test_held_locks_never_conflict(operations: list[tuple[object, int, int, bool, bool]]) -> None:
    table = LockTable(never)
    for owner, offset, length, exclusive, unlock in operations:
        if not valid_range(offset, length):
            continue
        before = len(table.locks)
        if unlock:
            assert bool(table.release(owner, offset, length)) == (len(table.locks) < before)
        else:
            table.acquire(owner, offset, length, exclusive)
        for lock in table.locks:
            for other in table.locks:
                if lock.owner is not other.owner and lock.exclusive:
                    assert not overlaps(lock.offset, lock.length, other.offset, other.length)


@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize("spread", [15, 200])
@pytest.mark.parametrize("seed", range(4))
def test_index_agrees_with_looking_at_all(chunk: int, spread: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "CHUNK", chunk)
    chance = random.Random(f"{chunk} {spread} {seed}")
    index: RangeIndex[object] = RangeIndex()
    held: list[Lock] = []
    for _ in range(400):
        if held and chance.random() < 0.45:
            gone = held.pop(chance.randrange(len(held)))
            index.remove(gone)
        else:
            lock = Lock(chance.choice((A, B)), chance.randrange(spread), chance.choice((0, 1, 2, 7, 50)), False)
            held.append(lock)
            index.add(lock)
        assert len(index) == len(held)
        offset, length, but = chance.randrange(spread), chance.choice((0, 1, 3, 20, 500)), chance.choice((A, B, None))
        expected = any(lock.owner is not but and overlaps(offset, length, lock.offset, lock.length) for lock in held)
        assert index.overlapped(offset, length, but) is expected


@pytest.mark.parametrize("seed", range(8))
def test_waiters_agree_with_looking_at_all(seed: int) -> None:
    """Those that could be granted are granted, oldest first: none stays for whom nothing is in the way."""
    chance = random.Random(seed)
    soon: list[Callable[[], None]] = []
    table = LockTable(soon.append)
    waiting: list[Waiter] = []

    def range_() -> tuple[int, int, bool]:
        return chance.randrange(30), chance.choice((0, 1, 2, 9)), chance.random() < 0.5

    for _ in range(600):
        owner, (offset, length, exclusive) = chance.choice((A, B, C)), range_()
        match chance.randrange(5):
            case 0:
                table.acquire(owner, offset, length, exclusive)
            case 1 if table.conflicts(owner, offset, length, exclusive):
                waiting.append(table.wait(owner, offset, length, exclusive, lambda: None, lambda: None))
            case 2 if waiting:
                table.cancel(waiting.pop(chance.randrange(len(waiting))))
            case 3 if table.locks:
                for lock in chance.sample(list(table.locks), min(3, len(table.locks))):
                    table.release_newest(lock.owner, lock.offset, lock.length, lock.exclusive, grant=False)
                table.grant_waiters()
            case 4 if chance.random() < 0.1:
                table.release_owner(owner)
        for wanted in table.waiters:
            assert table.conflicts(wanted.owner, wanted.offset, wanted.length, wanted.exclusive)
        for each in (A, B, C):
            held, waits = table.locks_of(each), [lock for lock in table.waiters if lock.owner is each]
            assert table.count_of(each) == len(held) + len(waits)
    run_all(soon)


def test_only_waiters_in_the_way_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many locks one request gives back, and however many requests wait elsewhere."""
    looks = 0
    conflicts = LockTable.conflicts

    def counting(self: LockTable, *arguments: Any) -> bool:
        nonlocal looks
        looks += 1
        return conflicts(self, *arguments)

    soon: list[Callable[[], None]] = []
    table = LockTable(soon.append)
    table.acquire(A, 0, 10, True)
    for _ in range(2000):
        table.wait(B, 0, 10, True, lambda: None, lambda: None)
    for number in range(255):
        table.acquire(C, 1000 + number, 1, True)
    monkeypatch.setattr(LockTable, "conflicts", counting)
    for number in range(255):
        table.release_newest(C, 1000 + number, 1, True, grant=False)
    table.grant_waiters()
    assert looks == 0
    table.release(A, 0, 10)
    assert looks <= locks.AT_ONCE
    assert len(table.locks) == 1
    while soon:
        before = looks
        soon.pop(0)()
        assert looks - before <= locks.AT_ONCE


@pytest.mark.parametrize("stacked", [False, True])
def test_a_great_many_locks_take_no_great_time(stacked: bool) -> None:
    """A client may send thousands of them in one message."""
    table = LockTable(never)
    count = 30_000
    begun = time.monotonic()
    for number in range(count):
        assert table.acquire(A, 0 if stacked else 2 * number, number + 1 if stacked else 1, not stacked)
    for number in range(0, count, 10):
        assert not table.acquire(B, number, 1, True) or not stacked
        assert not table.denies_read(A, 2 * number, 100)
        table.denies_write(B, count + number, 100)
    for number in range(count):
        assert table.release(A, 0 if stacked else 2 * number, number + 1 if stacked else 1)
    assert time.monotonic() - begun < 5
    table.release_owner(B)
    assert not table.locks and not table.waiters
