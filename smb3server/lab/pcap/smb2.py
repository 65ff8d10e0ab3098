"""The part of MS-SMB2 that judging a capture needs: headers, compounds, and where each command has its buffer."""

from __future__ import annotations

import struct
from typing import NamedTuple

COMMANDS = (
    "NEGOTIATE",
    "SESSION_SETUP",
    "LOGOFF",
    "TREE_CONNECT",
    "TREE_DISCONNECT",
    "CREATE",
    "CLOSE",
    "FLUSH",
    "READ",
    "WRITE",
    "LOCK",
    "IOCTL",
    "CANCEL",
    "ECHO",
    "QUERY_DIRECTORY",
    "CHANGE_NOTIFY",
    "QUERY_INFO",
    "SET_INFO",
    "OPLOCK_BREAK",
    "SERVER_TO_CLIENT_NOTIFICATION",
)
NEGOTIATE, SESSION_SETUP, LOGOFF, TREE_CONNECT, TREE_DISCONNECT, CREATE, CLOSE, FLUSH, READ, WRITE = range(10)
LOCK, IOCTL, CANCEL, ECHO, QUERY_DIRECTORY, CHANGE_NOTIFY, QUERY_INFO, SET_INFO, OPLOCK_BREAK, NOTIFICATION = range(
    10, 20
)

CHANNEL_RDMA_V1, CHANNEL_RDMA_V1_INVALIDATE, CHANNEL_RDMA_TRANSFORM = 1, 2, 3
FLAG_RESPONSE, FLAG_ASYNC, FLAG_RELATED, FLAG_SIGNED = 1, 2, 4, 8
STATUS_SUCCESS, STATUS_PENDING, STATUS_BUFFER_OVERFLOW, STATUS_END_OF_FILE = 0, 0x103, 0x80000005, 0xC0000011
STATUS_MORE_PROCESSING = 0xC0000016
HEADER_SIZE = 64
UNSOLICITED = (1 << 64) - 1
"""MessageId of what the server sends without a request. [MS-SMB2 2.2.1.2]"""
WITHOUT_TREE = (NEGOTIATE, SESSION_SETUP, LOGOFF, TREE_CONNECT, ECHO, CANCEL, OPLOCK_BREAK)
"""Commands whose TreeId means nothing. [MS-SMB2 2.2.1.2]"""
NO_FILE = b"\xff" * 16
_HEADER = struct.Struct("<4sHHIHHIIQIIQ16s")

REQUEST_SIZES = dict(
    enumerate((36, 25, 4, 9, 4, 57, 24, 24, 49, 49, 48, 57, 4, 4, 33, 32, 41, 33)),
)
"""StructureSize of requests by command. [MS-SMB2 2.2.3 to 2.2.39]"""
RESPONSE_SIZES = dict(
    enumerate((65, 9, 4, 16, 4, 89, 60, 4, 17, 17, 4, 49, 4, 4, 9, 9, 9, 2)),
)
"""StructureSize of responses by command. [MS-SMB2 2.2.4 to 2.2.40]"""
_BREAK_SIZES = (24, 36, 44)
"""StructureSizes of oplock and lease breaks. [MS-SMB2 2.2.23 to 2.2.25]"""
_ERROR_SIZE = 9
_NO_ERROR = (STATUS_SUCCESS, STATUS_BUFFER_OVERFLOW, STATUS_MORE_PROCESSING, 0x10C)
"""Statuses that come with the command's own response. [MS-SMB2 3.3.4.4]"""

_REQUEST_BUFFERS = {
    SESSION_SETUP: ("<HH", 12),
    TREE_CONNECT: ("<HH", 4),
    CREATE: ("<HH", 44),
    WRITE: ("<HI", 2),
    IOCTL: ("<II", 24),
    QUERY_DIRECTORY: ("<HH", 24),
}
"""Layout and place in the body of the offset and the length of a request's buffer. SET_INFO has them in reverse."""
_RESPONSE_BUFFERS = {
    NEGOTIATE: ("<HH", 56),
    SESSION_SETUP: ("<HH", 4),
    READ: ("<BxI", 2),
    IOCTL: ("<II", 32),
    QUERY_DIRECTORY: ("<HI", 2),
    CHANGE_NOTIFY: ("<HI", 2),
    QUERY_INFO: ("<HI", 2),
}
_SECOND_REQUEST_BUFFERS = {CREATE: ("<II", 48), IOCTL: ("<II", 36), QUERY_INFO: ("<HxxI", 8)}
_SECOND_RESPONSE_BUFFERS = {CREATE: ("<II", 80), IOCTL: ("<II", 24)}
"""The same of messages with two buffers: contexts, and the other side's data."""


