"""Drive the project's own codecs and state machines with a capture.

Every message must decode, and encode to the same bytes again. Both ends' ``smbdirect.core.connection.Connection``
receive what their end received. What their end sent is imposed on their credits, since the state machine would grant by
its own policy, not by that of the peer in the capture. Each function returns the differences as text; an empty result
means agreement.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from crc32c import crc32c

import smb3server.wire
from smb3server.lab.pcap.connection import Connection as CapturedConnection
from smb3server.lab.pcap.direct_tcp import UpperMessage
from smb3server.lab.pcap.rdma import Kind, RdmaMessage, Wire
from smb3server.lab.pcap.smb2 import is_encrypted
from smb3server.lab.pcap.smbdirect import DataTransfer, SmbDirectReader
from smb3server.lab.pcap.tcp import Direction
from smb3server.wire.header import HEADER, Command, Header, HeaderFlags
from smb3server.wire.status import StatusError
from smbdirect.codec import Codec
from smbdirect.core.connection import Connection, Role
from smbdirect.core.messages import DATA_TRANSFER, NEGOTIATE_REQUEST, NEGOTIATE_RESPONSE, Established, MessageReceived
from smbdirect.core.settings import Settings
from smbdirect.errors import DecodeError, ProtocolError
from smbdirect.providers.iwarp import ddp, mpa, rdmap

# Statuses that are no errors, or errors that come with the command's own response (MS-SMB2 3.3.4.4).
_OWN_RESPONSE = (0x00000000, 0xC0000016, 0x80000005, 0x0000010C)
_ERROR_STRUCTURE_SIZE = 9


# -- iWARP --------------------------------------------------------------------------------------------------------


def replay_iwarp(wire: Wire) -> list[str]:
    """Compare MPA set-up frames, and every FPDU with its padding and CRC field."""
    found = []
    set_up: set[Direction] = set()
    for frame in wire.frames:
        if frame.direction in set_up:
            length = int.from_bytes(frame.data[:2], "big")
            problem = _fpdu(memoryview(frame.data), length, bool(wire.properties.get("crc")))
        else:
            set_up.add(frame.direction)
            key = mpa.REQUEST_KEY if frame.direction is Direction.TO_SERVER else mpa.REPLY_KEY
            same = mpa.encode_frame(key, mpa.decode_frame(frame.data, key)) == frame.data
            problem = "" if same else "the MPA frame encodes differently"
        if problem:
            found.append(f"frame {frame.number} {frame.direction.arrow}: {problem}")
    return found


def _fpdu(fpdu: memoryview, length: int, crc: bool) -> str:
    codec: Codec[ddp.TaggedHeader] | Codec[ddp.UntaggedHeader]
    codec = ddp.TAGGED_HEADER if fpdu[2] & ddp.TAGGED else ddp.UNTAGGED_HEADER
    if problem := _round_trip(codec, fpdu[: codec.size]):
        return problem
    asks = fpdu[3] & rdmap.OPCODE_MASK == rdmap.Opcode.READ_REQUEST
    if asks and (problem := _round_trip(rdmap.READ_REQUEST, fpdu[codec.size : 2 + length])):
        return problem
    if len(fpdu) != mpa.fpdu_size(length):
        return f"{len(fpdu)} bytes for a ULPDU of {length}"
    if mpa.trailer(length, crc32c(fpdu[: 2 + length]) if crc else None) != fpdu[2 + length :]:
        return "padding or CRC differ"
    return ""


def _round_trip(codec: Codec[Any], raw: memoryview | bytes) -> str:
    """Return the difference if ``codec`` decodes ``raw`` and encodes the result; empty if there is none."""
    try:
        record = codec.unpack(raw)
    except DecodeError as error:
        return str(error)
    return "" if codec.pack(record) == bytes(raw) else f"{type(record).__name__} encodes differently"


# -- SMB Direct ---------------------------------------------------------------------------------------------------


class _Memory:
    """Memory with the interface of ``PooledBuffer``, which reassembly needs."""

    on_release: Callable[[int], None] | None = None

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))

    def release(self) -> None:
        self.view = memoryview(b"")


@dataclass
class Machines:
    """Both ends' state machines after a replay."""

    initiator: Connection
    acceptor: Connection
    found: list[str] = field(default_factory=list)
    delivered: int = 0
    """Number of upper-layer messages that came out equal to those that the observer assembled."""

    def sender(self, direction: Direction) -> Connection:
        """Return the state machine that sends in this direction."""
        return self.initiator if direction is Direction.TO_SERVER else self.acceptor

    def receiver(self, direction: Direction) -> Connection:
        """Return the state machine that receives in this direction."""
        return self.acceptor if direction is Direction.TO_SERVER else self.initiator


