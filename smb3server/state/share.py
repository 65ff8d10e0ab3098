"""Shares (MS-SMB2 3.3.1.6) and tree connects (3.3.1.9)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_EXECUTE, FILE_GENERIC_READ
from smb3server.files.notify import NotifyHub
from smb3server.net.host_lists import EVERYBODY, HostLists

if TYPE_CHECKING:
    import asyncio

    from smb3server.access.identity import Identity
    from smb3server.backends.base import Backend, User

IPC_SHARE_NAME = "IPC$"


class ShareType(enum.IntEnum):
    """ShareType of 2.2.10; the values of MS-SRVS 2.2.2.4 are one less."""

    DISK = 1
    PIPE = 2


class ShareFlags(enum.IntFlag):
    """SMB2_SHAREFLAG_* (2.2.10)."""

    NO_CACHING = 0x00000030
    ACCESS_BASED_DIRECTORY_ENUM = 0x00000800
    FORCE_LEVELII_OPLOCK = 0x00001000
    ENCRYPT_DATA = 0x00008000


class ShareCapabilities(enum.IntFlag):
    """SMB2_SHARE_CAP_* (2.2.10)."""

    CONTINUOUS_AVAILABILITY = 0x00000010
    SCALEOUT = 0x00000020
    CLUSTER = 0x00000040
    ASYMMETRIC = 0x00000080


READ_ONLY_ACCESS = FILE_GENERIC_READ | FILE_GENERIC_EXECUTE
"""READ_CONTROL, SYNCHRONIZE, read data, EAs and attributes, execute."""


@dataclass(slots=True, eq=False)
class Share:
    """``backend`` is None for IPC$ only."""

    name: str
    type: ShareType = ShareType.DISK
    backend: Backend | None = None
    path: str = ""
    remark: str = ""
    read_only: bool = False
    encrypt_data: bool = False
    guest_ok: bool = False
    users: frozenset[str] | None = None
    """Those allowed (``Identity.listed_name``); None: every authenticated one."""
    read_list: frozenset[str] = frozenset()
    """Those who only read."""
    write_list: frozenset[str] | None = None
    """The only ones who do more than read; None: everybody who is not in ``read_list``."""
    hosts: HostLists = EVERYBODY
    """From where it may be used."""
    hidden: bool = False
    flags: int = 0
    """Besides those that follow from other fields."""
    capabilities: int = 0
    user: User | None = None
    """POSIX credentials that everybody acts with here (``force_user``); None: each user with their own."""
    default_user: User | None = None
    """POSIX credentials of guests and users who have none of their own; None: those of the server process."""
    hides: Callable[[str], bool] | None = None
    """Names that are shown as hidden, whatever their attributes say."""
    keep_inherited_flag: bool = False
    """DACL_AUTO_INHERITED is stored as it is sent, not by Windows' rule."""
    strict_allocate: bool = False
    """Space that clients ask for ahead is reserved, however much it is."""
    posix_locks: bool = False
    """Byte-range locks hold against programs of the host, and theirs against clients."""
    level2_oplocks: bool = True
    streams: bool = True
    """Alternate data streams."""
    change_notify: bool = True
    """False: CHANGE_NOTIFY is not implemented here."""
    notify: NotifyHub = field(default_factory=NotifyHub)
    continuous_availability: bool = False
    """Share.IsCA (3.3.1.6)."""
    stores_opens: bool = False
    """Persistent opens are stored now. ``persistence`` sets it."""
    service: str = ""
    """The cluster's service it belongs to; empty: it is this node's own."""
    placement: Placement | None = None
    """Says whether it is served here; None: always."""

    def acting_user(self, own: User | None) -> User | None:
        """Return the POSIX credentials that somebody acts with on the files of this share, whose own are ``own``; None
        for the server's."""
        return self.user or own or self.default_user

    def admits(self, identity: Identity, host: str) -> bool:
        """Return whether it is open to this user, from this address."""
        return self.admits_user(identity) and self.hosts.admits(host)

    def admits_user(self, identity: Identity) -> bool:
        """Return whether it is open to this user. Guests are on no list of users."""
        if identity.guest or identity.anonymous:
            return self.guest_ok and self.users is None
        return self.users is None or identity.listed_name in self.users

    def maximal_access(self, identity: Identity | None) -> int:
        """Return the access that a tree connect of this user may ever be granted."""
        if self.read_only:
            return READ_ONLY_ACCESS
        name = None if identity is None or identity.guest or identity.anonymous else identity.listed_name
        if name in self.read_list or (self.write_list is not None and name not in self.write_list):
            return READ_ONLY_ACCESS
        return FILE_ALL_ACCESS


class Placement(Protocol):
    """Where the shares of a cluster's service are served."""

    @property
    def arriving(self) -> asyncio.Future[None] | None:
        """Done when it is decided whether this node, which is about to, will serve them; None: it is decided."""
        ...

    def check(self, share: Share, address: str, dialect: int, flags: int) -> None:
        """Raise ``StatusError`` for a TREE_CONNECT, with ``flags``, that is not to be answered here: on a connection to
        the local ``address`` with ``dialect``."""
        ...
