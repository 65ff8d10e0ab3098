"""MS-SMBD as observed on a wire: negotiation, credits, reassembly of both ends, and RDMA Reads and Writes.

The module models both peers from what went over the wire, in the order of the capture. Each broken rule becomes a
``Problem`` with the section that states it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from smb3server.tools.pcap.direct_tcp import UpperMessage
from smb3server.tools.pcap.rdma import Kind, RdmaMessage, Wire
from smb3server.tools.pcap.smb2 import CHANNEL_RDMA_V1_INVALIDATE, Descriptor, Smb2Error, Smb2Message, split
from smb3server.tools.pcap.tcp import Direction

_REQUEST = struct.Struct("<HHHHIII")
_RESPONSE = struct.Struct("<HHHHHHIIIII")
_DATA = struct.Struct("<HHHHIIII")
VERSION = 0x0100
RESPONSE_REQUESTED = 1


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

    credits: int = 0
    """Messages that it may still send: granted by the other end and not used."""
    fewest_credits: int = 1 << 16
    partial: bytearray = field(default_factory=bytearray)
    remaining: int = 0
    max_receive_size: int = 0
    """Bytes of its receive buffers; they limit the messages of the other end."""
    max_fragmented_size: int = 0
    sends: int = 0
    empty_sends: int = 0
    keepalives: int = 0
    inline_bytes: int = 0


@dataclass
class Counters:
    """Sums over the session; the server's own counters must agree with them."""

    rdma_read_bytes: int = 0
    """Bytes the server fetched from the client by RDMA Read."""
    rdma_write_bytes: int = 0
    """Bytes the server put into the client's memory by RDMA Write."""
    inline_read_bytes: int = 0
    """Bytes inside READ responses."""
    inline_write_bytes: int = 0
    """Bytes inside WRITE requests."""
    invalidations: int = 0


