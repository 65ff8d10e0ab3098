"""Make the server's own objects from what the configuration file says."""

from __future__ import annotations

import ipaddress
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

import msgspec

from smb3server.auth.groups import Groups
from smb3server.auth.password_rules import EMPTY_HASH
from smb3server.auth.users import Account, nt_hash, parse_hash, parse_principal
from smb3server.backends.base import User
from smb3server.config import schema
from smb3server.config.error import ConfigError, Problems
from smb3server.config.membership import membership
from smb3server.config.model import Config, NamespaceConfig, ShareConfig
from smb3server.config.sections import keys_of
from smb3server.config.sources.host_users import user_to_become
from smb3server.config.sources.passwords import read_password
from smb3server.config.sources.users import default_users_file, read_accounts
from smb3server.config.values import (
    check_address,
    check_share_name,
    parse_fingerprint,
    parse_rdma,
    snapshot_pattern,
    split_folder,
    unix_user,
)
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.dfs.namespace import Link, Namespace, Site, Target
from smb3server.net.host_lists import EVERYBODY, HostLists
from smb3server.net.host_lists import parse as parse_hosts
from smb3server.net.store_access import StoreAccess
from smb3server.process import log_levels
from smb3server.settings.cluster import ClusterConfig, ServiceConfig, VirtualAddress
from smb3server.settings.discovery import DiscoveryConfig
from smb3server.settings.limits import MESSAGE_OVERHEAD, Limits
from smb3server.settings.observing import LogSettings, MetricsSettings
from smb3server.settings.quic import QuicConfig
from smb3server.settings.server import Settings
from smb3server.settings.share import ConnectionRules, ShareRules
from smb3server.settings.storage_policies import StoragePolicy
from smb3server.settings.web import WebConfig
from smb3server.settings.witness import WitnessConfig
from smb3server.wire.address import Address
from smb3server.wire.compression import NAMES
from smb3server.wire.negotiate import DIALECT_NAMES
from smb3server.wire.rdma_transform import RdmaTransformId

DIALECTS = {name: dialect for dialect, name in DIALECT_NAMES.items()}
CIPHERS = {
    "AES-128-GCM": Cipher.AES_128_GCM,
    "AES-256-GCM": Cipher.AES_256_GCM,
    "AES-128-CCM": Cipher.AES_128_CCM,
    "AES-256-CCM": Cipher.AES_256_CCM,
}
SIGNING = {
    "AES-GMAC": SigningAlgorithm.AES_GMAC,
    "AES-CMAC": SigningAlgorithm.AES_CMAC,
    "HMAC-SHA256": SigningAlgorithm.HMAC_SHA256,
}
COMPRESSION = {name: algorithm for algorithm, name in NAMES.items()}
RDMA_TRANSFORMS = {"encryption": RdmaTransformId.ENCRYPTION, "signing": RdmaTransformId.SIGNING}
SERVER = "[server]"


def _as_they_are() -> tuple[str, ...]:
    """Return the keys of [server] that are fields of ``Settings`` with the same name and type."""
    kinds = {entry.name: entry.type for entry in msgspec.structs.fields(Settings)}
    return tuple(key.name for key in keys_of(schema.Server).values() if kinds.get(key.name) == key.kind)


AS_THEY_ARE = _as_they_are()


def build(document: schema.Document, problems: Problems, own_users: bool = True) -> Config:
    """Make a configuration. What cannot be made is noted in ``problems`` and left out.

    ``own_users``: whether the accounts of the users file are read, too.
    """
    config = Config()
    builder = _Builder(config, problems)
    builder.server(document.server, document.groups)
    builder.limits(document.limits)
    if document.domain is not None:
        config.domain = membership(document.domain, config, problems)
    config.shares = list(builder.shares(document.share))
    if document.homes is not None:
        config.homes = builder.homes(document.homes)
    config.namespaces = list(builder.namespaces(document.namespace, tuple(builder.sites(document.site))))
    config.settings.storage_policies = tuple(builder.storage_policies(document.storage_policy))
    if config.drop_privileges:
        with problems.of(SERVER, "drop_privileges"):
            config.run_as = user_to_become(config.drop_privileges, config.run_as, config.shares)
    if own_users:
        builder.users_file(document.server)
    config.accounts += builder.accounts(document.user)
    config.cluster = builder.cluster(document.cluster)
    config.cluster.services = [builder.service(entry) for entry in document.service]
    if document.witness is not None:
        config.witness = builder.witness(document.witness)
    builder.log(document.server, document.log or schema.Log())
    if document.metrics is not None:
        config.metrics = MetricsSettings(document.metrics.listen, document.metrics.port)
    if document.web is not None:
        config.web = builder.web(document.web)
    if document.quic is not None:
        config.quic = builder.quic(document.quic)
    if document.discovery is not None:
        found = document.discovery
        config.discovery = DiscoveryConfig(
            found.mdns, found.ws_discovery, found.interfaces, found.workgroup, found.model
        )
    return config