def replay_sends(reader: SmbDirectReader) -> list[str]:
    """Pass every Send through the MS-SMBD codecs."""
    sends = [message for message in reader.wire.messages if message.kind is Kind.SEND]
    found = []
    transfers = {id(message): transfer for message, transfer in reader.transfers}
    for message in sends:
        transfer = transfers.get(id(message))
        if transfer is None:
            codec = NEGOTIATE_REQUEST if message.direction is Direction.TO_SERVER else NEGOTIATE_RESPONSE
            problem = _round_trip(codec, message.payload)
        else:
            header = DATA_TRANSFER.unpack(message.payload)
            problem = _round_trip(DATA_TRANSFER, message.payload[: DATA_TRANSFER.size])
            if tuple(header) != tuple(transfer)[:7]:
                problem = problem or f"decodes as {header}"
        if problem:
            found.append(f"frame {message.number}: {problem}")
    return found


def _start(reader: SmbDirectReader) -> Machines:
    """Make both machines with the settings of the two ends and negotiate; compare their messages with the capture."""
    request, response = reader.request, reader.response
    assert request is not None
    assert response is not None
    initiator = Connection(
        Role.ACTIVE,
        Settings(
            receive_credit_max=0xFFFF,
            send_credit_target=request.credits_requested,
            max_send_size=request.preferred_send_size,
            max_receive_size=request.max_receive_size,
            max_fragmented_receive_size=request.max_fragmented_size,
            max_read_write_size=0xFFFFFFFF,
        ),
        0.0,
        _Memory,
    )
    acceptor = Connection(
        Role.PASSIVE,
        Settings(
            receive_credit_max=0xFFFF,
            send_credit_target=response.credits_requested,
            max_send_size=response.preferred_send_size,
            max_receive_size=response.max_receive_size,
            max_fragmented_receive_size=response.max_fragmented_size,
            max_read_write_size=response.max_read_write_size,
        ),
        0.0,
        _Memory,
    )
    machines = Machines(initiator, acceptor)
    sends = [message for message in reader.wire.messages if message.kind is Kind.SEND]
    asked, answered = (next(m.payload for m in sends if m.direction is direction) for direction in Direction)
    initiator.receives_were_posted(1)
    initiator.start()
    if b"".join(map(bytes, initiator.pending_sends(0.0)[0].segments)) != asked:
        machines.found.append("the initiator's Negotiate Request differs")
    acceptor.receives_were_posted(1)
    if not isinstance(acceptor.receive_message(memoryview(asked), 0.0), Established):
        machines.found.append("the acceptor refuses the Negotiate Request")
    acceptor.receives_were_posted(response.credits_granted)
    if b"".join(map(bytes, acceptor.pending_sends(0.0)[0].segments)) != answered:
        machines.found.append("the acceptor's Negotiate Response differs")
    if not isinstance(initiator.receive_message(memoryview(answered), 0.0), Established):
        machines.found.append("the initiator refuses the Negotiate Response")
    return machines


def _transfer(machines: Machines, message: RdmaMessage, transfer: DataTransfer) -> MessageReceived | None:
    """Replay one data transfer: impose it on its sender's credits, and let the other end receive it."""
    sender, receiver = machines.sender(message.direction), machines.receiver(message.direction)
    sender.receives_were_posted(transfer.credits_granted)
    if not sender.credits.may_send:
        machines.found.append(f"frame {message.number}: its sender may not send")
    if sender.credits.grant() != transfer.credits_granted:
        machines.found.append(f"frame {message.number}: its sender has {transfer.credits_granted} to grant")
    sender.credits.send_credits -= 1
    try:
        event = receiver.receive_message(memoryview(message.payload), 0.0, message.invalidated)
    except ProtocolError as error:
        machines.found.append(f"frame {message.number}: {error}")
        return None
    if event is not None and not isinstance(event, MessageReceived):
        machines.found.append(f"frame {message.number}: {event}")
        return None
    return event


def replay_machines(reader: SmbDirectReader, messages: Sequence[UpperMessage]) -> Machines:
    """Run both state machines through the whole connection, then compare their credits with the observer's.

    ``messages`` are those of the upper layer that the observer assembled.
    """
    machines = _start(reader)
    expected = iter(messages)
    for message, transfer in reader.transfers:
        event = _transfer(machines, message, transfer)
        if event is None:
            continue
        upper = next(expected, None)
        if upper is None or upper.number != message.number or event.view != upper.data:
            machines.found.append(f"frame {message.number}: the message comes out differently")
        if event.invalidated != message.invalidated:
            machines.found.append(f"frame {message.number}: token {event.invalidated} instead of {message.invalidated}")
        if event.buffer is not None:
            event.buffer.release()
        machines.delivered += 1
    if machines.delivered != len(messages):
        machines.found.append(f"{machines.delivered} of {len(messages)} messages came out")
    for direction in Direction:
        sender, receiver, peer = machines.sender(direction), machines.receiver(direction), reader.peers[direction]
        if not sender.credits.send_credits == receiver.credits.receive_credits == peer.credits:
            machines.found.append(
                f"credits {direction.arrow} at the end: {sender.credits.send_credits} with the sender, "
                f"{receiver.credits.receive_credits} with the receiver, {peer.credits} on the wire"
            )
        if receiver.credits.receives_posted != receiver.credits.receive_credits:
            machines.found.append(f"receives {direction.arrow} at the end: {receiver.credits.receives_posted}")
    return machines


