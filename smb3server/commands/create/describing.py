"""What the response to a CREATE says of the file: its fixed part, and the contexts that describe it. [MS-SMB2
2.2.14]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smb3server.backends.base import Backend, FileInfo
from smb3server.commands.create.opening import Opening
from smb3server.commands.create.registry import KINDS, Described
from smb3server.commands.info import presentation
from smb3server.state.objects import Open
from smb3server.wire import create_contexts as wire
from smb3server.wire.attributes import REPARSE_POINT
from smb3server.wire.create import CREATE_FLAG_REPARSEPOINT, CreateAction, CreateResponse
from smb3server.wire.negotiate import Dialect

_SMB_3_0 = int(Dialect.SMB_3_0)


def describe(
    opening: Opening, opened: Open, info: FileInfo, level: int
) -> tuple[CreateResponse, list[wire.RawContext]]:
    """Return the response's fixed part, and the contexts that describe the file. [MS-SMB2 2.2.14]"""
    info = presentation.shown(opened, info)
    fields = fixed_part(opened, info, level, opening.action, opening.opener.dialect)
    asked = opening.contexts.others
    return fields, answers_to(asked, opened, info, opening.backend) if asked else []


def fixed_part(opened: Open, info: FileInfo, level: int, action: CreateAction, dialect: int) -> CreateResponse:
    """Return the response's fixed part. ``info``: as the client sees it. ``level``: the OplockLevel. [MS-SMB2
    2.2.14]"""
    # The Flags field is used from dialect 3.0 on.
    reparse = info.attributes & REPARSE_POINT and dialect >= _SMB_3_0
    # As ``CreateResponse(…)``, for a third of its time.
    made: CreateResponse = tuple.__new__(
        CreateResponse,
        (
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
            0,
            0,
        ),
    )
    return made


def answers_to(asked: Mapping[bytes, Any], opened: Open, info: FileInfo, backend: Backend) -> list[wire.RawContext]:
    """Return the contexts that answer those of the request with a module of their own (``registry``). ``info``: as the
    client sees it."""
    found = Described(info, opened.maximal_access, backend.volume_serial, opened)
    answers: list[wire.RawContext] = []
    for name, data in asked.items():
        answer = KINDS[name].answer
        content = answer(found, data) if answer is not None else None
        if content is not None:
            answers.append(wire.RawContext(name, content))
    return answers
