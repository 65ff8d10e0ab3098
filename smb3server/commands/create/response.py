"""Builds the parts of the response that describe the file. [MS-SMB2 2.2.14]"""

from __future__ import annotations

from smb3server.backends.base import FileInfo
from smb3server.commands.create.contexts import CreateContexts
from smb3server.commands.create.registry import KINDS, Described
from smb3server.state.objects import Open
from smb3server.wire import create_contexts as wire
from smb3server.wire.attributes import REPARSE_POINT
from smb3server.wire.create import CREATE_FLAG_REPARSEPOINT, CreateAction, CreateResponse
from smb3server.wire.negotiate import Dialect


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
    if not asked.others:
        return []
    found = Described(info, maximal_access, volume)
    return [
        wire.RawContext(name, answer(found, asked.others[name]))
        for name in asked.others
        if (answer := KINDS[name].answer) is not None
    ]
