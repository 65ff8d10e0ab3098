"""Computes the token of a user, and the access that a descriptor gives to that user."""

from __future__ import annotations

import functools
import os

from smb3server.access.check import Limits, Token, granted_access
from smb3server.access.claims import Claims
from smb3server.access.descriptor import (
    AUTHENTICATED_USERS,
    BUILTIN_GUESTS,
    BUILTIN_USERS,
    EVERYONE,
    NETWORK,
    Control,
    SecurityDescriptor,
    Sid,
    unpack,
)
from smb3server.access.identity import Identity
from smb3server.access.inheritance import create_descriptor, passes_on
from smb3server.access.known_descriptors import KnownDescriptors
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.access.posix import OWNERS_ALONE, default_descriptor, group_sid, user_sid
from smb3server.backends.base import Described, FileInfo, Kind, User
from smb3server.wire.create import Access

_KNOWN = KnownDescriptors()
_READ_DATA, _EXECUTE = int(Access.READ_DATA), int(Access.EXECUTE)
_WRITE_DATA, _DELETE_CHILD = int(Access.WRITE_DATA), int(Access.DELETE_CHILD)
_SACL_CONTROL = int(
    Control.SACL_PRESENT
    | Control.SACL_DEFAULTED
    | Control.SACL_AUTO_INHERIT_REQ
    | Control.SACL_AUTO_INHERITED
    | Control.SACL_PROTECTED
)


def _sids_on_host(user: User) -> set[Sid]:
    return {user_sid(user.uid), group_sid(user.gid), *(group_sid(gid) for gid in user.groups)}


@functools.lru_cache(maxsize=1024)
def _token(
    account: Sid,
    own: User | None,
    acting: User,
    guest: bool,
    anonymous: bool,
    groups: frozenset[Sid],
    privileges: int,
    primary: Sid | None,
    claims: Claims | None,
    policies: Limits | None,
) -> Token:
    # Several accounts may share one user of the host: only the account's SID distinguishes them. Those of a domain are
    # known by their SID on other machines as well.
    user = account if acting.shared or primary is not None else user_sid(acting.uid)
    sids = (
        {account, EVERYONE, NETWORK}
        | groups
        | _sids_on_host(acting)
        | (_sids_on_host(own) if own is not None else set())
    )
    if guest:
        # Guests are not Authenticated Users: they have not proved who they are (MS-DTYP 2.4.2.4).
        sids.add(BUILTIN_GUESTS)
    elif not anonymous:
        sids |= {AUTHENTICATED_USERS, BUILTIN_USERS}
    return Token(user, frozenset(sids), primary or group_sid(acting.gid), privileges, claims, policies)


def token_for(
    identity: Identity,
    account: Sid,
    user: User | None,
    groups: frozenset[Sid] = frozenset(),
    privileges: int = 0,
    policies: Limits | None = None,
) -> Token:
    """Make the token of an identity.

    ``account`` is the SID of the identity itself, ``groups`` has those of the groups it is in.
    ``user`` has the POSIX credentials that it uses on files. None means the server's own credentials, which all such
    identities share.

    ``Token.user`` will own new files. It is the SID of the host's user if no other identity uses these credentials,
    otherwise ``account`` (of an account, the guest or a Kerberos principal). For a user of the domain it is always
    ``account``. ``Token.sids`` has both.
    ``privileges`` are those of the identity (``access.privileges``), ``policies`` those of the server.
    """
    acting = user or User(os.geteuid(), os.getegid(), shared=True)
    member = identity.member
    primary, claims = (member.primary_group, member.claims) if member is not None else (None, None)
    return _token(
        account,
        identity.user,
        acting,
        identity.guest,
        identity.anonymous,
        groups,
        privileges,
        primary,
        claims,
        policies,
    )


@functools.lru_cache(maxsize=1024)
def _by_mode(mode: int, uid: int, gid: int, directory: bool, owner: Sid | None, token: Token) -> int:
    return granted_access(default_descriptor(mode, uid, gid, directory, owner), token)


def has_dacl(data: bytes | memoryview) -> bool:
    """Return whether a packed self-relative descriptor has a DACL. A null DACL counts."""
    return bool(int.from_bytes(data[2:4], "little") & Control.DACL_PRESENT)


def parsed(data: bytes) -> SecurityDescriptor | None:
    """Return a stored descriptor. None means that it is malformed."""
    return _KNOWN.find(data).parsed


