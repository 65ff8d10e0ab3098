"""Requests on an open, as parts of a chain of related requests or by themselves. [MS-SMB2 3.2.4.1.4]"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from smb3server.wire import close as close_wire
from smb3server.wire import query_info as query_wire
from smb3server.wire import read_write as io_wire
from smb3server.wire import set_info as set_wire
from smb3server.wire.header import Command
from smb3server.wire.info_class import FileInfoClass
from smb3server.wire.query_info import InfoType
from smb3server.wire.status import NtStatus
from smbdirect.codec import Buffer

FileId = tuple[int, int]
"""Persistent and volatile part."""
RELATED: FileId = (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""Stands for the open that the CREATE of the same chain makes. [MS-SMB2 2.2.1.2, 3.3.5.2.7.2]"""
SUCCESS = (NtStatus.SUCCESS,)
_FLUSH = struct.Struct("<QQQ")
"""StructureSize and reserved fields, and the FileId. [MS-SMB2 2.2.17]"""
T = TypeVar("T")


class Step(NamedTuple, Generic[T]):
    """One request on an open."""

    command: int
    body: Callable[[FileId], Sequence[Buffer]]
    """Returns the request's body for an open."""
    parse: Callable[[memoryview], T]
    """Returns what the response says. It has to copy what it returns."""
    payload: int = 0
    """Bytes that are sent or expected; they determine the credits."""
    accept: Sequence[int] = SUCCESS


def close(flags: int = 0) -> Step[close_wire.CloseResponse]:
    """Close the open. [MS-SMB2 3.2.4.5]"""

    def body(file_id: FileId) -> Sequence[Buffer]:
        record = close_wire.CloseRequest(flags=flags, persistent=file_id[0], volatile=file_id[1])
        return [close_wire.CLOSE_REQUEST.pack_fields(*record)]

    return Step(Command.CLOSE, body, close_wire.parse_response)


def flush() -> Step[int]:
    """Write the file's cached data to disk. [MS-SMB2 3.2.4.10]"""
    return Step(Command.FLUSH, lambda file_id: [_FLUSH.pack(_FLUSH.size, *file_id)], len)


def query_info(
    info_class: int, info_type: int = InfoType.FILE, size: int = 65536, additional: int = 0, data: bytes = b""
) -> Step[bytes]:
    """Query information; see ``Tree.query_info``. [MS-SMB2 3.2.4.8]"""

    def body(file_id: FileId) -> Sequence[Buffer]:
        record = query_wire.QueryInfoRequest(
            info_type=info_type,
            info_class=info_class,
            output_buffer_length=size,
            additional_information=additional,
            persistent=file_id[0],
            volatile=file_id[1],
        )
        return [query_wire.build_query_info_request(record, data)]

    return Step(Command.QUERY_INFO, body, output, size)


def set_info(info_class: int, data: bytes, info_type: int = InfoType.FILE, additional: int = 0) -> Step[int]:
    """Set information; see ``Tree.set_info``. [MS-SMB2 3.2.4.9]"""

    def body(file_id: FileId) -> Sequence[Buffer]:
        record = set_wire.SetInfoRequest(
            info_type=info_type,
            info_class=info_class,
            buffer_length=len(data),
            additional_information=additional,
            persistent=file_id[0],
            volatile=file_id[1],
        )
        return [set_wire.SET_INFO_REQUEST.pack_fields(*record), data or b"\0"]

    return Step(Command.SET_INFO, body, len, len(data))


def set_basic(created: int = 0, modified: int = 0, attributes: int = 0) -> Step[int]:
    """Set times, as FILETIMEs, and attributes; 0 leaves one as it is. [MS-FSCC 2.4.7]"""
    from smb3server.wire.file_info import BASIC, BasicInformation

    record = BasicInformation(creation_time=created, last_write_time=modified, attributes=attributes)
    return set_info(FileInfoClass.BASIC, BASIC.pack(record))


def rename(name: str, replace: bool) -> Step[int]:
    """Rename the file; ``name`` is as it travels, from the share's root. [MS-FSCC 2.4.42]"""
    from smb3server.wire.file_info import RenameInformation, encode_rename

    return set_info(FileInfoClass.RENAME, encode_rename(RenameInformation(int(replace), 0, name)))


def remove() -> Step[int]:
    """Let the server remove the file when it is closed. [MS-FSCC 2.4.11]"""
    return set_info(FileInfoClass.DISPOSITION, b"\1")


def read(length: int, compressed: bool = False) -> Step[bytes]:
    """Read up to ``length`` bytes from the beginning of the file, in the message. ``compressed``: ask for compressed
    data, which only a connection that has agreed on that may. [MS-SMB2 3.2.4.6]"""

    def body(file_id: FileId) -> Sequence[Buffer]:
        record = io_wire.ReadRequest(
            padding=io_wire.READ_DATA_OFFSET,
            flags=int(io_wire.ReadFlags.REQUEST_COMPRESSED) if compressed else 0,
            length=length,
            persistent=file_id[0],
            volatile=file_id[1],
        )
        return [io_wire.READ_REQUEST.pack_fields(*record), b"\0"]

    return Step(Command.READ, body, _data, length, (NtStatus.SUCCESS, NtStatus.END_OF_FILE))


def write(data: bytes) -> Step[int]:
    """Write to the beginning of the file, in the message; the result is the number of bytes written.
    [MS-SMB2 3.2.4.7]
    """

    def body(file_id: FileId) -> Sequence[Buffer]:
        record = io_wire.WriteRequest(
            data_offset=io_wire.TAIL, length=len(data), persistent=file_id[0], volatile=file_id[1]
        )
        return [io_wire.WRITE_REQUEST.pack_fields(*record), data or b"\0"]

    return Step(Command.WRITE, body, lambda message: io_wire.parse_write_response(message).byte_count, len(data))


def output(message: memoryview) -> bytes:
    """Return the output of QUERY_INFO."""
    return bytes(query_wire.parse_output_response(message))


def _data(message: memoryview) -> bytes:
    if message[64] == 9:
        # An error response: there is nothing at this offset.
        return b""
    return bytes(io_wire.parse_read_response(message)[1])
