"""SMB Direct over every registered provider: negotiation, messages, RDMA both ways, invalidation, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from smbdirect.core.settings import Settings
from smbdirect.errors import ConnectionLost
from smbdirect.message_transport import RemoteBuffer
from smbdirect.rdma.pool import BufferPool
from smbdirect.transport.listen import connect, listen
from smbdirect.transport.smb_direct import SmbDirectTransport
from tests.lab.providers import PATIENCE, Entry


class Upper:
    """The upper layer of one side."""

    def __init__(self, transport: SmbDirectTransport) -> None:
        self.transport = transport
        self.messages: list[bytes] = []
        self.closed: list[BaseException | None] = []
        self.done: list[BaseException | None] = []
        self.reply: Callable[[bytes], None] | None = None
        self.news = asyncio.Event()
        transport.start(self._message, self._ended)

    def _message(self, message: Any) -> None:
        self.messages.append(bytes(message.view))
        message.release()
        if self.reply is not None:
            self.reply(self.messages[-1])
        self.news.set()

    def _ended(self, error: BaseException | None) -> None:
        self.closed.append(error)
        self.news.set()

    def finished(self, error: BaseException | None) -> None:
        """For ``on_done``."""
        self.done.append(error)
        self.news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.news.clear()
                await self.news.wait()


def run(entry: Entry, scenario: Callable[[Upper, Upper], Awaitable[None]], settings: Settings | None = None) -> None:
    async def main() -> None:
        provider = entry.make()
        pool = BufferPool()
        accepted: asyncio.Future[Upper] = asyncio.get_running_loop().create_future()

        def on_transport(transport: SmbDirectTransport) -> None:
            transport.trust(1 << 20)
            accepted.set_result(Upper(transport))

        listener = await listen(provider, entry.host, 0, on_transport, settings, pool=pool)
        client = Upper(await connect(provider, *listener.address, settings, pool=pool))
        async with asyncio.timeout(PATIENCE):
            server = await accepted
        try:
            await scenario(client, server)
        finally:
            client.transport.abort()
            server.transport.abort()
            await client.until(lambda: client.closed)
            await server.until(lambda: server.closed)
            await listener.close()
        assert len(client.closed) == len(server.closed) == 1
        assert pool.lent == 0

    asyncio.run(main())


def pattern(size: int) -> bytes:
    return bytes(range(251)) * (size // 251 + 1)


SIZES = [1, 1340, 1341, 20_000, 131_072]


def test_messages_both_ways(entry: Entry) -> None:
    async def scenario(client: Upper, server: Upper) -> None:
        expected = [pattern(size)[:size] for size in SIZES]
        for message in expected:
            client.transport.send([message[:5], message[5:]])
            server.transport.send([message])
        await server.until(lambda: len(server.messages) == len(SIZES))
        await client.until(lambda: len(client.messages) == len(SIZES))
        assert server.messages == client.messages == expected

    run(entry, scenario)


@pytest.mark.parametrize("credits", [1, 16])
def test_few_credits(entry: Entry, credits: int) -> None:
    async def scenario(client: Upper, server: Upper) -> None:
        server.reply = lambda message: server.transport.send([message * 2])
        for index in range(20):
            client.transport.send([b"%4d" % index * 1000])
        await client.until(lambda: len(client.messages) == 20)
        assert client.messages == [b"%4d" % index * 2000 for index in range(20)]

    run(entry, scenario, Settings(receive_credit_max=credits, send_credit_target=credits))


def test_large_segments(entry: Entry) -> None:
    async def scenario(client: Upper, server: Upper) -> None:
        client.transport.send([pattern(1 << 20)[: 1 << 20]])
        await server.until(lambda: server.messages)
        assert server.messages == [pattern(1 << 20)[: 1 << 20]]
        assert client.transport.counters["sends"] < 200

    run(entry, scenario, Settings(max_send_size=8192, max_receive_size=8192))


@pytest.mark.parametrize("size", [1, 4097, 1_500_001])
def test_read_request(entry: Entry, size: int) -> None:
    """RDMA Write(s) into the client's buffer, then the response that invalidates it."""

    async def scenario(client: Upper, server: Upper) -> None:
        memory = bytearray(size)
        registered = client.transport.rdma.register(memoryview(memory), writable=True)
        # Where a peer cannot invalidate regions (verbs in user space), trying to would end the connection.
        invalidatable = client.transport.endpoint.capabilities.regions_invalidatable
        token = registered.descriptors[-1].token if invalidatable else None
        content = pattern(size)[:size]
        seen: list[bool] = []
        client.reply = lambda message: seen.append(memory == content)

        def respond(message: bytes) -> None:
            third = size // 3
            pieces = [content[:third], content[third:]]
            server.transport.rdma.write_to_peer(registered.descriptors, pieces, server.finished)
            server.transport.send([b"response"], invalidate=token)

        server.reply = respond
        client.transport.send([b"READ"])
        await client.until(lambda: client.messages)
        assert seen == [True]
        await server.until(lambda: server.done)
        assert server.done == [None]
        if invalidatable and len(registered.descriptors) == 1:
            assert registered.invalidated
        registered.deregister()

    run(entry, scenario)


