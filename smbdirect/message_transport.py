"""The interface between the SMB server (or client) and the transport that carries its messages.

It serves direct-TCP framing, SMB Direct and loopback. A transport says what it is, by ``kind`` and ``fabric``, and what
it can do, by ``rdma`` and ``takes_file``. A transport does not trust its peer until ``trust`` is called.

Everything here runs on the thread of one event loop. Callbacks are plain functions called on that thread. Nothing
blocks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from smbdirect.codec import Buffer


class TransportKind(enum.Enum):
    """How messages travel. [MS-SMB2 2.1]"""

    TCP = "TCP"
    SMB_DIRECT = "SMB Direct"
    QUIC = "QUIC"


class PooledBuffer(Protocol):
    """A buffer on loan from a pool, which outlives opens and requests (registered, if the fabric needs it).

    ``view`` has exactly the requested length. ``release()`` gives the buffer back: ``view`` must not be used
    afterwards, and a second call does nothing. A transport that is closing waits for its own transfers before it reuses
    a buffer.
    """

    view: memoryview
    on_release: Callable[[int], None] | None
    """Called once, with the length of ``view``, after the buffer was given back."""

    def release(self) -> None: ...


class InboundMessage(Protocol):
    """One upper-layer message (a whole SMB2 message or compound, including the transform header).

    ``view`` is writable (decryption works in place) and stays valid and unchanged until ``release()``.
    """

    @property
    def view(self) -> memoryview: ...

    def release(self) -> None: ...


def room_of(message: InboundMessage) -> memoryview | None:
    """Return the memory that begins with the message's ``view``, if what is behind that is free for the receiver to use
    until ``release()``. None: the message has no memory of its own, or nobody knows how much."""
    return getattr(message, "room", None)


class FileRange(NamedTuple):
    """Data that is still in a file: ``length`` bytes from ``offset`` on of an open descriptor.

    The bytes are taken when they are sent, not earlier. If they have been overwritten meanwhile, the new bytes are
    sent. If they have been cut off, zeros are sent.
    """

    descriptor: int
    offset: int
    length: int
    memory: memoryview | None = None
    """The same bytes, mapped, if they are. Only system calls may look at them, which fail with EFAULT where the file
    was cut off. Anything else that does ends the process (SIGBUS)."""
    unreadable: Callable[[], None] | None = None
    """Called if the storage cannot read the data after all. The message was promised, so the connection ends."""

    def after(self, count: int) -> FileRange:
        """Return the range without its first ``count`` bytes."""
        memory = self.memory[count:] if self.memory is not None else None
        return self._replace(offset=self.offset + count, length=self.length - count, memory=memory)


class Payload(Protocol):
    """The data at the end of an inbound message. All of it has arrived, but it was not received into memory."""

    length: int

    def move_to(self, descriptor: int, offset: int) -> None:
        """Write the data to a file. Call this once. If it raises ``OSError`` part of the data may be written."""


class PayloadTaker(Protocol):
    """Takes messages whose data need not be received into memory."""

    head_size: int
    """Bytes of a message in front of its data."""

    def wants_payload(self, head: memoryview, length: int) -> bool:
        """Return whether everything behind ``head``, in a message of ``length`` bytes, is data that might be taken."""

    def take_payload(self, head: InboundMessage, payload: Payload) -> bool:
        """Take a message. Return False, with nothing changed, if it has to be received into memory and delivered as
        usual. ``payload`` must not be used after the return."""


class RemoteBuffer(NamedTuple):
    """The values of a SMB_DIRECT_BUFFER_DESCRIPTOR_V1: ``offset`` is opaque, not zero-based. [MS-SMBD 2.2.3.1]"""

    offset: int
    token: int
    length: int


class ExposedMemory(Protocol):
    """Memory registered for a peer's RDMA Reads or Writes. [MS-SMBD 3.1.4.3]"""

    view: memoryview
    descriptors: tuple[RemoteBuffer, ...]
    """The descriptors to send to the peer: several if the memory is larger than one transfer of the fabric."""

    @property
    def invalidated(self) -> bool:
        """Whether no part is exposed any longer, because the peer invalidated the last one."""

    def deregister(self) -> None:
        """End all remote access. The memory does not change after the return. Idempotent. [MS-SMBD 3.1.4.4]"""


