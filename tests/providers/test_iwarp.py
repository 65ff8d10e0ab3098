"""The iWARP provider over real sockets, against itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.base import (
    Access,
    CloseCause,
    CloseReason,
    Completion,
    ConnectionRequest,
    Endpoint,
    Operation,
    Read,
    RemoteSegment,
    Send,
    Status,
    Write,
)
from smbdirect.providers.iwarp import IwarpProvider
from smbdirect.providers.iwarp.mpa import Rtr


class Side:
    """An endpoint with its completions and end recorded."""

    def __init__(self, endpoint: Endpoint, receives: int = 8, size: int = 4096) -> None:
        self.endpoint = endpoint
        self.completions: list[Completion] = []
        self.closed: list[CloseReason] = []
        self.changed = asyncio.Event()
        self.buffers = [memoryview(bytearray(size)) for _ in range(receives)]
        endpoint.on_completions = self._on_completions
        endpoint.on_closed = self._on_closed
        for index, buffer in enumerate(self.buffers):
            endpoint.post_receive(buffer, index)

    def _on_completions(self, completions: Sequence[Completion]) -> None:
        assert not self.closed
        self.completions += completions
        self.changed.set()

    def _on_closed(self, reason: CloseReason) -> None:
        self.closed.append(reason)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_closed(self) -> CloseReason:
        await self.until(lambda: bool(self.closed))
        return self.closed[0]

    async def take(self, count: int = 1) -> list[Completion]:
        await self.until(lambda: len(self.completions) >= count)
        taken, self.completions = self.completions[:count], self.completions[count:]
        return taken


class Pair:
    def __init__(self, client: Side, server: Side) -> None:
        self.client = client
        self.server = server


async def connected(
    server_provider: IwarpProvider, client_provider: IwarpProvider | None = None, host: str = "127.0.0.1", **kwargs: Any
) -> Pair:
    accepted: asyncio.Future[Side] = asyncio.get_running_loop().create_future()
    tasks: set[asyncio.Task[None]] = set()

    def on_request(request: ConnectionRequest) -> None:
        side = Side(request.prepare(), **kwargs)

        async def accept() -> None:
            await request.accept(b"from server")
            accepted.set_result(side)

        tasks.add(asyncio.ensure_future(accept()))

    listener = await server_provider.listen(host, 0, on_request)
    sides: list[Side] = []
    try:
        endpoint = await (client_provider or server_provider).connect(
            *listener.address, lambda endpoint: sides.append(Side(endpoint, **kwargs)), b"from client"
        )
        server = await accepted
    finally:
        await listener.close()
    assert endpoint is sides[0].endpoint
    return Pair(sides[0], server)


async def finish(pair: Pair) -> None:
    pair.client.endpoint.disconnect()
    assert (await pair.client.until_closed()).cause is CloseCause.LOCAL
    assert (await pair.server.until_closed()).cause is CloseCause.PEER


PROVIDERS: dict[str, Callable[[], IwarpProvider]] = {
    "large": IwarpProvider,
    "large-crc": lambda: IwarpProvider(crc=True),
    "mss": lambda: IwarpProvider(large_fpdus=False),
    "revision-1": lambda: IwarpProvider(revision=1),
    "rtr-write": lambda: IwarpProvider(peer_to_peer=Rtr.WRITE),
    "rtr-read": lambda: IwarpProvider(peer_to_peer=Rtr.READ),
    "rtr-send": lambda: IwarpProvider(peer_to_peer=Rtr.SEND),
}

Scenario = Callable[[Pair], Awaitable[None]]


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_session_with_every_operation(name: str, host: str) -> None:
    async def run() -> None:
        pair = await connected(PROVIDERS[name](), host=host)
        client, server = pair.client, pair.server
        assert server.endpoint.private_data == b"from client"
        assert client.endpoint.private_data == b"from server"
        client.endpoint.post([Send([b"hel", memoryview(b"lo")], "s1")])
        assert await client.take() == [Completion(Operation.SEND, Status.OK, "s1")]
        assert await server.take() == [Completion(Operation.RECEIVE, Status.OK, 0, 5)]
        assert bytes(server.buffers[0][:5]) == b"hello"

        size = 300_001
        memory = bytearray(size)
        region = client.endpoint.register(memoryview(memory), Access.REMOTE_READ | Access.REMOTE_WRITE)
        data = bytes(i * 7 & 255 for i in range(size))
        remote = RemoteSegment(region.token, region.address, size)
        server.endpoint.post(
            [
                Write([data[:5], data[5:200_000], data[200_000:]], remote, signalled=False),
                Send([b"written"], "w", invalidate=None),
            ]
        )
        assert (await server.take())[0].context == "w"
        assert await client.take() == [Completion(Operation.RECEIVE, Status.OK, 0, 7)]
        assert memory == data

        sink = [memoryview(bytearray(100_000)), memoryview(bytearray(1)), memoryview(bytearray(200_000))]
        server.endpoint.post([Read(sink, remote, "r")])
        assert await server.take() == [Completion(Operation.READ, Status.OK, "r")]
        assert b"".join(sink) == data
        server.endpoint.post([Send([b"done"], "d", invalidate=region.token)])
        assert await server.take() == [Completion(Operation.SEND, Status.OK, "d")]
        (received,) = await client.take()
        assert received.invalidated == region.token
        assert not region.valid
        await finish(pair)

    asyncio.run(run())