def effective_descriptor(stored: bytes | memoryview | None, info: FileInfo) -> SecurityDescriptor:
    """Return the descriptor of a file.

    A stored descriptor may have only an owner: the rest then comes from the mode. Everything comes from the mode if no
    descriptor is stored, or if the stored one is malformed.
    """
    known = _KNOWN.find(bytes(stored)) if stored is not None else None
    found = known.parsed if known is not None else None
    if found is not None and known is not None and known.has_dacl:
        return found
    owner = found.owner if found is not None else None
    made = default_descriptor(info.mode, info.uid, info.gid, info.kind == Kind.DIRECTORY, owner)
    if found is None or found.sacl is None:
        return made
    return made._replace(sacl=found.sacl, control=made.control | found.control & _SACL_CONTROL)


def maximal_access(found: Described, token: Token, user: User | None) -> int:
    """Return all access that the file's descriptor and its central access policy give to ``token``.

    ``user`` has the POSIX credentials of the request; None means the server's own.
    """
    granted = _by_descriptor(found, token, user)
    if token.policies is None or found.descriptor is None:
        return granted
    stored = _KNOWN.find(found.descriptor).parsed
    if stored is None or stored.sacl is None:
        return granted
    return token.policies.limit(granted, effective_descriptor(found.descriptor, found.info), token)


def _by_descriptor(found: Described, token: Token, user: User | None) -> int:
    """Return all access that the file's descriptor gives to ``token``.

    Without a stored DACL the mode decides. root then gets everything, except rights that only the account owning the
    file has. Whoever may read a file may execute it then: a program that a client copies has no x bit, and would start
    for nobody. Whoever may write one is granted FILE_DELETE_CHILD, which means nothing for a file: programs ask for all
    rights at once. The descriptor that clients see is that of the mode.
    """
    info, stored = found
    owner: Sid | None = None
    if stored is not None:
        known = _KNOWN.find(stored)
        if known.has_dacl:
            return _KNOWN.granted(known, token)
        # If the stored descriptor is malformed, the mode decides.
        owner = known.parsed.owner if known.parsed is not None else None
    root = (user.uid if user is not None else os.geteuid()) == 0
    if root and owner is None:
        return FILE_ALL_ACCESS
    is_directory = info.kind == Kind.DIRECTORY
    granted = _by_mode(info.mode, info.uid, info.gid, is_directory, owner, token)
    if not is_directory:
        granted |= (_EXECUTE if granted & _READ_DATA else 0) | (_DELETE_CHILD if granted & _WRITE_DATA else 0)
    return granted | FILE_ALL_ACCESS & ~OWNERS_ALONE if root else granted


def new_descriptor(
    parent: bytes | None, creator: bytes | None, directory: bool, token: Token, user: User | None
) -> bytes | None:
    """Return the packed descriptor to store with a new file, or None if there is nothing to store. [MS-DTYP 2.5.3.4.1]

    ``parent`` is the stored descriptor of the folder, ``creator`` the one that the client sent. If neither says
    anything, the mode decides: the result is then None, or a descriptor with an owner only, if several accounts share
    the owner's user of the host. Raises ``ValueError`` if ``creator`` is malformed.
    """
    stores_owner = user is None or token.user != user_sid(user.uid)
    if creator is None and parent is not None:
        return _inherited(parent, directory, token, stores_owner)
    above = _KNOWN.find(parent).parsed if parent is not None else None
    if creator is None:
        return _owner_alone(token.user) if stores_owner else None
    acting = user or User(os.geteuid(), os.getegid())
    made = create_descriptor(
        above,
        unpack(creator),
        is_container=directory,
        token=token,
        default_dacl=default_descriptor(0o755 if directory else 0o744, acting.uid, acting.gid, directory).dacl,
        auto_inherit=_inherits(above),
    )
    return made.pack()


def _inherits(above: SecurityDescriptor | None) -> bool:
    """Return whether inherited ACEs are marked. Windows marks them only if the folder's descriptor has the mark
    (AUTO_INHERITED) itself."""
    return above is not None and bool(above.control & Control.DACL_AUTO_INHERITED)


@functools.lru_cache(maxsize=64)
def _inherited(parent: bytes, directory: bool, token: Token, shared: bool) -> bytes | None:
    """Return ``new_descriptor`` of a file whose creator gives no descriptor. Many files are made in one folder."""
    above = _KNOWN.find(parent).parsed
    if above is None or not passes_on(above):
        return _owner_alone(token.user) if shared else None
    made = create_descriptor(
        above, None, is_container=directory, token=token, default_dacl=None, auto_inherit=_inherits(above)
    )
    if made.dacl is None and made.sacl is None:
        return _owner_alone(token.user) if shared else None
    return made.pack()


@functools.lru_cache(maxsize=1024)
def _owner_alone(owner: Sid) -> bytes:
    """Return a packed descriptor that has an owner only: the mode says the rest."""
    return SecurityDescriptor(owner).pack()
