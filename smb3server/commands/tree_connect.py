"""TREE_CONNECT and TREE_DISCONNECT. [MS-SMB2 3.3.5.7, 3.3.5.8]"""

from __future__ import annotations

import asyncio

from smb3server.dispatch import waiting
from smb3server.dispatch.request import Interim, Pending, Response, SessionRequest, TreeRequest, handles
from smb3server.state.caller import maximal_access_of
from smb3server.state.endings import end_tree
from smb3server.state.objects import SessionState, TreeConnect
from smb3server.state.share import Share, ShareCapabilities, ShareFlags, ShareType
from smb3server.wire.fields import tail
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.negotiate import Dialect
from smb3server.wire.session import (
    EMPTY,
    TREE_CONNECT_REQUEST,
    TREE_CONNECT_RESPONSE,
    Empty,
    TreeConnectRequest,
    TreeConnectResponse,
)
from smb3server.wire.status import Disconnect, NtStatus, Reason, StatusError

EXTENSION_PRESENT = 0x0004
"""SMB2_TREE_CONNECT_FLAG_EXTENSION_PRESENT. [MS-SMB2 2.2.9]"""
MAX_SHARE_NAME = 80
_ARRIVAL_TIMEOUT = 15.0
"""Seconds that a client waits for a service which this node is taking over."""


@handles(Command.TREE_CONNECT, SessionRequest)
def tree_connect(request: SessionRequest) -> Response | Pending:
    """Connect a session to a share. Wait if the share is being moved to this node. [MS-SMB2 3.3.5.7]"""
    body = TREE_CONNECT_REQUEST.unpack(request.message, HEADER_SIZE)
    name = _share_name(request, body)
    possible = 0 < len(name) <= MAX_SHARE_NAME and not any(ord(character) < 0x20 for character in name)
    share = request.server.share_list.get(name.casefold()) if possible else None
    if share is None and possible and request.server.homes is not None:
        share = request.server.homes.find(name, request.session.identity)
    if share is None:
        error = _refused(NtStatus.BAD_NETWORK_NAME, "no_share", "there is no such share")
        request.server.events.tree_refused(request.session, request.connection, name, None, error)
        raise error
    arriving = share.placement.arriving if share.placement is not None else None
    if arriving is not None:
        # Never with an interim reply: the asynchronous header has no room for the TreeId (2.2.1.1).
        return waiting.run(request, _when_arrived(request, body, share, arriving), Interim.NEVER)
    return _connect(request, body, share)


async def _when_arrived(
    request: SessionRequest, body: TreeConnectRequest, share: Share, arriving: asyncio.Future[None]
) -> Response:
    """Wait until the opens of the share have been restored, then connect. If that failed, connecting fails."""
    await asyncio.wait([arriving], timeout=_ARRIVAL_TIMEOUT)
    return _connect(request, body, share)


def _connect(request: SessionRequest, body: TreeConnectRequest, share: Share) -> Response:
    """Connect, or tell the operator why not. Raises ``StatusError``."""
    try:
        maximal_access = _check(request, body, share)
    except StatusError as error:
        request.server.events.tree_refused(request.session, request.connection, share.name, share, error)
        raise
    connection, session = request.connection, request.session
    tree = TreeConnect(session.new_tree_id(), session, share)
    tree.maximal_access = maximal_access
    session.tree_connect_table[tree.tree_id] = tree
    request.tree = tree
    session.limit_credits()
    request.server.events.tree_connected(tree, connection)
    flags = share.flags | share.caching_flags
    if share.rules.encrypt and not session.transport_secured and connection.dialect >= Dialect.SMB_3_0:
        flags |= ShareFlags.ENCRYPT_DATA
    if share.rules.compress and connection.dialect >= Dialect.SMB_3_1_1 and request.server.settings.compression:
        flags |= ShareFlags.COMPRESS_DATA
    if share.rules.force_level2_oplocks:
        flags |= ShareFlags.FORCE_LEVELII_OPLOCK
    capabilities = share.capabilities
    if connection.dialect < Dialect.SMB_3_0:
        # 2.2.10: the others belong to the 3.x dialects.
        capabilities &= ShareCapabilities.DFS
    return Response(
        (
            TREE_CONNECT_RESPONSE.pack(
                TreeConnectResponse(
                    share_type=share.type,
                    share_flags=flags,
                    capabilities=capabilities,
                    maximal_access=tree.maximal_access,
                )
            ),
        )
    )


