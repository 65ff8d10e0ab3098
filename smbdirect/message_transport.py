"""The seam between the SMB server (or client) and whatever carries its messages.

One interface serves direct-TCP framing, SMB Direct and loopback. Users never ask which one they have, except
through ``rdma is None``. A transport starts out distrusting its peer; ``trust`` ends that.

Everything here runs on one event loop's thread; callbacks are plain functions called on that thread. Nothing blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from smbdirect.codec import Buffer


class PooledBuffer(Protocol):
    """A buffer out of a pool that outlives opens and connections' requests (registered, where the fabric needs it).

    ``view`` has exactly the length asked for. ``release()`` gives it back, after which ``view`` must not be touched; a
    second call does nothing. A transport that is closing waits for its own transfers before it reuses one.
    """

    view: memoryview
    on_release: Callable[[int], None] | None
    """Called once, with the length of ``view``, when the buffer has been given back."""

    def release(self) -> None: ...


class InboundMessage(Protocol):
    """One upper-layer message (a whole SMB2 message or compound, transform header included).

    ``view`` is writable (decryption works in place) and stays valid and unchanged until ``release()``.
    """

    view: memoryview

    def release(self) -> None: ...


class RemoteBuffer(NamedTuple):
    """SMB_DIRECT_BUFFER_DESCRIPTOR_V1 (MS-SMBD 2.2.3.1) as values: ``offset`` is opaque, not zero-based."""

    offset: int
    token: int
    length: int


class ExposedMemory(Protocol):
    """Memory registered for a peer's RDMA Reads or Writes (MS-SMBD 3.1.4.3)."""

    view: memoryview
    descriptors: tuple[RemoteBuffer, ...]
    """What to send to the peer: several where the memory is larger than one transfer of the fabric."""

    @property
    def invalidated(self) -> bool:
        """No part is exposed any more, because the peer invalidated the last one."""
        ...

    def deregister(self) -> None:
        """End all remote access (3.1.4.4). Idempotent. The memory does not change any more after the return."""
        ...


class RdmaOperations(Protocol):
    """RDMA Read/Write by buffer descriptors (MS-SMBD 3.1.4.3-3.1.4.6), seen from the side that issues them.

    Lengths are those of the local segments; descriptors are consumed in order and must cover at least as many bytes,
    else ``ValueError`` before anything is posted. Transfers of any length are cut to what the provider can do.
    """

    fabric: str
    """Provider name: iwarp, roce, verbs, loopback."""

    @property
    def regions_invalidatable(self) -> bool:
        """The peer's Send-with-Invalidate may name buffers registered here."""
        ...

    @property
    def max_read_write_size(self) -> int:
        """MaxReadWriteSize, bytes."""
        ...

    def write_to_peer(
        self, remote: Sequence[RemoteBuffer], local: Sequence[Buffer], on_done: Callable[[BaseException | None], None]
    ) -> None:
        """Post RDMA Writes. A ``send`` called afterwards is received by the peer after the data is placed, so the
        response need not wait. ``on_done(None)`` once the local buffers may be reused; ``on_done(error)`` if the
        connection failed first. Exactly one call, never before this function returns."""
        ...

    def read_from_peer(
        self,
        remote: Sequence[RemoteBuffer],
        local: Sequence[memoryview],
        on_done: Callable[[BaseException | None], None],
    ) -> None:
        """Post RDMA Reads; ``on_done(None)`` when all data is in ``local`` and will not change any more."""
        ...

    def register(self, view: memoryview, *, readable: bool = False, writable: bool = False) -> ExposedMemory:
        """Expose ``view`` to the peer for RDMA Read, RDMA Write, or both (MS-SMBD 3.1.4.3). ``view`` must be writable.
        Raises ``ProviderError``."""
        ...


class Traffic(NamedTuple):
    """What one connection has carried and met so far; a snapshot. Where SMB Direct alone has such a thing, a plain
    transport has 0 or None."""

    rdma_read_bytes: int = 0
    rdma_write_bytes: int = 0
    inline_bytes_received: int = 0
    inline_bytes_sent: int = 0
    send_credits: int | None = None
    receive_credits: int | None = None
    registrations: int = 0
    allocations: int = 0
    """Pieces of memory got from the system for this connection."""
    retransmissions: int = 0
    errors: int = 0
    """What the layers below count as errors of the peer or the network."""
    provider: Mapping[str, int] = {}
    """All counters of the layer below, by its own names."""


class Limits(NamedTuple):
    """The lengths in force on a connection, in bytes; None where only SMB Direct has such a thing."""

    max_message_received: int
    max_fragmented_received: int | None = None
    max_fragmented_sent: int | None = None
    read_depth: int | None = None
    """How many RDMA Reads may be on their way at once."""


class MessageTransport(Protocol):
    """One connection that carries whole messages both ways."""

    local_address: tuple[str, int]
    peer_address: tuple[str, int]
    max_message_size: int
    """Largest inbound message accepted, in bytes; a longer one closes the connection before any of it is buffered. Set
    it low for a peer that has not authenticated; ``trust`` raises it."""

    def trust(self, max_message_size: int) -> None:
        """Accept messages of up to ``max_message_size`` bytes from now on, and give the peer all the buffers and
        credits that the transport keeps back from peers that have not authenticated. Call it again to change the
        size."""
        ...

    @property
    def counters(self) -> Mapping[str, int]:
        """What the transport itself counts, by names of its own."""
        ...

    @property
    def traffic(self) -> Traffic: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def max_outbound_message_size(self) -> int:
        """Largest message the peer takes, in bytes (SMB Direct: its MaxFragmentedSize); ``send`` of a longer one
        raises ``ValueError``."""
        ...

    pending_send_bytes: int
    """Bytes handed to ``send`` and not yet taken by the fabric."""

    @property
    def rdma(self) -> RdmaOperations | None:
        """RDMA Read and Write, or None where the transport has none."""
        ...

    def start(
        self, on_message: Callable[[InboundMessage], None], on_closed: Callable[[BaseException | None], None]
    ) -> None:
        """Begin delivery. ``on_closed`` is called exactly once, last; its argument is None after a clean end."""
        ...

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Queue one message (the concatenated segments). Segments stay untouched until ``on_sent`` (which is also
        called when the connection dies). ``invalidate`` is the remote token that goes with the message
        (Send-with-Invalidate); ignored where the fabric has none. After close: a no-op that calls ``on_sent``."""
        ...

    def acquire(self, size: int) -> PooledBuffer:
        """A pooled buffer of ``size`` bytes for ``send`` or RDMA on this connection. Contents are undefined: fill or
        trim before sending."""
        ...

    def is_stalled(self) -> bool:
        """Whether data is on its way to the peer and the peer has acknowledged nothing for a second or longer. Always
        False where a fabric finds that out by itself."""
        ...

    def set_peer_timeout(self, seconds: float | None) -> None:
        """Close the connection if the peer does not answer probes for about ``seconds``. None restores the default, for
        a session's only connection."""
        ...

    def pause_reading(self) -> None:
        """Deliver no further messages until ``resume_reading``."""
        ...

    def resume_reading(self) -> None: ...

    def close(self, reason: str = "") -> None:
        """Finish what was queued to send, then close. Idempotent."""
        ...

    def abort(self, reason: str = "") -> None:
        """Close at once, dropping what was queued. Idempotent."""
        ...


OnTransport = Callable[[MessageTransport], None]
"""Called by a listener for each new connection, before ``start``."""


class MessageListener(Protocol):
    """A listening endpoint whose connections were handed to an ``OnTransport``."""

    address: tuple[str, int]

    def close(self) -> Awaitable[None]: ...