class Descriptor(NamedTuple):
    """An SMB_DIRECT_BUFFER_DESCRIPTOR_V1. [MS-SMBD 2.2.3.1]"""

    offset: int
    token: int
    length: int


class Smb2Message(NamedTuple):
    """One part of a compound."""

    command: int
    status: int
    """In requests of 3.x the ChannelSequence, in the low half."""
    flags: int
    message_id: int
    credits: int
    """CreditRequest or CreditResponse."""
    charge: int
    async_id: int
    """0 without SMB2_FLAGS_ASYNC_COMMAND."""
    tree_id: int
    """0 with SMB2_FLAGS_ASYNC_COMMAND."""
    session_id: int
    next_command: int
    signature: bytes
    data: bytes
    """Header and body of this part of a compound."""
    known: int
    """Bytes of ``data`` up to the first that was not captured."""

    @property
    def is_response(self) -> bool:
        """Whether it says that the server sent it."""
        return bool(self.flags & FLAG_RESPONSE)

    @property
    def name(self) -> str:
        """The name of its command."""
        return COMMANDS[self.command] if self.command < len(COMMANDS) else f"command {self.command:#x}"

    @property
    def failed(self) -> bool:
        """Whether it is a response that has the error structure."""
        return self.is_response and self.status not in _NO_ERROR and self.body_size == _ERROR_SIZE

    @property
    def body_size(self) -> int:
        """StructureSize of the body."""
        return int.from_bytes(self.data[HEADER_SIZE : HEADER_SIZE + 2], "little")

    def fields(self, layout: str, at: int) -> tuple[int, ...] | None:
        """Return fields of the body, or None if they are not there or were not captured."""
        if HEADER_SIZE + at + struct.calcsize(layout) > self.known:
            return None
        return struct.unpack_from(layout, self.data, HEADER_SIZE + at)

    def bytes_at(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes of the body; fewer if the others are not there or were not captured."""
        return self.data[HEADER_SIZE + at : min(HEADER_SIZE + at + size, self.known)]

    def buffer_place(self) -> tuple[int, int] | None:
        """Return offset in the message and length of the buffer; None if there is none."""
        if self.is_response and (self.status not in _NO_ERROR or self.failed):
            return None
        if self.command == SET_INFO and not self.is_response:
            found = self.fields("<IH", 4)
            return None if found is None else (found[1], found[0])
        place = (_RESPONSE_BUFFERS if self.is_response else _REQUEST_BUFFERS).get(self.command)
        found = self.fields(*place) if place else None
        return None if found is None else (found[0], found[1])

    def buffer_places(self) -> list[tuple[int, int]]:
        """Return offset and length of all buffers."""
        if self.is_response and (self.status not in _NO_ERROR or self.failed):
            return []
        second = (_SECOND_RESPONSE_BUFFERS if self.is_response else _SECOND_REQUEST_BUFFERS).get(self.command)
        found = self.fields(*second) if second else None
        places = [self.buffer_place(), None if found is None else (found[0], found[1])]
        return [place for place in places if place is not None]

    def buffer(self) -> bytes:
        """Return the captured part of the buffer; empty if it lies outside the message."""
        place = self.buffer_place()
        return (
            b"" if place is None or sum(place) > len(self.data) else self.data[place[0] : min(sum(place), self.known)]
        )

    def __str__(self) -> str:
        text = f"{self.name} {'response' if self.is_response else 'request'} id={self.message_id}"
        if self.is_response:
            text += f" status={self.status:#010x}"
        for d in descriptors(self)[1]:
            text += f" {d.length}@{d.offset:#x}/{d.token:#x}"
        return text


class Smb2Error(Exception):
    """The bytes are not an SMB2 message, or its offsets contradict its length."""

    def __init__(self, text: str, chain: bool) -> None:
        """Describe the error. ``chain`` means that NextCommand is wrong, and otherwise the header."""
        super().__init__(text)
        self.chain = chain


def is_encrypted(message: bytes) -> bool:
    """Return whether the message begins with a TRANSFORM_HEADER. [MS-SMB2 2.2.41]"""
    return message[:4] == b"\xfdSMB"


def is_compressed(message: bytes) -> bool:
    """Return whether the message begins with a COMPRESSION_TRANSFORM_HEADER. [MS-SMB2 2.2.42]"""
    return message[:4] == b"\xfcSMB"


def is_smb1(message: bytes) -> bool:
    """Return whether the message is one of SMB1: a negotiation that leads to SMB2. [MS-SMB2 3.3.5.3]"""
    return message[:4] == b"\xffSMB"


def split(message: bytes, known: int = -1) -> list[Smb2Message]:
    """Return the parts of a compound of which the first ``known`` bytes were captured; -1: all. Raises ``Smb2Error``.

    There are none in SMB1 negotiations, encrypted and compressed messages. Parts whose header was not captured are
    left out.
    """
    if message[:4] in (b"\xfdSMB", b"\xfcSMB", b"\xffSMB"):
        return []
    known = len(message) if known < 0 else known
    offset = 0
    parts: list[Smb2Message] = []
    while True:
        if len(message) - offset < HEADER_SIZE:
            raise Smb2Error(f"{len(message) - offset} bytes are no SMB2 header", bool(offset))
        if known - offset < HEADER_SIZE:
            return parts
        protocol, size, charge, status, command, credits_, flags, following, message_id, low, tree, session, sig = (
            _HEADER.unpack_from(message, offset)
        )
        if protocol != b"\xfeSMB" or size != 64:
            raise Smb2Error(f"header begins with {protocol!r}, size {size}", bool(offset))
        if following and (following < 64 or following % 8 or offset + following > len(message)):
            raise Smb2Error(f"NextCommand {following} in {len(message) - offset} bytes", True)
        data = message[offset : offset + following] if following else message[offset:]
        asynchronous = flags & FLAG_ASYNC
        parts.append(
            Smb2Message(
                command,
                status,
                flags,
                message_id,
                credits_,
                charge,
                low | tree << 32 if asynchronous else 0,
                0 if asynchronous else tree,
                session,
                following,
                sig,
                data,
                min(known - offset, len(data)),
            )
        )
        if not following:
            return parts
        offset += following


def expected_sizes(part: Smb2Message) -> tuple[int, ...]:
    """Return the StructureSizes that the body may have; none if the command is unknown."""
    if part.is_response and part.status not in _NO_ERROR:
        sizes = RESPONSE_SIZES.get(part.command, 0)
        return (_ERROR_SIZE, sizes) if part.command in (IOCTL, CHANGE_NOTIFY, QUERY_INFO) else (_ERROR_SIZE,)
    if part.command == OPLOCK_BREAK:
        return _BREAK_SIZES
    if part.command == NOTIFICATION:
        return (4,)
    size = (RESPONSE_SIZES if part.is_response else REQUEST_SIZES).get(part.command)
    if part.is_response and part.command == SESSION_SETUP:
        return (9,)
    return () if size is None else (size,)


def transfer_length(part: Smb2Message) -> int:
    """Return how many bytes a READ or WRITE request is about, whichever way they go. [MS-SMB2 2.2.19, 2.2.21]"""
    fields = part.fields("<I", 4)
    channel, places = descriptors(part)
    if fields is None:
        return 0
    if part.command == WRITE and channel:
        remaining = part.fields("<I", 36)
        return remaining[0] if remaining else sum(place.length for place in places)
    return fields[0]


def descriptors(part: Smb2Message) -> tuple[int, tuple[Descriptor, ...]]:
    """Return Channel and buffer descriptors of a READ or WRITE request; none if they lie outside the message."""
    if part.is_response or part.command not in (READ, WRITE):
        return 0, ()
    fields = part.fields("<IIHH", 36 if part.command == READ else 32)
    if fields is None:
        return 0, ()
    channel, _, offset, length = fields
    end = offset + length
    if channel not in (CHANNEL_RDMA_V1, CHANNEL_RDMA_V1_INVALIDATE) or length % 16 or end > part.known or offset < 112:
        return channel, ()
    return channel, tuple(Descriptor(*struct.unpack_from("<QII", part.data, at)) for at in range(offset, end, 16))