def _refused(status: int, code: str, why: str) -> StatusError:
    return StatusError(status, reason=Reason(code, why))


def _check(request: SessionRequest, body: TreeConnectRequest, share: Share) -> int:
    """Return the access that the session may have to the share. Raises ``StatusError`` if it may not use it."""
    connection, session = request.connection, request.session
    server = request.server
    if session.state is not SessionState.VALID:
        raise _refused(NtStatus.USER_SESSION_DELETED, "no_session", "the session has ended")
    if server.share_list.get(share.name.casefold()) is not share:
        # It was removed while this request waited.
        raise _refused(NtStatus.BAD_NETWORK_NAME, "no_share", "the share was removed")
    if share.placement is not None:
        share.placement.check(share, connection.transport.local_address[0], connection.dialect, body.flags)
    proven = not (session.is_guest or session.is_anonymous)
    protected = (request.signed or request.encrypted) and not session.keys_are_public
    if connection.dialect == Dialect.SMB_3_1_1 and proven and not protected:
        # Tampering with the negotiation must be detected before a share is used.
        raise Disconnect("TREE_CONNECT neither signed nor encrypted")
    if share.type is not ShareType.PIPE:
        identity = session.identity
        if identity is None or not share.admits_user(identity):
            why = "guests are not admitted" if identity is None or session.is_guest else "not among its users"
            if session.is_anonymous:
                why = "anonymous users are not admitted"
            raise _refused(NtStatus.ACCESS_DENIED, "user", why)
        if not share.hosts.admits(connection.client_name):
            raise _refused(NtStatus.ACCESS_DENIED, "host", "hosts_allow and hosts_deny do not admit the address")
    if share.rules.encrypt and (session.cipher is None or session.keys_are_public):
        raise _refused(NtStatus.ACCESS_DENIED, "encryption", "it is encrypted, and the session cannot encrypt")
    if share.backend is not None and not share.backend.is_available():
        raise _refused(NtStatus.BAD_NETWORK_NAME, "unavailable", f"its directory {share.path} is not there")
    if len(session.tree_connect_table) >= server.settings.max_trees:
        raise _refused(NtStatus.INSUFFICIENT_RESOURCES, "too_many", "the session has max_trees tree connects")
    if share.rules.max_connections and sum(1 for _ in server.trees_of(share)) >= share.rules.max_connections:
        raise _refused(NtStatus.REQUEST_NOT_ACCEPTED, "too_many", "the share has max_connections tree connects")
    maximal_access = maximal_access_of(session, share, server.accounts)
    if not maximal_access:
        raise _refused(NtStatus.ACCESS_DENIED, "permissions", "the share's permissions give the user no access")
    return maximal_access


def _share_name(request: SessionRequest, body: TreeConnectRequest) -> str:
    """Return the last component of ``\\\\server\\share``. Raises ``StatusError``.

    With the extension (2.2.9.1) the offset of the path counts from the start of the extension."""
    base = HEADER_SIZE + TREE_CONNECT_REQUEST.size
    offset = body.path_offset
    if body.flags & EXTENSION_PRESENT and request.connection.dialect == Dialect.SMB_3_1_1:
        offset += base
    raw = bytes(tail(request.message, offset, body.path_length, TREE_CONNECT_REQUEST.end))
    try:
        path = raw.decode("utf-16-le")
    except UnicodeDecodeError:
        raise StatusError(NtStatus.INVALID_PARAMETER) from None
    server, separator, name = path.removeprefix("\\\\").rpartition("\\")
    if not path.startswith("\\\\") or not separator or not server or "\\" in server:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return name


@handles(Command.TREE_DISCONNECT, TreeRequest)
def tree_disconnect(request: TreeRequest) -> Response:
    """End a tree connect: cancel its requests and close its opens. [MS-SMB2 3.3.5.8]"""
    end_tree(request.server, request.tree)
    return Response((EMPTY.pack(Empty()),))
