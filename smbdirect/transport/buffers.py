"""Memory that outlives requests: pooled buffers, receive buffers, and their registrations.

Buffers come in power-of-two classes and go back to a free list, so that a connection in steady state allocates and
registers nothing; ``allocations`` and ``registrations`` counters prove it. Where a fabric wants local buffers
registered, a pooled one is registered when it is made, for all connections of a protection domain: a connection that
meets it later finds it ready.
"""

from __future__ import annotations

import mmap
import weakref

from smbdirect.codec import Buffer
from smbdirect.providers.base import Access, Endpoint, MemoryRegion, ProtectionDomain
from smbdirect.unauthenticated import Strangers

_SMALLEST_CLASS = 12
"""log2 of the smallest buffer: 4 KiB."""

_PAGE_CLASS = 16
"""From 64 KiB on, buffers are anonymous mappings: page-aligned, and given back to the system when dropped."""

DEFAULT_RETAINED = 64 << 20
"""Bytes a pool keeps for reuse."""

STRANGER_SIZE = 8192
"""Bytes of a message up to which a peer that is not trusted needs no allowance."""

STRANGERS_GRACE = 1.0
"""Seconds that a message of theirs is safe from newcomers whose source has as much: longer than it takes to arrive."""

STRANGERS_LIMIT = 4 << 20
"""Bytes of their longer messages, all peers together."""

Counters = dict[str, int]


class PoolBuffer:
    """A buffer on loan; keeps ``message_transport.PooledBuffer``."""

    __slots__ = ("_backing", "_home", "_pool", "view")

    def __init__(self, pool: BufferPool, backing: memoryview, size: int, home: DomainBuffers | None = None) -> None:
        self._pool = pool
        self._home = home
        self._backing: memoryview | None = backing
        self.view = backing[:size]

    def release(self) -> None:
        backing, self._backing = self._backing, None
        if backing is not None:
            self._pool.put(backing, self._home)


FreeLists = dict[int, list[memoryview]]
"""By log2 of the size."""


