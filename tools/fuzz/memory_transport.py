"""Two ends of a connection in one process: what one sends, the other receives in the next turn of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from smbdirect.codec import Buffer
from smbdirect.message_transport import (
    FileRange,
    InboundMessage,
    Limits,
    PayloadTaker,
    PooledBuffer,
    RdmaOperations,
    Traffic,
    TransportKind,
)
from smbdirect.rdma.pool import BufferPool

_LONGEST = 16 << 20


@dataclass
class Whole:
    """Implements ``InboundMessage``."""

    view: memoryview

    def release(self) -> None:
        """Forget the message."""
        self.view = memoryview(b"")


class MemoryTransport:
    """One end. Implements ``MessageTransport``; it has no RDMA and takes no files."""

    kind = TransportKind.TCP
    fabric = "tcp"
    rdma: RdmaOperations | None = None
    takes_file = False
    max_outbound_message_size = _LONGEST
    counters: Mapping[str, int] = {}
    traffic = Traffic()
    limits = Limits(_LONGEST)

    def __init__(self, pool: BufferPool, name: str) -> None:
        self.local_address = self.peer_address = (name, 445)
        self.max_message_size = _LONGEST
        self.pending_send_bytes = 0
        self.peer: MemoryTransport = self
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._kept: deque[bytearray] | None = None
        """Messages that wait for ``resume_reading``; None while reading is not paused."""
        self._on_message: Callable[[InboundMessage], None] = lambda message: message.release()
        self._on_closed: Callable[[BaseException | None], None] = lambda error: None

    def start(
        self, on_message: Callable[[InboundMessage], None], on_closed: Callable[[BaseException | None], None]
    ) -> None:
        """See ``MessageTransport``."""
        self._on_message, self._on_closed = on_message, on_closed

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
        data: FileRange | None = None,
    ) -> None:
        """Hand a copy to the other end."""
        message = bytearray().join(segments)
        if on_sent is not None:
            self._loop.call_soon(on_sent)
        if not self._closed:
            self._loop.call_soon(self.peer._deliver, message)

    def _deliver(self, message: bytearray) -> None:
        if self._closed:
            return
        if self._kept is not None:
            self._kept.append(message)
            return
        if len(message) > self.max_message_size:
            self.abort("message too long")
            return
        self._on_message(Whole(memoryview(message)))

    def close(self, reason: str = "") -> None:
        """End both ends, after what was sent before."""
        self._loop.call_soon(self._end)
        self._loop.call_soon(self.peer._end)

    abort = close

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_closed(None)

    def acquire(self, size: int) -> PooledBuffer:
        """Lend a buffer."""
        return self._pool.acquire(size)

    def trust(self, max_message_size: int) -> None:
        """Accept longer messages."""
        self.max_message_size = max_message_size

    def show_received(self, see: Callable[[memoryview], None] | None) -> None:
        """Show nothing."""

    def offer_payloads(self, taker: PayloadTaker) -> None:
        """Offer none: every message is in memory."""

    def at_end_of_turn(self, callback: Callable[[], None]) -> bool:
        """Messages come one by one."""
        return False

    def is_stalled(self) -> bool:
        """The other end always takes everything."""
        return False

    def set_peer_timeout(self, seconds: float | None) -> None:
        """The other end cannot be lost."""

    def pause_reading(self) -> None:
        """Keep what arrives."""
        if self._kept is None:
            self._kept = deque()

    def resume_reading(self) -> None:
        """Deliver what was kept."""
        kept, self._kept = self._kept, None
        for message in kept or ():
            self._loop.call_soon(self._deliver, message)


def pair(pool: BufferPool, name: str) -> tuple[MemoryTransport, MemoryTransport]:
    """Return the server's and the client's end."""
    server, client = MemoryTransport(pool, name), MemoryTransport(BufferPool(), name)
    server.peer, client.peer = client, server
    return server, client
