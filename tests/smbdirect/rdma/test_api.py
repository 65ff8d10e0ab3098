"""The RDMA API over every fabric in user space: handles, one-sided transfers, batches, fences, messages, domains."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from smbdirect import rdma
from smbdirect.providers.base import Provider
from tests.lab.providers import PROVIDERS

FABRICS = ["loopback", "iwarp", "iwarp-crc-ipv6", "roce", "roce-ipv6-mtu256", "verbs"]
MIB = 1 << 20


class Pair(NamedTuple):
    provider: Provider
    host: str
    listener: rdma.Listener
    client: rdma.Connection
    server: rdma.Connection


@pytest.fixture(params=FABRICS)
def fabric(request: pytest.FixtureRequest) -> tuple[Provider, str]:
    entry = PROVIDERS[request.param]
    provider = entry.make()
    reason = provider.available()
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    return provider, entry.host


Scene = Callable[[Pair], Awaitable[None]]


@asynccontextmanager
async def pair(fabric: tuple[Provider, str], shared: bool = False, **options: Any) -> AsyncIterator[Pair]:
    provider, host = fabric
    domain = rdma.domain(provider) if shared else None
    async with (
        asyncio.timeout(30),
        rdma.listen(provider, host, domain=domain, **options) as listener,
        rdma.connect(provider, *listener.address, **options) as client,
    ):
        yield Pair(provider, host, listener, client, await listener.accept())


def run(fabric: tuple[Provider, str], scene: Scene, **options: Any) -> None:
    async def main() -> None:
        async with pair(fabric, **options) as made:
            await scene(made)

    asyncio.run(main())


def test_a_region_is_read_and_written(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        memory = bytearray(os.urandom(3 * MIB + 5))
        region = pair.server.register(memory, readable=True, writable=True)
        await pair.server.send(region.handle.pack())
        handle = rdma.Handle.unpack(await pair.client.receive())
        assert handle == region.handle and len(handle) == len(memory)
        into = bytearray(len(memory))
        await pair.client.read(handle, into)
        assert into == memory
        parts = [bytearray(1), bytearray(4095), bytearray(70_000)]
        await pair.client.read(handle, parts, 7)
        assert b"".join(parts) == memory[7 : 7 + 74_096]
        data = os.urandom(2 * MIB)
        await pair.client.write(handle[100:], [data[:3], data[3:]], 11)
        await pair.client.fence()
        assert memory[111 : 111 + len(data)] == data
        await pair.client.write(handle, b"")
        region.close()
        assert not region.valid

    run(fabric, scene)


def test_a_message_says_that_the_writes_before_it_have_arrived(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        memory = bytearray(64)
        region = pair.server.register(memory, writable=True)
        for number in range(50):
            await pair.client.write(region.handle, bytes([number]) * 64)
            await pair.client.send(b"look")
            assert await pair.server.receive() == b"look"
            assert memory == bytes([number]) * 64

    run(fabric, scene)


def test_a_batch_has_one_end(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        memory = bytearray(1000)
        region = pair.server.register(memory, readable=True, writable=True)
        found = [bytearray(10) for _ in range(100)]
        async with pair.client.batch() as batch:
            for number in range(100):
                batch.write(region.handle, bytes([number]) * 10, number * 10)
            for number, into in enumerate(found):
                batch.read(region.handle, into, number * 10)
            assert len(batch) == 200
        assert found == [bytes([number]) * 10 for number in range(100)]
        async with pair.client.batch() as batch:
            batch.write(region.handle, b"\xff" * 1000)
            batch.fence()
        assert memory == b"\xff" * 1000
        await pair.client.batch().done()

    run(fabric, scene)


def test_what_the_handle_does_not_give_is_not_sent(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        memory = bytearray(100)
        region = pair.server.register(memory, readable=True)
        for offset, size in ((0, 101), (100, 1), (-1, 1), (1 << 63, 1)):
            with pytest.raises(rdma.OutOfRange):
                await pair.client.read(region.handle, bytearray(size), offset)
        with pytest.raises(rdma.OutOfRange):
            await pair.client.write(region.handle, b"x")
        with pytest.raises(rdma.OutOfRange):
            pair.client.batch().write(region.handle, b"x")
        with pytest.raises(rdma.OutOfRange):
            await pair.client.read(region.handle[10:20], bytearray(11))
        assert pair.client.is_open

    run(fabric, scene)


@pytest.mark.parametrize("how", ["past the end", "no right", "closed", "guessed"])
def test_a_forged_handle_is_refused_and_touches_nothing(fabric: tuple[Provider, str], how: str) -> None:
    async def scene(pair: Pair) -> None:
        memory = bytearray(b"untouched" * 100)
        region = pair.server.register(memory, readable=True, writable=how != "no right")
        every = rdma.Rights.READ | rdma.Rights.WRITE
        true = region.handle
        forged = rdma.Handle(true.address, true.token, true.length + 10, every)
        if how == "closed":
            region.close()
        elif how == "guessed":
            forged = rdma.Handle(true.address, true.token ^ 1, true.length, every)
        with pytest.raises(rdma.ConnectionLost) as caught:
            await pair.client.write(forged, b"x" * 20, len(memory) - 10 if how == "past the end" else 0)
            await pair.client.fence()
        assert isinstance(caught.value, rdma.AccessRefused) or pair.provider.capabilities.name == "iwarp"
        assert memory == b"untouched" * 100
        with pytest.raises(rdma.ConnectionLost):
            await pair.client.read(true, bytearray(1))

    run(fabric, scene)


def test_both_sides_send_more_than_there_is_room_for(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        async def talk(me: rdma.Connection, number: int) -> list[bytes]:
            async def tell() -> None:
                for index in range(300):
                    await me.send(b"%d %d" % (number, index))

            sending = asyncio.create_task(tell())
            heard = [await me.receive() for _ in range(300)]
            await sending
            return heard

        one, two = await asyncio.gather(talk(pair.client, 1), talk(pair.server, 2))
        assert one == [b"2 %d" % index for index in range(300)]
        assert two == [b"1 %d" % index for index in range(300)]

    run(fabric, scene, receives=4, message_size=100)


def test_one_side_only_listens(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        for index in range(100):
            await pair.client.send(b"%d" % index)
            if index % 3 == 2:
                for back in (2, 1, 0):
                    assert await pair.server.receive() == b"%d" % (index - back)
        assert await pair.server.receive() == b"99"

    run(fabric, scene, receives=5)


def test_a_sender_waits_for_room_and_a_long_message_is_refused(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        with pytest.raises(rdma.MessageTooLong):
            await pair.client.send(bytes(101))

        async def tell() -> None:
            for index in range(10):
                await pair.client.send(bytes([index]) * 100)

        sending = asyncio.create_task(tell())
        await asyncio.sleep(0.05)
        assert not sending.done()
        assert [await pair.server.receive() for _ in range(10)] == [bytes([index]) * 100 for index in range(10)]
        await sending

    run(fabric, scene, receives=4, message_size=100)


def test_the_end_of_the_peer_ends_every_await(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        region = pair.server.register(bytearray(100), readable=True)
        waiting = [asyncio.create_task(pair.client.receive()) for _ in range(3)]
        await asyncio.sleep(0)
        pair.server.abort("for the test")
        for task in waiting:
            with pytest.raises(rdma.ConnectionLost):
                await task
        assert await pair.client.wait_closed() is not None
        for act in (
            lambda: pair.client.read(region.handle, bytearray(1)),
            lambda: pair.client.send(b""),
            pair.client.fence,
        ):
            with pytest.raises(rdma.ConnectionLost):
                await act()
        assert not region.valid, "a connection's own regions end with it"

    run(fabric, scene)


def test_a_cancelled_read_leaves_its_memory_alone(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        memory = bytearray(b"\1") * (4 * MIB)
        region = pair.server.register(memory, readable=True)
        into = bytearray(len(memory))
        task = asyncio.create_task(pair.client.read(region.handle, into))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        seen = bytes(into)
        await asyncio.sleep(0.05)
        assert into == seen
        if pair.client.is_open:
            await pair.client.read(region.handle, into)
            assert into == memory

    run(fabric, scene)


@pytest.fixture
def sharing(fabric: tuple[Provider, str]) -> tuple[Provider, str]:
    if fabric[0].capabilities.name == "verbs":
        with pytest.raises(rdma.NotSupported):
            rdma.domain(fabric[0])
        pytest.skip("verbs registers memory for each connection")
    return fabric


def test_a_domain_serves_every_connection_with_one_registration(sharing: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        domain = pair.server.domain
        assert isinstance(domain, rdma.Domain)
        memory = bytearray(1000)
        region = domain.register(memory, readable=True, writable=True)
        async with rdma.connect(pair.provider, *pair.listener.address) as other:
            await pair.listener.accept()
            await pair.client.write(region.handle, b"first")
            await pair.client.fence()
            into = bytearray(5)
            await other.read(region.handle, into)
            assert into == b"first"
            await other.write(region.handle, b"other", 5)
        await pair.client.read(region.handle, found := bytearray(10))
        assert found == b"firstother", "it outlives a connection"
        region.close()
        with pytest.raises(rdma.ConnectionLost):
            await pair.client.write(region.handle, b"late!")
            await pair.client.fence()
        assert memory[:5] == b"first"

    run(sharing, scene, shared=True)


def test_regions_of_a_connection_and_of_another_domain_are_for_nobody_else(sharing: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        memory = bytearray(b"mine")
        own = pair.server.register(memory, readable=True, writable=True)
        with rdma.domain(pair.provider) as elsewhere:
            foreign = elsewhere.register(memory, readable=True, writable=True)
            for handle in (own.handle, foreign.handle):
                async with rdma.connect(pair.provider, *pair.listener.address) as other:
                    await pair.listener.accept()
                    with pytest.raises(rdma.ConnectionLost):
                        await other.write(handle, b"evil")
                        await other.fence()
        assert memory == b"mine"
        await pair.client.write(own.handle, b"good")
        await pair.client.fence()
        assert memory == b"good"

    run(sharing, scene, shared=True)


def test_a_region_that_closes_under_a_transfer_changes_no_more(sharing: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        domain = pair.server.domain
        assert isinstance(domain, rdma.Domain)
        memory = bytearray(8 * MIB)
        region = domain.register(memory, writable=True)
        task = asyncio.create_task(pair.client.write(region.handle, b"\xff" * len(memory)))
        while not memory[0]:
            await asyncio.sleep(0)
        region.close()
        seen = bytes(memory)
        await asyncio.wait([task])
        await asyncio.sleep(0.05)
        assert memory == seen

    run(sharing, scene, shared=True)


def test_private_data_and_strangers(fabric: tuple[Provider, str]) -> None:
    async def main() -> None:
        provider, host = fabric
        async with rdma.listen(provider, host, private_data=b"server \0") as listener:
            async with rdma.connect(provider, *listener.address, private_data=b"client\0\0") as client:
                server = await listener.accept()
                assert (client.private_data, server.private_data) == (b"server \0", b"client\0\0")
            with pytest.raises(rdma.ConnectionLost):
                await provider.connect(*listener.address, lambda endpoint: None, b"?")
        with pytest.raises(ValueError, match="at most 48"):
            await rdma.open_connection(provider, host, 1, private_data=bytes(49))
        with pytest.raises(ValueError, match="receives"):
            await rdma.open_connection(provider, host, 1, receives=3)

    asyncio.run(main())


def test_closing_a_listener_ends_its_connections_and_the_loop_over_it(fabric: tuple[Provider, str]) -> None:
    async def main() -> None:
        provider, host = fabric
        async with rdma.listen(provider, host) as listener, rdma.connect(provider, *listener.address) as client:
            seen = []

            async def serve() -> None:
                async for connection in listener:
                    seen.append(connection)

            serving = asyncio.create_task(serve())
            while not seen:
                await asyncio.sleep(0.001)
            await listener.close()
            await serving
            assert await client.wait_closed() is not None

    asyncio.run(main())


def test_handles_are_values() -> None:
    handle = rdma.Handle(1 << 40, 7, 1000, rdma.Rights.READ)
    assert rdma.Handle.unpack(handle.pack()) == handle and len(handle.pack()) == rdma.Handle.SIZE
    assert handle[100:200] == rdma.Handle((1 << 40) + 100, 7, 100, rdma.Rights.READ)
    assert handle[-10:] == handle[990:1000] and len(handle[5:2]) == 0
    with pytest.raises(ValueError, match="step"):
        handle[::2]
    for bad in (b"", handle.pack()[:-1], b"\2" + handle.pack()[1:], handle.pack()[:1] + b"\xff" + handle.pack()[2:]):
        with pytest.raises(rdma.DecodeError):
            rdma.Handle.unpack(bad)


def test_many_connections_add_to_one_counter(fabric: tuple[Provider, str]) -> None:
    """Each gets every number once, and a lock made of compare-and-swap has one holder at a time."""

    async def scene(pair: Pair) -> None:
        memory = bytearray(64)
        domain = pair.server.domain
        try:
            register = domain.register if isinstance(domain, rdma.Domain) else pair.server.register
            region = register(memory, readable=True, atomic=True)
        except rdma.NotSupported as error:
            assert "RFC 5040" in str(error) or "this device" in str(error)
            handle = rdma.Handle(0, 1, 64, rdma.Rights.ATOMIC)
            with pytest.raises(rdma.NotSupported):
                await pair.client.fetch_and_add(handle, 1)
            return
        found: list[int] = []
        holders = 0

        async def work(connection: rdma.Connection) -> None:
            nonlocal holders
            for _ in range(20):
                found.append(await connection.fetch_and_add(region.handle, 1, 8))
            while await connection.compare_and_swap(region.handle, 0, 1, 16):
                pass
            holders += 1
            assert holders == 1
            await asyncio.sleep(0)
            holders -= 1
            assert await connection.compare_and_swap(region.handle, 1, 0, 16) == 1

        async with AsyncExitStack() as stack:
            connections = [pair.client]
            for _ in range(7 if isinstance(domain, rdma.Domain) else 0):
                connections.append(await stack.enter_async_context(rdma.connect(pair.provider, *pair.listener.address)))
            await asyncio.gather(*map(work, connections))
        assert sorted(found) == list(range(20 * len(connections)))
        assert int.from_bytes(memory[8:16], sys.byteorder) == 20 * len(connections)
        assert memory[:8] == memory[16:24] == bytes(8)

    name = fabric[0].capabilities.name
    run(fabric, scene, shared=name != "verbs")


def test_numbers_of_atomic_operations_and_what_is_refused(fabric: tuple[Provider, str]) -> None:
    async def scene(pair: Pair) -> None:
        client, memory = pair.client, bytearray(32)
        try:
            region = pair.server.register(memory, atomic=True)
        except rdma.NotSupported:
            return
        handle = rdma.Handle.unpack(region.handle.pack())
        assert handle.rights == rdma.Rights.ATOMIC
        assert await client.fetch_and_add(handle, -1) == 0
        assert await client.fetch_and_add(handle, 2) == (1 << 64) - 1
        assert await client.compare_and_swap(handle, 1, (1 << 64) - 1) == 1
        assert await client.compare_and_swap(handle, -1, 5, 24) == 0, "nothing was swapped"
        assert memory == b"\xff" * 8 + bytes(24)
        for offset in (4, 25, 32, -8):
            with pytest.raises(rdma.OutOfRange):
                await client.fetch_and_add(handle, 1, offset)
        for value in (1 << 64, -(1 << 63) - 1):
            with pytest.raises(ValueError, match="64 bits"):
                await client.fetch_and_add(handle, value)
        with pytest.raises(rdma.OutOfRange, match="no right to read"):
            await client.read(handle, bytearray(8))
        plain = pair.server.register(bytearray(8), readable=True, writable=True)
        with pytest.raises(rdma.OutOfRange, match="atomic"):
            await client.compare_and_swap(plain.handle, 0, 1)
        forged = rdma.Handle(plain.handle.address, plain.handle.token, 8, rdma.Rights.ATOMIC)
        with pytest.raises(rdma.ConnectionLost):
            await client.fetch_and_add(forged, 1)
        assert plain.memory == bytes(8) and memory == b"\xff" * 8 + bytes(24)

    run(fabric, scene)
