"""The MS-SMBD state machine of one connection, initiator or acceptor. No I/O, no clock, no randomness.

How to drive it: post ``receives_wanted`` receives and report them with ``receives_were_posted``. Pass each received
message to ``receive_message`` and each message to be sent to ``send_message``. After each of these calls, first post
more receives, then everything that ``pending_sends`` returns (a credit is granted only for a receive that was posted).
If ``asks_again`` is set then, repeat both steps until ``receives_wanted`` is 0: the last credit needs a new receive to
grant (3.1.5.9). Call ``handle_timer`` at ``next_deadline``.

A ``ProtocolError`` from any of them means that the connection must be terminated immediately (3.1.5).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from smbdirect.codec import Buffer, new_record
from smbdirect.core import constants
from smbdirect.core.constants import DATA_ALIGNMENT, DATA_OFFSET, VERSION_1_0, DataFlags
from smbdirect.core.credits import Credits
from smbdirect.core.messages import (
    DATA_TRANSFER,
    DATA_TRANSFER_PADDED,
    NEGOTIATE_REQUEST,
    NEGOTIATE_RESPONSE,
    Allocate,
    Established,
    Event,
    MessageReceived,
    NegotiateRequest,
    NegotiateResponse,
    NegotiationFailed,
    OutgoingSend,
)
from smbdirect.core.reassembly import Reassembler
from smbdirect.core.settings import Settings
from smbdirect.errors import DecodeError, ProtocolError, SmbDirectError, TimerExpired

_DATA_FIELDS = DATA_TRANSFER.fields_from
_RESPONSE_REQUESTED = int(DataFlags.RESPONSE_REQUESTED)
_RECEIVING_DATA = "MS-SMBD 3.1.5.8"


class Role(enum.Enum):
    """Connection.Role: who this side is, and how far it has come. [MS-SMBD 3.1.1.1]"""

    ACTIVE = "initiator, before the Negotiate Response"
    PASSIVE = "acceptor, before the Negotiate Request"
    ESTABLISHED = "negotiated"
    CLOSED = "ended (not in spec)"


_RULES = {Role.ESTABLISHED: _RECEIVING_DATA, Role.PASSIVE: "MS-SMBD 3.1.5.6", Role.ACTIVE: "MS-SMBD 3.1.5.7"}
"""The section that governs a received message in each role."""


class Keepalive(enum.Enum):
    """Connection.KeepaliveRequested: whether the peer is to be asked, or was asked, for a response.
    [MS-SMBD 3.1.1.1]"""

    NONE = "no response requested"
    PENDING = "to be requested with the next Send"
    SENT = "requested"


@dataclass(slots=True, eq=False)
class _Message:
    """One upper-layer message on SendQueue, and how much of it has been sent."""

    segments: Sequence[Buffer]
    remaining: int
    invalidate: int | None
    context: object
    # Invariant: the part that is not sent yet begins at ``offset`` in segment ``index`` and has ``remaining`` bytes.
    index: int = 0
    offset: int = 0

    def take(self, header: list[Buffer], size: int, max_segments: int) -> int:
        """Move up to ``size`` bytes in up to ``max_segments`` pieces to ``header``, and return the number of bytes
        moved."""
        taken = 0
        pieces = 0
        while taken < size and pieces < max_segments and taken < self.remaining:
            segment = self.segments[self.index]
            available = len(segment) - self.offset
            if available <= size - taken:
                if available:
                    header.append(memoryview(segment)[self.offset :] if self.offset else segment)
                    pieces += 1
                taken += available
                self.index += 1
                self.offset = 0
            else:
                count = size - taken
                header.append(memoryview(segment)[self.offset : self.offset + count])
                pieces += 1
                self.offset += count
                taken = size
        self.remaining -= taken
        return taken


class Connection:
    """One MS-SMBD connection. Variables carry the names of 3.1.1.1; ``now`` is monotonic seconds throughout."""

    def __init__(self, role: Role, settings: Settings, now: float, allocate: Allocate) -> None:
        """Start the Negotiation Timer. ``allocate`` provides reassembly buffers. Raise ``ValueError`` unless ``role``
        is initiator or acceptor."""
        if role not in (Role.ACTIVE, Role.PASSIVE):
            raise ValueError("a connection starts as initiator or acceptor")
        self.settings = settings
        self.role: Role = role
        self.protocol = 0
        self.credits = Credits(settings.receive_credit_max, settings.send_credit_target)
        self.credits.resize(target=1)
        self.max_send_size = settings.max_send_size
        self.max_receive_size = settings.max_receive_size
        self.max_send_segments = settings.max_send_segments
        self.max_fragmented_send_size = 0
        self.max_fragmented_receive_size = settings.max_fragmented_receive_size
        self.max_read_write_size = settings.max_read_write_size if role is Role.PASSIVE else 0
        self.max_message_size = settings.max_fragmented_receive_size
        """Local limit in bytes (not in spec): a longer message terminates the connection before any of it is stored."""
        self.keepalive_requested = Keepalive.NONE
        self.keepalive_interval = settings.keepalive_interval
        self.send_immediate = False
        self.asks_again = False
        """Whether the last ``pending_sends`` may have raised ``receives_wanted``."""
        self.send_queue: deque[_Message] = deque()
        self.invalidated_token: int | None = None
        self.reassembler = Reassembler(allocate)
        timeout = settings.negotiation_timeout_active if role is Role.ACTIVE else settings.negotiation_timeout_passive
        self._negotiation_deadline: float | None = now + timeout
        self.idle_deadline: float | None = None
        """When the Idle Connection Timer expires. [MS-SMBD 3.1.6.2]"""
        self._credit_deadline: float | None = None
        self._negotiate_to_send: bytes | None = None
        self._respond = False

    # -- receives ------------------------------------------------------------------------------------------------

    @property
    def receives_wanted(self) -> int:
        """How many receives to post before the next ``pending_sends``."""
        if self.role is Role.CLOSED:
            return 0
        return self.credits.receives_wanted(bool(self.send_queue) or self.send_immediate)

    def receives_were_posted(self, count: int) -> None:
        """Count ``count`` more receives as posted: they may be granted to the peer."""
        self.credits.receives_posted += count

    # -- sending -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Queue the Negotiate Request, now that the initiator's RDMA connection is up. [MS-SMBD 3.1.5.2]"""
        if self.role is not Role.ACTIVE:
            raise SmbDirectError("only an initiator starts")
        self._negotiate_to_send = NEGOTIATE_REQUEST.pack(
            NegotiateRequest(
                min_version=VERSION_1_0,
                max_version=VERSION_1_0,
                reserved=0,
                credits_requested=self.credits.send_credit_target,
                preferred_send_size=self.max_send_size,
                max_receive_size=self.max_receive_size,
                max_fragmented_size=self.max_fragmented_receive_size,
            )
        )

    def send_message(self, segments: Sequence[Buffer], invalidate: int | None = None, context: object = None) -> int:
        """Queue one upper-layer message and return its length in bytes. [MS-SMBD 3.1.4.2]

        ``invalidate`` is the peer's token to be invalidated with the last fragment. ``context`` comes back in the
        ``OutgoingSend`` of that fragment. Raises ``SmbDirectError`` if the connection is not established and
        ``ValueError`` if the message is longer than the peer can reassemble; nothing is queued in either case.
        """
        if self.role is not Role.ESTABLISHED:
            raise SmbDirectError("no data before negotiation has completed (MS-SMBD 3.1.5.4)")
        length = sum(map(len, segments))
        if length > self.max_fragmented_send_size:
            raise ValueError(f"{length} bytes exceed the peer's MaxFragmentedSize {self.max_fragmented_send_size}")
        self.send_queue.append(_Message(segments, length, invalidate, context))
        return length

    @property
    def has_to_send(self) -> bool:
        """Whether ``pending_sends`` may have something to send."""
        if self.send_queue or self.send_immediate or self._negotiate_to_send is not None:
            return True
        credits = self.credits
        return 2 * credits.receive_credits < credits.window and credits.peer_runs_low

    def pending_sends(self, now: float) -> list[OutgoingSend]:
        """Return everything that may go out now, spend its send credits and grant receive credits. [MS-SMBD 3.1.5.1]"""
        sends: list[OutgoingSend] = []
        self.asks_again = False
        if self._negotiate_to_send is not None:
            sends.append(OutgoingSend([self._finish_negotiate()], None, None))
            self.asks_again = True
        if self.role is not Role.ESTABLISHED:
            return sends
        queue = self.send_queue
        state = self.credits
        while queue:
            granted = state.spend()
            if granted is None:
                break
            message = queue[0]
            sends.append(self._next_fragment(message, granted, now))
            if not message.remaining:
                queue.popleft()
        if not queue and (self.send_immediate or state.peer_runs_low):
            granted = state.spend()
            if granted is not None:
                header = DATA_TRANSFER.pack_fields(state.send_credit_target, granted, self._next_flags(now), 0, 0, 0, 0)
                sends.append(OutgoingSend([header], None, None))
        if queue or self.send_immediate:
            self.asks_again = True
            if state.send_credits == 0:
                if self._credit_deadline is None or sends:
                    self._credit_deadline = now + self.settings.send_credit_timeout
                return sends
        self._credit_deadline = None
        return sends

    def _next_fragment(self, message: _Message, granted: int, now: float) -> OutgoingSend:
        """Cut the next fragment, which grants ``granted`` receives; the caller has spent a credit for it.
        [MS-SMBD 3.1.5.4]"""
        segments: list[Buffer] = [b""]
        length = message.take(segments, self.max_send_size - DATA_OFFSET, self.max_send_segments - 1)
        requested = self.credits.send_credit_target
        self.send_immediate = False
        flags = 0 if self.keepalive_requested is Keepalive.NONE else self._next_flags(now)
        if length:
            segments[0] = DATA_TRANSFER_PADDED.pack_fields(
                requested, granted, flags, 0, message.remaining, DATA_OFFSET, length, 0
            )
        else:
            segments[0] = DATA_TRANSFER.pack_fields(requested, granted, flags, 0, 0, 0, 0)
        if message.remaining:
            return OutgoingSend(segments, None, None)
        # The token goes with the last fragment: until that arrives, the peer may still be receiving RDMA data.
        return OutgoingSend(segments, message.invalidate, message.context)

    def _next_flags(self, now: float) -> int:
        """Return the flags of the next message, and note that it goes out. [MS-SMBD 3.1.5.1]"""
        self.send_immediate = False
        if self.keepalive_requested is not Keepalive.PENDING:
            return 0
        self.keepalive_requested = Keepalive.SENT
        self.idle_deadline = now + self.settings.keepalive_response_timeout
        return _RESPONSE_REQUESTED

    def _finish_negotiate(self) -> bytes:
        """Return the Negotiate message to be sent; a successful response grants all receives posted so far.
        [MS-SMBD 3.1.5.3]"""
        message = self._negotiate_to_send
        assert message is not None
        self._negotiate_to_send = None
        if self._respond:
            self._respond = False
            granted = self.credits.grant()
            self.credits.resize(minimum=2)
            if granted == 0:
                # 3.1.5.6: no receive could be posted. ``role`` shows that to the caller.
                self._refuse_negotiation(constants.STATUS_INSUFFICIENT_RESOURCES, "")
                return self._finish_negotiate()
            message = NEGOTIATE_RESPONSE.pack(NEGOTIATE_RESPONSE.unpack(message)._replace(credits_granted=granted))
        return message

    # -- receiving -----------------------------------------------------------------------------------------------

    def receive_message(self, view: memoryview, now: float, invalidated: int | None = None) -> Event | None:
        """Process one received message and return what came of it, if anything. [MS-SMBD 3.1.5.5]

        ``invalidated`` is the local token that the peer invalidated with it. Raises ``ProtocolError`` if the connection
        must be terminated.
        """
        self.credits.receives_posted -= 1
        role = self.role
        if role is Role.CLOSED:
            raise ProtocolError("message after the end", "MS-SMBD 3.1.7.1")
        try:
            if role is Role.ESTABLISHED:
                return self._receive_data(view, now, invalidated)
            if role is Role.PASSIVE:
                return self._receive_negotiate_request(view, now)
            return self._receive_negotiate_response(view, now)
        except ProtocolError as error:
            error.rule = error.rule or _RULES[role]
            self.close()
            raise

    def _receive_negotiate_request(self, view: memoryview, now: float) -> Event:
        """Check the initiator's request and queue the response. [MS-SMBD 3.1.5.6]"""
        rule = _RULES[Role.PASSIVE]
        request = NEGOTIATE_REQUEST.unpack(view)
        if not request.min_version <= VERSION_1_0 <= request.max_version:
            return self._refuse_negotiation(constants.STATUS_NOT_SUPPORTED, "version 0x0100 is not in range")
        if request.credits_requested == 0:
            raise ProtocolError("CreditsRequested is 0", rule)
        self._check_sizes(request.max_receive_size, request.max_fragmented_size, rule)
        self._adopt_sizes(request)
        self._respond = True
        self._negotiate_to_send = NEGOTIATE_RESPONSE.pack(
            NegotiateResponse(
                min_version=VERSION_1_0,
                max_version=VERSION_1_0,
                negotiated_version=VERSION_1_0,
                reserved=0,
                credits_requested=self.credits.send_credit_target,
                credits_granted=0,
                status=constants.STATUS_SUCCESS,
                max_read_write_size=self.max_read_write_size,
                preferred_send_size=self.max_send_size,
                max_receive_size=self.max_receive_size,
                max_fragmented_size=self.max_fragmented_receive_size,
            )
        )
        return self._establish(now)

    def _refuse_negotiation(self, status: int, detail: str) -> NegotiationFailed:
        """Queue a response with a failure status: all fields except the versions and the status are zero.
        [MS-SMBD 3.1.5.3]"""
        self._negotiate_to_send = NEGOTIATE_RESPONSE.pack(
            NegotiateResponse(VERSION_1_0, VERSION_1_0, 0, 0, 0, 0, status, 0, 0, 0, 0)
        )
        self.role = Role.CLOSED
        self._negotiation_deadline = self.idle_deadline = None
        return NegotiationFailed(status, detail)

    def _receive_negotiate_response(self, view: memoryview, now: float) -> Event:
        """Check the acceptor's response and adopt what it says. [MS-SMBD 3.1.5.7]"""
        rule = _RULES[Role.ACTIVE]
        response = NEGOTIATE_RESPONSE.unpack(view)
        if response.status != constants.STATUS_SUCCESS:
            raise ProtocolError(f"negotiation refused with status 0x{response.status:08X}", rule)
        if response.negotiated_version != VERSION_1_0:
            raise ProtocolError(f"NegotiatedVersion is 0x{response.negotiated_version:04X}", rule)
        self._check_sizes(response.max_receive_size, response.max_fragmented_size, rule)
        if response.credits_granted == 0:
            raise ProtocolError("CreditsGranted is 0", rule)
        if response.credits_requested == 0:
            raise ProtocolError("CreditsRequested is 0", rule)
        if response.preferred_send_size > self.max_receive_size:
            raise ProtocolError(
                f"PreferredSendSize {response.preferred_send_size} exceeds MaxReceiveSize {self.max_receive_size}", rule
            )
        self._adopt_sizes(response)
        self.max_read_write_size = min(self.settings.max_read_write_size, response.max_read_write_size)
        self.credits.send_credits = response.credits_granted
        self.credits.resize(minimum=2)
        return self._establish(now)

    def _check_sizes(self, max_receive_size: int, max_fragmented_size: int, rule: str) -> None:
        if max_receive_size < constants.MIN_RECEIVE_SIZE:
            raise ProtocolError(f"MaxReceiveSize is {max_receive_size}", rule)
        if max_fragmented_size < constants.MIN_FRAGMENTED_SIZE:
            raise ProtocolError(f"MaxFragmentedSize is {max_fragmented_size}", rule)

    def _adopt_sizes(self, peer: NegotiateRequest | NegotiateResponse) -> None:
        self.protocol = VERSION_1_0
        self.credits.resize(target=peer.credits_requested)
        self.max_receive_size = max(min(self.max_receive_size, peer.preferred_send_size), constants.MIN_RECEIVE_SIZE)
        self.max_send_size = min(self.max_send_size, peer.max_receive_size)
        self.max_fragmented_send_size = peer.max_fragmented_size

    def _establish(self, now: float) -> Established:
        self._negotiation_deadline = None
        self.idle_deadline = now + self.keepalive_interval
        self.role = Role.ESTABLISHED
        return Established()

    def _receive_data(self, view: memoryview, now: float, invalidated: int | None) -> MessageReceived | None:
        """Check everything about a Data Transfer message, then change state. [MS-SMBD 3.1.5.8]"""
        length = len(view)
        header = _DATA_FIELDS(view) if length >= DATA_TRANSFER.size else DATA_TRANSFER.unpack(view)
        requested, granted, flags, _, remaining, offset, data_length = header
        state = self.credits
        end = offset + data_length
        if (
            state.receive_credits <= 0
            or length > self.max_receive_size
            or requested == 0
            or offset % DATA_ALIGNMENT
            or end > length
            or (data_length and offset < DATA_TRANSFER.size)
            or data_length + remaining > self.max_fragmented_receive_size
            or data_length + remaining > self.max_message_size
        ):
            raise self._fault(header, length)
        data = view[offset:end]
        # An empty message between fragments only carries credits or a keepalive. It does not end the upper-layer
        # message.
        carries_data = data_length or remaining
        buffer = None
        if carries_data and (remaining or self.reassembler.active):
            buffer = self.reassembler.append(data, remaining)
        state.receive_credits -= 1
        if requested != state.receive_credit_target:
            state.resize(target=requested)
        state.send_credits += granted
        self.idle_deadline = now + self.keepalive_interval
        self.keepalive_requested = Keepalive.NONE
        if flags & _RESPONSE_REQUESTED:
            # Answered with Flags 0, although 3.1.5.8 sets KeepaliveRequested to PENDING: two peers that request a
            # response to each response would exchange keepalives forever.
            self.send_immediate = True
        if invalidated is not None:
            self.invalidated_token = invalidated
        if remaining or not data_length:
            return None
        token, self.invalidated_token = self.invalidated_token, None
        return new_record(MessageReceived, (data if buffer is None else buffer.view, buffer, token))

    def _fault(self, header: tuple[int, ...], length: int) -> ProtocolError:
        """Return the error for a message of ``length`` bytes, which breaks at least one rule. [MS-SMBD 3.1.5.8]"""
        requested, _, _, _, remaining, offset, data_length = header
        if self.credits.receive_credits <= 0:
            return ProtocolError("message without a credit", _RECEIVING_DATA)
        if length > self.max_receive_size:
            return ProtocolError(f"{length} bytes exceed MaxReceiveSize {self.max_receive_size}", "MS-SMBD 3.1.5.4")
        if requested == 0:
            return ProtocolError("CreditsRequested is 0", _RECEIVING_DATA)
        if offset % DATA_ALIGNMENT:
            return ProtocolError(f"DataOffset {offset} is not aligned", _RECEIVING_DATA)
        if offset + data_length > length:
            return ProtocolError(f"payload {offset}+{data_length} exceeds message of {length}", _RECEIVING_DATA)
        if data_length and offset < DATA_TRANSFER.size:
            return DecodeError(f"DataOffset {offset} lies in the header", "MS-SMBD 2.2.3")
        if data_length + remaining > self.max_fragmented_receive_size:
            return ProtocolError(
                f"message of {data_length}+{remaining} bytes exceeds {self.max_fragmented_receive_size}",
                _RECEIVING_DATA,
            )
        return ProtocolError(
            f"message of {data_length + remaining} bytes exceeds local limit {self.max_message_size}", "local"
        )

    # -- timers and the end --------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when to call ``handle_timer`` (monotonic seconds), or None. Every received message moves it later; an
        early call does no harm."""
        deadline = self._negotiation_deadline
        for other in (self.idle_deadline, self._credit_deadline):
            if other is not None and (deadline is None or other < deadline):
                deadline = other
        return deadline

    def handle_timer(self, now: float) -> None:
        """Handle the timers that have expired. Raise ``ProtocolError`` if the connection is to be terminated.
        [MS-SMBD 3.1.6]"""
        if self._negotiation_deadline is not None and now >= self._negotiation_deadline:
            self._expire("negotiation did not complete in time", "MS-SMBD 3.1.6.1")
        if self._credit_deadline is not None and now >= self._credit_deadline:
            self._expire("the peer grants no send credits", "MS-SMBD 3.1.5.1")
        if self.idle_deadline is not None and now >= self.idle_deadline:
            if self.keepalive_requested is not Keepalive.NONE:
                self._expire("keepalive was not answered", "MS-SMBD 3.1.6.2")
            self.keepalive_requested = Keepalive.PENDING
            self.send_immediate = True
            self.idle_deadline = now + self.settings.keepalive_response_timeout

    def set_keepalive_interval(self, interval: float, now: float) -> None:
        """Request a response from a peer that has been silent for ``interval`` seconds. This shortens a wait under way,
        but does not lengthen it. [MS-SMBD 3.1.6.2]"""
        self.keepalive_interval = interval
        if self.idle_deadline is not None and self.keepalive_requested is Keepalive.NONE:
            self.idle_deadline = min(self.idle_deadline, now + interval)

    def _expire(self, message: str, rule: str) -> None:
        self.close()
        raise TimerExpired(message, rule)

    def close(self) -> None:
        """End the connection: stop the timers and release the reassembly buffer. Idempotent. [MS-SMBD 3.1.7.1]"""
        self.role = Role.CLOSED
        self._negotiation_deadline = self.idle_deadline = self._credit_deadline = None
        self._negotiate_to_send = None
        self.reassembler.discard()

    def unsent(self) -> list[object]:
        """Drop the messages that are still queued and return their contexts. To be called after the end."""
        contexts = [message.context for message in self.send_queue]
        self.send_queue.clear()
        return contexts
