"""What Apple's clients and servers tell each other beyond MS-SMB2: the create context AAPL, and the stream AFP_AfpInfo.

Apple's published client is the reference: kernel/netsmb/smb_2.h of its package SMBClient. Integers of the context are
little-endian. The stream has the big-endian layout of AFP (Apple Filing Protocol).
"""

import enum
import struct
from typing import Annotated, NamedTuple

from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int32ub, Int32ul, Int64ul

AAPL = b"AAPL"
"""The name of the create context."""


class Command(enum.IntEnum):
    """What an AAPL context asks for."""

    SERVER_QUERY = 1
    RESOLVE_ID = 2


class Asked(enum.IntFlag):
    """What a server query asks for, and what its answer holds, in this order."""

    SERVER_CAPS = 0x01
    VOLUME_CAPS = 0x02
    MODEL_INFO = 0x04


class ServerCaps(enum.IntFlag):
    """Capabilities of a server or a client."""

    READ_DIR_ATTR = 0x01
    """Entries of folders hold maximal access, size of the resource fork, Finder information and mode."""
    OSX_COPYFILE = 0x02
    """FSCTL_SRV_COPYCHUNK without chunks copies a whole file, with its streams."""
    UNIX_BASED = 0x04
    NFS_ACE = 0x08
    """Owner, group and mode are in entries of the DACL."""


class VolumeCaps(enum.IntFlag):
    """Capabilities of a share."""

    RESOLVE_ID = 0x01
    CASE_SENSITIVE = 0x02
    FULL_SYNC = 0x04
    """A FLUSH whose Reserved1 is 0xFFFF (F_FULLFSYNC) is answered when the data is on the disk itself."""


class Query(NamedTuple):
    """The context of a request. ``second`` is empty for RESOLVE_ID."""

    command: Annotated[int, Int32ul] = Command.SERVER_QUERY
    reserved: Annotated[int, Int32ul] = 0
    value: Annotated[int, Int64ul] = 0
    """``Asked`` for SERVER_QUERY, the number of a file for RESOLVE_ID."""


class ResolvedId(NamedTuple):
    """The answer to RESOLVE_ID, up to the path."""

    command: Annotated[int, Int32ul] = Command.RESOLVE_ID
    reserved: Annotated[int, Int32ul] = 0
    status: Annotated[int, Int32ul] = 0
    path_length: Annotated[int, Int32ul] = 0
    """Bytes."""


QUERY = Codec(Query)
RESOLVED_ID = Codec(ResolvedId)
_CAPABILITIES = struct.Struct("<Q")
_MODEL = struct.Struct("<II")
"""Padding, and the bytes of the model."""


class ServerQuery(NamedTuple):
    """A decoded server query."""

    asked: int
    client: int
    """``ServerCaps`` of the client."""


def parse_query(data: Buffer) -> ServerQuery | int | None:
    """Decode the context of a request: a server query, or the number of the file to resolve.

    None: another command. Raises ``DecodeError``."""
    query = QUERY.unpack(data)
    if query.command == Command.RESOLVE_ID:
        return query.value
    if query.command != Command.SERVER_QUERY:
        return None
    if len(data) != QUERY.size + _CAPABILITIES.size:
        raise DecodeError("server query of another size")
    return ServerQuery(query.value, *_CAPABILITIES.unpack_from(data, QUERY.size))


def pack_server(asked: int, server: int, volume: int, model: str) -> bytes:
    """Return the answer to a server query: the parts that were asked for."""
    known = asked & (Asked.SERVER_CAPS | Asked.VOLUME_CAPS | Asked.MODEL_INFO)
    parts = [QUERY.pack(Query(Command.SERVER_QUERY, 0, known))]
    if known & Asked.SERVER_CAPS:
        parts.append(_CAPABILITIES.pack(server))
    if known & Asked.VOLUME_CAPS:
        parts.append(_CAPABILITIES.pack(volume))
    if known & Asked.MODEL_INFO:
        name = model.encode("utf-16-le")
        parts += _MODEL.pack(0, len(name)), name
    return b"".join(parts)


def pack_resolved(status: int, path: str = "") -> bytes:
    """Return the answer to RESOLVE_ID. ``path``: below the share, with backslashes between its components."""
    name = path.encode("utf-16-le", "surrogatepass")
    return RESOLVED_ID.pack(ResolvedId(Command.RESOLVE_ID, 0, status, len(name))) + name


AFP_INFO = "AFP_AfpInfo"
"""The stream with the Finder information of a file."""
AFP_RESOURCE = "AFP_Resource"
"""The stream that is the resource fork of a file."""
FINDER_SIZE = 32
"""Bytes of Finder information: FileInfo and ExtendedFileInfo, or those of a folder."""
_SIGNATURE = b"AFP\0"
_VERSION = 0x00000100
_NO_TIME = 0x80000000
_NO_FINDER_INFO = bytes(FINDER_SIZE)


class AfpInfo(NamedTuple):
    """The stream AFP_AfpInfo."""

    signature: Annotated[bytes, Bytes(4)] = _SIGNATURE
    version: Annotated[int, Int32ub] = _VERSION
    reserved1: Annotated[int, Int32ub] = 0
    backup_time: Annotated[int, Int32ub] = _NO_TIME
    """Seconds since 2000, or 0x80000000."""
    finder_info: Annotated[bytes, Bytes(FINDER_SIZE)] = _NO_FINDER_INFO
    prodos_info: Annotated[bytes, Bytes(6)] = bytes(6)
    reserved2: Annotated[bytes, Bytes(6)] = bytes(6)


AFP_INFO_LAYOUT = Codec(AfpInfo)
AFP_INFO_SIZE = AFP_INFO_LAYOUT.size


def parse_afp_info(data: Buffer) -> AfpInfo | None:
    """Decode the stream. None: it is damaged, or says nothing: its Finder information is zero."""
    if len(data) != AFP_INFO_SIZE:
        return None
    found = AFP_INFO_LAYOUT.unpack(data)
    if found.signature != _SIGNATURE or found.finder_info == _NO_FINDER_INFO:
        return None
    return found


def is_afp_info(data: Buffer) -> bool:
    """Return whether ``data`` has the signature of AFP_AfpInfo."""
    return bytes(data[:4]) == _SIGNATURE


_ENTRY = struct.Struct(">8s2s2sI")
_RESOURCE = struct.Struct("<Q")
_AFP_EPOCH = 946684800
"""Seconds from 1970 to 2000."""


def pack_entry(resource_size: int, finder_info: bytes, is_file: bool, added: int) -> bytes:
    """Return the ShortName of an entry in a folder.

    ``finder_info``: of AFP_AfpInfo; all zero if there is none. ``added``: when the file was made, in seconds since
    1970."""
    if finder_info == _NO_FINDER_INFO:
        return _RESOURCE.pack(resource_size) + _ENTRY.pack(b"", b"", b"", _NO_TIME)
    kind = finder_info[:8] if is_file else bytes(8)
    seconds = max(-(1 << 31), min(added - _AFP_EPOCH, (1 << 31) - 1)) & 0xFFFFFFFF
    return _RESOURCE.pack(resource_size) + _ENTRY.pack(kind, finder_info[8:10], finder_info[24:26], seconds)
