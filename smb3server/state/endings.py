"""Ending what clients have, because the operator or the configuration says so. [MS-SMB2 3.3.4.12, 3.3.4.15, 3.3.4.17]

Whatever ends here ends as if its client had ended it: waiting requests are cancelled, locks and caching rights are
released, and opens that would have waited for their client are closed, too. The client finds out with its next request,
or by a notification if it has negotiated that.
"""

from __future__ import annotations

from collections.abc import Callable

from smb3server.access.identity import Identity
from smb3server.process.turns import call_apart
from smb3server.state.objects import Session, TreeConnect
from smb3server.state.server_state import ServerState
from smb3server.state.share import Share
from smb3server.wire.negotiate import Capability
from smb3server.wire.server_notification import (
    SERVER_TO_CLIENT_NOTIFICATION,
    SESSION_CLOSED_NOTIFICATION,
    SessionClosed,
)


def end_tree(server: ServerState, tree: TreeConnect) -> None:
    """End a tree connect with its requests and opens. Its client gets NETWORK_NAME_DELETED. [MS-SMB2 3.3.5.8]"""
    session = tree.session
    # Remove it before its requests are cancelled: this is how CHANGE_NOTIFY distinguishes it from a CANCEL.
    if session.tree_connect_table.pop(tree.tree_id, None) is not None:
        server.events.tree_disconnected(tree, session.connection)
    for connection in list(session.channel_list):
        connection.host.cancel_requests(session, tree.tree_id)
    for opened in list(session.open_table.values()):
        if opened.tree is tree:
            server.opens.close(opened)


def end_session(server: ServerState, session: Session) -> None:
    """End a session with all its opens, durable ones included. Its client gets USER_SESSION_DELETED. [MS-SMB2 3.3.4.12]

    Its connections stay, because other sessions may use them."""
    server.events.session_ended(session, session.connection, "ended by the operator or the configuration")
    for tree in list(session.tree_connect_table.values()):
        end_tree(server, tree)
    _tell_closed(session)
    server.sessions.remove(session)


def _tell_closed(session: Session) -> None:
    """Tell the client on every channel that its session has ended, if it has negotiated notifications.
    [MS-SMB2 2.2.44, 3.3.5.4]"""
    for connection in list(session.channel_list):
        if connection.server_capabilities & Capability.NOTIFICATIONS:
            body = SESSION_CLOSED_NOTIFICATION.pack(SessionClosed())
            connection.host.notify(session, [body], SERVER_TO_CLIENT_NOTIFICATION)


def end_user(server: ServerState, concerns: Callable[[Identity], bool]) -> int:
    """End the sessions of some users and those of their opens whose client is away. Return how many sessions."""
    ended = 0
    for session in list(server.sessions.by_id.values()):
        if session.identity is not None and concerns(session.identity):
            call_apart(end_session, server, session)
            ended += 1
    for opened in list(server.opens.by_id.values()):
        identity = opened.session.identity
        if identity is not None and concerns(identity):
            server.opens.close(opened)
    return ended


def end_trees(server: ServerState, share: Share, concerns: Callable[[TreeConnect], bool]) -> int:
    """End some of the tree connects to a share. Return how many."""
    found = [tree for tree in server.trees_of(share) if concerns(tree)]
    for tree in found:
        end_tree(server, tree)
    return len(found)


def end_share(server: ServerState, share: Share) -> int:
    """End all tree connects to a share, and close the opens in it whose client is away. Return how many tree connects
    ended. [MS-SMB2 3.3.4.15]"""
    ended = end_trees(server, share, lambda tree: True)
    for opened in list(server.opens.by_id.values()):
        if opened.tree.share is share:
            server.opens.close(opened)
    return ended
