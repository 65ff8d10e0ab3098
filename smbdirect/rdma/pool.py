"""Pooled buffers, which outlive requests and connections.

Buffers come in power-of-two classes and go back to a free list, so that a connection in steady state allocates and
registers nothing; ``allocations`` and the connections' ``registrations`` counters prove it. If a fabric needs local
buffers registered, a pooled buffer is registered when it is made, for all connections of a protection domain: no later
connection has to register it again.
"""

from __future__ import annotations

import mmap
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from smbdirect.unauthenticated import MEMORY_GRACE, MEMORY_LIMIT, UnauthenticatedPeers

if TYPE_CHECKING:
    from smbdirect.providers.base import MemoryRegion, ProtectionDomain

_SMALLEST = 4096
"""Bytes of the smallest buffer."""

_MAPPED = 65536
"""From this size on, buffers are anonymous mappings: page-aligned, and given back to the system when dropped."""

DEFAULT_RETAINED = 64 << 20
"""Most bytes that a pool keeps for reuse."""


FreeLists = defaultdict[int, list[memoryview]]
"""Buffers by their size."""


class Forgets(Protocol):
    """An object that refers to pooled memory, and must forget it when the pool drops it."""

    def forget(self, memory: memoryview) -> None:
        """Drop every reference to the object behind ``memory``."""


class PoolBuffer:
    """A buffer on loan. Implements ``message_transport.PooledBuffer``."""

    __slots__ = ("_backing", "_home", "_pool", "on_release", "view")

    def __init__(self, pool: BufferPool, backing: memoryview, size: int, home: DomainBuffers | None) -> None:
        self._pool = pool
        self._home = home
        # Invariant: None once the buffer was given back.
        self._backing: memoryview | None = backing
        self.view = backing[:size]
        self.on_release: Callable[[int], None] | None = None

    @property
    def room(self) -> memoryview | None:
        """The memory that begins with ``view``, all of which is lent. None once the buffer was given back."""
        return self._backing

    def release(self) -> None:
        """Give the buffer back; a second call does nothing."""
        backing = self._backing
        if backing is None:
            return
        self._backing = None
        pool, home = self._pool, self._home
        if pool.held <= pool.retained_limit and home is None:
            size = len(backing)
            pool.lent -= size
            pool.free[size].append(backing)
        else:
            pool.put(backing, home)
        if self.on_release is not None:
            self.on_release(len(self.view))


class DomainBuffers:
    """The buffers of a pool that are registered in one protection domain, all of them and only those.

    Sharing a registration among the connections of a domain gives no peer additional rights. It is made for local use
    only (``LOCAL_WRITE``). In MS-SMBD only the side that sends buffer descriptors, the client, exposes memory
    (3.1.4.3), and does so in a domain of its own connection; a server's buffers are the local side of its RDMA Reads
    and Writes. So a device refuses a peer that guesses the registration's key, or has seen it on the wire as the sink
    of a Read (iWARP shows it there): it has no remote right. iWARP NICs that require this right on sinks are the
    exception: there each connection has a domain of its own, and shares with none (``verbs.device``).
    """

    def __init__(self, pool: BufferPool, domain: ProtectionDomain) -> None:
        """``pool`` is held weakly."""
        self.domain = domain
        self.free: FreeLists = defaultdict(list)
        self.closed = False
        self._pool = weakref.ref(pool)
        self._regions: dict[int, tuple[MemoryRegion, object]] = {}

    def __len__(self) -> int:
        """Return how many registrations exist."""
        return len(self._regions)

    def add(self, backing: memoryview) -> None:
        """Register the object behind ``backing``. Raises ``ProviderError``."""
        # Pools of TCP connections need no fabric.
        from smbdirect.providers.base import Access

        region = self.domain.register(backing, Access.LOCAL_WRITE)
        self._regions[id(backing.obj)] = (region, backing.obj)

    def covers(self, owner: object) -> bool:
        """Return whether ``owner`` (the object behind a view) is registered here."""
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
        """Notify the pool and end every registration: the domain is about to be closed."""
        pool = self._pool()
        if pool is not None:
            pool.leave(self)
        self.close()


class BufferPool:
    """The free lists of buffers that any number of connections of one event loop share, over TCP and SMB Direct."""

    def __init__(self, retained: int = DEFAULT_RETAINED) -> None:
        """``retained``: most bytes to keep for reuse."""
        self.allocations = 0
        """Buffers obtained from the system so far."""
        self.retained_limit = retained
        self.held = 0
        """Bytes of all buffers, on free lists and on loan."""
        self.lent = 0
        """Bytes on loan, by the sizes of the buffers behind the views."""
        self.unauthenticated = UnauthenticatedPeers(MEMORY_LIMIT, grace=MEMORY_GRACE)
        """Bytes that this side holds for unauthenticated peers, beyond the share that each has anyway. Only a peer with
        a long security token in its first messages needs any."""
        self.free: FreeLists = defaultdict(list)
        """Buffers that are registered in no domain."""
        self.caches: weakref.WeakSet[Forgets] = weakref.WeakSet()
        """Notified of each buffer that is given back to the system."""
        self._homes: dict[int, tuple[DomainBuffers, weakref.finalize[..., BufferPool]]] = {}
        """By the ``id`` of their domain, which they keep alive."""

    @property
    def retained(self) -> int:
        """Bytes on all free lists. Invariant: at most ``retained_limit``."""
        return self.held - self.lent

    def home(self, domain: ProtectionDomain) -> DomainBuffers:
        """Return this pool's buffers in ``domain``; their registrations end with the pool or the domain."""
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
        """Forget ``home``, whose domain is about to be closed, and the free buffers in it."""
        found = self._homes.pop(id(home.domain), None)
        if found is not None:
            found[1].detach()
            self.held -= sum(len(backing) for free in home.free.values() for backing in free)

    def acquire(
        self, size: int, home: DomainBuffers | None = None, counters: dict[str, int] | None = None
    ) -> PoolBuffer:
        """Lend a buffer of ``size`` bytes, registered in ``home`` if one is given. Only a newly allocated buffer needs
        a registration. Raise ``ProviderError`` if the device refuses it.

        ``counters``: where a new buffer is counted, and its registration."""
        whole = 1 << (size - 1).bit_length() if size > _SMALLEST else _SMALLEST
        free = (self.free if home is None else home.free).get(whole)
        if free:
            backing = free.pop()
        else:
            backing = memoryview(mmap.mmap(-1, whole) if whole >= _MAPPED else bytearray(whole))
            if home is not None:
                home.add(backing)
            self.held += whole
            self.allocations += 1
            if counters is not None:
                counters["allocations"] += 1
                counters["registrations"] += home is not None
        self.lent += whole
        return PoolBuffer(self, backing, size, home)

    def put(self, backing: memoryview, home: DomainBuffers | None) -> None:
        """Take back a buffer of ``home``, and keep it if there is room; only ``PoolBuffer.release`` calls this."""
        size = len(backing)
        self.lent -= size
        if home is not None and home.closed:
            home = None
        if self.retained <= self.retained_limit:
            (self.free if home is None else home.free)[size].append(backing)
            return
        self.held -= size
        # This buffer is not lent again: a remaining registration would pin its memory.
        if home is not None:
            home.forget(backing)
        for cache in tuple(self.caches):
            cache.forget(backing)
