"""The receive buffers of one connection."""

from __future__ import annotations

from smbdirect.transport.registrations import Counters, RegistrationCache


class ReceiveBuffer:
    """One receive's memory, posted or lent to the upper layer."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view


class ReceivePool:
    """Receive buffers, cut from slabs that grow with what is asked for.

    Invariant: each of the ``total`` buffers is in ``free``, posted at the endpoint, or held by one message.
    """

    def __init__(self, size: int, limit: int, cache: RegistrationCache, counters: Counters) -> None:
        """``size``: bytes of each. ``limit``: how many there may be."""
        self.free: list[ReceiveBuffer] = []
        self.total = 0
        self.limit = limit
        self._size = size
        self._cache = cache
        self._counters = counters

    def take(self, count: int) -> list[ReceiveBuffer]:
        """Take up to ``count`` buffers: fewer if the limit is reached and the rest is in use. Raises
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
        """Take ``buffer`` back: it is ready to be posted again."""
        if self.limit:
            self.free.append(buffer)

    def close(self) -> None:
        """Keep nothing that comes back from now on: the connection has ended."""
        self.limit = 0
        self.free.clear()

    @property
    def memory(self) -> int:
        """Bytes held."""
        return self.total * self._size
