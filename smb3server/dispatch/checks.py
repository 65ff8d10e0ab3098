"""What the dispatcher checks of a command before its handler: sizes, credits, session state (MS-SMB2 3.3.5.2)."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from smb3server.state.objects import SessionState
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.dispatch.request import Request
    from smb3server.state.objects import Session

FILE_ID = struct.Struct("<QQ")
_U32 = struct.Struct("<I")

STRUCTURE_SIZE: dict[int, int] = {
    Command.NEGOTIATE: 36,
    Command.SESSION_SETUP: 25,
    Command.LOGOFF: 4,
    Command.TREE_CONNECT: 9,
    Command.TREE_DISCONNECT: 4,
    Command.CREATE: 57,
    Command.CLOSE: 24,
    Command.FLUSH: 24,
    Command.READ: 49,
    Command.WRITE: 49,
    Command.LOCK: 48,
    Command.IOCTL: 57,
    Command.CANCEL: 4,
    Command.ECHO: 4,
    Command.QUERY_DIRECTORY: 33,
    Command.CHANGE_NOTIFY: 32,
    Command.QUERY_INFO: 41,
    Command.SET_INFO: 33,
}
"""StructureSize of requests (2.2.x); an odd one counts one byte of the variable part that may be missing.
OPLOCK_BREAK is not here: it has two layouts, which its handler tells apart."""

FILE_ID_OFFSET: dict[int, int] = {
    Command.CLOSE: 8,
    Command.FLUSH: 8,
    Command.READ: 16,
    Command.WRITE: 16,
    Command.LOCK: 8,
    Command.IOCTL: 8,
    Command.QUERY_DIRECTORY: 8,
    Command.CHANGE_NOTIFY: 8,
    Command.QUERY_INFO: 24,
    Command.SET_INFO: 16,
}
"""Where a request's body has its FileId."""

TREE_COMMANDS = frozenset(FILE_ID_OFFSET) | {Command.CREATE, Command.TREE_DISCONNECT, Command.OPLOCK_BREAK}
"""Commands that need a tree connect (3.3.5.2.11)."""

_PAYLOAD_OFFSETS: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    Command.READ: ((), (4,)),
    Command.WRITE: ((4,), ()),
    Command.IOCTL: ((28, 40), (32, 44)),
    Command.QUERY_DIRECTORY: ((), (28,)),
    Command.CHANGE_NOTIFY: ((), (4,)),
    Command.QUERY_INFO: ((12,), (4,)),
    Command.SET_INFO: ((4,), ()),
}
"""Where a request's body says how many bytes it sends and how many it wants (3.3.5.2.5)."""

_EXPIRED_ALLOWED = frozenset((Command.LOGOFF, Command.CLOSE, Command.LOCK, Command.OPLOCK_BREAK))
_FORCE_UNACKED_TIMEOUT = 0x83848003
CREDIT_SIZE = 65536
"""Payload bytes that one credit pays for (3.1.5.2)."""


def check_body(request: Request) -> None:
    """The fixed part is there and says so itself; the credits pay for the payload. Raises INVALID_PARAMETER."""
    message = request.message
    command = request.header.command
    size = STRUCTURE_SIZE.get(command)
    if size is None:
        return
    if len(message) < HEADER_SIZE + (size & ~1) or message[HEADER_SIZE] | message[HEADER_SIZE + 1] << 8 != size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    offsets = _PAYLOAD_OFFSETS.get(command)
    if offsets is not None and request.connection.supports_multi_credit:
        sent = wanted = 0
        for offset in offsets[0]:
            sent += _U32.unpack_from(message, HEADER_SIZE + offset)[0]
        for offset in offsets[1]:
            wanted += _U32.unpack_from(message, HEADER_SIZE + offset)[0]
        payload = max(sent, wanted)
        if payload > CREDIT_SIZE and (payload - 1) // CREDIT_SIZE >= (request.header.credit_charge or 1):
            raise StatusError(NtStatus.INVALID_PARAMETER)


def is_test_request(request: Request) -> bool:
    """smbtorture marks a connection as stalled without a session."""
    return (
        request.server.settings.test_fsctls
        and request.header.command == Command.IOCTL
        and _U32.unpack_from(request.message, HEADER_SIZE + 4)[0] == _FORCE_UNACKED_TIMEOUT
    )


def check_session(session: Session, command: int) -> None:
    """3.3.5.2.9: the session may run commands."""
    if session.state is SessionState.VALID:
        if session.expiration_time is None or time.monotonic() < session.expiration_time:
            return
        session.state = SessionState.EXPIRED
    if session.state is SessionState.EXPIRED:
        if command not in _EXPIRED_ALLOWED:
            raise StatusError(NtStatus.NETWORK_SESSION_EXPIRED)
        return
    raise StatusError(NtStatus.USER_SESSION_DELETED)
