"""The server's global state, which all connections share. [MS-SMB2 3.3.1.5]"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence

from smb3server.auth.acceptor import Acceptor, hint_token
from smb3server.auth.accounts import Accounts
from smb3server.auth.directory import Directory
from smb3server.auth.guessing import Guesses
from smb3server.auth.users import Principals, UserDatabase
from smb3server.compression.benefit import Counts
from smb3server.files.file import FileTable
from smb3server.files.flushes import Flushes
from smb3server.net.fabric_choice import Choice
from smb3server.net.interfaces import InterfaceList
from smb3server.process.long_work import LongWork
from smb3server.process.turns import Turns
from smb3server.qos.flows import FlowTable
from smb3server.settings.server import Settings
from smb3server.settings.share import ShareRules
from smb3server.settings.storage_policies import StoragePolicy
from smb3server.state.break_notifications import BreakNotifications
from smb3server.state.ceilings import Ceilings
from smb3server.state.events import Events
from smb3server.state.host_changes import HostChanges
from smb3server.state.objects import Connection, TreeConnect
from smb3server.state.offload_tokens import OffloadTokens
from smb3server.state.one_sided import OneSided
from smb3server.state.opens import OpenTable
from smb3server.state.ports import AccountKeeper, Fence, Homes, ShareAdministration
from smb3server.state.sessions import Sessions
from smb3server.state.shadow_copies import ShadowCopyAgent
from smb3server.state.share import IPC_SHARE_NAME, Share, ShareType
from smb3server.virtual_disks.disk import VirtualDisks
from smbdirect.rdma.pool import BufferPool

_MAX_LOST_RDMA = 256


class ServerState:
    """Tables and services for the code that handles requests. Used on one event loop only."""

    def __init__(self, settings: Settings | None = None, users: UserDatabase | None = None) -> None:
        """``settings``: None means the defaults. ``users``: None means that there are no accounts."""
        self.settings = settings or Settings()
        self.users = users or UserDatabase()
        self.server_guid = uuid.uuid4().bytes_le
        self.server_start_time = time.time()
        self.share_list: dict[str, Share] = {}
        """Keyed by case-folded name."""
        self.connection_list: set[Connection] = set()
        self.logged_on = 0
        """Number of connections with a session."""
        self.stopping = False
        """Whether the server is stopping and reads nothing more from any connection."""
        self.events = Events()
        self.ceilings = Ceilings(self.settings)
        self.opens = OpenTable(self.has_lost)
        self.opens.on_expire = self.events.open_expired
        self.sessions = Sessions(self.settings, self.ceilings, self.opens, self.connection_list, self.events)
        self.file_table = FileTable(BreakNotifications(self.sessions.by_id, self.connection_list, self.opens))
        """The open files, with their share modes, locks, oplocks and leases (GlobalLeaseTableList is in it)."""
        self.offload_tokens = OffloadTokens()
        self.one_sided = OneSided()
        self.sessions.on_remove = self.one_sided.session_ends
        self.host_changes = HostChanges(self.file_table)
        self.virtual_disks = VirtualDisks()
        self.flows = FlowTable(self._storage_policy)
        self.flushes = Flushes()
        self.long_work = LongWork()
        self.turns = Turns()
        self.compressed = Counts()
        """Of all connections since the server's start."""
        """Schedules chains of requests that have worked long enough in one turn of the event loop."""
        self.buffers = BufferPool()
        self.max_transact_size = self.settings.max_io_size
        self.max_read_size = self.settings.max_io_size
        self.max_write_size = self.settings.max_io_size
        self._init_accounts()
        self._init_network()
        self.account_keeper: AccountKeeper | None = None
        """Changes accounts. None means that they cannot be changed."""
        self.homes: Homes | None = None
        self.share_administration: ShareAdministration | None = None
        """Changes the shares while the server runs. None: nobody can."""
        self.shadow_copies: ShadowCopyAgent | None = None
        """Makes shadow copies for backup programs. None: there are none."""
        self.serves_witness = False
        """Whether the Witness service runs in this process."""
        self.fence: Fence | None = None
        """In a cluster: checked before every request and reply (``is_fenced``)."""
        self.guid_of_address: Callable[[str], bytes | None] = lambda address: None
        """Returns the ServerGuid that clients see at a local address; None means ``server_guid``."""
        self.add_share(Share(IPC_SHARE_NAME, ShareType.PIPE, rules=ShareRules(comment="Remote IPC"), hidden=True))

    def _init_accounts(self) -> None:
        settings = self.settings
        self.local_accounts = Accounts(
            self.users,
            settings.server_name,
            self.server_guid[:12],
            guests_may_ask=settings.guests_see_accounts,
            lists=settings,
        )
        self.accounts: Directory = self.local_accounts
        """Who is asked for users, groups, SIDs and logons."""
        self.hint_token = b""
        self.guesses = Guesses()
        self._settle_logons()

    def settings_changed(self) -> None:
        """Take over changed ``settings`` where something was made of them."""
        self._settle_logons()
        self.local_accounts.guests_may_ask = self.settings.guests_see_accounts
        self.ceilings.settings_changed()

    def _settle_logons(self) -> None:
        """Make what decides about logons."""
        settings = self.settings
        principals = Principals(self.users, settings.trusted_realms, settings.unknown_principals)
        self.local_accounts.principals = principals if settings.keytab else None
        self.hint_token = hint_token(bool(settings.keytab), settings.ntlm)
        self.guesses.set_limits(
            settings.failed_logons_per_account,
            settings.failed_logons_per_address,
            settings.max_logon_delay,
            settings.lockout_failures,
            settings.lockout_time,
        )

    def _init_network(self) -> None:
        self.interfaces = InterfaceList()
        self.rdma_addresses: set[str] = set()
        """Local addresses that serve SMB Direct. FSCTL_QUERY_NETWORK_INTERFACE_INFO reports them to clients."""
        self.tcp_addresses: set[str] = {"0.0.0.0", "::"}
        """Local addresses that serve direct TCP."""
        self.rdma = "off"
        """The requested fabrics."""
        self.rdma_choices: Sequence[Choice] = ()
        """Which of the requested fabrics are used, and why others are not."""
        # Invariant: at most _MAX_LOST_RDMA entries, the oldest first.
        self.lost_rdma: dict[bytes, str] = {}
        """How a client's last RDMA connection failed, by ClientGuid."""

    # Shares

    def add_share(self, share: Share) -> None:
        """Serve a share. It replaces one of the same name."""
        self.share_list[share.name.casefold()] = share

    def remove_share(self, share: Share) -> None:
        """Stop serving a share to new tree connects. ``endings.end_share`` ends the present ones."""
        if self.share_list.get(share.name.casefold()) is share:
            del self.share_list[share.name.casefold()]

    @property
    def serves_dfs(self) -> bool:
        """Whether there is a namespace (IsDfsCapable). [MS-SMB2 3.3.1.5]"""
        return any(share.namespace is not None for share in self.share_list.values())

    def trees_of(self, share: Share) -> list[TreeConnect]:
        """Return all tree connects to a share."""
        sessions = self.sessions.by_id.values()
        return [tree for session in sessions for tree in session.tree_connect_table.values() if tree.share is share]

    @property
    def has_continuous_availability(self) -> bool:
        """Whether at least one share is continuously available."""
        return any(share.rules.continuous_availability for share in self.share_list.values())

    @property
    def has_posix(self) -> bool:
        """Whether clients of at least one share may use the POSIX extensions."""
        return any(share.rules.posix for share in self.share_list.values())

    @property
    def wants_encryption(self) -> bool:
        """Whether the administrator requires encryption, for at least one share."""
        return self.settings.require_encryption or any(share.rules.encrypt for share in self.share_list.values())

    def _storage_policy(self, policy_id: bytes) -> StoragePolicy | None:
        return next((policy for policy in self.settings.storage_policies if policy.policy_id == policy_id), None)

    # The cluster

    def guid_for(self, connection: Connection) -> bytes:
        """Return the ServerGuid that a client on this connection sees."""
        return self.guid_of_address(connection.transport.local_address[0]) or self.server_guid

    def is_fenced(self, connection: Connection) -> bool:
        """Return whether another node may be serving the shares or the address of this connection by now.

        A connection to a node's own address that uses only the node's own shares is never fenced."""
        fence = self.fence
        if fence is None or not fence.expired():
            return False
        if self.guid_of_address(connection.transport.local_address[0]) is not None:
            return True
        return any(
            tree.share.placement is not None
            for session in connection.session_table.values()
            for tree in session.tree_connect_table.values()
        )

    def has_lost(self, share: Share) -> bool:
        """Return whether another node may be serving the share by now.

        If so, requests that waited here must not touch its files."""
        return share.lost or (share.placement is not None and self.fence is not None and self.fence.expired())

    def loss_of(self, share: Share) -> Callable[[], bool] | None:
        """Return what tells a worker thread whether another node may serve the share by now. None: that cannot be."""
        fence = self.fence
        if share.placement is None or fence is None:
            return None
        return lambda: share.lost or fence.passed()

    # Connections

    def admits(self, host: str) -> bool:
        """Return whether connections from this address are accepted."""
        return self.settings.hosts.admits(host)

    def has_room(self, connection: Connection) -> bool:
        """Return whether a user may log on to the connection.

        The answer is no if it has no session yet and ``max_connections`` others have one."""
        return connection.is_authenticated or self.logged_on < self.settings.max_connections

    def rdma_lost(self, client_guid: bytes, reason: str) -> None:
        """Remember for reports why a client's RDMA connection was lost."""
        self.lost_rdma.pop(client_guid, None)
        if len(self.lost_rdma) >= _MAX_LOST_RDMA:
            del self.lost_rdma[next(iter(self.lost_rdma))]
        self.lost_rdma[client_guid] = reason

    # Logons

    def new_acceptor(self, address: str = "") -> Acceptor:
        """Return an acceptor that authenticates a session of a client at ``address``."""
        settings = self.settings
        return Acceptor(
            self.accounts,
            settings.server_name,
            settings.allow_guest,
            settings.allow_anonymous,
            self.accounts if settings.keytab else None,
            ntlm=settings.ntlm,
            guesses=self.guesses,
            address=address,
            keytab=settings.keytab,
            answers_refusals=True,
            home=settings.home,
        )

    def new_rpc_acceptor(self) -> Acceptor:
        """Return an acceptor that authenticates RPC calls. It refuses guests, because they have no keys."""
        settings = self.settings
        return Acceptor(
            self.accounts,
            settings.server_name,
            kerberos=self.accounts if settings.keytab else None,
            service="host",
            ntlm=settings.ntlm,
            guesses=self.guesses,
            keytab=settings.keytab,
            home=settings.home,
        )
