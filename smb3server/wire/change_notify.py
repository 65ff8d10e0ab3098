"""CHANGE_NOTIFY and FILE_NOTIFY_INFORMATION. The response is ``query_info.OutputResponse``.
[MS-SMB2 2.2.35, MS-FSCC 2.7.1]"""

import enum
import struct
from collections.abc import Iterable
from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message, decode_name, encode_name
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError
from smbdirect.fields import Int16ul, Int32ul, Int64ul

WATCH_TREE = 0x0001


class NotifyFilter(enum.IntEnum):
    """CompletionFilter. [MS-SMB2 2.2.35]"""

    FILE_NAME = 0x00000001
    DIR_NAME = 0x00000002
    ATTRIBUTES = 0x00000004
    SIZE = 0x00000008
    LAST_WRITE = 0x00000010
    LAST_ACCESS = 0x00000020
    CREATION = 0x00000040
    EA = 0x00000080
    SECURITY = 0x00000100
    STREAM_NAME = 0x00000200
    STREAM_SIZE = 0x00000400
    STREAM_WRITE = 0x00000800


class Action(enum.IntEnum):
    """Kinds of changes. [MS-FSCC 2.7.1]"""

    ADDED = 1
    REMOVED = 2
    MODIFIED = 3
    RENAMED_OLD_NAME = 4
    RENAMED_NEW_NAME = 5
    ADDED_STREAM = 6
    REMOVED_STREAM = 7
    MODIFIED_STREAM = 8
    REMOVED_BY_DELETE = 9
    ID_NOT_TUNNELLED = 10
    TUNNELLED_ID_COLLISION = 11


class ChangeNotifyRequest(NamedTuple):
    """A CHANGE_NOTIFY request. [MS-SMB2 2.2.35]"""

    structure_size: Annotated[int, Int16ul] = 32
    flags: Annotated[int, Int16ul] = 0
    output_buffer_length: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0
    completion_filter: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0

    @property
    def file_id(self) -> tuple[int, int]:
        """The directory's open as (persistent, volatile)."""
        return self.persistent, self.volatile


CHANGE_NOTIFY_REQUEST = Message(ChangeNotifyRequest)
parse_change_notify_request = CHANGE_NOTIFY_REQUEST.parse


class Notification(NamedTuple):
    """One change."""

    action: int
    name: str
    """The name relative to the watched directory, its components separated by backslashes."""


_ENTRY = struct.Struct("<III")


def encoded_notification_size(name: str) -> int:
    """Return the bytes of one entry, including its padding to 4 bytes."""
    return (_ENTRY.size + len(encode_name(name)) + 3) & ~3


def encode_notifications(notifications: Iterable[Notification]) -> bytes:
    """Encode a FILE_NOTIFY_INFORMATION list. [MS-FSCC 2.7.1]"""
    entries = [(action, encode_name(name)) for action, name in notifications]
    parts: list[bytes] = []
    for number, (action, name) in enumerate(entries, 1):
        size = _ENTRY.size + len(name)
        padding = -size % 4
        parts.append(_ENTRY.pack(0 if number == len(entries) else size + padding, action, len(name)))
        parts.append(name + bytes(padding))
    return b"".join(parts)


def decode_notifications(data: Buffer) -> list[Notification]:
    """Decode a FILE_NOTIFY_INFORMATION list, which may be padded at its end. Raises ``DecodeError``. [MS-FSCC 2.7.1]"""
    view = memoryview(data)
    found: list[Notification] = []
    offset = 0
    while view:
        if offset + _ENTRY.size > len(view):
            raise DecodeError("FILE_NOTIFY_INFORMATION cut short")
        step, action, length = _ENTRY.unpack_from(view, offset)
        start = offset + _ENTRY.size
        if start + length > len(view) or (step and step < _ENTRY.size + length):
            raise DecodeError("FILE_NOTIFY_INFORMATION name outside its entry")
        found.append(Notification(action, decode_name(view[start : start + length])))
        if not step:
            break
        offset += step
    return found
