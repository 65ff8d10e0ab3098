"""The fault hooks of the loopback provider do what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from smbdirect.providers.base import Access, CloseCause, Operation, Read, RemoteSegment, Send, Status, Write
from smbdirect.providers.loopback import Faults, LoopbackProvider
from tests.lab.providers import Pair, connect


def run(faults: Faults, scenario: Callable[[Pair], Awaitable[None]]) -> None:
    async def main() -> None:
        pair = await connect(LoopbackProvider(faults=faults), "127.0.0.1")
        await scenario(pair)
        pair.client.endpoint.abort()
        await pair.client.end()
        await pair.server.end()

    asyncio.run(main())


def test_drop_after_loses_the_connection_at_both_ends() -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.endpoint.post([Send([b"%d" % index], index) for index in range(5)])
        assert (await pair.server.end()).cause is CloseCause.DEVICE
        assert (await pair.client.end()).cause is CloseCause.DEVICE
        assert [item.status for item in pair.client.of(Operation.SEND)] == [Status.OK] * 2 + [Status.FLUSHED] * 3

    run(Faults(drop_after=2), scenario)


def test_corrupt_tokens_end_the_connection() -> None:
    async def scenario(pair: Pair) -> None:
        memory = bytearray(8)
        region = pair.server.endpoint.register(memoryview(memory), Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        pair.client.endpoint.post([Write([b"x" * 8], RemoteSegment(region.token, region.address, 8))])
        assert (await pair.server.end()).cause is CloseCause.REMOTE_ACCESS
        assert memory == bytes(8)

    run(Faults(corrupt_tokens=1), scenario)


def test_held_read_is_passed_by_sends_but_completes_first() -> None:
    async def scenario(pair: Pair) -> None:
        source = bytearray(b"data")
        region = pair.server.endpoint.register(memoryview(source), Access.LOCAL_WRITE | Access.REMOTE_READ)
        local = bytearray(4)
        seen: list[bytes] = []
        pair.server.endpoint.on_completions = lambda completions: seen.append(bytes(local))
        remote = RemoteSegment(region.token, region.address, 4)
        pair.client.endpoint.post([Read([memoryview(local)], remote, "read"), Send([b"passes"], "send")])
        assert [item.context for item in await pair.client.sends(2)] == ["read", "send"]
        assert local == b"data"

    run(Faults(hold_reads=True), scenario)


def test_late_placement_stops_at_invalidation() -> None:
    """A region that is gone does not change any more, even for data already on its way."""

    async def scenario(pair: Pair) -> None:
        memory = bytearray(8)
        region = pair.server.endpoint.register(memoryview(memory), Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        remote = RemoteSegment(region.token, region.address, 8)
        pair.client.endpoint.post([Write([b"x" * 4, b"y" * 4], remote)])
        region.invalidate()
        await pair.server.end()
        assert memory == bytes(8)

    run(Faults(reorder_placement=True), scenario)