class SmbDirectReader:
    """Reads all messages of one connection at construction."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.peers = {direction: Peer() for direction in Direction}
        """Peers by the direction in which they send."""
        self.request: NegotiateRequest | None = None
        self.response: NegotiateResponse | None = None
        self.transfers: list[tuple[RdmaMessage, DataTransfer]] = []
        self.upper: list[UpperMessage] = []
        self.counters = Counters()
        self._offered: dict[int, tuple[int, Descriptor, int]] = {}
        """Descriptors of the READ and WRITE requests in progress: token -> (channel, descriptor, message id)."""
        for message in wire.messages:
            self._receive(message)
        for direction, peer in self.peers.items():
            if peer.remaining:
                wire.problem(0, "MS-SMBD 3.1.5.9", f"message {direction.arrow} ends {peer.remaining} bytes early")

    def _receive(self, message: RdmaMessage) -> None:
        if message.kind is Kind.SEND:
            self._send(message)
        elif message.kind is Kind.WRITE:
            self.counters.rdma_write_bytes += message.length
            self._check_range(message, "Write")
        elif message.kind is Kind.READ_REQUEST:
            self._check_range(message, "Read")
        elif message.kind is Kind.READ_RESPONSE:
            self.counters.rdma_read_bytes += message.length

    def _check_range(self, message: RdmaMessage, name: str) -> None:
        if message.direction is not Direction.TO_CLIENT:
            self.wire.problem(message.number, "MS-SMB2 3.2.4.6", f"the client issues an RDMA {name}")
            return
        known = self._offered.get(message.token)
        if known is None:
            self.wire.problem(
                message.number, "MS-SMBD 3.1.4.3", f"RDMA {name} to token {message.token:#x}, which no request offers"
            )
            return
        _, descriptor, _ = known
        end = message.address + message.length
        if message.address < descriptor.offset or end > descriptor.offset + descriptor.length:
            self.wire.problem(
                message.number,
                "MS-SMBD 3.1.4.3",
                f"RDMA {name} of {message.length} bytes at {message.address:#x} leaves its descriptor "
                f"({descriptor.length} at {descriptor.offset:#x})",
            )

    def _send(self, message: RdmaMessage) -> None:
        peer = self.peers[message.direction]
        peer.sends += 1
        if message.direction is Direction.TO_SERVER and self.request is None:
            self._negotiate_request(message)
        elif message.direction is Direction.TO_CLIENT and self.response is None:
            self._negotiate_response(message)
        else:
            self._data_transfer(message, peer, self.peers[Direction(1 - message.direction)])

    def _negotiate_request(self, message: RdmaMessage) -> None:
        if len(message.payload) < _REQUEST.size:
            self.wire.problem(message.number, "MS-SMBD 3.1.5.6", f"request of {len(message.payload)} bytes")
            return
        request = self.request = NegotiateRequest._make(_REQUEST.unpack_from(message.payload))
        client = self.peers[Direction.TO_SERVER]
        client.max_receive_size, client.max_fragmented_size = request.max_receive_size, request.max_fragmented_size
        for broken, text in (
            (not request.min_version <= VERSION <= request.max_version, "versions without 1.0"),
            (request.credits_requested == 0, "CreditsRequested 0"),
            (request.max_receive_size < 128, f"MaxReceiveSize {request.max_receive_size}"),
            (request.max_fragmented_size < 131072, f"MaxFragmentedSize {request.max_fragmented_size}"),
        ):
            if broken:
                self.wire.problem(message.number, "MS-SMBD 3.1.5.6", f"Negotiate Request: {text}")

    def _negotiate_response(self, message: RdmaMessage) -> None:
        if len(message.payload) < _RESPONSE.size:
            self.wire.problem(message.number, "MS-SMBD 3.1.5.7", f"response of {len(message.payload)} bytes")
            return
        response = self.response = NegotiateResponse._make(_RESPONSE.unpack_from(message.payload))
        server = self.peers[Direction.TO_CLIENT]
        server.max_receive_size, server.max_fragmented_size = response.max_receive_size, response.max_fragmented_size
        self.peers[Direction.TO_SERVER].credits = response.credits_granted
        if response.status:
            return
        for broken, text in (
            (self.request is None, "before the request"),
            (response.negotiated_version != VERSION, f"NegotiatedVersion {response.negotiated_version:#x}"),
            (response.credits_requested == 0, "CreditsRequested 0"),
            (response.credits_granted == 0, "CreditsGranted 0"),
            (response.max_receive_size < 128, f"MaxReceiveSize {response.max_receive_size}"),
            (response.max_fragmented_size < 131072, f"MaxFragmentedSize {response.max_fragmented_size}"),
            (
                self.request is not None and response.preferred_send_size > self.request.max_receive_size,
                f"PreferredSendSize {response.preferred_send_size} above the client's MaxReceiveSize",
            ),
        ):
            if broken:
                self.wire.problem(message.number, "MS-SMBD 3.1.5.7", f"Negotiate Response: {text}")

    def _data_transfer(self, message: RdmaMessage, sender: Peer, receiver: Peer) -> None:
        raw, number = message.payload, message.number
        if len(raw) < 20:
            self.wire.problem(number, "MS-SMBD 3.1.5.8", f"data transfer of {len(raw)} bytes")
            return
        fields = _DATA.unpack(raw[:20].ljust(24, b"\0"))[:7]
        _, granted, flags, _, remaining, offset, length = fields
        broken = bool(length) and (offset < 24 or offset % 8 != 0 or offset + length > len(raw))
        if broken:
            self.wire.problem(number, "MS-SMBD 3.1.5.8", f"DataOffset {offset}, DataLength {length} of {len(raw)}")
        if len(raw) > receiver.max_receive_size:
            self.wire.problem(number, "MS-SMBD 3.1.5.8", f"{len(raw)} bytes, limit {receiver.max_receive_size}")
        padding = int.from_bytes(raw[20:24], "little")
        transfer = DataTransfer._make(
            (*fields, padding, raw[offset : offset + length] if length and not broken else b"")
        )
        self.transfers.append((message, transfer))
        if not sender.credits:
            self.wire.problem(number, "MS-SMBD 3.1.5.1", f"sent {message.direction.arrow} without a credit")
        else:
            sender.credits -= 1
            if not sender.credits and not granted:
                self.wire.problem(number, "MS-SMBD 3.1.5.1", "last credit used without granting any")
        sender.fewest_credits = min(sender.fewest_credits, sender.credits)
        receiver.credits += granted
        sender.keepalives += flags & RESPONSE_REQUESTED
        if broken:
            return
        if not length:
            sender.empty_sends += 1
            if remaining:
                self.wire.problem(number, "MS-SMBD 3.1.5.8", f"no data, but RemainingDataLength {remaining}")
        else:
            self._reassemble(message, transfer, sender, receiver)

    def _reassemble(self, message: RdmaMessage, transfer: DataTransfer, sender: Peer, receiver: Peer) -> None:
        number, remaining = message.number, transfer.remaining_data_length
        if sender.remaining and sender.remaining != transfer.data_length + remaining:
            self.wire.problem(
                number,
                "MS-SMBD 3.1.5.9",
                f"{transfer.data_length} bytes and {remaining} to come, {sender.remaining} were announced",
            )
            sender.partial.clear()
        sender.partial += transfer.payload
        sender.remaining = remaining
        sender.inline_bytes += transfer.data_length
        if len(sender.partial) + remaining > receiver.max_fragmented_size:
            self.wire.problem(
                number, "MS-SMBD 3.1.5.9", f"message above MaxFragmentedSize {receiver.max_fragmented_size}"
            )
        if remaining:
            return
        upper = UpperMessage(number, message.time, message.direction, bytes(sender.partial))
        sender.partial.clear()
        self.upper.append(upper)
        self._upper(message, upper)

    def _upper(self, message: RdmaMessage, upper: UpperMessage) -> None:
        try:
            parts = list(split(upper.data))
        except Smb2Error as error:
            self.wire.problem(upper.number, "MS-SMB2 2.2.1", str(error))
            return
        for part in parts:
            if part.is_response:
                self._response(message, part)
            else:
                self.counters.inline_write_bytes += part.data_length
                for descriptor in part.descriptors:
                    self._offered[descriptor.token] = (part.channel, descriptor, part.message_id)

    def _response(self, message: RdmaMessage, part: Smb2Message) -> None:
        self.counters.inline_read_bytes += part.data_length
        if part.status == 0x00000103:  # The final response comes later.
            return
        offered = {token: known for token, known in self._offered.items() if known[2] == part.message_id}
        wanted = {token for token, known in offered.items() if known[0] == CHANNEL_RDMA_V1_INVALIDATE}
        if message.invalidated is not None:
            self.counters.invalidations += 1
            if message.invalidated not in wanted:
                self.wire.problem(
                    message.number,
                    "MS-SMB2 3.3.5.12",
                    f"invalidates {message.invalidated:#x}, which its request did not offer for that",
                )
        elif wanted:
            self.wire.problem(message.number, "MS-SMB2 3.3.5.12", f"does not invalidate {min(wanted):#x}")
        for token in offered:
            del self._offered[token]
