"""Registrations of the local memory that one connection uses, if its fabric needs memory registered before it is
posted."""

from __future__ import annotations

from collections.abc import Sequence

from smbdirect.codec import Buffer
from smbdirect.providers.base import Access, Endpoint, MemoryRegion
from smbdirect.rdma.pool import BufferPool, PoolBuffer

Counters = dict[str, int]


class RegistrationCache:
    """The local registrations that one connection uses: the shared ones of pooled buffers, and its own.

    Its own are those of receives and of Read targets that are in no pool. They are made once per piece of memory and
    kept until the connection ends or the pool drops the memory. Only providers whose local buffers need registration
    use this; otherwise nothing is registered at ``endpoint``.
    """

    def __init__(self, endpoint: Endpoint, counters: Counters, pool: BufferPool) -> None:
        self.needed = endpoint.capabilities.requires_registration
        domain = endpoint.domain if self.needed else None
        self.home = pool.home(domain) if domain is not None else None
        """The pooled buffers that are registered for this connection; None if no registration is needed, or after the
        end."""
        self._pool = pool
        self._endpoint = endpoint
        self._counters = counters
        self._regions: dict[int, tuple[MemoryRegion, object]] = {}

    def acquire(self, size: int) -> PoolBuffer:
        """Lend a pooled buffer of ``size`` bytes, registered if the fabric needs it. Raise ``ProviderError`` if the
        device refuses the registration."""
        return self._pool.acquire(size, self.home, self._counters)

    def gathered(self, segments: Sequence[Buffer], length: int) -> PoolBuffer:
        """Copy ``segments``, ``length`` bytes in all, to a buffer from ``acquire``. Raise ``ProviderError`` as
        ``acquire`` does."""
        buffer = self.acquire(length)
        position = 0
        for segment in segments:
            buffer.view[position : position + len(segment)] = segment
            position += len(segment)
        self._counters["bounced_bytes"] += length
        return buffer

    def add(self, memory: memoryview) -> None:
        """Register the object behind ``memory`` unless it is registered. Raise ``ProviderError`` if the device refuses
        it."""
        if not self.needed:
            return
        owner = memory.obj
        if not self._has(owner):
            region = self._endpoint.register(memoryview(owner), Access.LOCAL_WRITE)
            self._regions[id(owner)] = (region, owner)
            self._counters["registrations"] += 1

    def covers(self, segment: Buffer) -> bool:
        """Return whether ``segment`` may be posted without a copy."""
        return not self.needed or self._has(memoryview(segment).obj)

    def _has(self, owner: object) -> bool:
        return id(owner) in self._regions or (self.home is not None and self.home.covers(owner))

    def forget(self, memory: memoryview) -> None:
        """End the registration of the object behind ``memory``, if it has one. No work request may use it any
        longer."""
        found = self._regions.pop(id(memory.obj), None)
        if found is not None:
            found[0].deregister()

    def leave_domain(self) -> None:
        """Register no more pooled buffers: nothing is posted any longer."""
        self.home = None

    def clear(self) -> None:
        """End the connection's own registrations."""
        for region, _ in self._regions.values():
            region.deregister()
        self._regions.clear()
