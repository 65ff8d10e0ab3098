"""The user of a session, in the form that the rules of ``access/`` take."""

from __future__ import annotations

from smb3server.access import tokens
from smb3server.access.caller import Caller
from smb3server.access.check import Token, granted_access
from smb3server.access.identity import Identity
from smb3server.auth.directory import Directory
from smb3server.backends.base import User
from smb3server.state.objects import Session, TreeConnect
from smb3server.state.share import Share

_NOBODY = Identity("", anonymous=True)


def token_of(session: Session, user: User | None, accounts: Directory) -> Token:
    """Return the token of a session's user. The session caches the latest one.

    ``user``: the POSIX credentials that the user acts with on files. None means those of the server process."""
    identity = session.identity or _NOBODY
    known = session.token
    if known is not None and known[0] is identity and known[1] is user:
        return known[2]
    sid, groups, privileges = (
        accounts.identity_sid(identity),
        accounts.memberships(identity),
        accounts.privileges(identity),
    )
    token = tokens.token_for(identity, sid, user, groups, privileges, accounts.policies)
    session.token = (identity, user, token)
    return token


def maximal_access_of(session: Session, share: Share, accounts: Directory) -> int:
    """Return TreeConnect.MaximalAccess: the access that a session may ever be granted on ``share``. [MS-SMB2 3.3.5.7]

    0 means that it must not connect."""
    granted = share.maximal_access(session.identity)
    if share.permissions is not None and session.identity is not None:
        token = token_of(session, share.acting_user(session.identity.user), accounts)
        granted &= granted_access(share.permissions, token)
    original, identity = share.original, session.identity
    if original is not None:
        admitted = identity is not None and original.admits(identity, session.connection.client_name)
        granted &= maximal_access_of(session, original, accounts) if admitted else 0
    return granted


def may_use(session: Session, share: Share, accounts: Directory) -> bool:
    """Return whether a session may connect to ``share``, as far as its user and address decide. [MS-SMB2 3.3.5.7]"""
    identity = session.identity
    if identity is None or not share.admits(identity, session.connection.client_name):
        return False
    return bool(maximal_access_of(session, share, accounts))


def caller_of(session: Session, tree: TreeConnect, accounts: Directory) -> Caller:
    """Return the user of a session, with the credentials and the maximal access of a tree connect, which caches it."""
    identity = session.identity
    user = tree.share.acting_user(identity.user if identity is not None else None)
    known = tree.caller
    if known is not None and known[0] is identity and known[1].user is user:
        return known[1]
    caller = Caller(token_of(session, user, accounts), user, tree.maximal_access)
    tree.caller = identity, caller
    return caller
