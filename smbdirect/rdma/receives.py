"""The receive buffers of one connection."""

from __future__ import annotations

from smbdirect.rdma.registrations import Counters, RegistrationCache


class ReceiveBuffer:
    """The memory of one receive: free, posted, or lent to the upper layer."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view


class ReceivePool:
    """The receive buffers of one connection, cut from slabs that are allocated as needed.

    Invariant: each of the ``total`` buffers is in ``free``, posted at the endpoint, or held by one message (until
    ``close``).
    """

    def __init__(self, size: int, limit: int, cache: RegistrationCache, counters: Counters) -> None:
        """``size``: bytes of each buffer. ``limit``: most buffers."""
        self.free: list[ReceiveBuffer] = []
        self.total = 0
        self.limit = limit
        self._size = size
        self._cache = cache
        self._counters = counters

    def take(self, count: int) -> list[ReceiveBuffer]:
        """Return up to ``count`` buffers: fewer if the limit is reached and the others are in use. Raise
        ``ProviderError`` if the device refuses to register more."""
        missing = min(count - len(self.free), self.limit - self.total)
        if missing > 0:
            stride = -(-self._size // 8) * 8
            slab = memoryview(bytearray(stride * missing))
            self._cache.add(slab)
            for start in range(0, stride * missing, stride):
                self.free.append(ReceiveBuffer(slab[start : start + self._size]))
            self.total += missing
            self._counters["allocations"] += 1
        taken = self.free[-count:] if count else []
        del self.free[len(self.free) - len(taken) :]
        return taken

    def put(self, buffer: ReceiveBuffer) -> None:
        """Take ``buffer`` back, so that it can be posted again."""
        if self.limit:
            self.free.append(buffer)

    def close(self) -> None:
        """Free the memory, and that of each buffer that comes back later: the connection has ended."""
        self.limit = 0
        self.free.clear()

    @property
    def memory(self) -> int:
        """Bytes of all buffers."""
        return self.total * self._size