class RdmaOperations(Protocol):
    """RDMA Reads and Writes by buffer descriptors, seen from the side that issues them. [MS-SMBD 3.1.4.3-3.1.4.6]

    The local segments determine the length of a transfer. Descriptors are consumed in order and must cover at least as
    many bytes, else ``ValueError`` is raised before anything is posted. A transfer may have any length: it is cut into
    requests that the provider can carry out.
    """

    fabric: str
    """Provider name: iwarp, roce, verbs, loopback."""
    takes_any_memory: bool
    """Whether ``write_to_peer`` sends from any memory as it is. If not, it copies what is not from ``acquire``."""

    @property
    def regions_invalidatable(self) -> bool:
        """Whether the peer's Send with Invalidate may name buffers registered here."""

    @property
    def max_read_write_size(self) -> int:
        """MaxReadWriteSize in bytes."""

    def write_to_peer(
        self,
        remote: Sequence[RemoteBuffer],
        local: Sequence[Buffer],
        on_done: Callable[[BaseException | None], None] | None,
    ) -> None:
        """Post RDMA Writes. The peer receives a message passed to ``send`` afterwards only after the data is placed, so
        the response need not wait. ``on_done(None)`` is called once the local buffers may be reused, or
        ``on_done(error)`` if the connection failed first: exactly one call, and not before this function returns.
        None: nobody waits for that."""

    def read_from_peer(
        self,
        remote: Sequence[RemoteBuffer],
        local: Sequence[memoryview],
        on_done: Callable[[BaseException | None], None],
    ) -> None:
        """Post RDMA Reads. ``on_done(None)`` is called when all data is in ``local`` and will not change any longer, or
        ``on_done(error)`` if the connection failed first."""

    def register(self, view: memoryview, *, readable: bool = False, writable: bool = False) -> ExposedMemory:
        """Expose ``view`` to the peer for RDMA Read, RDMA Write, or both. ``view`` must be writable. Raise
        ``ProviderError`` if the device refuses. [MS-SMBD 3.1.4.3]"""


class Traffic(NamedTuple):
    """What one connection has carried so far; a snapshot. Fields that only SMB Direct has are 0 or None on other
    transports."""

    rdma_read_bytes: int = 0
    rdma_write_bytes: int = 0
    inline_bytes_received: int = 0
    inline_bytes_sent: int = 0
    send_credits: int | None = None
    receive_credits: int | None = None
    registrations: int = 0
    allocations: int = 0
    """Pieces of memory obtained from the system for this connection."""
    retransmissions: int = 0
    errors: int = 0
    """Errors of the peer or the network, as the layers below count them."""
    provider: Mapping[str, int] = {}
    """All counters of the layer below, by the names that it gives them."""


class Limits(NamedTuple):
    """The limits in force on a connection, lengths in bytes. Fields that only SMB Direct has are None on other
    transports."""

    max_message_received: int
    max_fragmented_received: int | None = None
    max_fragmented_sent: int | None = None
    read_depth: int | None = None
    """How many RDMA Reads may be outstanding at the same time."""


class Tap(Protocol):
    """Is shown the messages of a connection, as they are on the wire. It must neither keep nor change their memory."""

    def received(self, message: memoryview) -> None:
        """See a message before it is delivered."""

    def sent(self, segments: Sequence[Buffer], data: FileRange | None) -> None:
        """See a message before it is queued. ``data``: its end, which is still in a file."""


