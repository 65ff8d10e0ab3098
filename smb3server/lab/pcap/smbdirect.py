"""MS-SMBD as observed on a wire: negotiation, credits, reassembly and keepalives of both ends.

The module models both peers from what went over the wire, in the order of the capture.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.direct_tcp import UpperMessage
from smb3server.lab.pcap.rdma import RdmaMessage, Wire
from smb3server.lab.pcap.smb2 import FLAG_RELATED
from smb3server.lab.pcap.tcp import Direction

_REQUEST = struct.Struct("<HHHHIII")
_RESPONSE = struct.Struct("<HHHHHHIIIII")
_DATA = struct.Struct("<HHHHIIII")
_HEADER = 20
VERSION = 0x0100
RESPONSE_REQUESTED = 1
KEEPALIVE_PATIENCE = 5.0
"""Seconds after which an answer is not prompt. Linux and Windows end the connection then."""


class NegotiateRequest(NamedTuple):
    """The fields of an SMB Direct Negotiate Request. [MS-SMBD 2.2.1]"""

    min_version: int
    max_version: int
    reserved: int
    credits_requested: int
    preferred_send_size: int
    max_receive_size: int
    max_fragmented_size: int


class NegotiateResponse(NamedTuple):
    """The fields of an SMB Direct Negotiate Response. [MS-SMBD 2.2.2]"""

    min_version: int
    max_version: int
    negotiated_version: int
    reserved: int
    credits_requested: int
    credits_granted: int
    status: int
    max_read_write_size: int
    preferred_send_size: int
    max_receive_size: int
    max_fragmented_size: int


class DataTransfer(NamedTuple):
    """The fields of an SMB Direct Data Transfer, with its payload. [MS-SMBD 2.2.3]"""

    credits_requested: int
    credits_granted: int
    flags: int
    reserved: int
    remaining_data_length: int
    data_offset: int
    data_length: int
    padding: int
    payload: bytes


@dataclass
class Peer:
    """The state of one end, as far as the wire shows it."""

    credits: int | None = 0
    """Messages that it may still send: granted by the other end and not used. None: the capture does not say."""
    negotiated: bool = False
    partial: bytearray = field(default_factory=bytearray)
    remaining: int | None = 0
    """Bytes of the message in progress that are still to come. None: not known until a message ends."""
    whole: int = -1
    """Bytes of the message in progress up to the first that was not captured; -1: all."""
    invalidated: int | None = None
    """Token that a fragment of the message in progress invalidated."""
    max_receive_size: int = 0
    """Bytes of its receive buffers; they limit the messages of the other end. 0: not known."""
    max_fragmented_size: int = 0
    wanted: int = 0
    """The largest CreditsRequested that it has sent. 0: not known."""
    asked: tuple[int, float] | None = None
    """Frame and time of its keepalive that has no answer yet."""
    sends: int = 0
    inline_bytes: int = 0


class SmbDirectReader:
    """Reads the messages of one connection from its wire, and forwards those of the upper layer."""

    def __init__(self, wire: Wire, forward: Callable[[UpperMessage], None]) -> None:
        self.wire = wire
        self._forward = forward
        self._verdicts = wire.verdicts
        self.peers = {direction: Peer() for direction in Direction}
        """Peers by the direction in which they send."""
        self.request: NegotiateRequest | None = None
        self.response: NegotiateResponse | None = None
        self.transfers: list[tuple[RdmaMessage, DataTransfer]] = []
        """All data transfers, if the wire records."""
        if not wire.saw_start:
            for peer in self.peers.values():
                peer.credits = peer.remaining = None

    def lose(self, direction: Direction, number: int) -> None:
        """Note that messages in this direction were not captured: credits and fragments are not known any more."""
        peer = self.peers[direction]
        peer.partial.clear()
        peer.remaining, peer.whole, peer.asked = None, -1, None
        for one in self.peers.values():
            one.credits = None
        self._verdicts.unjudged(number, "SMB Direct credits are not known, since messages are missing")

    def finish(self, number: int, time: float, refused: Direction | None) -> None:
        """Judge what is left when the connection has ended in frame ``number``. No fragment can be missing in the
        direction ``refused``, whose receiver has reset the connection."""
        for direction, peer in self.peers.items():
            if peer.remaining and direction is not refused:
                self._verdicts.unjudged(number, f"a message {direction.arrow} ends {peer.remaining} bytes early")
            self._judge_keepalive(direction, number, time)

    def send(self, message: RdmaMessage) -> None:
        """Take the next Send."""
        peer = self.peers[message.direction]
        peer.sends += 1
        if not peer.negotiated and (self.wire.saw_start or _negotiates(message)):
            peer.negotiated = True
            if message.direction is Direction.TO_SERVER:
                self._negotiate_request(message)
            else:
                self._negotiate_response(message)
            return
        if not self.wire.saw_start:
            for either in self.peers.values():
                either.negotiated = True
        if 0 <= message.known < _HEADER + 4:
            self.lose(message.direction, message.number)
            return
        self._data_transfer(message, peer, self.peers[message.direction.reverse])

    # -- Negotiation ----------------------------------------------------------------------------------------------

    def _negotiate_request(self, message: RdmaMessage) -> None:
        check, number, way = self._verdicts.check, message.number, message.direction
        size = len(message.payload)
        text = "Negotiate Request: {}"
        if not check(rules.SMBD_REQUEST, size >= _REQUEST.size, number, way, text, f"{size} bytes"):
            return
        request = self.request = NegotiateRequest._make(_REQUEST.unpack_from(message.payload))
        client = self.peers[Direction.TO_SERVER]
        client.max_receive_size, client.max_fragmented_size = request.max_receive_size, request.max_fragmented_size
        client.wanted = request.credits_requested
        check(rules.SMBD_RESERVED, not request.reserved, number, way, "Reserved {:#x}", request.reserved)
        for kept, what in (
            (request.min_version <= VERSION <= request.max_version, "versions without 1.0"),
            (request.credits_requested > 0, "CreditsRequested 0"),
            (request.max_receive_size >= 128, f"MaxReceiveSize {request.max_receive_size}"),
            (request.max_fragmented_size >= 131072, f"MaxFragmentedSize {request.max_fragmented_size}"),
        ):
            check(rules.SMBD_REQUEST, kept, number, way, text, what)

    def _negotiate_response(self, message: RdmaMessage) -> None:
        check, number, way = self._verdicts.check, message.number, message.direction
        size = len(message.payload)
        text = "Negotiate Response: {}"
        if not check(rules.SMBD_RESPONSE, size >= _RESPONSE.size, number, way, text, f"{size} bytes"):
            return
        response = self.response = NegotiateResponse._make(_RESPONSE.unpack_from(message.payload))
        asked = self.request is not None or not self.wire.saw_start
        check(rules.SMBD_ORDER, asked, number, way, "a Negotiate Response before the request")
        server = self.peers[Direction.TO_CLIENT]
        server.max_receive_size, server.max_fragmented_size = response.max_receive_size, response.max_fragmented_size
        check(rules.SMBD_RESERVED, not response.reserved, number, way, "Reserved {:#x}", response.reserved)
        client = self.peers[Direction.TO_SERVER]
        client.credits = 0
        self._grant(message, client, response.credits_granted)
        if response.status:
            return
        for kept, what in (
            (response.negotiated_version == VERSION, f"NegotiatedVersion {response.negotiated_version:#x}"),
            (response.credits_requested > 0, "CreditsRequested 0"),
            (response.credits_granted > 0, "CreditsGranted 0"),
            (response.max_receive_size >= 128, f"MaxReceiveSize {response.max_receive_size}"),
            (response.max_fragmented_size >= 131072, f"MaxFragmentedSize {response.max_fragmented_size}"),
            (
                self.request is None or response.preferred_send_size <= self.request.max_receive_size,
                f"PreferredSendSize {response.preferred_send_size} above the client's MaxReceiveSize",
            ),
        ):
            check(rules.SMBD_RESPONSE, kept, number, way, text, what)

    # -- Data transfer --------------------------------------------------------------------------------------------

    def _data_transfer(self, message: RdmaMessage, sender: Peer, receiver: Peer) -> None:
        raw, number, way, check = message.payload, message.number, message.direction, self._verdicts.check
        self._judge_keepalive(way.reverse, number, message.time)
        if not check(rules.SMBD_ORDER, receiver.negotiated, number, way, "data before the peer's negotiate message"):
            return
        if receiver.max_receive_size:
            text = "{} bytes, the peer's MaxReceiveSize is {}"
            size, limit = len(raw), receiver.max_receive_size
            check(rules.SMBD_SIZE, size <= limit, number, way, text, size, limit)
        if not check(rules.SMBD_LENGTH, len(raw) >= _HEADER, number, way, "data transfer of {} bytes", len(raw)):
            return
        fields = _DATA.unpack(raw[:_HEADER].ljust(_DATA.size, b"\0"))[:7]
        requested, granted, flags, reserved, remaining, offset, length = fields
        self._credits(message, sender, receiver, requested, granted)
        check(rules.SMBD_FLAGS, not flags & ~RESPONSE_REQUESTED, number, way, "Flags {:#06x}", flags)
        check(rules.SMBD_RESERVED, not reserved, number, way, "Reserved {:#x}", reserved)
        if flags & RESPONSE_REQUESTED and sender.asked is None:
            sender.asked = number, message.time
        # Without data, only the alignment of DataOffset matters.
        aligned = offset % 8 == 0 and (offset >= 24 or not length)
        inside = offset + length <= len(raw)
        usable = check(rules.SMBD_OFFSET, aligned, number, way, "DataOffset {}", offset)
        text = "DataOffset {} and DataLength {} in {} bytes"
        usable &= check(rules.SMBD_BOUNDS, inside, number, way, text, offset, length, len(raw))
        if length and usable:
            filler = raw[_HEADER : min(offset, message.known) if message.known >= 0 else offset]
            check(rules.SMBD_PADDING, not any(filler), number, way, "padding {}", filler.hex())
        if self.wire.record:
            padding = int.from_bytes(raw[_HEADER:24], "little")
            payload = raw[offset : offset + length] if length and usable else b""
            self.transfers.append((message, DataTransfer._make((*fields, padding, payload))))
        if not usable:
            self.wire.lost(way, number)
        elif length:
            self._reassemble(message, sender, receiver, remaining, offset, length)
        else:
            check(rules.SMBD_EMPTY, not remaining, number, way, "no data, but RemainingDataLength {}", remaining)

    def _credits(self, message: RdmaMessage, sender: Peer, receiver: Peer, requested: int, granted: int) -> None:
        check, number, way = self._verdicts.check, message.number, message.direction
        check(rules.SMBD_REQUESTED, requested > 0, number, way, "CreditsRequested 0")
        held = sender.credits
        if held is not None and check(rules.SMBD_OVERDRAWN, held > 0, number, way, "sent without a credit"):
            sender.credits = held - 1
            kept = held > 1 or granted > 0
            check(rules.SMBD_LAST, kept, number, way, "the last credit is used without granting any")
        sender.wanted = max(sender.wanted, requested)
        self._grant(message, receiver, granted)

    def _grant(self, message: RdmaMessage, receiver: Peer, granted: int) -> None:
        """Grant credits. Of receives, as many are posted at once as the peer asks for, while it has fewer.

        [MS-SMBD 3.1.5.9]
        """
        held = (receiver.credits or 0) + granted
        if receiver.credits is not None:
            receiver.credits = held
        if granted and receiver.wanted:
            kept, text = held <= 2 * receiver.wanted, "{} credits granted: {} are held, {} were asked for"
            number, way = message.number, message.direction
            self._verdicts.check(rules.SMBD_GRANTED, kept, number, way, text, granted, held, receiver.wanted)

    def _judge_keepalive(self, direction: Direction, number: int, time: float) -> None:
        """Judge the keepalive that was sent in ``direction``, now that the other end sends, or the connection ends."""
        peer = self.peers[direction]
        if peer.asked is None:
            return
        asked, when = peer.asked
        peer.asked = None
        waited = time - when
        text = "the keepalive of frame {} had no answer for {:.1f} s"
        self._verdicts.check(
            rules.SMBD_KEEPALIVE, waited <= KEEPALIVE_PATIENCE, number, direction.reverse, text, asked, waited
        )

    # -- Reassembly -----------------------------------------------------------------------------------------------

    def _reassemble(
        self, message: RdmaMessage, sender: Peer, receiver: Peer, remaining: int, offset: int, length: int
    ) -> None:
        number, way, check = message.number, message.direction, self._verdicts.check
        sender.inline_bytes += length
        if sender.remaining is None:
            # In the middle of something that was lost. Its last fragment ends it. The beginning of a message shows
            # itself, too, unless it is the header of a later part of a compound.
            start = message.payload[offset : offset + 20]
            if start[1:4] == b"SMB" and not (start[:1] == b"\xfe" and start[16] & FLAG_RELATED):
                sender.remaining = 0
            else:
                sender.remaining = None if remaining else 0
                return
        if sender.remaining:
            text = "{} bytes and {} to come, {} were announced"
            kept = sender.remaining == length + remaining
            if not check(rules.SMBD_REMAINING, kept, number, way, text, length, remaining, sender.remaining):
                sender.partial.clear()
                sender.whole, sender.invalidated = -1, None
        if message.known >= 0 and sender.whole < 0:
            sender.whole = len(sender.partial) + max(message.known - offset, 0)
        sender.partial += message.payload[offset : offset + length]
        sender.remaining = remaining
        if message.invalidated is not None:
            sender.invalidated = message.invalidated
        size, limit = len(sender.partial) + remaining, receiver.max_fragmented_size
        if limit:
            text = "a message of {} bytes, MaxFragmentedSize is {}"
            check(rules.SMBD_FRAGMENTED, size <= limit, number, way, text, size, limit)
        if remaining:
            return
        data, whole, invalidated = bytes(sender.partial), sender.whole, sender.invalidated
        sender.partial.clear()
        sender.whole, sender.invalidated = -1, None
        self._forward(UpperMessage(number, message.time, way, data, whole, invalidated))


def _negotiates(message: RdmaMessage) -> bool:
    """Return whether the first Send that was captured looks like a negotiate message."""
    size = _REQUEST.size if message.direction is Direction.TO_SERVER else _RESPONSE.size
    return len(message.payload) == size and message.payload[:4] == struct.pack("<HH", VERSION, VERSION)
