"""Pooled buffers in power-of-two sizes, for transports whose fabric needs no registration."""

from __future__ import annotations

from smbdirect.transport.buffers import STRANGERS_GRACE, STRANGERS_LIMIT
from smbdirect.unauthenticated import Strangers

SMALLEST = 1 << 12
LARGEST = 1 << 24
"""Bytes; larger buffers are made to measure and not kept."""


class Buffer:
    """See ``smbdirect.message_transport.PooledBuffer``."""

    __slots__ = ("_memory", "_pool", "view")

    def __init__(self, pool: BufferPool, memory: bytearray, size: int) -> None:
        self._pool: BufferPool | None = pool
        self._memory = memory
        self.view = memoryview(memory)[:size]

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.put(self._memory)


class BufferPool:
    """Keeps at most ``max_idle_bytes`` of buffers nobody uses."""

    def __init__(self, max_idle_bytes: int = 64 << 20) -> None:
        self.max_idle_bytes = max_idle_bytes
        self.idle_bytes = 0
        self.allocations = 0
        self.in_use = 0
        self.strangers = Strangers(STRANGERS_LIMIT, grace=STRANGERS_GRACE)
        self._free: dict[int, list[bytearray]] = {}

    def get(self, size: int) -> Buffer:
        """A buffer of exactly ``size`` bytes with undefined contents."""
        room = SMALLEST if size <= SMALLEST else 1 << (size - 1).bit_length()
        self.in_use += 1
        free = self._free.get(room)
        if free:
            self.idle_bytes -= room
            return Buffer(self, free.pop(), size)
        self.allocations += 1
        return Buffer(self, bytearray(room if room <= LARGEST else size), size)

    def put(self, memory: bytearray) -> None:
        self.in_use -= 1
        room = len(memory)
        if room > LARGEST or self.idle_bytes + room > self.max_idle_bytes:
            return
        self.idle_bytes += room
        self._free.setdefault(room, []).append(memory)
