"""A server with its shares and listeners, as the command starts and stops it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from smb3server.admin.socket import AdminSocket, Command, socket_path
from smb3server.auth.users import UserDatabase
from smb3server.backends.base import Backend
from smb3server.commands import load
from smb3server.config import schema
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, NamespaceConfig
from smb3server.config.program import configure
from smb3server.config.values import check_address, check_share_name
from smb3server.dfs.namespace import Namespace
from smb3server.net.host import machine_id
from smb3server.net.listener import TcpListener
from smb3server.process import parts
from smb3server.process.service_manager import ServiceManager
from smb3server.server.server import Server
from smb3server.service.admin.account_keeper import UsersFileKeeper
from smb3server.service.admin.clients import ClientAdmin
from smb3server.service.admin.commands import client_commands, link_commands, process_commands, share_commands
from smb3server.service.admin.links import LinkAdmin
from smb3server.service.admin.shares import ShareAdmin
from smb3server.service.homes import HomeShares
from smb3server.service.kerberos import realms_of_keytab
from smb3server.service.listeners import Fabrics
from smb3server.service.namespaces import RunningNamespaces
from smb3server.service.observing import Observing
from smb3server.service.privileges import Privileges, in_force
from smb3server.service.reception import Reception
from smb3server.service.recycle_folders import RecycleFolders
from smb3server.service.reload import Outcome, Reload
from smb3server.service.running import Running
from smb3server.service.running_shares import RunningShares, folders_down
from smb3server.service.shadow_copies import ServedShadowCopies
from smb3server.service.shares import warn_of_roots
from smb3server.service.state_directory import StateDirectory, read_guid
from smb3server.service.stored_opens import StoredOpens
from smb3server.service.tcp_ports import EVERYWHERE, TcpPorts
from smb3server.service.users import LiveUsers
from smb3server.settings.discovery import DiscoveryConfig
from smb3server.settings.quic import QuicConfig
from smb3server.settings.web import WebConfig
from smb3server.settings.witness import WitnessConfig
from smb3server.state.shadow_copies import ShadowCopyAgent
from smb3server.state.share import Share
from smb3server.status.model import Report
from smb3server.status.report import collect

if TYPE_CHECKING:
    from smb3server.cluster.fencer import Fencer
    from smb3server.discovery.announcer import Announcer
    from smb3server.service.clustering import ClusterNode
    from smb3server.service.machine_account import MachineAccount
    from smb3server.service.membership import Membership
    from smb3server.service.processes.member import Member
    from smb3server.service.quic import QuicPorts
    from smb3server.web.serving import WebServer
    from witness.setup import Witness

log = logging.getLogger(__name__)

DESCRIPTORS_PER_OPEN = 2
"""Descriptors reserved for one open. A directory that is being listed uses one more, as does a file that is lent."""
LOOK_FOR_FOLDERS = 3.0
"""Seconds between two looks for the folders of the shares."""


class Service(Running):
    """A configured server. Run it once, by ``async with`` or ``with``, or call ``start`` and then ``stop``; also call
    ``stop`` after a ``start`` that failed.
    """

    def __init__(
        self,
        config: Config | None = None,
        privileges: Privileges | None = None,
        read: Callable[[], Config] | None = None,
        sockets: Sequence[socket.socket] = (),
        manager: ServiceManager | None = None,
        fencer: Fencer | None = None,
        member: Member | None = None,
        *,
        shares: Iterable[schema.Share] = (),
        users: Iterable[schema.User] = (),
        **options: object,
    ) -> None:
        """Prepare the server: a program gives ``shares``, ``users`` and ``options``, the command a ``config``.

        ``options`` are keys of ``[server]``, as in ``port=0``; other sections are given by their names, as in
        ``limits={"max_connections": 10}``. Raises ``ConfigError``, a ``ValueError`` that says what to do.

        ``privileges`` are those of the process; None leaves them unchanged. ``read`` reads the configuration again, on
        a worker thread; None means that it never changes. ``sockets`` are TCP sockets of the service manager, which
        listen already. ``manager`` is told of reloads; None means that nobody is. ``fencer`` fences other nodes of a
        cluster; it was started before the process gave up its privileges. ``member`` says which of several processes
        this is.
        """
        if config is None:
            config = configure(shares, users, options)
        elif shares or users or options:
            raise TypeError("give either a config, or shares, users and options")
        self.manager = manager or ServiceManager()
        self._fencer = fencer
        self._member = member
        self._privileges = privileges
        self._read = read
        self._given = config
        """The configuration as it was read last, without the shares of run time."""
        accounts = UserDatabase()
        for account in config.accounts:
            accounts.add(account)
        load()
        server = self.server = Server(config.settings, accounts)
        self.stored = StoredOpens(server)
        self.shares = RunningShares(server, self.stored)
        server.homes = HomeShares(server, config, self.shares.make)
        reception = self._reception = Reception(
            server.accept,
            server.admits,
            server.buffers,
            server.silent_peers,
            server.unauthenticated,
            server.one_sided.on_request,
        )
        self._tcp = TcpPorts(config.settings, reception, sockets)
        self.fabrics = Fabrics(config.settings, reception, lambda: server.interfaces.interfaces)
        self.fabrics.on_change = self._fabrics_changed
        server.rdma = config.rdma
        server.rdma_choices = self.fabrics.choices
        self.stopping = ""
        """What the stop that is under way waits for."""
        self.admin: AdminSocket | None = None
        self.cluster: ClusterNode | None = None
        self.witness: Witness | None = None
        self.announcer: Announcer | None = None
        self.web: WebServer | None = None
        self.quic: QuicPorts | None = None
        self._machine_account: MachineAccount | None = None
        self._membership: Membership | None = None
        """In the domain of ``[domain]``."""
        self._commands: dict[str, Command] = {}
        """Those of the admin socket."""
        self._state: StateDirectory | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """Those that look for folders of shares that are down, and empty recycle folders."""
        self.users = LiveUsers(server, config)
        self.namespaces = RunningNamespaces(server, self.shares)
        self._reload = Reload(config, server, self.shares, self.namespaces, self.users, self._tcp.listeners)
        self._reload.limits_changed = self._limit_opens
        self.share_admin = server.share_administration = ShareAdmin(self._reload, self.shares)
        self.link_admin = LinkAdmin(self._reload, self.share_admin)
        if member is not None:
            self.share_admin.claim = member.check_own
        self._shadow_copies = ServedShadowCopies(server)
        server.shadow_copies = ShadowCopyAgent(self._shadow_copies)
        self.on_stop: Callable[[], None] = lambda: None
        """Called when the operator asks over the admin socket that the server stops. Set it before ``start``."""
        self.observing = Observing(config, server)
        self.shares.audit_of = self.observing.audit_of
        self.notes: list[str] = []
        """Notes for the operator: ports other than the usual ones, fabrics that are not served."""

    @property
    def config(self) -> Config:
        """The configuration in effect."""
        return self._reload.config

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first listener on TCP, for programs. It is there after ``start``."""
        return self.listeners[0].address

    @property
    def listeners(self) -> list[TcpListener]:
        """Return the listeners on TCP."""
        return self._tcp.listeners

    async def start(self) -> None:
        """Start serving. Raises ``ConfigError``, ``OSError`` or ``ProviderError``."""
        self._check_kerberos()
        self._limit_opens()
        self._open_state()
        if self._member is not None:
            self._member.commit()
        self._choose_domain()
        self._join_domain()
        self.share_admin.load(self.config.state)
        self._reload.start_with(self._complete(self.config))
        self.notes += self.config.notes
        self.server.account_keeper = UsersFileKeeper(
            self.users, asyncio.get_running_loop(), bool(self.config.cluster.url)
        )
        self.notes += warn_of_roots(account for _, account in self.server.accounts.users())
        for wanted in self.config.shares:
            share = self.shares.try_make(self.config, wanted, self.notes)
            if share is not None:
                self.server.add_share(share)
        self.namespaces.serve(self.config.namespaces)
        await self._restore_opens()
        await self._restore_shadow_copies()
        await self.server.interfaces.start()
        if self.config.cluster.url:
            self._join_cluster()
        for host in self.config.listen:
            check_address(host)
        hosts = self.config.listen or list(EVERYWHERE)
        if self.config.rdma != "off":
            await self.fabrics.start(self.config.rdma.split(","), hosts, self.config.rdma_port)
            self.server.rdma_addresses = self.fabrics.addresses
        self._listen()
        if self.config.quic is not None:
            await self._listen_on_quic(self.config.quic, hosts)
        if self.cluster is not None:
            await self.cluster.start()
        if self.config.witness is not None:
            await self._start_witness(self.config.witness, hosts)
        if self.config.web is not None:
            await self._open_page(self.config.web)
        if self._privileges is not None:
            self._privileges.drop_start_privileges()
        if self._member is not None:
            self.observing.scraped = self._metrics_of_all
        await self.observing.start()
        await self._open_admin()
        self._tasks = [
            asyncio.create_task(self._look_for_folders()),
            asyncio.create_task(RecycleFolders(self.server).run()),
        ]
        if self._member is not None:
            from smb3server.service.processes.asking import follow_users

            self._tasks.append(asyncio.create_task(follow_users(self.users)))
        if self._machine_account is not None:
            self._tasks.append(asyncio.create_task(self._machine_account.run()))
        if self._membership is not None:
            self._tasks.append(asyncio.create_task(self._membership.run()))
        if self.config.discovery is not None:
            self._announce(self.config.discovery)

    def add_store(self, name: str, store: Backend, read_only: bool = False) -> None:
        """Serve a store of the program's own as the share ``name``, to all users. Call this before or after ``start``.

        The store is used on the event loop's thread and on worker threads, as its contract says, and closed with the
        server. A reload leaves the share as it is. Raises ``ConfigError`` for a name that is taken or not possible.
        """
        check_share_name(name)
        if name.casefold() in self.config.share_names or self.shares.find(name) is not None:
            raise ConfigError(f"share {name}: there is one of this name")
        self.server.add_share(Share(name, backend=store, read_only=read_only))

    def add_namespace(self, namespace: Namespace) -> None:
        """Serve a namespace of the program's own, to all users. Call this before or after ``start``.

        Call it again with other links to change it. A reload leaves it as it is. Raises ``ConfigError`` for a name that
        is taken or not possible.
        """
        check_share_name(namespace.name)
        share = self.shares.find(namespace.name)
        if namespace.name.casefold() in self.config.share_names or (share is not None and share.namespace is None):
            raise ConfigError(f"namespace {namespace.name}: there is a share or a namespace of this name")
        self.namespaces.add(NamespaceConfig(namespace))

    def _complete(self, config: Config) -> Config:
        """Return ``config`` with the shares and links of run time."""
        return self.link_admin.complete(self.share_admin.complete(config))

    def _check_kerberos(self) -> None:
        """Trust the realms of the keytab unless others are named. Raises ``ConfigError``."""
        realms = realms_of_keytab(self.config.settings)
        if self.server.local_accounts.principals is not None and not self.config.settings.trusted_realms:
            self.server.local_accounts.principals.trusted_realms = realms

    def _limit_opens(self) -> None:
        """Limit the opens and the unauthenticated peers so that connections have descriptors left."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            settings = self.config.settings
            spare = min(settings.max_connections + 2 * settings.max_unauthenticated + 256, soft // 2)
            # Unauthenticated peers must not take the descriptors that users' connections need.
            for table in (self.server.silent_peers, self.server.unauthenticated):
                table.limit = min(table.limit, max(spare // 4, 16))
            self.server.opens.limit = (soft - spare) // DESCRIPTORS_PER_OPEN

    def _open_state(self) -> None:
        """Read the ServerGuid, which stays the same over restarts if there is a state directory. [MS-SMB2 3.3.1.5]"""
        if self.config.state is not None:
            self._state = self.stored.state = StateDirectory(self.config.state)
            self.server.server_guid = self._state.guid.bytes_le

    def _choose_domain(self) -> None:
        """Choose the domain of the accounts' SIDs. SIDs are stored with files, so it must not change between runs or
        nodes.
        """
        if self.config.cluster.url:
            seed = _seed(f"cluster {self.config.cluster.name}")
        elif self.config.state is None:
            seed = _seed(f"machine {machine_id()} {self.config.settings.server_name}")
        elif self._member is not None:
            # All processes are one server.
            seed = read_guid(self._member.state).bytes_le[:12]
        else:
            # The state directory keeps the server's GUID.
            seed = self.server.server_guid[:12]
        self.server.local_accounts.domain_seed = seed

    def _join_domain(self) -> None:
        """Know the users of the domain that the configuration names."""
        if self.config.domain is not None:
            # Needs libraries that other servers do not have.
            from smb3server.service.machine_account import MachineAccount
            from smb3server.service.membership import Membership

            self._machine_account = MachineAccount.of(self.config.domain)
            channel = self._machine_account.member if self._machine_account is not None else None
            self._membership = Membership(self.server, self.config.domain, channel)

    async def _restore_opens(self) -> None:
        """Restore the persistent opens of the last run before any client is served."""
        shares = self.server.share_list.values()
        wanted = [share for share in shares if share.rules.continuous_availability and not share.service]
        if wanted:
            await self.stored.serve(wanted, all_shares=not self.shares.down)

    async def _restore_shadow_copies(self) -> None:
        """Serve the shadow copies of the last run. Raises ``ConfigError``."""
        self._shadow_copies.state = self.config.state
        sets = self._shadow_copies.read()
        if sets and self.server.shadow_copies is not None:
            await self.server.shadow_copies.restore(sets)

    def _join_cluster(self) -> None:
        try:
            # aiohttp is an extra, and a server without a cluster starts faster without these modules.
            from smb3server.service.clustering import ClusterNode
        except ImportError as error:
            raise ConfigError(f"--cluster needs {error.name}; {parts.remedy('cluster')}") from error
        self.cluster = ClusterNode(self.server, self.stored.journal(), self.config.cluster, self._fencer)
        self.shares.cluster = self.observing.cluster = self.cluster
        self.cluster.permissions.adopt = self.share_admin.adopt
        self.notes += self.cluster.warnings

    def _fabrics_changed(self) -> None:
        """Announce the addresses at which SMB Direct can be reached now."""
        self.server.rdma_addresses = self.fabrics.addresses
        self.server.interfaces.refresh_soon()

    def _listen(self) -> None:
        self._tcp.open(self.config.listen, self.config.port, self.fabrics.adopt)
        self.server.tcp_addresses = self._tcp.addresses
        self.notes += self._tcp.notes

    async def _start_witness(self, config: WitnessConfig, hosts: list[str]) -> None:
        # Loads impacket, which takes up to a tenth of the start time.
        from smb3server.service.witnessing import start_witness

        events = None if self.cluster is None else self.cluster.events
        self.witness = await start_witness(config, hosts, self.server, events)
        self.server.serves_witness = True
        self.notes += self.witness.service.notes

    def _announce(self, config: DiscoveryConfig) -> None:
        try:
            # An extra, and a server that is not announced starts faster without these modules.
            from smb3server.discovery.announcer import Announcer
        except ImportError as error:
            raise ConfigError(f"[discovery] needs {error.name}; {parts.remedy('discovery')}") from error
        settings = self.config.settings
        self.announcer = Announcer(
            config,
            settings.server_name,
            lambda: self.server.interfaces.interfaces,
            lambda: self.server.tcp_addresses,
            self.listeners[0].address[1],
            self.server.admits,
            self.server.unauthenticated,
            self.shares.for_backups,
        )
        self.server.interfaces.on_refresh = self.shares.on_change = self.announcer.refresh_soon
        self.announcer.start()

    async def _listen_on_quic(self, config: QuicConfig, hosts: list[str]) -> None:
        try:
            # An extra, and a server without QUIC starts faster without these modules.
            from smb3server.service.quic import QuicPorts
        except ImportError as error:
            raise ConfigError(f"[quic] needs {error.name}; {parts.remedy('quic')}") from error
        self.quic = QuicPorts(config, self.config.settings, self._reception)
        optional = () if config.listen or self.config.listen else EVERYWHERE[1:]
        await self.quic.open(config.listen or hosts, optional)

    async def _open_page(self, config: WebConfig) -> None:
        try:
            # An extra, and a server without a page starts faster without these modules.
            from smb3server.service.web_page import start_page
        except ImportError as error:
            raise ConfigError(f"[web] needs {error.name}; {parts.remedy('web')}") from error
        self.web = await start_page(config, self.server, lambda: self._commands)
        self.notes.append(f"web page for administrators: {self.web.url}")

    async def _open_admin(self) -> None:
        """Open the admin socket; note an error and go on, because the server can serve without it."""
        path = socket_path(self.config.state)
        commands = self._commands = {
            "status": self._report,
            "ping": lambda _: {"pid": os.getpid()},
            "users": self.users.list_command,
            "reload_users": self.users.reload_command,
            **process_commands(self.reload, self.on_stop),
            **share_commands(self.share_admin),
            **link_commands(self.link_admin),
            **client_commands(ClientAdmin(self.server)),
            **self.observing.commands(),
        }
        if self.witness is not None:
            commands |= self.witness.admin_commands()
        if self._member is not None:
            from smb3server.service.processes.asking import member_commands

            commands = self._commands = member_commands(self._member, self, commands)
        admin = AdminSocket(path, commands)
        try:
            await admin.start()
        except OSError as error:
            self.notes.append(f"`smb3server status` will not work: {path}: {error.strerror or error}")
            return
        self.admin = admin
        if self._member is not None and not self._member.others:
            # Process 1 speaks for all.
            return
        try:
            admin.announce()
        except OSError as error:
            self.notes.append(f"`smb3server status` and `doctor` find this server by --state only: {error}")

    async def reload(self) -> Outcome:
        """Read the configuration again and apply it. Raises ``ConfigError``: then nothing has changed.

        The outcome and all mistakes are logged.
        """
        async with self.share_admin.lock:
            with self.manager.reloading():
                try:
                    given = self._given if self._read is None else await asyncio.to_thread(self._read)
                    fresh = self._complete(replace(given, accounts=self.users.read_again(given)))
                    outcome = await self._reload.apply(fresh)
                    if self._member is not None:
                        self._member.commit()
                except ConfigError as error:
                    for line in str(error).splitlines():
                        log.error("reload: %s", line)
                    raise
                self._given = given
                self.observing.reloaded(self.config, self._read is not None)
                if self.quic is not None:
                    self.quic.look_again()
                if self._member is not None:
                    from smb3server.service.processes.asking import reload_others

                    await reload_others(self._member, outcome)
        outcome.write_log()
        log.info("configuration reloaded")
        return outcome

    async def _look_for_folders(self) -> None:
        """See which shares lack their folder, and serve those that are down as soon as it is there."""
        while True:
            await asyncio.sleep(LOOK_FOR_FOLDERS)
            # On a thread: a file system that does not answer must not hold up anybody.
            down = await asyncio.to_thread(folders_down, self.config.shares)
            async with self.share_admin.lock:
                await self._reload.bring_up(down)

    async def _metrics_of_all(self) -> bytes:
        """Return the metrics of all processes."""
        command: Any = self._commands["metrics"]
        text: str = (await command({}))["text"]
        return text.encode()

    def _report(self, request: dict[str, Any]) -> Report:
        """Return the report. ``"files": false`` leaves out opens and locks."""
        found = collect(self.server, self.addresses(), request.get("files", True) is not False)
        found.down, found.process = self.shares.down, in_force()
        found.cluster = UNSET if self.cluster is None else self.cluster.report()
        return found

    def addresses(self) -> list[str]:
        """Return the addresses served, as in ``tcp 0.0.0.0:445`` and ``iwarp 0.0.0.0:5445``."""
        served = [("tcp", listener.address) for listener in self.listeners]
        served += [(name, listener.address) for name, listener in self.fabrics.listeners]
        if self.quic is not None:
            served += [("quic", listener.address) for listener in self.quic.listeners]
        if self.witness is not None:
            served += [("witness", (host, self.witness.service.port)) for host in self.witness.service.settings.listen]
        return [f"{kind} {f'[{host}]' if ':' in host else host}:{port}" for kind, (host, port) in served]

    async def stop(self) -> None:
        """Stop listening, finish requests in flight, close opens and connections. ``stopping`` says how far this is."""
        self.stopping = "its own tasks"
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.stopping = "connections of administrators, of the web page and of witness clients"
        if self.admin is not None:
            await self.admin.close()
        if self.web is not None:
            await self.web.stop()
        if self.announcer is not None:
            await self.announcer.stop()
        if self.witness is not None:
            await self.witness.stop()
        self.stopping = "ports"
        await self._tcp.close()
        await self.fabrics.close()
        if self.quic is not None:
            await self.quic.close()
        self.stopping = "the cluster"
        if self.cluster is not None:
            await self.cluster.stop()
        if self.server.shadow_copies is not None:
            self.server.shadow_copies.close()
        if self._membership is not None:
            self._membership.close()
        if self._machine_account is not None:
            self._machine_account.close()
        # The server is no longer a node, so its last responses need no fence.
        self.server.fence = None
        self.stopping = "requests and files of clients"
        await self.server.shutdown()
        if self.quic is not None:
            self.quic.end()
        self.stopping = "opens that are being stored"
        await self.stored.drain()
        await self.stored.close()
        self.stopping = "the cluster"
        if self.cluster is not None:
            await self.cluster.close()
        self.stopping = "the list of interfaces, and logs"
        await self.server.interfaces.stop()
        await self.observing.close()
        if self._state is not None:
            self._state.release()
            self._state = None


def _seed(text: str) -> bytes:
    """Make the seed of a domain's SIDs from a text that never changes."""
    return hashlib.sha256(text.encode()).digest()[:12]
