"""Who a session is to security descriptors, and what a descriptor lets it do."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from smb3server.backends.base import FileInfo, Handle, Kind, User
from smb3server.security.access import FILE_ALL_ACCESS, Token, granted_access
from smb3server.security.descriptor import (
    ANONYMOUS,
    AUTHENTICATED_USERS,
    BUILTIN_GUESTS,
    BUILTIN_USERS,
    EVERYONE,
    NETWORK,
    Control,
    SecurityDescriptor,
    unpack,
)
from smb3server.security.inheritance import create_descriptor
from smb3server.security.posix import IdMap, default_descriptor

if TYPE_CHECKING:
    from smb3server.session import Session

_IDS = IdMap()


@functools.lru_cache(maxsize=1024)
def _token(user: User, guest: bool, anonymous: bool) -> Token:
    own, group = _IDS.user_sid(user.uid), _IDS.group_sid(user.gid)
    sids = {own, group, EVERYONE, NETWORK, *(_IDS.group_sid(gid) for gid in user.groups)}
    if anonymous:
        sids.add(ANONYMOUS)
    else:
        sids |= {AUTHENTICATED_USERS, BUILTIN_GUESTS if guest else BUILTIN_USERS}
    return Token(own, frozenset(sids), group)


def token_of(session: Session, user: User | None) -> Token:
    """``user`` are the POSIX credentials that files are accessed with; None: the server's own."""
    return _token(user or User(os.geteuid(), os.getegid()), session.is_guest, session.is_anonymous)


@functools.lru_cache(maxsize=4096)
def _stored(data: bytes, token: Token) -> int | None:
    try:
        return granted_access(unpack(data), token)
    except ValueError:
        # Damaged, or written by another program: the file's mode is what is left to go by.
        return None


@functools.lru_cache(maxsize=1024)
def _by_mode(mode: int, uid: int, gid: int, directory: bool, token: Token) -> int:
    return granted_access(default_descriptor(mode, uid, gid, directory, _IDS), token)


def maximal_access(handle: Handle, info: FileInfo, token: Token, user: User | None) -> int:
    """All access the file's descriptor gives; without a stored one, what its mode gives (everything to root)."""
    stored = handle.security_descriptor()
    if stored is not None:
        granted = _stored(bytes(stored), token)
        if granted is not None:
            return granted
    if (user.uid if user is not None else os.geteuid()) == 0:
        return FILE_ALL_ACCESS
    return _by_mode(info.mode, info.uid, info.gid, info.kind == Kind.DIRECTORY, token)


def new_descriptor(
    parent: bytes | None, creator: bytes | None, directory: bool, token: Token, user: User | None
) -> bytes | None:
    """What to store with a new file: from the creator's descriptor and what the parent's passes on (MS-DTYP
    2.5.3.4.1); None where neither says anything, so that owner and mode decide. ValueError: malformed ``creator``."""
    above = None
    if parent is not None:
        try:
            above = unpack(parent)
        except ValueError:
            above = None
    given: SecurityDescriptor | None = unpack(creator) if creator is not None else None
    if given is None and (above is None or not _passes_on(above)):
        return None
    default = None
    if given is not None:
        acting = user or User(os.geteuid(), os.getegid())
        default = default_descriptor(0o755 if directory else 0o744, acting.uid, acting.gid, directory, _IDS).dacl
    made = create_descriptor(
        above,
        given,
        is_container=directory,
        token=token,
        default_dacl=default,
        # Windows marks what is inherited only below a descriptor that is itself so marked.
        auto_inherit=above is not None and bool(above.control & Control.DACL_AUTO_INHERITED),
    )
    if given is None and made.dacl is None and made.sacl is None:
        return None
    return made.pack()


def _passes_on(descriptor: SecurityDescriptor) -> bool:
    inheritance = 0x03
    return any(
        ace.flags & inheritance for acl in (descriptor.dacl, descriptor.sacl) if acl is not None for ace in acl.aces
    )
