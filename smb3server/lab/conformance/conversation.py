"""Whole SMB2 messages over a peer: the client of ``smb3server.client.protocol`` talks through it.

It keeps the rules of credits and fragments unless a case sets something else.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from smb3server.crypto.encryption import TRANSFORM, TRANSFORM_PROTOCOL_ID
from smb3server.lab.conformance.peer import Peer, Received, parse
from smb3server.wire.header import HEADER, HEADER_SIZE, PROTOCOL_ID, Command, HeaderFlags
from smbdirect.codec import Buffer
from smbdirect.core.constants import DATA_OFFSET, DataFlags
from smbdirect.errors import ConnectionLost, DecodeError
from smbdirect.message_transport import FileRange, InboundMessage, Limits, PayloadTaker, Traffic, TransportKind
from smbdirect.providers.base import CloseReason
from smbdirect.rdma.pool import BufferPool, PoolBuffer

LONGEST_MESSAGE = 16 << 20
"""Bytes of an SMB2 message that this side takes."""
_GMAC_NONCE = struct.Struct("<QI")

Sizes = Callable[[], Iterator[int]]
"""Returns the DataLength of each fragment of a message."""


def whole() -> Iterator[int]:
    """Yield no sizes: fragments are as large as the server takes."""
    return iter(())


def gmac_nonce(message: Buffer) -> bytes | None:
    """Return the nonce with which AES-GMAC signs a message; None if the message is not signed. [MS-SMB2 3.1.4.1]"""
    if len(message) < HEADER_SIZE or message[:4] != PROTOCOL_ID:
        return None
    header = HEADER.unpack(message)
    if not header.flags & HeaderFlags.SIGNED:
        return None
    from_server = bool(header.flags & HeaderFlags.SERVER_TO_REDIR)
    return _GMAC_NONCE.pack(header.message_id, from_server | (header.command == Command.CANCEL) << 1)


class _Inbound:
    """A received message. Implements ``message_transport.InboundMessage``."""

    def __init__(self, view: memoryview, invalidated: int | None) -> None:
        self.view = view
        self.invalidated = invalidated

    def release(self) -> None:
        """Do nothing: the memory is this message's own."""


