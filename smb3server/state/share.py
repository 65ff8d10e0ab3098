"""Shares, and who may use them. [MS-SMB2 3.3.1.6]"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_EXECUTE, FILE_GENERIC_READ
from smb3server.backends.name_rules import WINDOWS
from smb3server.files.notify import NotifyHub
from smb3server.net.host_lists import EVERYBODY, HostLists
from smb3server.settings.share import ShareRules
from smb3server.state.audit import ShareAudit
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    import asyncio

    from smb3server.access.descriptor import SecurityDescriptor
    from smb3server.access.identity import Identity
    from smb3server.backends.base import Backend, User
    from smb3server.backends.snapshots import Snapshots
    from smb3server.dfs.namespace import Namespace
    from smb3server.files.recycling import Emptied, Recycling

IPC_SHARE_NAME = "IPC$"


class ShareType(enum.IntEnum):
    """ShareType. The values of MS-SRVS 2.2.2.4 are one less. [MS-SMB2 2.2.10]"""

    DISK = 1
    PIPE = 2


class ShareFlags(enum.IntFlag):
    """SMB2_SHAREFLAG_*. [MS-SMB2 2.2.10]"""

    DFS = 0x00000001
    DFS_ROOT = 0x00000002
    AUTO_CACHING = 0x00000010
    VDO_CACHING = 0x00000020
    NO_CACHING = 0x00000030
    ACCESS_BASED_DIRECTORY_ENUM = 0x00000800
    FORCE_LEVELII_OPLOCK = 0x00001000
    ENCRYPT_DATA = 0x00008000
    COMPRESS_DATA = 0x00100000


class ShareCapabilities(enum.IntFlag):
    """SMB2_SHARE_CAP_*. [MS-SMB2 2.2.10]"""

    DFS = 0x00000008
    CONTINUOUS_AVAILABILITY = 0x00000010
    SCALEOUT = 0x00000020
    CLUSTER = 0x00000040
    ASYMMETRIC = 0x00000080


OFFLINE_FILES = {
    "manual": 0,
    "documents": int(ShareFlags.AUTO_CACHING),
    "programs": int(ShareFlags.VDO_CACHING),
    "none": int(ShareFlags.NO_CACHING),
}
"""The caching flags of the values of ``offline_files``."""
_DFS = int(ShareFlags.DFS)
READ_ONLY_ACCESS = FILE_GENERIC_READ | FILE_GENERIC_EXECUTE
"""READ_CONTROL, SYNCHRONIZE, read data, EAs and attributes, execute."""


@dataclass(slots=True, eq=False)
class Share:
    """A share, as configured. ``backend`` is None for IPC$ only. [MS-SMB2 3.3.1.6]"""

    name: str
    type: ShareType = ShareType.DISK
    backend: Backend | None = None
    path: str = ""
    snapshots: Snapshots | None = None
    """Its previous versions. None means that it has none, and that no name stands for one."""
    as_of: int = 0
    """The time of the one snapshot that it shows, in seconds since 1970. 0: it shows its files as they are now."""
    original: Share | None = None
    """The share whose snapshot it shows. That must admit whoever uses this one, and both must allow it
    (``caller.maximal_access_of``)."""
    rules: ShareRules = field(default_factory=ShareRules)
    """The keys that are obeyed as they are configured. A change of the configuration replaces them as a whole."""
    read_only: bool = False
    """Whether no user may write."""
    users: frozenset[str] | None = None
    """Allowed users (``Identity.is_on``). None means all authenticated ones."""
    read_list: frozenset[str] = frozenset()
    """Users who may only read."""
    write_list: frozenset[str] | None = None
    """The only users who may do more than read. None means all who are not in ``read_list``."""
    hosts: HostLists = EVERYBODY
    """Addresses that it may be used from."""
    recycling: Recycling | None = None
    """Where deleted files go. None means that they are removed."""
    emptied: Emptied | None = None
    """What is in the recycle folder, and was removed from it. None until it was looked at."""
    hidden: bool = False
    is_home: bool = False
    """Whether it is the home of the user whose name it has."""
    flags: int = 0
    """Flags in addition to those that follow from other fields."""
    capabilities: int = 0
    user: User | None = None
    """POSIX credentials that all users act with here (``force_user``). None means that each user has their own."""
    default_user: User | None = None
    """POSIX credentials of guests and of users who have none of their own. None means those of the server process."""
    hides: Callable[[str], bool] | None = None
    """Returns whether a name is shown as hidden, independently of its attributes."""
    permissions: SecurityDescriptor | None = None
    """Who may do what here, besides ``users`` and the other lists (Share.FileSecurity). None allows everything. Its
    owner has no rights by being the owner."""
    notify: NotifyHub = field(default_factory=NotifyHub)
    stores_opens: bool = False
    """Whether persistent opens can be stored now. ``persistence`` sets it."""
    service: str = ""
    """The cluster's service that it belongs to. Empty if it is this node's own."""
    placement: Placement | None = None
    """Decides whether it is served here. None means that it always is."""
    lost: bool = False
    """Whether this node of a cluster no longer serves it: another one may have taken it over."""
    model: str = ""
    """The model of the server that Macs are told."""
    audit: ShareAudit | None = None
    """What is recorded of its use. None means nothing."""
    namespace: Namespace | None = None
    """The namespace that it is the root of. None means that it is no such share."""

    bytes_read: int = 0
    """Bytes that READs returned through opens that are closed by now. Each open counts its own until then."""
    bytes_written: int = 0

    def __post_init__(self) -> None:
        self.notify.store = self.backend

    def below(self, name: str) -> str:
        """Return the name of a file below this share out of a request with SMB2_FLAGS_DFS_OPERATIONS.

        In a DFS share such names begin with server and share. Other shares take them as they are. Raises
        ``StatusError``: PATH_NOT_COVERED for the name of another share, and for a link and what is below it.
        [MS-SMB2 2.2.13, 3.3.5.9, MS-DFSC 3.2.4.1]
        """
        if not self.flags & _DFS:
            return name
        if not name:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        # Some clients begin it as the user writes it, and Windows takes that.
        _, _, covered = name.lstrip("\\").partition("\\")
        share, _, rest = covered.partition("\\")
        if share and not WINDOWS.same((share,), (self.name,)):
            raise StatusError(NtStatus.PATH_NOT_COVERED)
        if self.namespace is not None and self.namespace.covering(tuple(rest.split("\\"))) is not None:
            raise StatusError(NtStatus.PATH_NOT_COVERED)
        return rest

    def acting_user(self, own: User | None) -> User | None:
        """Return the POSIX credentials that a user acts with on the files of this share.

        ``own``: those of the user's account, None if it has none. The result None means those of the server process."""
        return self.user or own or self.default_user

    @property
    def caching_flags(self) -> int:
        """What its clients may keep for use without the server: one of the four modes. [MS-SMB2 2.2.10]"""
        return int(ShareFlags.NO_CACHING) if self.type is ShareType.PIPE else OFFLINE_FILES[self.rules.offline_files]

    def admits(self, identity: Identity, host: str) -> bool:
        """Return whether it is open to this user, from this address."""
        return self.admits_user(identity) and self.hosts.admits(host)

    def admits_user(self, identity: Identity) -> bool:
        """Return whether it is open to this user. Guests are never on a list of users."""
        if identity.guest or identity.anonymous:
            return self.rules.guest and self.users is None
        return self.users is None or identity.is_on(self.users)

    def maximal_access(self, identity: Identity | None) -> int:
        """Return the access that a tree connect of this user may ever be granted."""
        if self.read_only:
            return READ_ONLY_ACCESS
        if identity is not None and identity.is_on(self.read_list):
            return READ_ONLY_ACCESS
        if self.write_list is not None and (identity is None or not identity.is_on(self.write_list)):
            return READ_ONLY_ACCESS
        return FILE_ALL_ACCESS


class Placement(Protocol):
    """Decides whether the shares of a cluster's service are served here."""

    @property
    def owned(self) -> bool:
        """Whether this node serves them now."""
        ...

    @property
    def arriving(self) -> asyncio.Future[None] | None:
        """Done when it is decided whether this node, which is taking over, will serve them. None if it is decided."""
        ...

    def check(self, share: Share, address: str, dialect: int, flags: int) -> None:
        """Raise ``StatusError`` if a TREE_CONNECT must not be answered here.

        ``address``: the local address of its connection. ``flags``: those of the request."""
        ...
