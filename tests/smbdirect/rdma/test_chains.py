"""What is done for each work request of a program, in Python and in C: transfers and chains."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from smbdirect import native
from smbdirect.message_transport import RemoteBuffer
from smbdirect.providers.base import Atomic, Read, RemoteSegment, Send, Write
from smbdirect.rdma import chain_calls
from smbdirect.rdma.chain_calls import OnDone, Waiting
from smbdirect.rdma.work_queue import Group

NAME = "smbdirect.rdma._native"
WRITE, READ = (Write, RemoteSegment, False), (Read, RemoteSegment, True)
KINDS = Send, Write, Group
TOP = (1 << 64) - 8


def c_calls() -> ModuleType:
    why = native.problem(NAME)
    if why is not None:
        pytest.skip(f"{NAME}: {why}")
    from smbdirect.rdma import _native

    return _native


@pytest.fixture(params=["python", "c"])
def calls(request: pytest.FixtureRequest) -> ModuleType:
    return chain_calls if request.param == "python" else c_calls()


def ignore(error: BaseException | None) -> None:
    """Somebody waits."""


def view(size: int) -> memoryview:
    return memoryview(bytearray(size))


# -- transfers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [WRITE, READ])
@pytest.mark.parametrize("sizes", [(8,), (4,), (3, 5)])
@pytest.mark.parametrize("address", [0, 1000, TOP])
def test_a_plain_transfer_is_queued(
    calls: ModuleType, kind: tuple[Any, Any, bool], sizes: Sequence[int], address: int
) -> None:
    waiting: Waiting = []
    local = [view(size) for size in sizes]
    total = sum(sizes)
    assert calls.transfer(waiting, kind, [RemoteBuffer(address, 7, 8)], local, ignore, 8, 2) == total
    ((request, on_done, ended),) = waiting
    assert (type(request), on_done, ended) == (kind[0], ignore, 0)
    assert request.segments is local
    assert type(request.remote) is RemoteSegment
    assert request.remote == RemoteSegment(7, address, total)
    assert (request.context, request.signalled) == (None, kind[2])


@pytest.mark.parametrize(
    ("remote", "sizes"),
    [
        ([], (8,)),
        ([RemoteBuffer(0, 7, 8), RemoteBuffer(0, 7, 8)], (8,)),
        ([RemoteBuffer(0, 7, 7)], (8,)),
        ([RemoteBuffer(0, 7, 99)], (9,)),
        ([RemoteBuffer(0, 7, 8)], (0,)),
        ([RemoteBuffer(0, 7, 8)], ()),
        ([RemoteBuffer(0, 7, 8)], (1, 1, 1)),
        ([RemoteBuffer(TOP, 7, 9)], (8,)),
        ([RemoteBuffer((1 << 64) - 1, 7, 8)], (8,)),
    ],
)
def test_other_transfers_are_left_alone(
    calls: ModuleType, remote: Sequence[RemoteBuffer], sizes: Sequence[int]
) -> None:
    waiting: Waiting = []
    assert calls.transfer(waiting, WRITE, remote, [view(size) for size in sizes], None, 8, 2) == 0
    assert not waiting


def test_both_find_the_same_transfers() -> None:
    chance = random.Random(2)
    sizes, queued = [0, 1, 7, 8, 9, 100], 0
    for _ in range(3000):
        remote = [
            RemoteBuffer(chance.choice([0, 5, TOP - 1, TOP, TOP + 1]), 7, chance.choice(sizes))
            for _ in range(chance.choice([0, 1, 1, 1, 2]))
        ]
        local = [view(chance.choice(sizes)) for _ in range(chance.randrange(4))]
        most, pieces = chance.choice(sizes), chance.randrange(4)
        found: list[tuple[int, Waiting]] = []
        for each in (chain_calls, c_calls()):
            waiting: Waiting = []
            found.append((each.transfer(waiting, READ, remote, local, None, most, pieces), waiting))
        (total, waits), (same, others) = found
        assert total == same
        assert [(item.remote, item.segments) for item, _, _ in waits] == [(o.remote, o.segments) for o, _, _ in others]
        queued += bool(total)
    assert queued > 50


@pytest.mark.parametrize("local", [[7], None, 7])
def test_what_is_no_memory(calls: ModuleType, local: Any) -> None:
    waiting: Waiting = []
    with pytest.raises(TypeError):
        calls.transfer(waiting, WRITE, [RemoteBuffer(0, 7, 8)], local, None, 8, 2)
    assert not waiting


# -- chains ------------------------------------------------------------------------------------------------------------


def a_request(chance: random.Random) -> tuple[Any, OnDone | None, int]:
    kind = chance.choice([Send, Send, Write, Read, Atomic])
    request = kind([b"x"]) if kind is Send else kind([view(8)], RemoteSegment(1, 2, 8))
    request.signalled = False
    return request, chance.choice([None, None, ignore]), chance.choice([0, 3])


def test_both_make_the_same_chains() -> None:
    chance = random.Random(3)
    for _ in range(1000):
        entries = [a_request(chance) for _ in range(chance.randrange(40))]
        count, unsignalled, most = chance.randrange(len(entries) + 1), chance.randrange(16), chance.randrange(1, 17)
        seen = []
        for each in (chain_calls, c_calls()):
            for request, _, _ in entries:
                request.context, request.signalled = None, False
            waiting = entries.copy()
            found, left, length = each.chain(waiting, count, unsignalled, most, KINDS)
            assert waiting == entries[count:]
            assert all(mine is entry[0] for mine, entry in zip(found, entries[:count], strict=True))
            contexts = [request.context for request, _, _ in entries]
            assert [request.signalled for request, _, _ in entries] == [type(found) is Group for found in contexts]
            groups = [found and (found.size, list(found.endings), found.length, found.fetched) for found in contexts]
            seen.append((left, length, groups))
        assert seen[0] == seen[1]


def test_every_ending_is_in_one_group(calls: ModuleType) -> None:
    chance = random.Random(5)
    for _ in range(300):
        waiting = [a_request(chance) for _ in range(chance.randrange(1, 40))]
        endings, size = sum(on_done is not None for _, on_done, _ in waiting), len(waiting)
        total = sum(length for _, _, length in waiting)
        found, left, length = calls.chain(waiting, size, 0, 16, KINDS)
        groups = [request.context for request in found if request.context is not None]
        assert sum(len(group.endings) + (group.fetched is not None) for group in groups) == endings
        assert sum(group.size for group in groups) + left == size
        assert sum(group.length for group in groups) + length == total
        assert left < 16


def test_a_part_of_what_waits(calls: ModuleType) -> None:
    waiting: Waiting = [(Send([b"x"]), None, 1), (Send([b"y"]), ignore, 2)]
    found, left, length = calls.chain(waiting, 1, 3, 16, KINDS)
    assert ([request.segments for request in found], left, length) == ([[b"x"]], 4, 1)
    assert len(waiting) == 1
    assert calls.chain(waiting, 0, 4, 16, KINDS) == ([], 4, 0)
    assert len(waiting) == 1
