"""Builds the parts of the response that describe the file. [MS-SMB2 2.2.14]"""

from __future__ import annotations

from smb3server.backends.base import FileInfo
from smb3server.commands.create.contexts import CreateContexts
from smb3server.state.objects import Open
from smb3server.wire import create_contexts as wire
from smb3server.wire.attributes import REPARSE_POINT
from smb3server.wire.create import CREATE_FLAG_REPARSEPOINT, CreateAction, CreateResponse
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus


def fields(opened: Open, info: FileInfo, level: int, action: CreateAction, dialect: int) -> CreateResponse:
    """Return the fixed part. ``info``: the metadata that the client sees. ``level``: OplockLevel."""
    # 2.2.14: the Flags field is used from dialect 3.0 on.
    reparse = info.attributes & REPARSE_POINT and dialect >= Dialect.SMB_3_0
    return CreateResponse(
        89,
        level,
        CREATE_FLAG_REPARSEPOINT if reparse else 0,
        action,
        info.creation_time,
        info.last_access_time,
        info.last_write_time,
        info.change_time,
        info.allocation_size,
        info.end_of_file,
        info.attributes,
        0,
        *opened.file_id,
    )


def answers(asked: CreateContexts, info: FileInfo, maximal_access: int, volume: int) -> list[wire.RawContext]:
    """Return the response contexts that describe the file. ``volume``: its volume's serial number."""
    found: list[wire.RawContext] = []
    if asked.maximal_access:
        found.append(_maximal_access(asked.maximal_access_since, info, maximal_access))
    if asked.on_disk_id:
        answer = wire.OnDiskIdResponse(info.key.inode & 0xFFFFFFFFFFFFFFFF, volume)
        found.append(wire.RawContext(wire.QUERY_ON_DISK_ID, wire.ON_DISK_ID_RESPONSE_CODEC.pack(answer)))
    return found


def _maximal_access(since: int, info: FileInfo, maximal: int) -> wire.RawContext:
    """Return the maximal access, unless the client knows it: the timestamp that it sent equals the last write time.
    [MS-SMB2 3.3.5.9.5]"""
    if since and since == info.last_write_time:
        answer = wire.MaximalAccessResponse(NtStatus.NONE_MAPPED, 0)
    else:
        answer = wire.MaximalAccessResponse(NtStatus.SUCCESS, maximal)
    return wire.RawContext(wire.MAXIMAL_ACCESS, wire.MAXIMAL_ACCESS_RESPONSE_CODEC.pack(answer))