def build_share(section: schema.Share, config: Config, problems: Problems) -> ShareConfig:
    """Make one share, with the groups of ``config``."""
    return _Builder(config, problems).share(section)


def build_cluster(section: schema.Cluster) -> ClusterConfig:
    """Make the settings of a cluster, without its services."""
    access = StoreAccess(
        _path(section.ca),
        _path(section.cert),
        _path(section.key),
        section.user or "",
        _path(section.password_file),
        _path(section.secret_file),
        section.unauthenticated_store,
    )
    return ClusterConfig(
        section.etcd or "",
        section.node or "",
        section.name,
        section.ttl,
        section.max_stall or 0.0,
        access,
        section.fence_command,
        section.fence_timeout,
        section.storage_timeout,
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


class _Builder:
    def __init__(self, config: Config, problems: Problems) -> None:
        self._config = config
        self._settings = config.settings
        self._problems = problems

    def server(self, section: schema.Server, groups: Mapping[str, list[str]]) -> None:
        config, settings, problems = self._config, self._settings, self._problems
        for name in AS_THEY_ARE:
            setattr(settings, name, getattr(section, name))
        settings.server_name = section.name or settings.server_name
        settings.allow_guest = section.guest
        settings.allow_anonymous = section.anonymous
        settings.keytab = section.keytab or ""
        settings.min_dialect = DIALECTS[section.min_dialect]
        settings.rdma_min_dialect = DIALECTS[section.rdma_min_dialect]
        settings.max_dialect = DIALECTS[section.max_dialect]
        settings.ciphers = tuple(CIPHERS[name] for name in section.ciphers)
        settings.signing_algorithms = tuple(SIGNING[name] for name in section.signing_algorithms)
        settings.rdma_transforms = tuple(RDMA_TRANSFORMS[name] for name in section.rdma_transforms)
        settings.compression = tuple(COMPRESSION[name] for name in section.compression)
        settings.trusted_realms = tuple(section.trusted_realms)
        with problems.of("[groups]", ""):
            settings.groups = Groups(groups)
        settings.admins = self._names(SERVER, "admins", section.admins) or frozenset()
        settings.security_operators = self._names(SERVER, "security_operators", section.security_operators)
        settings.backup_operators = self._names(SERVER, "backup_operators", section.backup_operators) or frozenset()
        settings.unknown_principals = self._unknown_principals(section.unknown_principals)
        settings.hosts = self._hosts(SERVER, section)
        settings.share_folders = tuple(section.share_folders)
        config.listen = section.listen
        self._check_listen(SERVER, section.listen)
        config.processes = section.processes
        config.process_addresses = section.process_addresses
        self._check_listen(SERVER, section.process_addresses, "process_addresses")
        config.port = section.port
        config.rdma_port = section.rdma_port
        with problems.of(SERVER, "rdma"):
            config.rdma = parse_rdma(section.rdma)
        config.state = _path(section.state)
        config.run_as = section.run_as or ""
        config.sandbox = section.sandbox
        config.xattrs = section.xattrs
        config.drop_privileges = section.drop_privileges or ""
        config.allow_root = section.allow_root

    def log(self, server: schema.Server, section: schema.Log) -> None:
        config = self._config
        given = {name: getattr(section, name) for name in keys_of(schema.Log)}
        components = {name: level for name, level in given.items() if level is not None}
        # The command line may name components, too. It wins.
        with self._problems.of(SERVER, "log_level"):
            config.log_level = str(log_levels.parse(server.log_level, log_levels.Levels("info", components)))
        config.log = LogSettings(server.log_format, _path(server.log_file), _path(server.audit_file))

    def limits(self, section: Limits) -> None:
        for name in keys_of(Limits):
            setattr(self._settings, name, getattr(section, name))
        self._settings.max_message_size = max(Settings().max_message_size, section.max_io_size + MESSAGE_OVERHEAD)

    def shares(self, sections: Iterable[schema.Share]) -> Iterable[ShareConfig]:
        for section in sections:
            yield self.share(section)

    def share(self, section: schema.Share) -> ShareConfig:
        owner = f"share {section.name}"
        with self._problems.of(owner, "name"):
            check_share_name(section.name)
        return self._share(owner, section.name, section)

    def homes(self, section: schema.Homes) -> ShareConfig:
        if "{user}" not in section.path:
            self._problems.add("[homes]", "path", "must have {user} for the name of the user")
        return self._share("[homes]", "homes", section)

    def storage_policies(self, sections: Iterable[schema.StoragePolicy]) -> Iterable[StoragePolicy]:
        seen: set[uuid.UUID] = set()
        for section in sections:
            owner = f"storage_policy {section.name}"
            with self._problems.of(owner, "id"):
                policy_id = uuid.UUID(section.id)
                if policy_id in seen or not policy_id.int:
                    raise ValueError("two policies have it, or it is the one of no policy")
                seen.add(policy_id)
                rates = section.minimum_iops, section.maximum_iops, section.maximum_bandwidth
                yield StoragePolicy(policy_id.bytes_le, section.name, *rates)

    def sites(self, sections: Iterable[schema.Site]) -> Iterable[Site]:
        for section in sections:
            with self._problems.of(f"site {section.name}", "networks"):
                yield Site(section.name, parse_hosts(section.networks), tuple(section.nearest))

    def namespaces(self, sections: Iterable[schema.Namespace], sites: tuple[Site, ...]) -> Iterable[NamespaceConfig]:
        for section in sections:
            owner = f"namespace {section.name}"
            with self._problems.of(owner, "name"):
                check_share_name(section.name)
            servers, links = [], []
            with self._problems.of(owner, "servers"):
                servers = list(map(Target.parse, section.servers))
            for entry in section.link:
                with self._problems.of(owner, "link"):
                    links.append(Link.make(entry.path, entry.targets, entry.comment, entry.ttl, entry.failback))
            with self._problems.of(owner, "link"):
                yield NamespaceConfig(
                    Namespace(section.name, tuple(links), section.ttl, section.failback, tuple(servers), sites),
                    self._names(owner, "users", section.users),
                    self._hosts(owner, section),
                    **{key: getattr(section, key) for key in keys_of(ConnectionRules)},
                )

    def _share(self, owner: str, name: str, section: schema.Share | schema.Homes) -> ShareConfig:
        if section.recycle:
            with self._problems.of(owner, "recycle_folder"):
                split_folder(section.recycle_folder)
        with self._problems.of(owner, "snapshots"):
            snapshot_pattern(section.snapshots, section.path, section.snapshot_times)
        return ShareConfig(
            name,
            Path(section.path),
            isinstance(section, schema.Share) and section.require_mount,
            section.process if isinstance(section, schema.Share) else 0,
            **{key: getattr(section, key) for key in keys_of(ShareRules)},
            hide_files=tuple(section.hide_files),
            veto_files=tuple(section.veto_files),
            recycle_exclude=tuple(section.recycle_exclude),
            users=self._names(owner, "users", section.users),
            read_list=self._names(owner, "read_list", section.read_list) or frozenset(),
            write_list=self._names(owner, "write_list", section.write_list) or frozenset(),
            hosts=self._hosts(owner, section),
            service=section.service or "",
            audit=frozenset(section.audit_events or get_args(schema.AuditEvent)) if section.audit else frozenset(),
            create_mask=None if section.create_mask is None else int(section.create_mask, 8),
            directory_mask=None if section.directory_mask is None else int(section.directory_mask, 8),
            force_create_mode=int(section.force_create_mode, 8),
            force_directory_mode=int(section.force_directory_mode, 8),
            force_user=self._unix_user(owner, "force_user", section.force_user, shared=True),
        )

    def accounts(self, sections: Iterable[schema.User]) -> Iterable[Account]:
        for account in self._accounts(sections):
            if account.nt_hash == EMPTY_HASH:
                text = "the password is empty; remedy: give it one, or let guests in with guest = true"
                self._problems.add(f"user {account.name}", "password", text)
            yield account

    def _accounts(self, sections: Iterable[schema.User]) -> Iterable[Account]:
        for section in sections:
            owner = f"user {section.name}"
            if not section.name:
                self._problems.add(owner, "name", "must not be empty")
            given = (section.password, section.nt_hash, section.password_file)
            if given.count(None) != 2:
                if not self._problems.concern(f"{owner}: password", f"{owner}: nt_hash"):
                    self._problems.add(owner, "", "one of password, nt_hash and password_file is needed")
                continue
            file = Path(self._problems.place(owner).file or "")
            if section.password_file is None and file.name and file not in self._config.secret_files:
                self._config.secret_files.append(file)
            user = self._unix_user(owner, "unix_user", section.unix_user)
            if section.principal:
                with self._problems.of(owner, "principal"):
                    parse_principal(section.principal)
            if section.nt_hash is not None:
                yield Account(section.name, parse_hash(section.nt_hash), user, section.principal or "")
            elif section.password is not None:
                yield Account(section.name, nt_hash(section.password), user, section.principal or "")
            elif section.password_file is not None:
                with self._problems.of(owner, "password_file"):
                    digest = nt_hash(read_password(Path(section.password_file)))
                    yield Account(section.name, digest, user, section.principal or "")

    def cluster(self, section: schema.Cluster) -> ClusterConfig:
        return build_cluster(section)

    def service(self, section: schema.Service) -> ServiceConfig:
        owner = f"service {section.name}"
        addresses = []
        for text in section.addresses:
            with self._problems.of(owner, "addresses"):
                addresses.append(VirtualAddress.parse(text))
        return ServiceConfig(section.name, addresses, section.nodes)

    def witness(self, section: schema.Witness) -> WitnessConfig:
        owner = "[witness]"
        self._check_listen(owner, section.listen)
        return WitnessConfig(
            section.listen,
            section.port,
            section.endpoint_mapper_port if section.endpoint_mapper else None,
            section.require_privacy,
            section.names,
            [(node.name, self._addresses(f"witness.node {node.name}", node.addresses)) for node in section.node],
        )

    def web(self, section: schema.Web) -> WebConfig:
        owner = "[web]"
        with self._problems.of(owner, "listen"):
            check_address(section.listen)
        return WebConfig(
            section.listen,
            section.port,
            self._names(owner, "admins", section.admins),
            _path(section.certificate),
            _path(section.key),
            tuple(section.names),
            section.plain_http,
        )

    def quic(self, section: schema.Quic) -> QuicConfig:
        owner = "[quic]"
        self._check_listen(owner, section.listen)
        clients = set()
        for text in section.clients:
            with self._problems.of(owner, "clients"):
                clients.add(parse_fingerprint(text))
        return QuicConfig(
            Path(section.certificate),
            _path(section.key),
            section.listen,
            section.port,
            _path(section.client_authority),
            frozenset(clients),
        )

    def users_file(self, section: schema.Server) -> None:
        """Read the users file, which may be missing if the configuration does not name it."""
        config = self._config
        config.users_file = _path(section.users_file) or default_users_file(config.state)
        if section.users_file or config.keeps_users:
            with self._problems.of(SERVER, "users_file"):
                stored = read_accounts(config.users_file, config.run_as)
                config.accounts += stored
                if not stored:
                    config.notes.append(f"{config.users_file} has no users; remedy: smb3server user add NAME")
        elif os.path.exists(f"{config.users_file}.lock"):
            config.notes.append(
                f"{config.users_file} is missing, although there was one: none of its users can log on; remedy: take "
                "it from a backup, or smb3server user add NAME"
            )

    def _unix_user(self, owner: str, key: str, name: str | None, shared: bool = False) -> User | None:
        if name is not None:
            with self._problems.of(owner, key):
                return unix_user(name, shared)
        return None

    def _unknown_principals(self, text: str) -> User | None:
        if text == "refuse":
            return None
        user = self._unix_user(SERVER, "unknown_principals", text.removeprefix("user:"), shared=True)
        if user is not None and user.uid == 0:
            self._problems.add(
                SERVER,
                "unknown_principals",
                "principals without an account must not act as root; name another user of the host",
            )
        return user

    def _names(self, owner: str, key: str, names: list[str] | None) -> frozenset[str] | None:
        """Return a list of users with groups replaced with their members; None if there is no list."""
        if names is not None:
            with self._problems.of(owner, key):
                return self._settings.groups.expand(names)
        return None

    def _hosts(self, owner: str, section: schema.Server | schema.ShareOptions | schema.Namespace) -> HostLists:
        if section.hosts_allow is None and not section.hosts_deny:
            return EVERYBODY
        allow, deny = None, None
        if section.hosts_allow is not None:
            with self._problems.of(owner, "hosts_allow"):
                allow = parse_hosts(section.hosts_allow)
        with self._problems.of(owner, "hosts_deny"):
            deny = parse_hosts(section.hosts_deny)
        return HostLists(allow, deny or ())

    def _check_listen(self, owner: str, hosts: list[str], key: str = "listen") -> None:
        for index, host in enumerate(hosts):
            with self._problems.of(owner, key):
                check_address(host)
                if host in hosts[:index]:
                    raise ConfigError(f"{host}: given twice")

    def _addresses(self, owner: str, given: list[str]) -> list[Address]:
        found = []
        for text in given:
            with self._problems.of(owner, "addresses"):
                found.append(ipaddress.ip_address(text))
        return found
