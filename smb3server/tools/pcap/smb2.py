"""The part of MS-SMB2 that judging a capture needs: headers, compounds, and channel descriptors of READ and WRITE."""

from __future__ import annotations

import struct
from collections.abc import Iterator
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
READ, WRITE = 8, 9
CHANNEL_RDMA_V1, CHANNEL_RDMA_V1_INVALIDATE = 1, 2
FLAG_RESPONSE = 1
_HEADER = struct.Struct("<4sHHIHHIIQIIQ16s")


class Descriptor(NamedTuple):
    """An SMB_DIRECT_BUFFER_DESCRIPTOR_V1. [MS-SMBD 2.2.3.1]"""

    offset: int
    token: int
    length: int


class Smb2Message(NamedTuple):
    """One part of a compound."""

    command: int
    status: int
    flags: int
    message_id: int
    credits: int
    data: bytes
    """Header and body of this part of a compound."""
    channel: int = 0
    descriptors: tuple[Descriptor, ...] = ()
    data_length: int = 0
    """Bytes carried inline by a READ response or WRITE request."""

    @property
    def is_response(self) -> bool:
        """Whether the server sent it."""
        return bool(self.flags & FLAG_RESPONSE)

    def __str__(self) -> str:
        name = COMMANDS[self.command] if self.command < len(COMMANDS) else hex(self.command)
        text = f"{name} {'response' if self.is_response else 'request'} id={self.message_id}"
        if self.is_response:
            text += f" status={self.status:#010x}"
        if self.descriptors:
            text += " " + " ".join(f"{d.length}@{d.offset:#x}/{d.token:#x}" for d in self.descriptors)
        return text


class Smb2Error(Exception):
    """The bytes are not an SMB2 message, or its offsets contradict its length."""


def is_encrypted(message: bytes) -> bool:
    """Return whether the message begins with a TRANSFORM_HEADER. [MS-SMB2 2.2.41]"""
    return message[:4] == b"\xfdSMB"


def split(message: bytes) -> Iterator[Smb2Message]:
    """Yield the parts of a compound; nothing for SMB1 negotiates and encrypted messages. Raises ``Smb2Error``."""
    if is_encrypted(message) or message[:4] == b"\xffSMB":
        return
    offset = 0
    while True:
        if len(message) - offset < _HEADER.size:
            raise Smb2Error(f"{len(message) - offset} bytes are no SMB2 header")
        protocol, size, _, status, command, credits, flags, following, message_id, *_ = _HEADER.unpack_from(
            message, offset
        )
        if protocol != b"\xfeSMB" or size != 64:
            raise Smb2Error(f"header starts {protocol!r}, size {size}")
        if following and (following < 64 or following % 8 or offset + following > len(message)):
            raise Smb2Error(f"NextCommand {following}")
        data = message[offset : offset + following] if following else message[offset:]
        yield _with_channel(Smb2Message(command, status, flags, message_id, credits, data))
        if not following:
            return
        offset += following


def _with_channel(message: Smb2Message) -> Smb2Message:
    data, response = message.data, message.is_response
    if message.command == READ and response and len(data) >= 80 and message.status == 0:
        return message._replace(data_length=struct.unpack_from("<I", data, 68)[0])
    if message.command == READ and not response and len(data) >= 112:
        channel, _, offset, length = struct.unpack_from("<IIHH", data, 64 + 36)
        return message._replace(channel=channel, descriptors=_descriptors(data, channel, offset, length))
    if message.command == WRITE and not response and len(data) >= 112:
        (size,) = struct.unpack_from("<I", data, 64 + 4)
        channel, _, offset, length = struct.unpack_from("<IIHH", data, 64 + 32)
        return message._replace(
            channel=channel, data_length=size, descriptors=_descriptors(data, channel, offset, length)
        )
    return message


def _descriptors(data: bytes, channel: int, offset: int, length: int) -> tuple[Descriptor, ...]:
    if channel not in (CHANNEL_RDMA_V1, CHANNEL_RDMA_V1_INVALIDATE) or length % 16 or offset + length > len(data):
        return ()
    return tuple(Descriptor(*struct.unpack_from("<QII", data, at)) for at in range(offset, offset + length, 16))