class MessageTransport(Protocol):
    """One connection that carries whole messages in both directions."""

    kind: TransportKind
    fabric: str
    """What is below: tcp, or the RDMA provider's name: iwarp, roce, verbs, loopback."""
    local_address: tuple[str, int]
    peer_address: tuple[str, int]
    max_message_size: int
    """Longest inbound message accepted, in bytes. A longer one closes the connection before any of it is buffered. It
    is low for a peer that has not authenticated; ``trust`` raises it."""

    def trust(self, max_message_size: int) -> None:
        """Accept messages of up to ``max_message_size`` bytes, and give the peer the buffers and credits that the
        transport withholds from unauthenticated peers. A further call changes the size."""

    @property
    def counters(self) -> Mapping[str, int]:
        """The transport's own counters, by name."""

    @property
    def traffic(self) -> Traffic:
        """What the connection has carried so far."""

    @property
    def limits(self) -> Limits:
        """The limits in force."""

    @property
    def max_outbound_message_size(self) -> int:
        """Longest message that the peer accepts, in bytes (SMB Direct: its MaxFragmentedSize). ``send`` of a longer one
        raises ``ValueError``."""

    pending_send_bytes: int
    """Bytes passed to ``send`` that the fabric has not yet accepted."""

    @property
    def rdma(self) -> RdmaOperations | None:
        """RDMA Read and Write, or None if the transport has neither."""

    @property
    def takes_file(self) -> bool:
        """Whether ``send`` accepts data that is still in a file. A peer that leaves much of it unread is sent no more,
        because it would keep many descriptors open."""

    def start(
        self, on_message: Callable[[InboundMessage], None], on_closed: Callable[[BaseException | None], None]
    ) -> None:
        """Begin delivery. ``on_closed`` is called exactly once, as the last call; its argument is None after a clean
        end."""

    def offer_payloads(self, taker: PayloadTaker) -> None:
        """Offer ``taker`` those messages whose data the transport need not receive into memory. It may offer none. Call
        this before ``start``."""

    def show_received(self, see: Callable[[memoryview], None] | None) -> None:
        """Call ``see`` with every message from now on before it is delivered; None: nobody sees them. Call this after
        ``start``."""

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
        data: FileRange | None = None,
    ) -> None:
        """Queue one message (the concatenated segments). The segments must not change until ``on_sent`` is called,
        which also happens when the connection is lost. ``invalidate`` is the remote token to be invalidated with the
        message (Send with Invalidate); fabrics without that ignore it. After a close this only calls ``on_sent``.

        ``data`` is the end of the message, behind the segments. Its descriptor must stay open until ``on_sent`` is
        called. An error of the file ends the connection, because the peer has been promised the data. Raises
        ``ValueError`` if the transport never takes files."""

    def at_end_of_turn(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` once when the messages of this turn are delivered, or the connection ends before: before
        anything else runs, except what ``RdmaOperations.read_from_peer`` was given to call. Return False, and never
        call it, if no further message of this turn has been received. A turn has one such callback."""

    def acquire(self, size: int) -> PooledBuffer:
        """Lend a pooled buffer of ``size`` bytes for ``send`` or RDMA on this connection. Its contents are undefined:
        fill or trim it before sending."""

    def is_stalled(self) -> bool:
        """Return whether data is in flight and the peer has acknowledged nothing for a second or longer. Always False
        on a fabric that detects this by itself."""

    def set_peer_timeout(self, seconds: float | None) -> None:
        """Close the connection if the peer does not answer probes for about ``seconds``. None restores the default,
        which suits a session's only connection."""

    def pause_reading(self) -> None:
        """Deliver no more messages until ``resume_reading``."""

    def resume_reading(self) -> None: ...

    def close(self, reason: str = "") -> None:
        """Send the queued messages, then close. ``reason`` is for the log. Idempotent."""

    def abort(self, reason: str = "") -> None:
        """Close immediately and drop the queued messages. ``reason`` is for the log. Idempotent."""


OnTransport = Callable[[MessageTransport], None]
"""Called by a listener for each new connection, before ``start``."""
