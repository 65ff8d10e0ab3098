"""ECHO. [MS-SMB2 3.3.5.17]"""

from __future__ import annotations

from smb3server.dispatch.request import Request, Response, handles
from smb3server.dispatch.short_forms import SHORT_FORMS, Body, Found, ShortForm
from smb3server.state.objects import Connection, Session, TreeConnect
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.session import EMPTY, Empty

_EMPTY = EMPTY.pack(Empty())
_RESPONSE = Response((_EMPTY,))


@handles(Command.ECHO, Request)
def echo(request: Request) -> Response:
    """Return the empty response. The dispatcher has done everything else."""
    return _RESPONSE


def _look(
    connection: Connection, session: Session, tree: TreeConnect | None, sequence: int, message: memoryview
) -> Found | None:
    """Return what answers an ECHO of the right size."""
    return _FOUND if message[HEADER_SIZE] == _STRUCTURE_SIZE and not message[HEADER_SIZE + 1] else None


def _echo_now() -> Body:
    """Return the empty response."""
    return _BODY


_STRUCTURE_SIZE = _EMPTY[0]
_BODY: Body = (_EMPTY, None)
_FOUND: Found = (None, _echo_now, None)


SHORT_FORMS[Command.ECHO] = ShortForm(echo, _look)
