"""RDMA Read and Write by buffer descriptors (MS-SMBD 3.1.4.3-3.1.4.6): cutting transfers to what a provider can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from smbdirect.codec import Buffer
from smbdirect.core.connection import Connection
from smbdirect.errors import ProviderError
from smbdirect.message_transport import PooledBuffer, RemoteBuffer
from smbdirect.providers.base import Access, Endpoint, MemoryRegion, Operation, RemoteSegment
from smbdirect.transport.buffers import Counters

B = TypeVar("B", bound=Buffer)

OnDone = Callable[[BaseException | None], None]


class Transfer:
    """One read_from_peer or write_to_peer under way; reports once."""

    __slots__ = ("_kept", "_on_done")

    def __init__(self, on_done: OnDone) -> None:
        self._on_done: OnDone | None = on_done
        self._kept: list[PooledBuffer] = []

    def keep(self, buffer: PooledBuffer) -> None:
        """Release ``buffer`` when the transfer ends."""
        self._kept.append(buffer)

    def finish(self, error: BaseException | None) -> None:
        while self._kept:
            self._kept.pop().release()
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(error)


def check_descriptors(remote: Sequence[RemoteBuffer], needed: int) -> None:
    """Raises ``ValueError`` unless the descriptors cover ``needed`` bytes within the 64-bit address space."""
    covered = 0
    for descriptor in remote:
        if descriptor.offset + descriptor.length > 1 << 64:
            raise ValueError("buffer descriptor leaves the address space")
        covered += descriptor.length
    if covered < needed:
        raise ValueError(f"buffer descriptors cover {covered} bytes, {needed} are needed")


def cut(
    remote: Sequence[RemoteBuffer], local: Sequence[B], max_transfer: int, max_segments: int
) -> Iterator[tuple[RemoteSegment, list[Any]]]:
    """Work requests that move the local bytes, in order: each within one descriptor, ``max_transfer`` bytes and
    ``max_segments`` local pieces. The descriptors cover the local bytes (``check_descriptors``)."""
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
    """Memory exposed to the peer, and the descriptors to send it (3.1.4.3, 3.1.4.4)."""

    __slots__ = ("_regions", "descriptors", "view")

    def __init__(self, endpoint: Endpoint, view: memoryview, access: Access, max_region: int) -> None:
        """Register ``view`` in pieces of up to ``max_region`` bytes. Raises ``ProviderError``; nothing stays exposed
        then."""
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
        """Whether no piece is exposed any more (the peer invalidated the last one)."""
        return not any(region.valid for region in self._regions)

    def deregister(self) -> None:
        """End all remote access. Idempotent; the memory does not change any more once this has returned."""
        for region in self._regions:
            region.deregister()
        self._regions.clear()


class RdmaHost(Protocol):
    """What ``Rdma`` needs of its transport."""

    endpoint: Endpoint
    connection: Connection
    counters: Counters

    def post_rdma(
        self, operation: Operation, remote: Sequence[RemoteBuffer], local: Sequence[Any], on_done: OnDone
    ) -> None: ...


class Rdma:
    """``message_transport.RdmaOperations`` of one transport, and buffer registration for initiators."""

    def __init__(self, transport: RdmaHost) -> None:
        self._transport = transport
        self.fabric = transport.endpoint.capabilities.name

    @property
    def regions_invalidatable(self) -> bool:
        return self._transport.endpoint.capabilities.regions_invalidatable

    @property
    def max_read_write_size(self) -> int:
        return self._transport.connection.max_read_write_size

    def write_to_peer(self, remote: Sequence[RemoteBuffer], local: Sequence[Buffer], on_done: OnDone) -> None:
        """See ``RdmaOperations``. Raises ``ValueError`` if the descriptors are too short."""
        self._transport.post_rdma(Operation.WRITE, remote, local, on_done)

    def read_from_peer(self, remote: Sequence[RemoteBuffer], local: Sequence[memoryview], on_done: OnDone) -> None:
        """See ``RdmaOperations``. Raises ``ValueError`` if the descriptors are too short."""
        self._transport.post_rdma(Operation.READ, remote, local, on_done)

    def register(self, view: memoryview, *, readable: bool = False, writable: bool = False) -> RegisteredBuffer:
        """Expose ``view`` to the peer for RDMA Read and/or Write (3.1.4.3). Raises ``ProviderError``."""
        access = Access.LOCAL_WRITE
        if readable:
            access |= Access.REMOTE_READ
        if writable:
            access |= Access.REMOTE_WRITE
        transport = self._transport
        buffer = RegisteredBuffer(transport.endpoint, view, access, transport.endpoint.capabilities.max_transfer)
        transport.counters["registrations"] += len(buffer.descriptors)
        return buffer
