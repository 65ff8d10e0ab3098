"""Memory that outlives requests: pooled buffers, receive buffers, and their registrations.

Buffers come in power-of-two classes and go back to a free list, so that a connection in steady state allocates and
registers nothing; ``allocations`` and ``registrations`` counters prove it.
"""

from __future__ import annotations

import mmap
import weakref

from smbdirect.codec import Buffer
from smbdirect.providers.base import Access, Endpoint, MemoryRegion

_SMALLEST_CLASS = 12
"""log2 of the smallest buffer: 4 KiB."""

_PAGE_CLASS = 16
"""From 64 KiB on, buffers are anonymous mappings: page-aligned, and given back to the system when dropped."""

DEFAULT_RETAINED = 64 << 20
"""Bytes a pool keeps for reuse."""

STRANGER_SIZE = 8192
"""Bytes of a message up to which a peer that is not trusted needs no allowance."""

STRANGERS_LIMIT = 4 << 20
"""Bytes of their longer messages, all peers together."""

Counters = dict[str, int]


class Allowance:
    """Bytes that all peers whom nobody trusts yet may make this side hold together, beyond what each has anyway. Most
    need none: only a long security token in their first messages does."""

    def __init__(self, limit: int = STRANGERS_LIMIT) -> None:
        self.limit = limit
        self.taken = 0

    def take(self, size: int) -> bool:
        """False, and nothing is taken, if that is too much."""
        if self.taken + size > self.limit:
            return False
        self.taken += size
        return True

    def give_back(self, size: int) -> None:
        self.taken -= size


class PoolBuffer:
    """A buffer on loan; keeps ``message_transport.PooledBuffer``."""

    __slots__ = ("_backing", "_pool", "view")

    def __init__(self, pool: BufferPool, backing: memoryview, size: int) -> None:
        self._pool = pool
        self._backing: memoryview | None = backing
        self.view = backing[:size]

    def release(self) -> None:
        backing, self._backing = self._backing, None
        if backing is not None:
            self._pool.put(backing)


class BufferPool:
    """Free lists of buffers, shared by any number of connections of one event loop."""

    def __init__(self, retained: int = DEFAULT_RETAINED) -> None:
        self.allocations = 0
        """Buffers obtained from the system so far."""
        self.retained_limit = retained
        self.retained = 0
        """Bytes on the free lists."""
        self.lent = 0
        """Bytes on loan."""
        self.strangers = Allowance()
        self._free: dict[int, list[memoryview]] = {}
        self.caches: weakref.WeakSet[RegistrationCache] = weakref.WeakSet()
        """They hear of buffers that are given back to the system."""

    def acquire(self, size: int) -> PoolBuffer:
        order = max((size - 1).bit_length(), _SMALLEST_CLASS)
        free = self._free.get(order)
        if free:
            backing = free.pop()
            self.retained -= 1 << order
        else:
            self.allocations += 1
            backing = memoryview(mmap.mmap(-1, 1 << order) if order >= _PAGE_CLASS else bytearray(1 << order))
        self.lent += 1 << order
        return PoolBuffer(self, backing, size)

    def put(self, backing: memoryview) -> None:
        size = len(backing)
        self.lent -= size
        if self.retained + size <= self.retained_limit:
            self.retained += size
            self._free.setdefault(size.bit_length() - 1, []).append(backing)
            return
        # Nobody asks for this one again: a registration left behind would pin its memory while its connection lives.
        for cache in tuple(self.caches):
            cache.forget(backing)


class RegistrationCache:
    """Local registrations of one connection, made once per piece of memory and kept until the connection ends or the
    pool drops the memory.

    Only for providers whose local buffers need registration; elsewhere ``endpoint`` is left alone.
    """

    def __init__(self, endpoint: Endpoint, counters: Counters) -> None:
        self.needed = endpoint.capabilities.requires_registration
        self._endpoint = endpoint
        self._counters = counters
        self._regions: dict[int, tuple[MemoryRegion, object]] = {}

    def add(self, memory: memoryview) -> None:
        """Make sure that the object behind ``memory`` is registered. Raises ``ProviderError``."""
        if not self.needed:
            return
        owner = memory.obj
        if id(owner) not in self._regions:
            region = self._endpoint.register(memoryview(owner), Access.LOCAL_WRITE)
            self._regions[id(owner)] = (region, owner)
            self._counters["registrations"] += 1

    def covers(self, segment: Buffer) -> bool:
        """Whether ``segment`` may be posted as it is."""
        return not self.needed or id(memoryview(segment).obj) in self._regions

    def forget(self, memory: memoryview) -> None:
        """Nothing uses the object behind ``memory`` any more: end its registration, if it has one."""
        found = self._regions.pop(id(memory.obj), None)
        if found is not None:
            found[0].deregister()

    def clear(self) -> None:
        for region, _ in self._regions.values():
            region.deregister()
        self._regions.clear()


class ReceiveBuffer:
    """One receive's memory, posted or lent to the upper layer."""

    __slots__ = ("_pool", "view")

    def __init__(self, pool: ReceivePool, view: memoryview) -> None:
        self._pool = pool
        self.view = view

    def release(self) -> None:
        """Ready to be posted again."""
        self._pool.free.append(self)


class ReceivePool:
    """The receive buffers of one connection, cut from slabs that grow with what is asked for."""

    def __init__(self, size: int, limit: int, cache: RegistrationCache, counters: Counters) -> None:
        """``size`` bytes each, at most ``limit`` of them."""
        self.free: list[ReceiveBuffer] = []
        self.total = 0
        self.limit = limit
        self._size = size
        self._cache = cache
        self._counters = counters

    def take(self, count: int) -> list[ReceiveBuffer]:
        """Up to ``count`` buffers: fewer if the limit is reached and the rest is in use."""
        missing = min(count - len(self.free), self.limit - self.total)
        if missing > 0:
            stride = -(-self._size // 8) * 8
            slab = memoryview(bytearray(stride * missing))
            self._cache.add(slab)
            for start in range(0, stride * missing, stride):
                self.free.append(ReceiveBuffer(self, slab[start : start + self._size]))
            self.total += missing
            self._counters["allocations"] += 1
        taken = self.free[-count:] if count else []
        del self.free[len(self.free) - len(taken) :]
        return taken

    @property
    def memory(self) -> int:
        """Bytes held."""
        return self.total * self._size
