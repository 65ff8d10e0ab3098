"""The levels of QUERY_INFO for files. [MS-FSA 2.1.5.12]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from smb3server.backends.base import FileInfo, StreamInfo
from smb3server.backends.names import short_name
from smb3server.commands.apple import numbers
from smb3server.commands.info import posix, presentation
from smb3server.dispatch.chain import Fresh
from smb3server.dispatch.lookup import handle_of
from smb3server.state import deletions
from smb3server.state.objects import Open
from smb3server.wire import attributes as attr
from smb3server.wire import file_info as wire
from smb3server.wire.create import Access, CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.fsctl import CompressionFormat
from smb3server.wire.negotiate import Dialect
from smb3server.wire.posix import LEVEL, POSIX_INFORMATION
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Codec

_MODE_BITS = int(
    CreateOptions.WRITE_THROUGH
    | CreateOptions.SEQUENTIAL_ONLY
    | CreateOptions.NO_INTERMEDIATE_BUFFERING
    | CreateOptions.SYNCHRONOUS_IO_ALERT
    | CreateOptions.SYNCHRONOUS_IO_NONALERT
    | CreateOptions.DELETE_ON_CLOSE
)
R = TypeVar("R", bound=tuple[Any, ...])


class FileLevel(NamedTuple):
    """An information level of files."""

    encode: Callable[[Open, Fresh | None], bytes]
    """Takes what is known of the file, or None if one has to look."""
    minimum_size: int
    """Bytes of the fixed part. A smaller buffer fails with INFO_LENGTH_MISMATCH."""
    access: int = 0
    """Access rights that the open must have."""
    minimum_dialect: int = 0


def delete_pending(opened: Open, info: FileInfo) -> bool:
    """Return whether the name of the open is about to be deleted, or is gone already (POSIX semantics)."""
    return deletions.of_open(opened) or not info.link_count


def _links(info: FileInfo, pending: bool) -> int:
    """Return the number of links, without one to be deleted at the last close (``pending``). [MS-FSA 2.1.5.12.27]"""
    links = 1 if info.attributes & attr.DIRECTORY else info.link_count
    return links - 1 if links and pending else links


def _name_of(opened: Open, fresh: Fresh | None) -> str:
    """Return the path from the root of the share, with a leading backslash and the stream's name, if it has one."""
    if fresh is not None and fresh.path is not None:
        path, stream = fresh.path, ""
    else:
        handle = handle_of(opened)
        path, stream = handle.path, handle.stream
    name = "\\" + "\\".join(path)
    return f"{name}:{stream}" if stream else name


def _basic(opened: Open, i: FileInfo) -> wire.BasicInformation:
    return wire.BasicInformation(i.creation_time, i.last_access_time, i.last_write_time, i.change_time, i.attributes)


def _network_open(opened: Open, i: FileInfo) -> wire.NetworkOpenInformation:
    times = i.creation_time, i.last_access_time, i.last_write_time, i.change_time
    return wire.NetworkOpenInformation(*times, i.allocation_size, i.end_of_file, i.attributes)


def _standard(opened: Open, i: FileInfo) -> wire.StandardInformation:
    pending, directory = delete_pending(opened, i), bool(i.attributes & attr.DIRECTORY)
    return wire.StandardInformation(i.allocation_size, i.end_of_file, _links(i, pending), pending, directory)


def _all(opened: Open, fresh: Fresh | None) -> bytes:
    i = presentation.shown(opened, handle_of(opened).info() if fresh is None else fresh.info)
    pending = delete_pending(opened, i)
    fixed = wire.ALL_FIXED.pack_fields(
        i.creation_time,
        i.last_access_time,
        i.last_write_time,
        i.change_time,
        i.attributes,
        0,
        i.allocation_size,
        i.end_of_file,
        _links(i, pending),
        pending,
        bool(i.attributes & attr.DIRECTORY),
        0,
        numbers.of(opened) if opened.tree.apple else i.key.inode,
        i.ea_size,
        opened.granted_access,
        opened.position,
        opened.create_options & _MODE_BITS,
        0,
    )
    return (fixed + wire.encode_name_information(_name_of(opened, fresh))).ljust(104, b"\0")


def _attribute_tag(opened: Open, info: FileInfo) -> wire.AttributeTagInformation:
    tag = info.reparse_tag if info.attributes & attr.REPARSE_POINT else 0
    return wire.AttributeTagInformation(info.attributes, tag)


def _alternate_name(opened: Open, fresh: Fresh | None) -> bytes:
    path = handle_of(opened).path
    if not path:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    return wire.encode_name_information(short_name(path[-1]) or path[-1].upper())


def encode_stream_list(streams: Iterable[StreamInfo]) -> bytes:
    """Return FileStreamInformation. [MS-FSCC 2.4.49]"""
    entries = [wire.StreamEntry(f":{name}:$DATA", size, allocation) for name, size, allocation in streams]
    return b"".join(wire.encode_streams(entries))


def _compression(opened: Open, info: FileInfo) -> wire.CompressionInformation:
    if info.attributes & attr.COMPRESSED:
        return wire.CompressionInformation(info.allocation_size, CompressionFormat.LZNT1)
    return wire.CompressionInformation(info.end_of_file)


def _standard_link(opened: Open, info: FileInfo) -> wire.StandardLinkInformation:
    pending, directory = delete_pending(opened, info), bool(info.attributes & attr.DIRECTORY)
    return wire.StandardLinkInformation(_links(info, pending), info.link_count, pending, directory)


def _number(opened: Open) -> int:
    """Return the number of the file. A Mac takes it for one that no later file gets."""
    return numbers.of(opened) if opened.tree.apple else handle_of(opened).key.inode


