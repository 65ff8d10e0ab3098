"""Whom the rules of ``access/`` see behind a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.access import tokens
from smb3server.access.caller import Caller
from smb3server.access.check import Token
from smb3server.access.identity import Identity

if TYPE_CHECKING:
    from smb3server.auth.accounts import Accounts
    from smb3server.backends.base import User
    from smb3server.state.objects import Session, TreeConnect

_NOBODY = Identity("", anonymous=True)


def token_of(session: Session, user: User | None, accounts: Accounts) -> Token:
    """Return the token of a session's user who acts on files with the POSIX credentials ``user`` (None: the server's
    own). The session keeps the latest one."""
    identity = session.identity or _NOBODY
    known = session.token
    if known is not None and known[0] is identity and known[1] is user:
        return known[2]
    token = tokens.token_for(identity, accounts.identity_sid(identity), user)
    session.token = (identity, user, token)
    return token


def caller_of(session: Session, tree: TreeConnect, accounts: Accounts) -> Caller:
    """Name the user of a session, as a tree connect lets the user act."""
    identity = session.identity
    user = tree.share.acting_user(identity.user if identity is not None else None)
    return Caller(token_of(session, user, accounts), user, tree.maximal_access)
