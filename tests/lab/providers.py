"""Connected pairs of endpoints of any provider."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from smbdirect.providers.base import (
    CloseReason,
    Completion,
    ConnectionRequest,
    Endpoint,
    Operation,
    Provider,
)
from smbdirect.providers.iwarp import IwarpProvider
from smbdirect.providers.loopback import Faults, LoopbackProvider
from smbdirect.providers.roce import RoceProvider
from smbdirect.providers.verbs.provider import VerbsProvider
from tools.support.ports import free_port


class Entry(NamedTuple):
    """How the suite makes and uses a provider. One instance both listens and connects."""

    make: Callable[[], Provider]
    host: str = "127.0.0.1"
    responder_knows: bool = True
    """Whether the responder learns why its peer's work request failed. If not, it only sees the connection end."""


PROVIDERS: dict[str, Entry] = {
    "loopback": Entry(LoopbackProvider),
    "loopback-late": Entry(
        lambda: LoopbackProvider(faults=Faults(delay_turns=3, reorder_placement=True, hold_reads=True))
    ),
    "iwarp": Entry(IwarpProvider),
    "iwarp-crc-ipv6": Entry(lambda: IwarpProvider(crc=True), "::1"),
    "iwarp-mss": Entry(lambda: IwarpProvider(large_fpdus=False)),
    "verbs": Entry(VerbsProvider, os.environ.get("VERBS_HOST", "127.0.0.1"), responder_knows=False),
    "roce": Entry(lambda: RoceProvider(free_port())),
    "roce-ipv6-mtu256": Entry(lambda: RoceProvider(free_port(), max_mtu=256), "::1"),
    "roce-single-packets": Entry(lambda: RoceProvider(free_port(), max_mtu=1024, segmentation=False)),
    "roce-unprivileged": Entry(lambda: RoceProvider(free_port(), raw=False)),
}


PATIENCE = 10.0
"""Seconds until a condition that does not become true fails its test. A test that succeeds does not wait this long."""


class Side:
    """One endpoint under test. It records completions and the end, and wakes the tasks that wait for them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.completions: list[Completion] = []
        self.closed: list[CloseReason] = []
        self._news = asyncio.Event()
        endpoint.on_completions = self._completed
        endpoint.on_closed = self._ended

    def _completed(self, completions: Any) -> None:
        assert not self.closed, "completions after on_closed"
        self.completions.extend(completions)
        self._news.set()

    def _ended(self, reason: CloseReason) -> None:
        self.closed.append(reason)
        self._news.set()

    def of(self, *operations: Operation) -> list[Completion]:
        """Return the completions of ``operations`` so far."""
        return [completion for completion in self.completions if completion.operation in operations]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until ``condition()`` is true, for at most ``PATIENCE`` seconds."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def receives(self, count: int) -> list[Completion]:
        """Wait for ``count`` completed receives and return all of them."""
        await self.until(lambda: len(self.of(Operation.RECEIVE)) >= count)
        return self.of(Operation.RECEIVE)

    async def sends(self, count: int) -> list[Completion]:
        """Wait for ``count`` completions of the send queue (sends, writes and reads together) and return all of
        them."""
        queue = (Operation.SEND, Operation.WRITE, Operation.READ)
        await self.until(lambda: len(self.of(*queue)) >= count)
        return self.of(*queue)

    async def end(self) -> CloseReason:
        """Wait for the end of the connection and return its reason."""
        await self.until(lambda: self.closed)
        return self.closed[0]

    def post_receives(self, count: int, size: int = 2048) -> list[bytearray]:
        """Post ``count`` receives whose contexts are their indexes."""
        buffers = [bytearray(size) for _ in range(count)]
        for index, buffer in enumerate(buffers):
            self.endpoint.post_receive(memoryview(buffer), index)
        return buffers


class Pair(NamedTuple):
    """The two ends of one connection, and the buffers of the receives posted at each."""

    provider: Provider
    client: Side
    server: Side
    client_receives: list[bytearray]
    server_receives: list[bytearray]


async def connect(
    provider: Provider, host: str, receives: int = 8, private_data: bytes = b"", reply_data: bytes = b""
) -> Pair:
    """Return a connected pair. ``receives`` receives of 2 KiB were posted at each end before establishment."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[Side] = loop.create_future()
    tasks: list[asyncio.Task[None]] = []
    buffers: dict[str, list[bytearray]] = {}

    def on_request(request: ConnectionRequest) -> None:
        side = Side(request.prepare())
        buffers["server"] = side.post_receives(receives)

        async def accept() -> None:
            await request.accept(reply_data)
            accepted.set_result(side)

        tasks.append(loop.create_task(accept()))

    sides: list[Side] = []

    def prepare(endpoint: Endpoint) -> None:
        sides.append(Side(endpoint))
        buffers["client"] = sides[0].post_receives(receives)

    listener = await provider.listen(host, 0, on_request)
    try:
        endpoint = await provider.connect(host, listener.address[1], prepare, private_data)
        assert endpoint is sides[0].endpoint
        async with asyncio.timeout(PATIENCE):
            server = await accepted
            await asyncio.gather(*tasks)
    finally:
        await listener.close()
    return Pair(provider, sides[0], server, buffers["client"], buffers["server"])