class DomainBuffers:
    """The buffers of a pool that are registered in one protection domain, all of them and only those.

    Sharing a registration among the connections of a domain gives no peer more than it had. It is made for local use
    alone (``LOCAL_WRITE``): in MS-SMBD only the side that sends buffer descriptors, the client, exposes memory
    (3.1.4.3), and does so in a domain of its connection's own; a server's buffers are the local side of its RDMA Reads
    and Writes. So a device refuses a peer that guesses the registration's key, or has seen it on the wire as the sink
    of a Read (iWARP shows it there): no remote right was asked for. iWARP NICs that want that right on sinks are the
    exception: there each connection has a domain of its own, and shares with none (``verbs.device``).
    """

    def __init__(self, pool: BufferPool, domain: ProtectionDomain) -> None:
        self.domain = domain
        self.free: FreeLists = {}
        self.closed = False
        self._pool = weakref.ref(pool)
        self._regions: dict[int, tuple[MemoryRegion, object]] = {}

    def __len__(self) -> int:
        """Registrations that stand."""
        return len(self._regions)

    def add(self, backing: memoryview) -> None:
        """Raises ``ProviderError``."""
        region = self.domain.register(backing, Access.LOCAL_WRITE)
        self._regions[id(backing.obj)] = (region, backing.obj)

    def covers(self, owner: object) -> bool:
        return id(owner) in self._regions

    def forget(self, backing: memoryview) -> None:
        found = self._regions.pop(id(backing.obj), None)
        if found is not None:
            found[0].deregister()

    def close(self) -> None:
        """End every registration. Idempotent."""
        self.closed = True
        self.free.clear()
        regions, self._regions = self._regions, {}
        for region, _ in regions.values():
            region.deregister()

    def domain_closed(self) -> None:
        pool = self._pool()
        if pool is not None:
            pool.leave(self)
        self.close()


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
        self.strangers = Strangers(STRANGERS_LIMIT, grace=STRANGERS_GRACE)
        """Bytes that peers whom nobody trusts yet make this side hold, beyond what each has anyway. Most need none:
        only a long security token in their first messages does."""
        self._free: FreeLists = {}
        self.caches: weakref.WeakSet[RegistrationCache] = weakref.WeakSet()
        """They hear of buffers that are given back to the system."""
        self._homes: dict[int, tuple[DomainBuffers, weakref.finalize[..., BufferPool]]] = {}
        """By the identity of their domain, which they keep."""

    def home(self, domain: ProtectionDomain) -> DomainBuffers:
        """This pool's buffers in ``domain``; they go with whichever of the two goes first."""
        found = self._homes.get(id(domain))
        if found is not None:
            return found[0]
        home = DomainBuffers(self, domain)
        finalizer = weakref.finalize(self, home.close)
        finalizer.atexit = False  # the process's registrations end with it
        self._homes[id(domain)] = home, finalizer
        domain.add_user(home)
        return home

    def leave(self, home: DomainBuffers) -> None:
        """``home``'s domain goes, and what is free there with it."""
        found = self._homes.pop(id(home.domain), None)
        if found is not None:
            found[1].detach()
            self.retained -= sum(len(backing) for free in home.free.values() for backing in free)

    def acquire(self, size: int, home: DomainBuffers | None = None) -> PoolBuffer:
        """At least ``size`` bytes, registered in ``home`` if one is given: registrations are made with allocations
        only. Raises ``ProviderError`` if the device refuses one."""
        order = max((size - 1).bit_length(), _SMALLEST_CLASS)
        free = (self._free if home is None else home.free).get(order)
        if free:
            backing = free.pop()
            self.retained -= 1 << order
        else:
            backing = memoryview(mmap.mmap(-1, 1 << order) if order >= _PAGE_CLASS else bytearray(1 << order))
            if home is not None:
                home.add(backing)
            self.allocations += 1
        self.lent += 1 << order
        return PoolBuffer(self, backing, size, home)

    def put(self, backing: memoryview, home: DomainBuffers | None = None) -> None:
        size = len(backing)
        self.lent -= size
        if home is not None and home.closed:
            home = None
        if self.retained + size <= self.retained_limit:
            self.retained += size
            (self._free if home is None else home.free).setdefault(size.bit_length() - 1, []).append(backing)
            return
        # Nobody asks for this one again: a registration left behind would pin its memory.
        if home is not None:
            home.forget(backing)
        for cache in tuple(self.caches):
            cache.forget(backing)


class RegistrationCache:
    """Local registrations that a connection uses: those of pooled buffers, which it shares, and its own (receives,
    targets of Reads that are in no pool), made once per piece of memory and kept until the connection ends or the pool
    drops the memory.

    Only for providers whose local buffers need registration; elsewhere ``endpoint`` is left alone.
    """

    def __init__(self, endpoint: Endpoint, counters: Counters, pool: BufferPool) -> None:
        self.needed = endpoint.capabilities.requires_registration
        domain = endpoint.domain if self.needed else None
        self.home = pool.home(domain) if domain is not None else None
        """Where pooled buffers are registered."""
        self._endpoint = endpoint
        self._counters = counters
        self._regions: dict[int, tuple[MemoryRegion, object]] = {}

    def add(self, memory: memoryview) -> None:
        """Make sure that the object behind ``memory`` is registered. Raises ``ProviderError``."""
        if not self.needed:
            return
        owner = memory.obj
        if not self._has(owner):
            region = self._endpoint.register(memoryview(owner), Access.LOCAL_WRITE)
            self._regions[id(owner)] = (region, owner)
            self._counters["registrations"] += 1

    def covers(self, segment: Buffer) -> bool:
        """Whether ``segment`` may be posted as it is."""
        return not self.needed or self._has(memoryview(segment).obj)

    def _has(self, owner: object) -> bool:
        return id(owner) in self._regions or (self.home is not None and self.home.covers(owner))

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
        if self._pool.limit:
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

    def close(self) -> None:
        """The connection ended. Buffers refer to their pool: memory comes back without the garbage collector."""
        self.limit = 0
        self.free.clear()

    @property
    def memory(self) -> int:
        """Bytes held."""
        return self.total * self._size
