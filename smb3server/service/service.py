"""A server with its shares and listeners: what the command starts and stops."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import resource
import uuid
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from smb3server.auth.acceptor import kerberos_available, keytab_realms
from smb3server.auth.users import UserDatabase
from smb3server.backends.base import User
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.commands import load
from smb3server.commands.info.presentation import hider
from smb3server.config.checks import check_address
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.net.host import ROOT, machine_id, overlapping, port_owners
from smb3server.net.listener import TcpListener
from smb3server.persistence.journal import Domain, Persistence
from smb3server.persistence.restore import restore
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import Store, StoreError
from smb3server.process.state_lock import StateLock
from smb3server.server.server import Server
from smb3server.service import stand_in
from smb3server.service.listeners import Fabrics
from smb3server.service.privileges import Privileges, in_force
from smb3server.settings.witness import WitnessConfig
from smb3server.state.share import Share, ShareCapabilities, ShareFlags, ShareType
from smb3server.status.admin_socket import AdminSocket, Command, socket_path
from smb3server.status.report import collect

if TYPE_CHECKING:
    from smb3server.cluster.cluster import Cluster
    from witness.cluster import ClusterEvents
    from witness.setup import Witness

log = logging.getLogger(__name__)

DEFAULT_PORT, UNPRIVILEGED_PORT = 445, 1445
MAX_DESCRIPTORS = 1 << 17
DESCRIPTORS_PER_OPEN = 2
"""A directory that is being listed has one more."""
_GUID_FILE = "server-guid"
_STORE_FILE = "handles.db"


class Service:
    """``start`` it, then ``stop`` it, once."""

    def __init__(self, config: Config, privileges: Privileges | None = None) -> None:
        """``privileges`` of the process, if it is this service's own; None: they stay as they are."""
        self.config = config
        self._privileges = privileges
        users = UserDatabase()
        for account in config.accounts:
            users.add(account)
        load()
        self.server = Server(config.settings, users)
        self.persistence: Persistence | None = None
        """Stores persistent opens; None where there are none."""
        self.listeners: list[TcpListener] = []
        self.fabrics = Fabrics(self.server)
        self.admin: AdminSocket | None = None
        self._state_lock: StateLock | None = None
        self.cluster: Cluster | None = None
        self._cluster_store: Store | None = None
        self._cannot_tickle = ""
        """Why clients of a node that died silently are not told (``ha.tickle``)."""
        self.store: Store | None = None
        """Of persistent opens."""
        self.witness: Witness | None = None
        self.cluster_events: ClusterEvents | None = None
        """What the Witness service speaks for; set before ``start``. None: the administrator speaks."""
        self.server.rdma = config.rdma
        self.server.rdma_choices = self.fabrics.choices
        self.notes: list[str] = []
        """What the operator should know: ports other than the usual ones, fabrics that are not served."""

    async def start(self) -> None:
        """Raises ``ConfigError``, ``OSError`` or ``ProviderError``."""
        self._check_kerberos()
        self._raise_descriptor_limit()
        self._state()
        self._domain()
        self._shares()
        await self._persistent_opens()
        await self.server.interfaces.start()
        await self._join_cluster()
        hosts = self._hosts()
        if self.config.rdma != "off":
            await self.fabrics.start(self.config.rdma.split(","), hosts, self.config.rdma_port)
        self._listen(hosts)
        if self.cluster is not None:
            await self.cluster.start()
        if self.config.witness is not None:
            await self._start_witness(self.config.witness, hosts)
        if self._privileges is not None:
            self._privileges.settle()
        await self._open_admin()

    async def _start_witness(self, config: WitnessConfig, hosts: list[str]) -> None:
        """The Witness service is imported where it is wanted, and only there."""
        from witness.setup import Witness

        server = self.server
        self.witness = Witness(
            config,
            config.listen or hosts,
            server.settings.server_name,
            server.new_rpc_acceptor,
            server.unauthenticated,
            lambda: [share.name for share in server.share_list.values() if share.type == ShareType.DISK],
            lambda: [entry.address for entry in server.interfaces.interfaces],
            self.cluster_events,
            server.settings.hosts.admits,
        )
        try:
            await self.witness.start()
        except OSError as error:
            raise ConfigError(f"[witness]: cannot listen on {error.filename}: {error.strerror}") from error
        self.notes += self.witness.service.notes
        if config.nodes or self.cluster_events is not None:
            # MS-SMB2 2.2.10: what has clients look for a Witness service.
            for share in server.share_list.values():
                if share.type == ShareType.DISK:
                    share.capabilities |= ShareCapabilities.CLUSTER

    def _raise_descriptor_limit(self) -> None:
        """As many descriptors as the process may have, and no more opens than leave some for connections."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        if soft != resource.RLIM_INFINITY:
            settings = self.config.settings
            spare = min(settings.max_connections + 2 * settings.max_unauthenticated + 256, soft // 2)
            # Strangers must not take the descriptors that users' connections need.
            for table in (self.server.silent_peers, self.server.unauthenticated):
                table.limit = min(table.limit, max(spare // 4, 16))
            self.server.opens.limit = (soft - spare) // DESCRIPTORS_PER_OPEN

    def _check_kerberos(self) -> None:
        """A keytab that cannot be used is an error now, not at every logon."""
        keytab = self.config.settings.keytab
        if not keytab:
            return
        problem = kerberos_available()
        if problem is not None:
            raise ConfigError(f"keytab {keytab}: {problem}")
        try:
            realms = keytab_realms(keytab)
        except ValueError as error:
            raise ConfigError(f"keytab {keytab}: {error}") from error
        if self.server.principals is not None and not self.config.settings.trusted_realms:
            self.server.principals.trusted_realms = realms

    async def _open_admin(self) -> None:
        """A server that nobody can ask still serves."""
        path = socket_path(self.config.state)
        commands: dict[str, Command] = {
            "status": lambda _: {**collect(self.server, self.addresses()), "process": in_force()},
            "ping": lambda _: {"pid": os.getpid()},
        }
        if self.witness is not None:
            commands |= self.witness.admin_commands()
        admin = AdminSocket(path, commands)
        try:
            await admin.start()
        except OSError as error:
            self.notes.append(f"`smb3server status` will not work: {path}: {error.strerror or error}")
            return
        self.admin = admin
        try:
            admin.announce()
        except OSError as error:
            self.notes.append(f"`smb3server status` and `doctor` find this server by --state only: {error}")

    def _state(self) -> None:
        """3.3.1.5: ServerGuid stays the same over restarts where there is a place to keep it."""
        state = self.config.state
        if state is None:
            return
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._state_lock = StateLock(state)
            path = state / _GUID_FILE
            if path.exists():
                self.server.server_guid = uuid.UUID(path.read_text().strip()).bytes_le
            else:
                guid = uuid.uuid4()
                path.write_text(f"{guid}\n")
                self.server.server_guid = guid.bytes_le
        except BlockingIOError as error:
            raise ConfigError(f"state directory {state}: {error.strerror}") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"state directory {state}: {error}") from error

    def _domain(self) -> None:
        """SIDs of accounts are stored with files: they have to be the same in the next run, and on all nodes."""
        if self.config.cluster.url:
            seed = _seed(f"cluster {self.config.cluster.name}")
        elif self.config.state is None:
            seed = _seed(f"machine {machine_id()} {self.config.settings.server_name}")
        else:
            # The state directory keeps the server's GUID.
            seed = self.server.server_guid[:12]
        self.server.accounts.domain_seed = seed

    def _shares(self) -> None:
        for account in self.server.users:
            if account.user is not None and account.user.uid == 0:
                self.notes.append(
                    f"user {account.name}: unix_user is root, so this user may do everything in every share"
                )
        for share in self.config.shares:
            sidecar: Path | None = None
            if self.config.state is not None and not share.service:
                sidecar = self.config.state / "sidecar" / share.name
                try:
                    sidecar.parent.mkdir(mode=0o700, exist_ok=True)
                except OSError as error:
                    raise ConfigError(f"state directory {self.config.state}: {error}") from error
            options = LocalOptions(
                read_only=share.never_written,
                sidecar=str(sidecar) if sidecar else None,
                xattrs=self.config.xattrs,
                symlinks=share.symlinks,
            )
            try:
                if sidecar is not None:
                    sidecar.parent.mkdir(mode=0o700, exist_ok=True)
                backend = LocalBackend(share.path, options)
            except OSError as error:
                raise ConfigError(f"share {share.name}: {error}") from error
            self.server.add_share(
                Share(
                    share.name,
                    backend=backend,
                    path=str(share.path),
                    remark=share.remark,
                    read_only=share.never_written,
                    encrypt_data=share.encrypt,
                    guest_ok=share.guest,
                    users=share.users,
                    read_list=share.read_list,
                    write_list=share.write_list if share.read_only else None,
                    hosts=share.hosts,
                    user=share.force_user,
                    default_user=self._default_user(share),
                    hidden=share.hidden or share.name.endswith("$"),
                    keep_inherited_flag=share.keep_inherited_flag,
                    strict_allocate=share.strict_allocate,
                    posix_locks=share.posix_locks,
                    level2_oplocks=share.level2_oplocks,
                    change_notify=share.change_notify,
                    streams=share.streams,
                    continuous_availability=share.continuous_availability,
                    service=share.service,
                    capabilities=_capabilities(share),
                    hides=hider(share.hide_files, share.hide_dot_files),
                    flags=ShareFlags.ACCESS_BASED_DIRECTORY_ENUM if share.access_based_enumeration else 0,
                )
            )

    def _default_user(self, share: ShareConfig) -> User | None:
        """Nobody acts as root unless the configuration says so. Raises ``ConfigError``."""
        if not running_as_root():
            return None
        if share.force_user is not None:
            if share.force_user.uid == 0:
                self.notes.append(
                    f"share {share.name}: force_user is root, so every user of the share may do everything in it"
                )
            return None
        try:
            user = stand_in.find(share.path)
            lacking = stand_in.lacks(share.path, user, share.never_written)
        except OSError as error:
            raise ConfigError(f"share {share.name}: {share.path}: {error.strerror}") from error
        allowed = [account for account in self.server.users if share.admits(account.name)]
        if not (share.guest or any(account.user is None for account in allowed)):
            return user
        name = stand_in.name_of(user)
        note = f"share {share.name}: guests and users without unix_user act as {name}"
        if lacking:
            note += (
                f", who may not {lacking} there; remedy: chown {name} {quote(str(share.path))}, or set the share's "
                "force_user, or the users' unix_user"
            )
        self.notes.append(note)
        return user

    async def _persistent_opens(self) -> None:
        """Shares with continuous availability: their opens of the last run come back before anybody is served."""
        wanted = {
            share.name.casefold() for share in self.config.shares if share.continuous_availability and not share.service
        }
        if not wanted or self.config.state is None:
            return
        try:
            self.store = await SqliteStore.open(self.config.state / _STORE_FILE)
        except StoreError as error:
            raise ConfigError(f"state directory {self.config.state}: {error}") from error
        domain = Domain(self.store, "")
        shares = [share for name, share in self.server.share_list.items() if name in wanted]
        self._keep_opens().serve(domain, shares)
        try:
            count = await restore(self.server, domain, shares)
        except StoreError as error:
            raise ConfigError(f"state directory {self.config.state}: {error}") from error
        if count:
            log.info("%d persistent opens restored", count)

    def _keep_opens(self) -> Persistence:
        """Return what stores persistent opens, which the server uses from now on."""
        if self.persistence is None:
            self.persistence = self.server.opens.persistence = Persistence()
        return self.persistence

    async def _join_cluster(self) -> None:
        """What a cluster needs is imported where there is one."""
        config = self.config.cluster
        if not config.url:
            return
        try:
            from smb3server.persistence.open_store import open_store
        except ImportError as error:
            raise ConfigError(f"--cluster needs {error.name}: install smb3server[cluster]") from error
        from smb3server.cluster import tickle
        from smb3server.cluster.cluster import Cluster
        from smb3server.cluster.witness_source import WitnessSource
        from smb3server.settings import store_access

        self._cannot_tickle = tickle.why_not()
        if self._cannot_tickle and any(service.addresses for service in config.services):
            log.warning(
                "this node cannot notify clients that only wait when it takes over from a silent node: %s",
                self._cannot_tickle,
            )
        for warning in store_access.warnings(config.url, config.access):
            self.notes.append(warning)
            log.warning("%s", warning)
        store = self._cluster_store = open_store(config.url, config.name, config.access)
        self.cluster = Cluster(self.server, self._keep_opens(), store, config, self._node_info, store.refused)
        self.cluster_events = WitnessSource(self.cluster, self.server)

    def _node_info(self) -> dict[str, Any]:
        """What other nodes' Witness services tell clients of this one, and what administrators see."""
        virtual = {str(entry.address) for service in self.config.cluster.services for entry in service.addresses}
        found = [str(entry.address) for entry in self.server.interfaces.interfaces if not entry.loopback]
        return {
            "pid": os.getpid(),
            "addresses": [address for address in found if address not in virtual],
            "services": [service.name for service in self.config.cluster.services],
            "cannot_tickle": self._cannot_tickle,
        }

    def _hosts(self) -> list[str]:
        if not self.config.listen:
            return ["0.0.0.0", "::"]
        for host in self.config.listen:
            check_address(host)
        return self.config.listen

    def _listen(self, hosts: list[str]) -> None:
        self.server.tcp_addresses.clear()
        port = DEFAULT_PORT if self.config.port is None else self.config.port
        for host in hosts:
            try:
                self._listen_on(host, port)
            except PermissionError:
                if self.config.port is not None:
                    raise ConfigError(
                        f"TCP port {port}: ports below 1024 need root or CAP_NET_BIND_SERVICE; remedy: --port "
                        f"{UNPRIVILEGED_PORT}"
                    ) from None
                port = UNPRIVILEGED_PORT
                self.notes.append(
                    f"ports below 1024 need root or CAP_NET_BIND_SERVICE: using {port} instead of {DEFAULT_PORT}"
                )
                self._listen_on(host, port)
            except OSError as error:
                # Machines without IPv6 serve IPv4 only, unless IPv6 was asked for.
                if self.config.listen or ":" not in host or error.errno == errno.EADDRINUSE:
                    raise ConfigError(_why_not(error, host, port)) from error
                log.info("not listening on %s: %s", host, error)
            if port == 0:
                port = self.listeners[0].address[1]

    def _listen_on(self, host: str, port: int) -> None:
        settings = self.config.settings
        self.listeners.append(
            TcpListener(
                host,
                port,
                self.server.buffers,
                self.server.accept,
                settings.max_message_before_authentication,
                self.fabrics.adopt,
                settings.negotiate_timeout,
                self.server.silent_peers,
                settings.hosts.admits,
            )
        )
        self.server.tcp_addresses.add(self.listeners[-1].address[0])

    def addresses(self) -> list[str]:
        """What is served where: ``tcp 0.0.0.0:445``, ``iwarp 0.0.0.0:5445``."""
        served = [("tcp", listener.address) for listener in self.listeners]
        served += [(name, listener.address) for name, listener in self.fabrics.listeners]
        if self.witness is not None:
            served += [("witness", (host, self.witness.service.port)) for host in self.witness.service.settings.listen]
        return [f"{kind} {f'[{host}]' if ':' in host else host}:{port}" for kind, (host, port) in served]

    async def stop(self) -> None:
        """Stop listening, finish requests in flight, close opens and connections."""
        if self.admin is not None:
            await self.admin.close()
        if self.witness is not None:
            await self.witness.stop()
        for listener in self.listeners:
            await listener.close()
        await self.fabrics.close()
        if self.cluster is not None:
            await self.cluster.stop()
        # Not a node any more: what is left to say is said.
        self.server.fence = None
        await self.server.shutdown()
        if self.persistence is not None:
            await self.persistence.drain()
            self.persistence.close()
        for store in (self.store, self._cluster_store):
            if store is not None:
                await store.close()
        await self.server.interfaces.stop()
        if self._state_lock is not None:
            self._state_lock.release()
            self._state_lock = None


