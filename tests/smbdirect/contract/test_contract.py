"""The provider contract (``smbdirect/providers/base.py``), one test per guarantee, on every registered provider."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any

import pytest

from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.base import (
    Access,
    CloseCause,
    ConnectionRequest,
    Endpoint,
    Operation,
    Read,
    RemoteSegment,
    Send,
    Status,
    Write,
)
from tests.lab.providers import PATIENCE, Entry, Pair, Side, connect

REMOTE_RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE


def target_of(region: Any, offset: int = 0, length: int | None = None) -> RemoteSegment:
    return RemoteSegment(region.token, region.address + offset, region.length - offset if length is None else length)


async def synchronise(sender: Side, receiver: Side, marker: bytes = b"sync") -> None:
    """Return when a Send posted now has been received (so that earlier Writes are placed)."""
    count = len(receiver.of(Operation.RECEIVE))
    sender.endpoint.post([Send([marker])])
    await receiver.receives(count + 1)


# -- sends and receives ----------------------------------------------------------------------------------------------


def test_send_concatenates_segments_and_reports_length(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post([Send([b"abc", bytearray(b"de"), memoryview(b"f")], "context")])
        (received,) = await pair.server.receives(1)
        assert (received.status, received.length, received.context) == (Status.OK, 6, 0)
        assert bytes(pair.server_receives[0][:6]) == b"abcdef"
        (sent,) = await pair.client.sends(1)
        assert (sent.operation, sent.status, sent.context) == (Operation.SEND, Status.OK, "context")

    run(scenario)


def test_sends_complete_and_arrive_in_posting_order(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        messages = [bytes([index]) * (index * 100) for index in range(1, 9)]
        pair.client.endpoint.post([Send([message], index) for index, message in enumerate(messages[:5])])
        pair.client.endpoint.post([Send([message], index + 5) for index, message in enumerate(messages[5:])])
        received = await pair.server.receives(8)
        assert [completion.context for completion in received] == list(range(8))
        assert [completion.context for completion in await pair.client.sends(8)] == list(range(8))
        for message, buffer in zip(messages, pair.server_receives, strict=True):
            assert bytes(buffer[: len(message)]) == message

    run(scenario)


def test_both_directions_at_once(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post([Send([b"first"])])
        await pair.server.receives(1)
        for index in range(4):
            pair.client.endpoint.post([Send([b"c%d" % index])])
            pair.server.endpoint.post([Send([b"s%d" % index])])
        await pair.server.receives(5)
        await pair.client.receives(4)
        assert [bytes(buffer[:2]) for buffer in pair.client_receives[:4]] == [b"s0", b"s1", b"s2", b"s3"]

    run(scenario)


def test_empty_send(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post([Send([])])
        (received,) = await pair.server.receives(1)
        assert (received.status, received.length) == (Status.OK, 0)

    run(scenario)


def test_unsignalled_requests_complete_only_through_a_later_one(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post(
            [Send([b"a"], 1, signalled=False), Send([b"b"], 2, signalled=False), Send([b"c"], 3, signalled=True)]
        )
        await pair.server.receives(3)
        assert [completion.context for completion in await pair.client.sends(1)] == [3]

    run(scenario)


def test_message_that_fills_its_receive_exactly(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        message = bytes(range(256)) * 8
        pair.client.endpoint.post([Send([message])])
        (received,) = await pair.server.receives(1)
        assert received.length == 2048
        assert bytes(pair.server_receives[0]) == message

    run(scenario)


def test_message_longer_than_its_receive_ends_the_connection(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post([Send([bytes(2049)])])
        await pair.server.end()
        await pair.client.end()
        assert all(completion.status != Status.OK for completion in pair.server.of(Operation.RECEIVE))

    run(scenario)


def test_message_without_a_receive_ends_the_connection(run: Any, blame: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post([Send([b"a"]), Send([b"b"])])
        await blame(pair.server, CloseCause.NO_RECEIVE)
        await pair.client.end()
        assert [completion.status for completion in pair.server.of(Operation.RECEIVE)] == [Status.OK]

    run(scenario, receives=1)


def test_receives_posted_later_are_used(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post([Send([b"a"])])
        await pair.server.receives(1)
        buffer = bytearray(16)
        pair.server.endpoint.post_receive(memoryview(buffer), "again")
        pair.client.endpoint.post([Send([b"b"])])
        received = await pair.server.receives(2)
        assert received[1].context == "again"
        assert buffer[:1] == b"b"

    run(scenario, receives=1)


# -- RDMA Write ------------------------------------------------------------------------------------------------------


def test_write_is_placed_before_the_following_send_is_received(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(100_000)
        region = pair.client.endpoint.register(memoryview(memory), REMOTE_RIGHTS)
        payload = bytes(range(250)) * 400
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        placed: list[bool] = []
        collect = pair.client.endpoint.on_completions

        def look(completions: Any) -> None:
            # The hello's own completion may come at any time.
            if any(item.operation is Operation.RECEIVE for item in completions):
                placed.append(bytes(memory) == payload)
            collect(completions)

        pair.client.endpoint.on_completions = look
        pair.client.completions.clear()
        half = len(payload) // 2
        pair.server.endpoint.post(
            [
                Write([payload[:half]], target_of(region, 0, half), signalled=False),
                Write([payload[half:]], target_of(region, half), signalled=False),
                Send([b"done"]),
            ]
        )
        await pair.client.receives(1)
        assert placed and all(placed)

    run(scenario)


@pytest.mark.parametrize("offset", [0, 1, 7, 4093])
def test_write_at_any_offset_touches_nothing_else(run: Any, offset: int) -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(b"\xee" * 8192)
        region = pair.client.endpoint.register(memoryview(memory), REMOTE_RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        payload = b"0123456789" * 30
        pair.server.endpoint.post([Write([payload[:100], payload[100:]], target_of(region, offset, 300))])
        await synchronise(pair.server, pair.client)
        assert bytes(memory) == b"\xee" * offset + payload + b"\xee" * (8192 - 300 - offset)

    run(scenario)


def test_write_up_to_the_last_byte(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(64)
        region = pair.client.endpoint.register(memoryview(memory), REMOTE_RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        pair.server.endpoint.post([Write([b"xy"], target_of(region, 62))])
        await synchronise(pair.server, pair.client)
        assert bytes(memory) == bytes(62) + b"xy"

    run(scenario)


def bad_segments(region: Any) -> dict[str, RemoteSegment]:
    return {
        "token": RemoteSegment(region.token ^ 1, region.address, 16),
        "before": RemoteSegment(region.token, region.address - 1, 16),
        "behind": RemoteSegment(region.token, region.address + region.length - 15, 16),
        "far": RemoteSegment(region.token, 0, 16),
    }


@pytest.mark.parametrize("operation", ["read", "write"])
@pytest.mark.parametrize("fault", ["token", "before", "behind", "far"])
def test_bad_token_or_range_ends_the_connection_and_places_nothing(
    run: Any, blame: Any, operation: str, fault: str
) -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(b"\xee" * 4096)
        region = pair.client.endpoint.register(memoryview(memory)[1024:2048], REMOTE_RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        remote = bad_segments(region)[fault]
        local = bytearray(16)
        if operation == "write":
            pair.server.endpoint.post([Write([b"x" * 16], remote)])
        else:
            pair.server.endpoint.post([Read([memoryview(local)], remote)])
        await blame(pair.client, CloseCause.REMOTE_ACCESS)
        assert (await pair.server.end()).cause in (CloseCause.REMOTE_ACCESS, CloseCause.PEER)
        assert memory == b"\xee" * 4096
        assert local == bytes(16)
        if operation == "read":
            (completion,) = pair.server.of(Operation.READ)
            assert completion.status != Status.OK

    run(scenario)


@pytest.mark.parametrize("operation", ["read", "write"])
def test_missing_right_ends_the_connection(run: Any, blame: Any, operation: str) -> None:
    if (operation, os.environ.get("VERBS_DEVICE")) == ("read", "siw"):
        pytest.skip("Linux 6.12: siw serves Reads of regions that lack the remote read right")

    async def scenario(pair: Pair) -> None:
        memory = bytearray(64)
        right = Access.REMOTE_READ if operation == "write" else Access.REMOTE_WRITE
        region = pair.client.endpoint.register(memoryview(memory), right | Access.LOCAL_WRITE)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        if operation == "write":
            pair.server.endpoint.post([Write([b"x" * 64], target_of(region))])
        else:
            local = bytearray(64)
            pair.server.endpoint.post([Read([memoryview(local)], target_of(region))])
        await blame(pair.client, CloseCause.REMOTE_ACCESS)
        await pair.server.end()
        assert memory == bytes(64)

    run(scenario)


def test_tokens_belong_to_their_endpoint(entry: Entry, blame: Any) -> None:
    async def main() -> None:
        provider = entry.make()
        first = await connect(provider, entry.host)
        second = await connect(provider, entry.host)
        memory = bytearray(64)
        region = first.client.endpoint.register(memoryview(memory), REMOTE_RIGHTS)
        second.client.endpoint.post([Send([b"hello"])])
        await second.server.receives(1)
        second.server.endpoint.post([Write([b"x" * 64], target_of(region))])
        await blame(second.client, CloseCause.REMOTE_ACCESS)
        await second.server.end()
        assert memory == bytes(64)
        assert not first.client.closed
        for side in (first.client, first.server):
            side.endpoint.abort()
            await side.end()

    asyncio.run(main())


def test_tokens_and_addresses_are_not_guessable(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        regions = [pair.client.endpoint.register(memoryview(bytearray(16)), REMOTE_RIGHTS) for _ in range(16)]
        tokens = [region.token for region in regions]
        assert len(set(tokens)) == 16
        assert all(0 < token < 1 << 32 for token in tokens)
        assert len({after - before for before, after in itertools.pairwise(tokens)}) > 2

    run(scenario)


# -- RDMA Read -------------------------------------------------------------------------------------------------------


def test_read_data_is_in_place_when_it_completes(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(bytes(range(200)) * 500)
        region = pair.client.endpoint.register(memoryview(memory), REMOTE_RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        local = bytearray(60_000)
        view = memoryview(local)
        segments = [view] if pair.server.endpoint.capabilities.max_read_sge == 1 else [view[:17], view[17:]]
        pair.server.endpoint.post([Read(segments, target_of(region, 123, 60_000), "read")])
        (completion,) = await pair.server.sends(1)
        assert (completion.operation, completion.status, completion.context) == (Operation.READ, Status.OK, "read")
        assert local == memory[123:60_123]

    run(scenario)


def test_more_reads_than_may_be_outstanding(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        count = 3 * pair.server.endpoint.capabilities.max_outstanding_reads
        memory = bytearray(bytes(range(256)) * count)
        region = pair.client.endpoint.register(memoryview(memory), REMOTE_RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        local = bytearray(256 * count)
        view = memoryview(local)
        pair.server.endpoint.post(
            [Read([view[i * 256 : i * 256 + 256]], target_of(region, i * 256, 256), i) for i in range(count)]
        )
        completions = await pair.server.sends(count)
        assert [completion.context for completion in completions] == list(range(count))
        assert local == memory

    run(scenario)


def test_send_queue_completions_keep_posting_order_across_kinds(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        region = pair.client.endpoint.register(memoryview(bytearray(4096)), REMOTE_RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        pair.server.endpoint.post(
            [
                Write([b"a" * 64], target_of(region, 0, 64), 0),
                Read([memoryview(bytearray(64))], target_of(region, 64, 64), 1),
                Send([b"one"], 2),
                Read([memoryview(bytearray(64))], target_of(region, 64, 64), 3),
                Write([b"b" * 64], target_of(region, 128, 64), 4),
                Send([b"two"], 5),
            ]
        )
        assert [completion.context for completion in await pair.server.sends(6)] == list(range(6))
        await pair.client.receives(2)
        assert bytes(pair.client_receives[1][:3]) == b"two"

    run(scenario)


# -- registration and invalidation -------------------------------------------------------------------------------------


def test_locally_invalidated_region_is_refused_and_unchanged(run: Any, blame: Any) -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(64)
        region = pair.client.endpoint.register(memoryview(memory), REMOTE_RIGHTS)
        assert region.valid
        region.invalidate()
        region.invalidate()
        assert not region.valid
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        pair.server.endpoint.post([Write([b"x" * 64], target_of(region))])
        await blame(pair.client, CloseCause.REMOTE_ACCESS)
        assert memory == bytes(64)

    run(scenario)


def test_send_with_invalidate(run: Any, blame: Any) -> None:
    async def scenario(pair: Pair) -> None:
        if not pair.client.endpoint.capabilities.regions_invalidatable:
            pytest.skip("the peer cannot invalidate regions of this provider")
        memory = bytearray(64)
        region = pair.client.endpoint.register(memoryview(memory), REMOTE_RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        pair.server.endpoint.post(
            [Write([b"x" * 64], target_of(region)), Send([b"done"], invalidate=region.token), Send([b"plain"])]
        )
        received = await pair.client.receives(2)
        assert received[0].invalidated == region.token
        assert received[1].invalidated is None
        assert not region.valid
        assert memory == b"x" * 64
        pair.server.endpoint.post([Write([b"y" * 64], target_of(region))])
        await blame(pair.client, CloseCause.REMOTE_ACCESS)
        assert memory == b"x" * 64

    run(scenario)


def test_deregistered_memory_may_be_freed(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(64)
        view = memoryview(memory)
        region = pair.client.endpoint.register(view, REMOTE_RIGHTS)
        region.deregister()
        region.deregister()
        assert not region.valid

    run(scenario)


def test_read_only_memory_cannot_be_registered(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        with pytest.raises(ProviderError):
            pair.client.endpoint.register(memoryview(b"constant"), REMOTE_RIGHTS)

    run(scenario)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_post_beyond_the_send_queue_queues_nothing(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        limit = pair.client.endpoint.capabilities.max_send_queue
        with pytest.raises(ProviderError):
            pair.client.endpoint.post([Send([b"x"])] * (limit + 1))
        pair.client.endpoint.post([Send([b"alone"])])
        (received,) = await pair.server.receives(1)
        assert received.length == 5
        assert not pair.server.closed

    run(scenario)


def test_post_receive_beyond_the_queue(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        room = pair.client.endpoint.capabilities.max_receive_queue - 8
        buffer = memoryview(bytearray(16))
        for _ in range(room):
            pair.client.endpoint.post_receive(buffer)
        with pytest.raises(ProviderError):
            pair.client.endpoint.post_receive(buffer)

    run(scenario)


@pytest.mark.parametrize("length", [15, 17])
def test_transfer_whose_lengths_disagree_is_not_posted(run: Any, length: int) -> None:
    async def scenario(pair: Pair) -> None:
        region = pair.client.endpoint.register(memoryview(bytearray(64)), REMOTE_RIGHTS)
        with pytest.raises(ProviderError):
            pair.server.endpoint.post([Write([bytes(16)], target_of(region, 0, length))])
        with pytest.raises(ProviderError):
            pair.server.endpoint.post([Read([memoryview(bytearray(16))], target_of(region, 0, length))])

    run(scenario)


# -- the end ---------------------------------------------------------------------------------------------------------


def test_disconnect_delivers_what_was_posted_first(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post([Send([b"last words"])])
        pair.client.endpoint.disconnect()
        pair.client.endpoint.disconnect()
        assert (await pair.server.end()).cause is CloseCause.PEER
        assert (await pair.client.end()).cause is CloseCause.LOCAL
        first = pair.server.of(Operation.RECEIVE)[0]
        assert (first.status, first.length) == (Status.OK, 10)

    run(scenario)


def test_every_outstanding_receive_is_flushed_once_before_closed(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post([Send([b"one"])])
        await pair.server.receives(1)
        pair.client.endpoint.abort()
        await pair.client.end()
        await pair.server.end()
        for side, flushed in ((pair.client, range(8)), (pair.server, range(1, 8))):
            contexts = [item.context for item in side.of(Operation.RECEIVE) if item.status == Status.FLUSHED]
            assert contexts == list(flushed)

    run(scenario)


def test_requests_posted_after_the_end_are_flushed_or_reported(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        region = pair.client.endpoint.register(memoryview(bytearray(64)), REMOTE_RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        pair.server.completions.clear()
        pair.client.endpoint.abort()
        pair.server.endpoint.abort()
        pair.server.endpoint.post(
            [
                Send([b"a"], 0, signalled=False),
                Write([bytes(64)], target_of(region), 1, signalled=False),
                Read([memoryview(bytearray(64))], target_of(region), 2),
            ]
        )
        completions = await pair.server.sends(3)
        assert [(item.context, item.status) for item in completions] == [(i, Status.FLUSHED) for i in range(3)]
        await pair.server.end()

    run(scenario)


def test_regions_are_never_changed_after_the_end(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(1 << 16)
        region = pair.client.endpoint.register(memoryview(memory), REMOTE_RIGHTS)
        pair.client.endpoint.post([Send([b"hello"])])
        await pair.server.receives(1)
        pair.server.endpoint.post([Write([b"x" * (1 << 16)], target_of(region))])
        pair.client.endpoint.abort()
        await pair.client.end()
        before = bytes(memory)
        await pair.server.end()
        assert not region.valid
        assert bytes(memory) == before

    run(scenario)


def test_abort_is_idempotent_and_closes_both_ends(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        pair.server.endpoint.abort()
        pair.server.endpoint.abort()
        assert (await pair.server.end()).cause is CloseCause.LOCAL
        await pair.client.end()

    run(scenario)


# -- connecting ------------------------------------------------------------------------------------------------------


def test_private_data_travels_both_ways(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        # InfiniBand's CM pads private data to the size of its field
        assert pair.server.endpoint.private_data.rstrip(b"\0") == b"from client"
        assert pair.client.endpoint.private_data.rstrip(b"\0") == b"from server"

    run(scenario, private_data=b"from client", reply_data=b"from server")


def test_addresses_agree(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        assert pair.server.endpoint.peer_address == pair.client.endpoint.local_address
        assert pair.client.endpoint.peer_address == pair.server.endpoint.local_address

    run(scenario)


def test_client_may_send_at_once(entry: Entry) -> None:
    """A receive may complete before ``accept`` returned."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        provider = entry.make()
        sides: list[Side] = []
        tasks: list[asyncio.Task[None]] = []

        def on_request(request: ConnectionRequest) -> None:
            side = Side(request.prepare())
            buffers.extend(side.post_receives(2))
            sides.append(side)
            tasks.append(loop.create_task(request.accept()))

        def prepare(endpoint: Endpoint) -> None:
            client.append(Side(endpoint))

        client: list[Side] = []
        buffers: list[bytearray] = []
        listener = await provider.listen(entry.host, 0, on_request)
        endpoint = await provider.connect(entry.host, listener.address[1], prepare)
        endpoint.post([Send([b"early"])])
        (received,) = await sides[0].receives(1)
        assert (received.context, received.length, buffers[0][:5]) == (0, 5, b"early")
        await asyncio.gather(*tasks)
        endpoint.abort()
        await client[0].end()
        await sides[0].end()
        await listener.close()

    asyncio.run(main())


def test_rejected_connection(entry: Entry) -> None:
    async def main() -> None:
        provider = entry.make()
        listener = await provider.listen(entry.host, 0, lambda request: request.reject())
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(PATIENCE):
                await provider.connect(entry.host, listener.address[1], lambda endpoint: None)
        await listener.close()

    asyncio.run(main())


def test_nobody_listens(entry: Entry) -> None:
    async def main() -> None:
        provider = entry.make()
        listener = await provider.listen(entry.host, 0, lambda request: request.reject())
        port = listener.address[1]
        await listener.close()
        with pytest.raises(ConnectionLost):
            await provider.connect(entry.host, port, lambda endpoint: None)

    asyncio.run(main())


def test_established_connection_outlives_its_listener(run: Any) -> None:
    async def scenario(pair: Pair) -> None:
        # ``connect`` in conftest closed the listener already.
        pair.client.endpoint.post([Send([b"still here"])])
        (received,) = await pair.server.receives(1)
        assert received.length == 10

    run(scenario)
