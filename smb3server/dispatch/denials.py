"""The record of requests that were refused for lack of rights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.state import file_events
from smb3server.wire.create import parse_request as parse_create
from smb3server.wire.header import Command
from smb3server.wire.status import StatusError
from smbdirect.errors import DecodeError

if TYPE_CHECKING:
    from smb3server.dispatch.request import Request
    from smb3server.state.objects import TreeConnect

_CREATE = int(Command.CREATE)


def record_denial(request: Request, tree: TreeConnect, status: int) -> None:
    """Record that a request was refused for lack of rights."""
    opened, path, asked = request.open, "", 0
    if opened is not None:
        path = "/".join(opened.path)
    elif request.header.command == _CREATE:
        try:
            body, name, _ = parse_create(request.message)
            path, asked = name.replace("\\", "/"), body.desired_access
        except (StatusError, DecodeError):
            path = ""
    file_events.denied(tree, request.connection, request.header.command, path, status, asked)