def _seed(text: str) -> bytes:
    """Make the seed of a domain's SIDs from a text that never changes."""
    return hashlib.sha256(text.encode()).digest()[:12]


def _why_not(error: OSError, host: str, port: int) -> str:
    """Why a TCP port cannot be listened on, and what to do."""
    where = f"TCP port {port} on {host}"
    if error.errno == errno.EADDRINUSE:
        owner = overlapping(port_owners([("tcp", port)], ROOT), "tcp", host, port)
        if owner is None:
            return f"{where} is in use; remedy: find the owner with `ss -lntp 'sport = :{port}'` (as root)"
        if owner.pid == os.getpid():
            return f"{where} is already this server's own: --listen and --rdma-port must not overlap with it"
        return f"{where} belongs to {owner}; remedy: stop it or choose another one with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where}: this machine does not have the address (`ip address` shows those it has)"
    return f"{where}: {error.strerror}"


def _capabilities(share: ShareConfig) -> int:
    """2.2.10. What moves between nodes has clients look for a Witness service, and says that they may be redirected."""
    found = int(ShareCapabilities.CONTINUOUS_AVAILABILITY) if share.continuous_availability else 0
    if share.service:
        found |= ShareCapabilities.CLUSTER
    return found


def running_as_root() -> bool:
    return os.geteuid() == 0
