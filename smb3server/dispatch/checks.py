"""Checks of a command before its handler is called: sizes, credits, session, tree connect. [MS-SMB2 3.3.5.2]"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from smb3server.dispatch.request import KINDS, TreeRequest
from smb3server.state.objects import SessionState
from smb3server.wire.header import HEADER_SIZE, RELATED_FILE_ID, Command, HeaderFlags
from smb3server.wire.status import NtStatus, Reason, StatusError

if TYPE_CHECKING:
    from smb3server.dispatch.chain import Chain
    from smb3server.dispatch.request import Request
    from smb3server.state.objects import Session, TreeConnect

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
"""StructureSize of requests (2.2.x). An odd size counts one byte of the variable part that may be missing.
OPLOCK_BREAK is not here: it has two layouts, which its handler distinguishes."""

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
"""Offset of the FileId in the body of a request."""

TREE_COMMANDS = frozenset(command for command, kind in KINDS.items() if kind is TreeRequest)
"""Commands that need a tree connect (3.3.5.2.11)."""
SESSIONLESS = frozenset((int(Command.NEGOTIATE), int(Command.SESSION_SETUP)))
"""Commands whose handlers find the session themselves."""
RUNS_WITHOUT_SESSION: dict[int, Callable[[Request], bool]] = {int(Command.ECHO): lambda request: True}
"""By command: returns whether a request that names no session is run. ``fsctl.smbtorture`` adds one request."""

PAYLOAD_OFFSETS: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    Command.READ: ((), (4,)),
    Command.WRITE: ((4,), ()),
    Command.IOCTL: ((28, 40), (32, 44)),
    Command.QUERY_DIRECTORY: ((), (28,)),
    Command.CHANGE_NOTIFY: ((), (4,)),
    Command.QUERY_INFO: ((12,), (4,)),
    Command.SET_INFO: ((4,), ()),
}
"""Offsets of the fields in the body of a request with the lengths it sends, and those it requests. [MS-SMB2
3.3.5.2.5]"""

_EXPIRED_ALLOWED = frozenset((Command.LOGOFF, Command.CLOSE, Command.LOCK, Command.OPLOCK_BREAK))
_RELATED = int(HeaderFlags.RELATED_OPERATIONS)
_SIGNED = int(HeaderFlags.SIGNED)
_NEGOTIATE = int(Command.NEGOTIATE)
_SESSION_SETUP = int(Command.SESSION_SETUP)
_UNENCRYPTED = Reason("unencrypted", "it is not encrypted, and must be")
_NOT_SIGNED = Reason("not_signed", "it is not signed, and must be")
_BAD_SIGNATURE = Reason("bad_signature", "its signature is wrong")
CREDIT_SIZE = 65536
"""Payload bytes that one credit pays for. [MS-SMB2 3.1.5.2]"""


def pays_for(charge: int, payload: int) -> bool:
    """Return whether CreditCharge ``charge`` pays for ``payload`` bytes. [MS-SMB2 3.3.5.2.5]"""
    return (payload - 1) // CREDIT_SIZE < (charge or 1)


def lacks_protection(session: Session, tree: TreeConnect | None, sealed_for: Session | None, signed: int) -> bool:
    """Return whether a command is protected less than its session, or its tree connect, demands.

    ``sealed_for``: the session whose key encrypted it, or None. ``signed``: whether it is signed; an encrypted one need
    not be. [MS-SMB2 3.3.5.2.9, 3.3.5.2.11]"""
    if sealed_for is not None:
        return sealed_for is not session
    return (session if tree is None else tree).encrypt_data or (session.signing_required and not signed)


def has_expired(session: Session) -> bool:
    """Return whether the time of a session has ended that has one. [MS-SMB2 3.3.5.2.9]"""
    return session.expiration_time is not None and time.monotonic() >= session.expiration_time


def check_body(request: Request) -> None:
    """Check the size of the fixed part and its StructureSize, and that the credits pay for the payload.

    Raises ``StatusError``: INVALID_PARAMETER."""
    message = request.message
    command = request.header.command
    size = STRUCTURE_SIZE.get(command)
    if size is None:
        return
    if len(message) < HEADER_SIZE + (size & ~1) or message[HEADER_SIZE] | message[HEADER_SIZE + 1] << 8 != size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    offsets = PAYLOAD_OFFSETS.get(command)
    if offsets is not None and request.connection.supports_multi_credit:
        sent = requested = 0
        for offset in offsets[0]:
            sent += _U32.unpack_from(message, HEADER_SIZE + offset)[0]
        for offset in offsets[1]:
            requested += _U32.unpack_from(message, HEADER_SIZE + offset)[0]
        payload = max(sent, requested)
        if payload > CREDIT_SIZE and not pays_for(request.header.credit_charge, payload):
            raise StatusError(NtStatus.INVALID_PARAMETER)


def check(request: Request, chain: Chain) -> None:
    """Make the checks that all commands share, and note session and tree connect in ``request``. Raises
    ``StatusError``. [MS-SMB2 3.3.5.2.4-3.3.5.2.11, in their order]"""
    header = request.header
    command = header.command
    related = header.flags & _RELATED
    if related:
        _check_related(request, chain)
        session_id, tree_id = chain.session_id, chain.tree_id
    else:
        chain.session_id = session_id = header.session_id
        chain.tree_id = tree_id = header.tree_id
        chain.file_id = None
        chain.status = NtStatus.SUCCESS
        chain.no_session = False
        chain.last_command_seen = True
    session = request.connection.session_table.get(session_id) if session_id else None
    request.session = session
    if header.flags & _SIGNED and not request.encrypted:
        verify(request, session)
    if command in SESSIONLESS:
        return
    check_body(request)
    if session is None:
        runs = RUNS_WITHOUT_SESSION.get(command)
        if session_id or runs is None or not runs(request):
            chain.no_session = True
            raise StatusError(NtStatus.USER_SESSION_DELETED)
        return
    needs_tree = command in TREE_COMMANDS
    tree = session.tree_connect_table.get(tree_id) if needs_tree else None
    sealed_for = chain.cipher_session
    lacking = lacks_protection(session, tree, sealed_for, request.signed)
    if lacking or session.state is not SessionState.VALID or session.expiration_time is not None:
        _check_session(request, session, sealed_for)
    if needs_tree:
        if tree is None:
            raise StatusError(NtStatus.NETWORK_NAME_DELETED)
        request.tree = tree
        if lacking:
            raise _unprotected(request, session, tree)
        if command in FILE_ID_OFFSET:
            _inherit_file(request, chain, related)


def _check_related(request: Request, chain: Chain) -> None:
    """Check that a related command follows a command it can be related to. [MS-SMB2 3.3.5.2.7.2]"""
    if chain.last_command_seen and not chain.no_session:
        return
    # The command is related to no other. If it is signed, the reply must be signed nevertheless (3.3.4.1.1).
    header = request.header
    request.session = request.connection.session_table.get(header.session_id)
    if request.session is not None and header.flags & _SIGNED and not request.encrypted:
        verify(request, request.session)
    raise StatusError(NtStatus.INVALID_PARAMETER)


def verify(request: Request, session: Session | None) -> None:
    """Verify the signature of a request. Raises ``StatusError``. [MS-SMB2 3.3.5.2.4]

    A session setup that binds has no channel here yet, so its handler verifies the signature."""
    if request.header.command == _NEGOTIATE:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if session is None:
        return
    signer = session.signer_on(request.connection)
    if signer is None:
        if request.header.command == _SESSION_SETUP:
            return
        if session.identity is not None and session.is_guest:
            return
        raise StatusError(NtStatus.ACCESS_DENIED)
    # The reply to a signed request is signed, a refusal of its signature included (3.3.4.1.1).
    request.signer = signer
    if not signer.verify(request.message):
        raise _refused(request, session, _BAD_SIGNATURE)
    request.signed = True


def _unprotected(request: Request, session: Session, tree: TreeConnect | None) -> StatusError:
    """Tell the operator that a request is not encrypted, or not signed, and return the error for it."""
    encrypted = (session if tree is None else tree).encrypt_data
    return _refused(request, session, _UNENCRYPTED if encrypted else _NOT_SIGNED)


def _refused(request: Request, session: Session, reason: Reason) -> StatusError:
    request.server.events.request_refused(session, request.connection, request.header.command, reason)
    return StatusError(NtStatus.ACCESS_DENIED, reason=reason)


def _check_session(request: Request, session: Session, sealed_for: Session | None) -> None:
    """Check that the request is protected as the session demands, and the session may run the command. [MS-SMB2
    3.3.5.2.9]"""
    if lacks_protection(session, None, sealed_for, request.signed):
        if sealed_for is None:
            raise _unprotected(request, session, None)
        # It is encrypted, but with the key of another session.
        raise StatusError(NtStatus.USER_SESSION_DELETED)
    if session.state is SessionState.VALID:
        if not has_expired(session):
            return
        session.state = SessionState.EXPIRED
    if session.state is not SessionState.EXPIRED:
        raise StatusError(NtStatus.USER_SESSION_DELETED)
    if request.header.command not in _EXPIRED_ALLOWED:
        raise StatusError(NtStatus.NETWORK_SESSION_EXPIRED)


def _inherit_file(request: Request, chain: Chain, related: int) -> None:
    """Remember the FileId for related commands. Fail a related command without a FileId of its own if the CREATE that
    should have provided it failed. [MS-SMB2 3.3.5.2.7.2]"""
    file_id = FILE_ID.unpack_from(request.message, HEADER_SIZE + FILE_ID_OFFSET[request.header.command])
    if related and chain.file_id is not None:
        return
    if file_id != RELATED_FILE_ID:
        chain.file_id = file_id
    elif related and chain.status:
        # STOPPED_ON_SYMLINK is only a warning, but does not provide a FileId either.
        raise StatusError(chain.status)
