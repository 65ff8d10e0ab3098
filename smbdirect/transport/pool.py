"""Pooled buffers, which outlive requests and connections.

Buffers come in power-of-two classes and go back to a free list, so that a connection in steady state allocates and
registers nothing; ``allocations`` and the connections' ``registrations`` counters prove it. Where a fabric wants local
buffers registered, a pooled one is registered when it is made, for all connections of a protection domain: a connection
that meets it later finds it ready.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from typing import Protocol

from smbdirect.providers.base import Access, MemoryRegion, ProtectionDomain
from smbdirect.unauthenticated import MEMORY_GRACE, MEMORY_LIMIT, UnauthenticatedPeers

_SMALLEST_CLASS = 12
"""log2 of the smallest buffer: 4 KiB."""

_PAGE_CLASS = 16
"""From 64 KiB on, buffers are anonymous mappings: page-aligned, and given back to the system when dropped."""

DEFAULT_RETAINED = 64 << 20
"""Bytes a pool keeps for reuse."""


FreeLists = dict[int, list[memoryview]]
"""Buffers by log2 of their size."""


class Forgets(Protocol):
    """What knows pooled memory by itself, and must forget it when the pool drops it."""

    def forget(self, memory: memoryview) -> None: ...


class PoolBuffer:
    """A buffer on loan; keeps ``message_transport.PooledBuffer``."""

    __slots__ = ("_backing", "_home", "_pool", "on_release", "view")

    def __init__(self, pool: BufferPool, backing: memoryview, size: int, home: DomainBuffers | None) -> None:
        self._pool = pool
        self._home = home
        self._backing: memoryview | None = backing
        self.view = backing[:size]
        self.on_release: Callable[[int], None] | None = None

    def release(self) -> None:
        """Give the buffer back; a second call does nothing."""
        backing, self._backing = self._backing, None
        if backing is not None:
            self._pool.put(backing, self._home)
            if self.on_release is not None:
                self.on_release(len(self.view))


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
        """Count the registrations that stand."""
        return len(self._regions)

    def add(self, backing: memoryview) -> None:
        """Register the object behind ``backing``. Raises ``ProviderError``."""
        region = self.domain.register(backing, Access.LOCAL_WRITE)
        self._regions[id(backing.obj)] = (region, backing.obj)

    def covers(self, owner: object) -> bool:
        """Return whether ``owner``, the object behind a view, is registered here."""
        return id(owner) in self._regions

    def forget(self, backing: memoryview) -> None:
        """End the registration of the object behind ``backing``, if it has one."""
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
        """Notify the pool, and end every registration: the domain is about to go."""
        pool = self._pool()
        if pool is not None:
            pool.leave(self)
        self.close()


class BufferPool:
    """Free lists of buffers, shared by any number of connections of one event loop, over TCP and SMB Direct."""

    def __init__(self, retained: int = DEFAULT_RETAINED) -> None:
        """``retained``: bytes to keep for reuse at most."""
        self.allocations = 0
        """Buffers obtained from the system so far."""
        self.retained_limit = retained
        self.retained = 0
        """Bytes on the free lists."""
        self.lent = 0
        """Bytes on loan."""
        self.unauthenticated = UnauthenticatedPeers(MEMORY_LIMIT, grace=MEMORY_GRACE)
        """Bytes that unauthenticated peers make this side hold, beyond what each has anyway. Most need none: only a
        long security token in their first messages does."""
        self._free: FreeLists = {}
        self.caches: weakref.WeakSet[Forgets] = weakref.WeakSet()
        """They are notified of buffers that are given back to the system."""
        self._homes: dict[int, tuple[DomainBuffers, weakref.finalize[..., BufferPool]]] = {}
        """By the identity of their domain, which they keep."""

    def home(self, domain: ProtectionDomain) -> DomainBuffers:
        """Return this pool's buffers in ``domain``; they go with whichever of the two goes first."""
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
        """Forget ``home``, whose domain goes, and what is free there with it."""
        found = self._homes.pop(id(home.domain), None)
        if found is not None:
            found[1].detach()
            self.retained -= sum(len(backing) for free in home.free.values() for backing in free)

    def acquire(self, size: int, home: DomainBuffers | None = None) -> PoolBuffer:
        """Lend a buffer of ``size`` bytes, registered in ``home`` if one is given: registrations are made with
        allocations only. Raises ``ProviderError`` if the device refuses one."""
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

    def put(self, backing: memoryview, home: DomainBuffers | None) -> None:
        """Take back what ``acquire`` lent; only ``PoolBuffer.release`` calls this."""
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