@pytest.mark.parametrize("size", [1, 4097, 1_500_001])
def test_write_request(entry: Entry, size: int) -> None:
    """RDMA Read(s) from the client's buffer in two descriptors at odd offsets, into two local pieces."""

    async def scenario(client: Upper, server: Upper) -> None:
        memory = bytearray(pattern(size + 100))[: size + 100]
        registered = client.transport.rdma.register(memoryview(memory), readable=True)
        skipped = 13
        descriptors = []
        for descriptor in registered.descriptors:
            descriptors.append(RemoteBuffer(descriptor.offset + skipped, descriptor.token, descriptor.length - skipped))
            skipped = 0
        local = [server.transport.acquire(size // 2 + 1), server.transport.acquire(size - size // 2)]
        server.reply = lambda message: server.transport.rdma.read_from_peer(
            descriptors, [buffer.view for buffer in local], server.finished
        )
        client.transport.send([b"WRITE"])
        await server.until(lambda: server.done)
        assert server.done == [None]
        assert b"".join(buffer.view for buffer in local) == memory[13 : 13 + size + 1]
        for buffer in local:
            buffer.release()

    run(entry, scenario)


def test_bad_token(entry: Entry) -> None:
    async def scenario(client: Upper, server: Upper) -> None:
        server.reply = lambda message: server.transport.rdma.read_from_peer(
            [RemoteBuffer(4096, 12345, 64)], [memoryview(bytearray(64))], server.finished
        )
        client.transport.send([b"WRITE"])
        await server.until(lambda: server.closed and server.done)
        assert isinstance(server.done[0], ConnectionLost)
        assert isinstance(server.closed[0], ConnectionLost) or server.closed[0] is None

    run(entry, scenario)


def test_close_sends_what_is_queued(entry: Entry) -> None:
    async def scenario(client: Upper, server: Upper) -> None:
        client.transport.send([pattern(100_000)[:100_000]])
        client.transport.close()
        await server.until(lambda: server.closed)
        assert server.messages == [pattern(100_000)[:100_000]]
        assert server.closed == [None]

    run(entry, scenario)


def test_steady_state_allocates_and_registers_nothing(entry: Entry) -> None:
    async def scenario(client: Upper, server: Upper) -> None:
        registered = client.transport.rdma.register(memoryview(bytearray(1 << 16)), writable=True)

        def respond(message: bytes) -> None:
            buffer = server.transport.acquire(1 << 16)
            server.transport.rdma.write_to_peer(registered.descriptors, [buffer.view], lambda error: buffer.release())
            server.transport.send([b"response"])

        server.reply = respond
        # More at a time than afterwards: how many buffers are lent at once depends on how soon the peer acknowledges.
        for total in range(8, 56, 8):
            for _ in range(8):
                client.transport.send([b"READ"])
            await client.until(lambda total=total: len(client.messages) == total)
        before = dict(server.transport.counters)
        for index in range(48, 298):
            client.transport.send([b"READ"])
            await client.until(lambda index=index: len(client.messages) == index + 1)
        after = server.transport.counters
        assert after["allocations"] == before["allocations"]
        assert after["registrations"] == before["registrations"]
        assert after["bytes_rdma_written"] - before["bytes_rdma_written"] == 250 << 16

    run(entry, scenario)
