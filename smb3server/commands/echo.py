"""ECHO. [MS-SMB2 3.3.5.17]"""

from __future__ import annotations

from smb3server.dispatch.request import Request, Response, handles
from smb3server.wire.header import Command
from smb3server.wire.session import EMPTY, Empty

_RESPONSE = Response((EMPTY.pack(Empty()),))


@handles(Command.ECHO, Request)
def echo(request: Request) -> Response:
    """Return the empty response. The dispatcher has done everything else."""
    return _RESPONSE