# -- SMB2 ---------------------------------------------------------------------------------------------------------


# Names in smb3server.wire of layouts that several messages share.
_SHARED = {
    **dict.fromkeys(("QUERY_INFO_RESPONSE", "QUERY_DIRECTORY_RESPONSE", "CHANGE_NOTIFY_RESPONSE"), "OUTPUT_RESPONSE"),
    **dict.fromkeys(
        (
            f"{name}_{kind}"
            for name in ("LOGOFF", "TREE_DISCONNECT", "ECHO", "CANCEL")
            for kind in ("REQUEST", "RESPONSE")
        ),
        "EMPTY",
    ),
    **dict.fromkeys(("OPLOCK_BREAK_REQUEST", "OPLOCK_BREAK_RESPONSE"), "OPLOCK_BREAK"),
}


class WireCodec(NamedTuple):
    """The codec of one SMB2 message."""

    codec: Codec[Any]
    """Codec of the fixed part."""
    parse: Callable[[memoryview], object] | None
    """Parser of the whole message, header included; it raises ``StatusError`` for an invalid message."""


def _parser(module: ModuleType, name: str) -> Callable[[memoryview], object] | None:
    """Find ``parse_read_request`` or, in a module of one command, ``parse_request``."""
    kind = name.rsplit("_", 1)[-1].lower()
    for candidate in (f"parse_{name.lower()}", f"parse_{kind}"):
        parse = getattr(module, candidate, None)
        if callable(parse):
            return parse  # type: ignore[no-any-return]  # looked up by name
    return None


@cache
def wire_codecs() -> dict[str, WireCodec]:
    """Return all codecs of ``smb3server.wire`` by name (READ_REQUEST, ...)."""
    found: dict[str, WireCodec] = {}
    for info in pkgutil.iter_modules(smb3server.wire.__path__):
        module = importlib.import_module(f"smb3server.wire.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, Codec):
                found[name] = WireCodec(value, _parser(module, name))
    return found


def codec_name(header: Header, body: bytes) -> str:
    """Return the name under which ``smb3server.wire`` has the codec of a message."""
    response = bool(header.flags & HeaderFlags.SERVER_TO_REDIR)
    # An error response, unless the status is one with which a command sends its own response (3.3.4.4).
    failed = header.status not in _OWN_RESPONSE and int.from_bytes(body[:2], "little") == _ERROR_STRUCTURE_SIZE
    if response and failed:
        return "ERROR_RESPONSE"
    name = f"{Command(header.command).name}_{'RESPONSE' if response else 'REQUEST'}"
    return _SHARED.get(name, name)


def replay_smb2(connection: CapturedConnection) -> list[str]:
    """Pass every plain SMB2 message through ``smb3server.wire``.

    Header and fixed part are decoded and encoded again; the rest is parsed.
    """
    codecs = wire_codecs()
    found = []
    for message, part in connection.smb2():
        header = HEADER.unpack(part.data)
        body = part.data[HEADER.size :]
        name = codec_name(header, body)
        known = codecs.get(name)
        problem = _round_trip(HEADER, part.data[: HEADER.size])
        if known is None:
            problem = problem or f"no codec {name}"
        else:
            problem = problem or _round_trip(known.codec, body[: known.codec.size])
            if not problem and known.parse is not None:
                try:
                    known.parse(memoryview(bytearray(part.data)))
                except (StatusError, DecodeError) as error:
                    problem = f"{name} is refused: {error!r}"
        if problem:
            found.append(f"frame {message.number}: {problem}")
    return found


def replay(connection: CapturedConnection) -> list[str]:
    """Run every replay that applies to the connection, which was recorded."""
    found = []
    reader = connection.smbdirect
    if reader is not None:
        if reader.wire.fabric == "iwarp":
            found += replay_iwarp(reader.wire)
        found += replay_sends(reader)
        if reader.request is not None and reader.response is not None and not reader.response.status:
            found += replay_machines(reader, connection.upper).found
    if not all(is_encrypted(message.data) for message in connection.upper):
        found += replay_smb2(connection)
    return found