class Conversation:
    """Carries messages over a negotiated peer. Implements ``message_transport.MessageTransport``."""

    takes_file = False
    kind = TransportKind.TCP
    fabric = "tcp"
    rdma = None
    """READ and WRITE of the client go in messages. Cases that move data by RDMA build their own requests."""

    def __init__(self, peer: Peer, window: int, credits_requested: int) -> None:
        assert peer.request is not None and peer.response is not None and peer.endpoint is not None
        self.peer = peer
        self.window = window
        """Credits that the server is kept at, as Connection.ReceiveCreditMax."""
        self.credits_requested = credits_requested
        self.sizes: Sizes = whole
        self.fill = False
        """Fill every message that carries data up to the server's MaxReceiveSize."""
        self.captured: list[bytes] | None = None
        """Takes the messages instead of the server, if it is a list."""
        self.granting = True
        """Whether the server gets credits back."""
        self.answering = True
        """Whether messages with SMB_DIRECT_RESPONSE_REQUESTED are answered."""
        self.invalidated: list[int | None] = []
        """The token that came with each whole message, or None."""
        self.encrypted_with: list[bytes] = []
        """The field Nonce of each encrypted message of the server."""
        self.signed_with: list[bytes] = []
        """The nonce of each signed message, of both sides: they have one key."""
        self.local_address = peer.endpoint.local_address
        self.peer_address = peer.endpoint.peer_address
        self.max_outbound_message_size = peer.response.max_fragmented_size
        self.max_message_size = LONGEST_MESSAGE
        self.pending_send_bytes = 0
        self.counters: Mapping[str, int] = {}
        self.traffic = Traffic()
        self.limits = Limits(self.max_message_size)
        self._pool = BufferPool()
        self._fragments: deque[tuple[Buffer, int]] = deque()
        """Payload and RemainingDataLength of what waits for credits."""
        self._assembly = bytearray()
        self._token: int | None = None
        self._answer = False
        self._on_message: Callable[[InboundMessage], None] = lambda message: None
        self._on_closed: Callable[[BaseException | None], None] = lambda error: None
        peer.on_message = self._received
        peer.on_ended = self._ended
        self._grant()

    # -- MessageTransport ----------------------------------------------------------------------------------------

    def start(
        self, on_message: Callable[[InboundMessage], None], on_closed: Callable[[BaseException | None], None]
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed

    def trust(self, max_message_size: int) -> None:
        """Change nothing: this side gives the server everything from the start."""

    def show_received(self, see: Callable[[memoryview], None] | None) -> None:
        """Show nothing."""

    def offer_payloads(self, taker: PayloadTaker) -> None:
        """Offer none."""

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
        data: FileRange | None = None,
    ) -> None:
        message = b"".join(segments)
        if on_sent is not None:
            on_sent()
        if self.captured is not None:
            self.captured.append(message)
            return
        self._note_signature(message)
        self.send_fragments(self.cut(message))

    def at_end_of_turn(self, callback: Callable[[], None]) -> bool:
        return False

    def acquire(self, size: int) -> PoolBuffer:
        return self._pool.acquire(size)

    def is_stalled(self) -> bool:
        return False

    def set_peer_timeout(self, seconds: float | None) -> None:
        """Do nothing: a case waits as long as it wants."""

    def pause_reading(self) -> None:
        """Do nothing: the client takes every message at once."""

    def resume_reading(self) -> None:
        """Do nothing, as ``pause_reading``."""

    def close(self, reason: str = "") -> None:
        self.abort(reason)

    def abort(self, reason: str = "") -> None:
        if self.peer.alive and self.peer.endpoint is not None:
            self.peer.endpoint.abort()

    # -- sending -------------------------------------------------------------------------------------------------

    @property
    def largest_payload(self) -> int:
        """DataLength of the longest message that the server takes."""
        assert self.peer.request is not None and self.peer.response is not None
        size = min(max(self.peer.request.preferred_send_size, 128), self.peer.response.max_receive_size)
        return size - DATA_OFFSET

    def cut(self, message: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield payload and RemainingDataLength of each fragment of ``message``."""
        position = 0
        sizes = self.sizes()
        while position < len(message):
            size = min(next(sizes, self.largest_payload), self.largest_payload)
            fragment = message[position : position + size]
            position += len(fragment)
            yield fragment, len(message) - position

    def send_fragments(self, fragments: Iterable[tuple[Buffer, int]]) -> None:
        """Send messages with these payloads and values of RemainingDataLength, as the credits allow."""
        self._fragments.extend(fragments)
        self._pump()

    def grant_again(self, count: int | None = None) -> None:
        """Send an empty message that grants ``count`` credits. By default the server gets what it lacks, now and from
        now on."""
        if count is None:
            self.granting = True
            count = self._grantable()
        self._send(b"", 0, count)

    def _pump(self) -> None:
        """Send what the credits allow. The last credit goes with a grant. [MS-SMBD 3.1.5.1]"""
        peer = self.peer
        while self._fragments and peer.alive and peer.send_credits > 0:
            count = self._grantable()
            if peer.send_credits == 1 and not count:
                count = 1
            payload, remaining = self._fragments.popleft()
            self._send(payload, remaining, count)
        if peer.alive and peer.send_credits > 0 and (self._answer or self._runs_low()):
            self._send(b"", 0, self._grantable() or int(peer.send_credits == 1))

    def _grant(self) -> None:
        """Give the server its first credits, with an empty message. [MS-SMBD 3.1.5.9]"""
        if self.peer.send_credits > 0:
            self._send(b"", 0, self._grantable())

    def _send(self, payload: Buffer, remaining: int, count: int) -> None:
        assert self.peer.response is not None
        self._answer = False
        size = self.largest_payload + DATA_OFFSET if self.fill and (payload or remaining) else 0
        self.peer.send_data(
            payload, credits_requested=self.credits_requested, grant=count, remaining=remaining, size=size
        )

    def _grantable(self) -> int:
        return max(self.window - max(self.peer.receive_credits, 0), 0) if self.granting else 0

    def _runs_low(self) -> bool:
        return self.granting and 2 * self.peer.receive_credits < self.window

    # -- receiving -----------------------------------------------------------------------------------------------

    def _received(self, received: Received) -> None:
        try:
            header, payload = parse(received.data)
        except DecodeError:
            self.abort("the server's message is no Data Transfer message")
            return
        if header.flags & DataFlags.RESPONSE_REQUESTED:
            self._answer = self.answering
        if received.invalidated is not None:
            self._token = received.invalidated
        if payload or header.remaining_data_length:
            self._assembly += payload
        if payload and not header.remaining_data_length:
            message, self._assembly = self._assembly, bytearray()
            token, self._token = self._token, None
            self.invalidated.append(token)
            self._note_signature(message)
            if message[:4] == TRANSFORM_PROTOCOL_ID and len(message) >= TRANSFORM.size:
                self.encrypted_with.append(TRANSFORM.unpack(message).nonce)
            self._on_message(_Inbound(memoryview(message), token))
        self._pump()

    def _note_signature(self, message: Buffer) -> None:
        nonce = gmac_nonce(message)
        if nonce is not None:
            self.signed_with.append(nonce)

    def _ended(self, reason: CloseReason) -> None:
        self._on_closed(ConnectionLost(reason))