def _id(opened: Open) -> wire.IdInformation:
    serial = opened.store.volume_serial if opened.store is not None else 0
    return wire.IdInformation(serial & 0xFFFFFFFFFFFFFFFF, _number(opened))


def _posix(opened: Open, fresh: Fresh | None) -> bytes:
    """Return FilePosixInformation. Raises INVALID_INFO_CLASS unless it is a POSIX open. [POSIX-FSCC 2.3.1.1]

    As with fstat(2), the open need not have asked for FILE_READ_ATTRIBUTES, which its user must have."""
    if not opened.posix:
        raise StatusError(NtStatus.INVALID_INFO_CLASS)
    if not opened.maximal_access & _READ_ATTRIBUTES:
        raise StatusError(NtStatus.ACCESS_DENIED)
    handle = handle_of(opened)
    info = presentation.shown(opened, handle.info() if fresh is None else fresh.info)
    return posix.information(info, posix.type_in(handle.reparse_point()) if posix.lacks_type(info) else None)


def _of_file(layout: Codec[R], record: Callable[[Open, FileInfo], R], access: int = 0) -> FileLevel:
    """Return a level of fixed size that tells about the file, as its client sees it."""

    def encode(opened: Open, fresh: Fresh | None) -> bytes:
        info = presentation.shown(opened, handle_of(opened).info() if fresh is None else fresh.info)
        return layout.pack(record(opened, info))

    return FileLevel(encode, layout.size, access)


def _of_open(layout: Codec[R], record: Callable[[Open], R], access: int = 0, minimum_dialect: int = 0) -> FileLevel:
    """Return a level of fixed size that tells about the open."""
    return FileLevel(lambda opened, _: layout.pack(record(opened)), layout.size, access, minimum_dialect)


_READ_ATTRIBUTES = int(Access.READ_ATTRIBUTES)

_ACCESS = _of_open(wire.ACCESS, lambda opened: wire.AccessInformation(opened.granted_access))
_MODE = _of_open(wire.MODE, lambda opened: wire.ModeInformation(opened.create_options & _MODE_BITS))

FILE_LEVELS: dict[int, FileLevel] = {
    FileInfoClass.BASIC: _of_file(wire.BASIC, _basic, _READ_ATTRIBUTES),
    FileInfoClass.STANDARD: _of_file(wire.STANDARD, _standard),
    FileInfoClass.INTERNAL: _of_open(wire.INTERNAL, lambda o: wire.InternalInformation(_number(o))),
    FileInfoClass.EA: _of_file(wire.EA, lambda _, info: wire.EaInformation(info.ea_size)),
    FileInfoClass.ACCESS: _ACCESS,
    FileInfoClass.POSITION: _of_open(wire.POSITION, lambda opened: wire.PositionInformation(opened.position)),
    FileInfoClass.MODE: _MODE,
    FileInfoClass.ALIGNMENT: _of_open(wire.ALIGNMENT, lambda _: wire.AlignmentInformation(0)),
    # The fixed parts of levels with names are counted with the padding of their C structures (MS-FSA 2.1.5.12.2).
    FileInfoClass.ALL: FileLevel(_all, 104, _READ_ATTRIBUTES),
    FileInfoClass.NAME: FileLevel(lambda opened, fresh: wire.encode_name_information(_name_of(opened, fresh)), 8),
    FileInfoClass.ALTERNATE_NAME: FileLevel(_alternate_name, 8),
    FileInfoClass.STREAM: FileLevel(lambda opened, _: encode_stream_list(handle_of(opened).streams()), 32),
    FileInfoClass.COMPRESSION: _of_file(wire.COMPRESSION, _compression),
    FileInfoClass.NETWORK_OPEN: _of_file(wire.NETWORK_OPEN, _network_open, _READ_ATTRIBUTES),
    FileInfoClass.ATTRIBUTE_TAG: _of_file(wire.ATTRIBUTE_TAG, _attribute_tag, _READ_ATTRIBUTES),
    FileInfoClass.NORMALIZED_NAME: FileLevel(
        lambda opened, fresh: wire.encode_name_information(_name_of(opened, fresh)[1:]), 8, 0, Dialect.SMB_3_1_1
    ),
    FileInfoClass.STANDARD_LINK: _of_file(wire.STANDARD_LINK, _standard_link),
    FileInfoClass.ID: _of_open(wire.ID, _id, 0, Dialect.SMB_3_0),
    LEVEL: FileLevel(_posix, POSIX_INFORMATION.size),
}


_PIPE_LOCAL = wire.PipeLocalInformation(
    named_pipe_type=1,
    named_pipe_configuration=2,
    maximum_instances=0xFFFFFFFF,
    current_instances=1,
    inbound_quota=4096,
    outbound_quota=4096,
    write_quota_available=4096,
    named_pipe_state=3,
    named_pipe_end=0,
)
PIPE_LEVELS: dict[int, FileLevel] = {
    FileInfoClass.STANDARD: _of_open(wire.STANDARD, lambda _: wire.StandardInformation(4096, 0, 1, 1, 0)),
    FileInfoClass.ACCESS: _ACCESS,
    FileInfoClass.MODE: _MODE,
    FileInfoClass.PIPE: _of_open(wire.PIPE, lambda _: wire.PipeInformation(read_mode=1), _READ_ATTRIBUTES),
    FileInfoClass.PIPE_LOCAL: _of_open(wire.PIPE_LOCAL, lambda _: _PIPE_LOCAL, _READ_ATTRIBUTES),
}
"""Levels of a named pipe in message mode. [MS-FSCC 2.4.29 to 2.4.31]"""
