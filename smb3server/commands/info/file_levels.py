"""The levels of QUERY_INFO for files. [MS-FSA 2.1.5.12]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from smb3server.backends.names import short_name
from smb3server.commands.info import presentation
from smb3server.dispatch.lookup import handle_of
from smb3server.state import deletions
from smb3server.wire import attributes as attr
from smb3server.wire import file_info as wire
from smb3server.wire.create import Access, CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.fsctl import CompressionFormat
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.backends.base import FileInfo, StreamInfo
    from smb3server.dispatch.chain import Fresh
    from smb3server.state.objects import Open


MODE_BITS = (
    CreateOptions.WRITE_THROUGH
    | CreateOptions.SEQUENTIAL_ONLY
    | CreateOptions.NO_INTERMEDIATE_BUFFERING
    | CreateOptions.SYNCHRONOUS_IO_ALERT
    | CreateOptions.SYNCHRONOUS_IO_NONALERT
    | CreateOptions.DELETE_ON_CLOSE
)
_MODE_BITS = int(MODE_BITS)


class FileLevel(NamedTuple):
    """An information level of files."""

    encode: Callable[[Open, Fresh | None], bytes]
    """Takes what is known of the file, or None if one has to look."""
    minimum_size: int
    """Bytes of the fixed part. A smaller buffer fails with INFO_LENGTH_MISMATCH."""
    access: int = 0
    """Access rights that the open must have."""
    minimum_dialect: int = 0


def _info(opened: Open, fresh: Fresh | None) -> FileInfo:
    return presentation.shown(opened, handle_of(opened).info() if fresh is None else fresh.info)


def delete_pending(opened: Open, info: FileInfo) -> bool:
    """Return whether the name of the open is about to be deleted, or is gone already (POSIX semantics)."""
    return deletions.of_open(opened) or not info.link_count


def _links(info: FileInfo, pending: bool) -> int:
    """Return the number of links, without the one that is deleted at the last close (``pending``). [MS-FSA
    2.1.5.12.27]"""
    links = 1 if info.attributes & attr.DIRECTORY else info.link_count
    return links - 1 if links and pending else links


def _name_of(opened: Open, fresh: Fresh | None) -> str:
    """Return the path from the root of the share, with a leading backslash and the name of the stream, if it has
    one."""
    if fresh is not None and fresh.path is not None:
        path, stream = fresh.path, ""
    else:
        handle = handle_of(opened)
        path, stream = handle.path, handle.stream
    name = "\\" + "\\".join(path)
    return f"{name}:{stream}" if stream else name


def _basic(opened: Open, fresh: Fresh | None) -> bytes:
    i = _info(opened, fresh)
    return wire.BASIC.pack(
        wire.BasicInformation(i.creation_time, i.last_access_time, i.last_write_time, i.change_time, i.attributes)
    )


def _standard(opened: Open, fresh: Fresh | None) -> bytes:
    i = _info(opened, fresh)
    pending = delete_pending(opened, i)
    return wire.STANDARD.pack(
        wire.StandardInformation(
            i.allocation_size,
            i.end_of_file,
            _links(i, pending),
            pending,
            bool(i.attributes & attr.DIRECTORY),
        )
    )


def _all(opened: Open, fresh: Fresh | None) -> bytes:
    i = _info(opened, fresh)
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
        i.key.inode,
        i.ea_size,
        opened.granted_access,
        opened.position,
        opened.create_options & _MODE_BITS,
        0,
    )
    return (fixed + wire.encode_name_information(_name_of(opened, fresh))).ljust(104, b"\0")


def _network_open(opened: Open, fresh: Fresh | None) -> bytes:
    i = _info(opened, fresh)
    return wire.NETWORK_OPEN.pack(
        wire.NetworkOpenInformation(
            i.creation_time,
            i.last_access_time,
            i.last_write_time,
            i.change_time,
            i.allocation_size,
            i.end_of_file,
            i.attributes,
        )
    )


def _attribute_tag(opened: Open, fresh: Fresh | None) -> bytes:
    i = _info(opened, fresh)
    tag = i.reparse_tag if i.attributes & attr.REPARSE_POINT else 0
    return wire.ATTRIBUTE_TAG.pack(wire.AttributeTagInformation(i.attributes, tag))


def _internal(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.INTERNAL.pack(wire.InternalInformation(handle_of(opened).key.inode))


def _ea(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.EA.pack(wire.EaInformation(_info(opened, fresh).ea_size))


def _access(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.ACCESS.pack(wire.AccessInformation(opened.granted_access))


def _position_level(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.POSITION.pack(wire.PositionInformation(opened.position))


def _mode_level(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.MODE.pack(wire.ModeInformation(opened.create_options & _MODE_BITS))


def _alignment(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.ALIGNMENT.pack(wire.AlignmentInformation(0))


def _name(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.encode_name_information(_name_of(opened, fresh))


def _normalized_name(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.encode_name_information(_name_of(opened, fresh)[1:])


def _alternate_name(opened: Open, fresh: Fresh | None) -> bytes:
    path = handle_of(opened).path
    if not path:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    return wire.encode_name_information(short_name(path[-1]) or path[-1].upper())


def _streams(opened: Open, fresh: Fresh | None) -> bytes:
    return encode_stream_list(handle_of(opened).streams())


def encode_stream_list(streams: Iterable[StreamInfo]) -> bytes:
    """Return FileStreamInformation. [MS-FSCC 2.4.49]"""
    entries = [wire.StreamEntry(f":{name}:$DATA", size, allocation) for name, size, allocation in streams]
    return b"".join(wire.encode_streams(entries))


def _compression(opened: Open, fresh: Fresh | None) -> bytes:
    i = _info(opened, fresh)
    if i.attributes & attr.COMPRESSED:
        return wire.COMPRESSION.pack(wire.CompressionInformation(i.allocation_size, CompressionFormat.LZNT1))
    return wire.COMPRESSION.pack(wire.CompressionInformation(i.end_of_file))


def _standard_link(opened: Open, fresh: Fresh | None) -> bytes:
    i = _info(opened, fresh)
    pending = delete_pending(opened, i)
    return wire.STANDARD_LINK.pack(
        wire.StandardLinkInformation(_links(i, pending), i.link_count, pending, bool(i.attributes & attr.DIRECTORY))
    )


def _id(opened: Open, fresh: Fresh | None) -> bytes:
    backend = opened.store
    serial = backend.volume_serial if backend is not None else 0
    return wire.ID.pack(wire.IdInformation(serial & 0xFFFFFFFFFFFFFFFF, handle_of(opened).key.inode))


_READ_ATTRIBUTES = int(Access.READ_ATTRIBUTES)

FILE_LEVELS: dict[int, FileLevel] = {
    FileInfoClass.BASIC: FileLevel(_basic, wire.BASIC.size, _READ_ATTRIBUTES),
    FileInfoClass.STANDARD: FileLevel(_standard, wire.STANDARD.size),
    FileInfoClass.INTERNAL: FileLevel(_internal, wire.INTERNAL.size),
    FileInfoClass.EA: FileLevel(_ea, wire.EA.size),
    FileInfoClass.ACCESS: FileLevel(_access, wire.ACCESS.size),
    FileInfoClass.POSITION: FileLevel(_position_level, wire.POSITION.size),
    FileInfoClass.MODE: FileLevel(_mode_level, wire.MODE.size),
    FileInfoClass.ALIGNMENT: FileLevel(_alignment, wire.ALIGNMENT.size),
    # The fixed parts of levels with names are counted with the padding of their C structures (MS-FSA 2.1.5.12.2).
    FileInfoClass.ALL: FileLevel(_all, 104, _READ_ATTRIBUTES),
    FileInfoClass.NAME: FileLevel(_name, 8),
    FileInfoClass.ALTERNATE_NAME: FileLevel(_alternate_name, 8),
    FileInfoClass.STREAM: FileLevel(_streams, 32),
    FileInfoClass.COMPRESSION: FileLevel(_compression, wire.COMPRESSION.size),
    FileInfoClass.NETWORK_OPEN: FileLevel(_network_open, wire.NETWORK_OPEN.size, _READ_ATTRIBUTES),
    FileInfoClass.ATTRIBUTE_TAG: FileLevel(_attribute_tag, wire.ATTRIBUTE_TAG.size, _READ_ATTRIBUTES),
    FileInfoClass.NORMALIZED_NAME: FileLevel(_normalized_name, 8, 0, Dialect.SMB_3_1_1),
    FileInfoClass.STANDARD_LINK: FileLevel(_standard_link, wire.STANDARD_LINK.size),
    FileInfoClass.ID: FileLevel(_id, wire.ID.size, 0, Dialect.SMB_3_0),
}


def _pipe(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.PIPE.pack(wire.PipeInformation(read_mode=1))


def _pipe_local(opened: Open, fresh: Fresh | None) -> bytes:
    record = wire.PipeLocalInformation(
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
    return wire.PIPE_LOCAL.pack(record)


def _pipe_standard(opened: Open, fresh: Fresh | None) -> bytes:
    return wire.STANDARD.pack(wire.StandardInformation(4096, 0, 1, 1, 0))


PIPE_LEVELS: dict[int, FileLevel] = {
    FileInfoClass.STANDARD: FileLevel(_pipe_standard, wire.STANDARD.size),
    FileInfoClass.ACCESS: FileLevel(_access, wire.ACCESS.size),
    FileInfoClass.MODE: FileLevel(_mode_level, wire.MODE.size),
    FileInfoClass.PIPE: FileLevel(_pipe, wire.PIPE.size, _READ_ATTRIBUTES),
    FileInfoClass.PIPE_LOCAL: FileLevel(_pipe_local, wire.PIPE_LOCAL.size, _READ_ATTRIBUTES),
}
"""Levels of a named pipe in message mode. [MS-FSCC 2.4.29 to 2.4.31]"""
