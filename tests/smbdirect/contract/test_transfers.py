"""The provider contract on the shape of transfers: smallest and largest, odd offsets, scattered memory, and tokens that
become invalid while somebody uses them."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
from typing import Any

import pytest

from smbdirect.errors import ProviderError
from smbdirect.providers.base import Access, CloseCause, Operation, Read, RemoteSegment, Send, Status, Write
from tests.lab.providers import Pair, Side

RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE
LARGEST = 8 << 20
"""Bytes; larger transfers are allowed by some providers and would only take long here."""


def target_of(region: Any, offset: int = 0, length: int | None = None) -> RemoteSegment:
    return RemoteSegment(region.token, region.address + offset, region.length - offset if length is None else length)


async def open_both(pair: Pair) -> None:
    """A first message: iWARP's acceptor stays silent until then."""
    pair.client.endpoint.post([Send([b"hello"])])
    await pair.server.receives(1)


async def placed(pair: Pair) -> None:
    """Return when what the server posted before has arrived at the client."""
    count = len(pair.client.of(Operation.RECEIVE))
    pair.server.endpoint.post([Send([b"sync"])])
    await pair.client.receives(count + 1)


def scattered(data: bytes, pieces: int) -> list[memoryview]:
    """``data`` in ``pieces`` segments of its own memory each, of uneven sizes, some of them empty."""
    cuts = [0, *(len(data) * (i * i + i) // (pieces * pieces + pieces) for i in range(1, pieces)), len(data)]
    return [memoryview(bytearray(data[a:b])) for a, b in itertools.pairwise(cuts)]


# -- sizes -------------------------------------------------------------------------------------------------------------

# Around one and several packets of each MTU (RoCE), one FPDU (iWARP), and what the kernel's clients ask for.
SIZES = [0, 1, 2, 3, 4, 5, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 16 * 4096 + 1, 65519, 65521, 524_288]


def test_write_and_read_of_any_size(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(b"\xee" * (max(SIZES) + 8))
        region = pair.client.endpoint.register(memoryview(memory), RIGHTS)
        await open_both(pair)
        pattern = os.urandom(max(SIZES))
        buffer = bytearray(len(pattern))
        for number, size in enumerate(SIZES):
            pair.server.endpoint.post([Write([memoryview(pattern)[:size]], target_of(region, 4, size), number)])
            await pair.server.sends(2 * number + 1)
            back = memoryview(buffer)[:size]
            pair.server.endpoint.post([Read([back], target_of(region, 4, size), number)])
            assert (await pair.server.sends(2 * number + 2))[-1].status is Status.OK
            assert back == memoryview(pattern)[:size], size
            back[:] = bytes(size)
        assert memory[:4] == memory[-4:] == b"\xee" * 4

    run(scenario)


def test_largest_write_and_read(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        size = min(pair.server.endpoint.capabilities.max_transfer, LARGEST)
        memory = bytearray(size)
        region = pair.client.endpoint.register(memoryview(memory), RIGHTS)
        await open_both(pair)
        pattern = os.urandom(size // 16) * 16
        pair.server.endpoint.post([Write([pattern], target_of(region))])
        await placed(pair)
        assert memory == pattern
        back = bytearray(size)
        pair.server.endpoint.post([Read([memoryview(back)], target_of(region))])
        await pair.server.sends(3)
        assert back == pattern

    run(scenario)


def test_transfer_beyond_the_limit_is_not_posted(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        endpoint = pair.client.endpoint
        size = endpoint.capabilities.max_transfer + 1
        if size > 2 << 30:
            pytest.skip("the device's limit is beyond what a test can ask memory for")
        huge = mmap.mmap(-1, size)  # never touched
        with pytest.raises(ProviderError):
            endpoint.post([Write([memoryview(huge)], RemoteSegment(1, 4096, size))])
        with pytest.raises(ProviderError):
            endpoint.post([Read([memoryview(huge)], RemoteSegment(1, 4096, size))])
        await open_both(pair)
        assert not pair.client.closed

    run(scenario)


def test_largest_message(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        size = min(pair.client.endpoint.capabilities.max_message, 1 << 20)
        buffer = bytearray(size)
        pair.server.endpoint.post_receive(memoryview(buffer), "large")
        message = os.urandom(size)
        pair.client.endpoint.post([Send([message])])
        (received,) = await pair.server.receives(1)
        assert (received.status, received.length, received.context) == (Status.OK, size, "large")
        assert buffer == message

    run(scenario, receives=0)


# -- offsets and segments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [2, 7, 16])
def test_gathered_write_and_scattered_read(run: Any, pieces: int) -> None:
    async def scenario(pair: Pair) -> None:
        capabilities = pair.server.endpoint.capabilities
        size = 100_003
        memory = bytearray(b"\xee" * (size + 32))
        region = pair.client.endpoint.register(memoryview(memory), RIGHTS)
        await open_both(pair)
        pattern = os.urandom(size)
        pair.server.endpoint.post(
            [Write(scattered(pattern, min(pieces, capabilities.max_send_sge)), target_of(region, 13, size))]
        )
        await placed(pair)
        assert memory == b"\xee" * 13 + pattern + b"\xee" * 19
        segments = scattered(bytes(size), min(pieces, capabilities.max_read_sge))
        pair.server.endpoint.post([Read(segments, target_of(region, 13, size))])
        assert (await pair.server.sends(3))[-1].status is Status.OK
        assert b"".join(segments) == pattern

    run(scenario)


@pytest.mark.parametrize(("remote", "local"), [(1, 0), (0, 1), (3, 5), (4095, 1), (1, 4095)])
def test_offsets_need_no_alignment(run: Any, remote: int, local: int) -> None:
    async def scenario(pair: Pair) -> None:
        size = 12_289
        memory = bytearray(b"\xee" * (size + 4100))
        region = pair.client.endpoint.register(memoryview(memory), RIGHTS)
        await open_both(pair)
        own = bytearray(b"\xdd" * (size + 4100))
        pattern = os.urandom(size)
        own[local : local + size] = pattern
        pair.server.endpoint.post([Write([memoryview(own)[local : local + size]], target_of(region, remote, size))])
        await placed(pair)
        assert memory == b"\xee" * remote + pattern + b"\xee" * (4100 - remote)
        back = bytearray(b"\xdd" * (size + 4100))
        pair.server.endpoint.post([Read([memoryview(back)[local : local + size]], target_of(region, remote, size))])
        await pair.server.sends(3)
        assert back == own

    run(scenario)


def test_message_of_as_many_segments_as_allowed_and_one_more(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        limit = pair.client.endpoint.capabilities.max_send_sge
        pair.client.endpoint.post([Send([bytes([index]) for index in range(limit)])])
        (received,) = await pair.server.receives(1)
        assert received.length == limit
        assert pair.server_receives[0][:limit] == bytes(range(limit))
        with pytest.raises(ProviderError):
            pair.client.endpoint.post([Send([b"x"] * (limit + 1))])

    run(scenario)


# -- tokens that become invalid ----------------------------------------------------------------------------------------


async def let_some_through(side: Side, memory: bytearray, offset: int) -> None:
    """Until a byte of a transfer under way has been placed, or the loop turned often enough."""
    for _ in range(2000):
        if memory[offset] or side.closed:
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("moment", [0, 1 << 16, 1 << 18])
def test_region_invalidated_during_a_write_is_not_changed_any_more(run: Any, moment: int) -> None:
    """Whether the Write was refused, stopped in the middle or already over: from then on the memory is the owner's."""

    async def scenario(pair: Pair) -> None:
        memory = bytearray(min(pair.server.endpoint.capabilities.max_transfer, 1 << 20))
        region = pair.client.endpoint.register(memoryview(memory), RIGHTS)
        await open_both(pair)
        pair.server.endpoint.post([Write([b"x" * len(memory)], target_of(region)), Send([b"after"])])
        await let_some_through(pair.client, memory, moment)
        region.deregister()
        before = bytes(memory)
        await pair.client.until(lambda: pair.client.closed or pair.client.of(Operation.RECEIVE))
        for _ in range(20):
            await asyncio.sleep(0)
        assert memory == before
        if before[-1] == 0:
            received = [item for item in pair.client.of(Operation.RECEIVE) if item.status is Status.OK]
            assert not received, "the Send behind a Write that could not be carried out"

    run(scenario)


def test_region_invalidated_during_a_read_ends_it(run: Any, blame: Any) -> None:
    async def scenario(pair: Pair) -> None:
        size = pair.server.endpoint.capabilities.max_transfer
        size = min(size, 4 << 20)
        region = pair.client.endpoint.register(memoryview(bytearray(b"s" * size)), RIGHTS)
        await open_both(pair)
        local = bytearray(size)
        pair.server.endpoint.post([Read([memoryview(local)], target_of(region))])
        region.invalidate()
        await pair.server.until(lambda: pair.server.of(Operation.READ))
        (completion,) = pair.server.of(Operation.READ)
        if completion.status is Status.OK:
            assert local == b"s" * size  # it was faster
        else:
            await blame(pair.client, CloseCause.REMOTE_ACCESS)

    run(scenario)


def test_peer_that_writes_after_invalidating(run: Any, blame: Any) -> None:
    """In one chain: what was written before the Send with Invalidate is there, what comes after it is refused."""

    async def scenario(pair: Pair) -> None:
        if not pair.client.endpoint.capabilities.regions_invalidatable:
            pytest.skip("the peer cannot invalidate regions of this provider")
        memory = bytearray(4096)
        region = pair.client.endpoint.register(memoryview(memory), RIGHTS)
        await open_both(pair)
        pair.server.endpoint.post(
            [
                Write([b"a" * 4096], target_of(region)),
                Send([b"yours"], invalidate=region.token),
                Write([b"b" * 4096], target_of(region)),
                Send([b"late"]),
            ]
        )
        await blame(pair.client, CloseCause.REMOTE_ACCESS)
        received = [item for item in pair.client.of(Operation.RECEIVE) if item.status is Status.OK]
        assert [item.invalidated for item in received] == [region.token]
        assert memory == b"a" * 4096
        assert not region.valid

    run(scenario)


def test_invalidating_twice_ends_the_connection(run: Any, blame: Any) -> None:
    async def scenario(pair: Pair) -> None:
        if not pair.client.endpoint.capabilities.regions_invalidatable:
            pytest.skip("the peer cannot invalidate regions of this provider")
        region = pair.client.endpoint.register(memoryview(bytearray(64)), RIGHTS)
        await open_both(pair)
        pair.server.endpoint.post([Send([b"1"], invalidate=region.token), Send([b"2"], invalidate=region.token)])
        await blame(pair.client, CloseCause.REMOTE_ACCESS)
        assert len([item for item in pair.client.of(Operation.RECEIVE) if item.status is Status.OK]) == 1

    run(scenario)


def test_owner_and_peer_invalidate_at_once(run: Any, blame: Any) -> None:
    """The owner was first: the peer's Send with Invalidate finds nothing to invalidate, and is not received."""

    async def scenario(pair: Pair) -> None:
        if not pair.client.endpoint.capabilities.regions_invalidatable:
            pytest.skip("the peer cannot invalidate regions of this provider")
        region = pair.client.endpoint.register(memoryview(bytearray(64)), RIGHTS)
        await open_both(pair)
        region.invalidate()
        pair.server.endpoint.post([Send([b"1"], invalidate=region.token)])
        await blame(pair.client, CloseCause.REMOTE_ACCESS)
        assert not [item for item in pair.client.of(Operation.RECEIVE) if item.status is Status.OK]

    run(scenario)
