"""The contents of the command line and the configuration file, as one ``Config``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from smb3server.auth.users import Account
from smb3server.backends.base import User
from smb3server.dfs.namespace import Namespace
from smb3server.net.host_lists import EVERYBODY, HostLists
from smb3server.settings.cluster import ClusterConfig
from smb3server.settings.discovery import DiscoveryConfig
from smb3server.settings.domain import DomainConfig
from smb3server.settings.observing import LogSettings, MetricsSettings, TraceConfig
from smb3server.settings.quic import QuicConfig
from smb3server.settings.server import Settings
from smb3server.settings.share import ConnectionRules, ShareRules
from smb3server.settings.web import WebConfig
from smb3server.settings.witness import WitnessConfig


class ShareConfig(ShareRules):
    """One share, as configured: its rules, and what was made of its other keys."""

    name: str
    path: Path
    require_mount: bool = False
    process: int = 0
    """The process that has to serve it, from 1. 0 means any."""
    users: frozenset[str] | None = None
    read_list: frozenset[str] = frozenset()
    write_list: frozenset[str] = frozenset()
    hosts: HostLists = EVERYBODY
    service: str = ""
    hide_files: tuple[str, ...] = ()
    veto_files: tuple[str, ...] = ()
    create_mask: int | None = None
    directory_mask: int | None = None
    force_create_mode: int = 0
    force_directory_mode: int = 0
    recycle_exclude: tuple[str, ...] = ()
    force_user: User | None = None
    audit: frozenset[str] = frozenset()
    """Kinds of events that are recorded (``state.audit.KINDS``)."""

    def admits(self, account: Account) -> bool:
        """Return whether the share's ``users`` include this account. None includes all."""
        return self.users is None or account.identity.is_on(self.users)

    @property
    def never_written(self) -> bool:
        """Whether no user can write to the share."""
        return self.read_only and not self.write_list


class NamespaceConfig(ConnectionRules):
    """One namespace, as configured or as a program gives it."""

    namespace: Namespace
    users: frozenset[str] | None = None
    hosts: HostLists = EVERYBODY

    @property
    def name(self) -> str:
        """The share by which clients reach it."""
        return self.namespace.name


class Part(NamedTuple):
    """One of the processes that serve the shares of one configuration."""

    number: int
    """From 1."""
    main_state: Path
    """The state directory of the whole server, which is that of process 1."""


@dataclass(slots=True)
class Config:
    """The whole configuration of one server."""

    shares: list[ShareConfig] = field(default_factory=list)
    accounts: list[Account] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    listen: list[str] = field(default_factory=list)
    """Addresses to listen on; empty means all."""
    processes: int = 1
    """How many processes serve the shares."""
    process_addresses: list[str] = field(default_factory=list)
    """An address for each process. Empty means ``listen``, or else the addresses of this machine."""
    part: Part | None = None
    """Which process's this is. None means that of the whole server."""
    port: int | None = None
    """TCP port. None means 445, or one above 1024 if the process may not bind 445."""
    rdma: str = "off"
    rdma_port: int | None = None
    """SMB Direct port. None means the usual ones of each fabric."""
    state: Path | None = None
    run_as: str = ""
    """Name of the host's user that the server becomes. Empty means that it does not change its user."""
    drop_privileges: str = ""
    """Name of the host's user that the server becomes, without any right to act as others. ``owner`` means the owner of
    the shares' folders. Empty means that it keeps what it needs to act as users."""
    allow_root: bool = False
    """Whether users may act as root on the host."""
    sandbox: bool = False
    xattrs: str = "auto"
    """Namespace of extended attributes, as in ``LocalOptions.xattrs``."""
    secret_files: list[Path] = field(default_factory=list)
    """Configuration files that contain passwords or hashes."""
    command_line_passwords: list[str] = field(default_factory=list, repr=False)
    """Values ``NAME:PASSWORD`` as given on the command line."""
    users_file: Path | None = None
    """File with accounts that can be changed while the server runs. It need not exist yet."""
    notes: list[str] = field(default_factory=list)
    """What the operator should know about the configuration, although the server starts with it."""
    log_level: str = "info"
    """As ``process.log_levels.parse`` reads it."""
    log: LogSettings = field(default_factory=LogSettings)
    metrics: MetricsSettings | None = None
    """None means that nothing is counted for Prometheus."""
    traces: list[TraceConfig] = field(default_factory=list)
    """Clients whose messages are written to files from the start on."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    witness: WitnessConfig | None = None
    homes: ShareConfig | None = None
    """The template of home shares. Its path has ``{user}`` for the user's name. None means that there are none."""
    discovery: DiscoveryConfig | None = None
    web: WebConfig | None = None
    quic: QuicConfig | None = None
    domain: DomainConfig | None = None
    """The domain that the server belongs to. None means none."""
    namespaces: list[NamespaceConfig] = field(default_factory=list)

    @property
    def share_names(self) -> frozenset[str]:
        """The names of shares and namespaces, case-folded."""
        namespaces = (entry.name for entry in self.namespaces)
        return frozenset(name.casefold() for name in (*(share.name for share in self.shares), *namespaces))

    @property
    def keeps_users(self) -> bool:
        """Whether there is a users file, so that users come and go while the server runs."""
        return self.users_file is not None and os.path.exists(self.users_file)
