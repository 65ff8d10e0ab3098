"""RDMA Reads and Writes of any length, cut into requests that a provider can carry out, and memory that a peer may
access."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from smbdirect.codec import Buffer
from smbdirect.errors import ProviderError
from smbdirect.message_transport import PooledBuffer, RemoteBuffer
from smbdirect.providers.base import (
    ATOMIC_SIZE,
    Access,
    Atomic,
    Endpoint,
    MemoryRegion,
    Read,
    RemoteSegment,
    Write,
)
from smbdirect.rdma.chain_calls import OnDone
from smbdirect.rdma.chains import transfer
from smbdirect.rdma.pool import BufferPool, PoolBuffer
from smbdirect.rdma.registrations import Counters, RegistrationCache
from smbdirect.rdma.work_queue import WorkQueue

B = TypeVar("B", bound=Buffer)
_ADDRESS_SPACE = 1 << 64
_WRITE, _READ = (Write, RemoteSegment, False), (Read, RemoteSegment, True)


def segmented(
    remote: Sequence[RemoteBuffer], local: Sequence[B], max_transfer: int, max_segments: int
) -> Iterator[tuple[RemoteSegment, list[Any]]]:
    """Yield the remote segment and the local pieces of each work request, in order. Each stays within one descriptor,
    ``max_transfer`` bytes and ``max_segments`` local pieces. The descriptors must cover the local bytes."""
    pieces = iter([memoryview(segment) for segment in local if len(segment)])
    piece = next(pieces, None)
    for descriptor in remote:
        position = 0
        while position < descriptor.length and piece is not None:
            room = min(descriptor.length - position, max_transfer)
            taken: list[Any] = []
            count = 0
            while piece is not None and count < room and len(taken) < max_segments:
                part = piece[: room - count]
                taken.append(part)
                count += len(part)
                piece = piece[len(part) :] if len(part) < len(piece) else next(pieces, None)
            yield RemoteSegment(descriptor.token, descriptor.offset + position, count), taken
            position += count


class RegisteredBuffer:
    """Memory exposed to the peer, and the descriptors to send to it. [MS-SMBD 3.1.4.3, 3.1.4.4]"""

    __slots__ = ("_regions", "descriptors", "view")

    def __init__(self, endpoint: Endpoint, view: memoryview, access: Access, max_region: int) -> None:
        """Register ``view`` in pieces of up to ``max_region`` bytes. If that raises ``ProviderError``, nothing stays
        exposed."""
        self.view = view
        self._regions: list[MemoryRegion] = []
        try:
            for start in range(0, len(view), max_region):
                self._regions.append(endpoint.register(view[start : start + max_region], access))
        except ProviderError:
            self.deregister()
            raise
        self.descriptors = tuple(RemoteBuffer(region.address, region.token, region.length) for region in self._regions)

    @property
    def invalidated(self) -> bool:
        """Whether no piece is exposed any longer (the peer invalidated the last one)."""
        return not any(region.valid for region in self._regions)

    def deregister(self) -> None:
        """End all remote access; the memory does not change after the return. Idempotent."""
        for region in self._regions:
            region.deregister()
        self._regions.clear()


class Transfers:
    """The RDMA Reads and Writes of one connection, and its registrations."""

    def __init__(
        self,
        endpoint: Endpoint,
        pool: BufferPool,
        counters: Counters,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        """``counters`` counts transferred bytes, requests and registrations. ``wake``: see ``WorkQueue``."""
        self.cache = RegistrationCache(endpoint, counters, pool)
        if self.cache.needed:
            pool.caches.add(self.cache)
        self.work = WorkQueue(endpoint, wake)
        """Transfers and messages in the order in which they go out."""
        self.fabric = endpoint.capabilities.name
        self.takes_any_memory = not self.cache.needed
        self.acquire: Callable[[int], PoolBuffer] = self.cache.acquire
        """Lends pooled buffers, registered if the fabric needs it."""
        if self.takes_any_memory:
            self.acquire = partial(pool.acquire, home=None, counters=counters)
        self._endpoint = endpoint
        self._loop = loop
        self._counters = counters

    @property
    def regions_invalidatable(self) -> bool:
        return self._endpoint.capabilities.regions_invalidatable

    def write_to_peer(self, remote: Sequence[RemoteBuffer], local: Sequence[Buffer], on_done: OnDone | None) -> None:
        """See ``RdmaOperations``. Raises ``ValueError`` if the descriptors are too short."""
        work, capabilities, counters = self.work, self._endpoint.capabilities, self._counters
        if not self.takes_any_memory or work.stopped is not None:
            if not self._begin(remote, sum(map(len, local)), on_done):
                return
            try:
                local, on_done = self._registered_sources(local, on_done)
            except ProviderError as error:
                self._end_soon(on_done, error)
                return
        most, pieces = capabilities.max_transfer, capabilities.max_send_sge
        total = transfer(work.waiting, _WRITE, remote, local, on_done, most, pieces)
        if total:
            counters["bytes_rdma_written"] += total
            counters["rdma_writes"] += 1
            if not work.corked:
                work.wake()
            return
        total = sum(map(len, local))
        if not self._begin(remote, total, on_done):
            return
        counters["bytes_rdma_written"] += total
        requests = [
            Write(segments, segment, signalled=False) for segment, segments in segmented(remote, local, most, pieces)
        ]
        counters["rdma_writes"] += len(requests)
        work.add(requests, on_done)

    def read_from_peer(self, remote: Sequence[RemoteBuffer], local: Sequence[memoryview], on_done: OnDone) -> None:
        """See ``RdmaOperations``. Raises ``ValueError`` if the descriptors are too short."""
        work, capabilities, counters = self.work, self._endpoint.capabilities, self._counters
        if not self.takes_any_memory or work.stopped is not None:
            if not self._begin(remote, sum(map(len, local)), on_done):
                return
            try:
                for view in local:
                    self.cache.add(view)
            except ProviderError as error:
                self._loop.call_soon(on_done, error)
                return
        most, pieces = capabilities.max_transfer, capabilities.max_read_sge
        total = transfer(work.waiting, _READ, remote, local, on_done, most, pieces)
        if total:
            counters["bytes_rdma_read"] += total
            counters["rdma_reads"] += 1
            if not work.corked:
                work.wake()
            return
        total = sum(map(len, local))
        if not self._begin(remote, total, on_done):
            return
        counters["bytes_rdma_read"] += total
        requests = [Read(segments, segment) for segment, segments in segmented(remote, local, most, pieces)]
        counters["rdma_reads"] += len(requests)
        work.add(requests, on_done)

    def change(
        self,
        remote: RemoteBuffer,
        compare: int | None,
        operand: int,
        on_done: Callable[[BaseException | None, int], None],
    ) -> None:
        """Post an ``Atomic``. ``on_done`` gets the number that was there. Raise ``ProviderError`` if the device refuses
        to register memory."""
        buffer = self.cache.acquire(ATOMIC_SIZE)
        view = buffer.view[:ATOMIC_SIZE]

        def done(error: BaseException | None) -> None:
            found = int.from_bytes(view, sys.byteorder)
            buffer.release()
            on_done(error, found)

        self._counters["atomics"] += 1
        segment = RemoteSegment(remote.token, remote.offset, ATOMIC_SIZE)
        self.work.add([Atomic([view], segment, compare=compare, operand=operand)], done)

    def _end_soon(self, on_done: OnDone | None, error: BaseException | None) -> None:
        if on_done is not None:
            self._loop.call_soon(on_done, error)

    def _begin(self, remote: Sequence[RemoteBuffer], total: int, on_done: OnDone | None) -> bool:
        """Check a transfer. Return whether there is anything to post; if not, ``on_done`` is called soon. Raise
        ``ValueError`` if the descriptors are too short."""
        covered = 0
        for offset, _, length in remote:
            if offset + length > _ADDRESS_SPACE:
                raise ValueError("buffer descriptor leaves the address space")
            covered += length
        if covered < total:
            raise ValueError(f"buffer descriptors cover {covered} bytes, {total} are needed")
        work = self.work
        if total and work.stopped is None:
            return True
        self._end_soon(on_done, work.lost() if total else None)
        return False

    def _registered_sources(
        self, local: Sequence[Buffer], on_done: OnDone | None
    ) -> tuple[Sequence[Buffer], OnDone | None]:
        """Replace unregistered segments by registered copies. Return the segments, and what to call at the end, which
        releases the copies. Raise ``ProviderError`` if the device refuses to register memory."""
        sources: list[Buffer] = []
        copies: list[PooledBuffer] = []
        try:
            for segment in local:
                if self.cache.covers(segment):
                    sources.append(segment)
                    continue
                copies.append(self.cache.gathered((segment,), len(segment)))
                sources.append(copies[-1].view)
        except ProviderError:
            _release(copies)
            raise
        return sources, partial(_end_with, copies, on_done) if copies else on_done

    def register(self, view: memoryview, *, readable: bool = False, writable: bool = False) -> RegisteredBuffer:
        """See ``RdmaOperations``. [MS-SMBD 3.1.4.3]"""
        access = Access.LOCAL_WRITE
        if readable:
            access |= Access.REMOTE_READ
        if writable:
            access |= Access.REMOTE_WRITE
        buffer = RegisteredBuffer(self._endpoint, view, access, self._endpoint.capabilities.max_transfer)
        self._counters["registrations"] += len(buffer.descriptors)
        return buffer


def _release(buffers: Sequence[PooledBuffer]) -> None:
    for buffer in buffers:
        buffer.release()


def _end_with(copies: Sequence[PooledBuffer], on_done: OnDone | None, error: BaseException | None) -> None:
    """End a transfer that had copies of its own."""
    _release(copies)
    if on_done is not None:
        on_done(error)
