"""The command line and the configuration file, turned into one ``Config``.

[server]
name = "FILES"                     # NetBIOS name
listen = ["0.0.0.0", "::"]
port = 445
rdma = "auto"                      # auto, off, or fabrics: "iwarp,roce", "verbs"
rdma_port = 5445
rdma_read_size = 8388608           # bytes that clients may read at once by RDMA; 0: what fits a message to the client
iwarp_crc = false                  # ask iWARP clients for checksums
state = "/var/lib/smb3server"
run_as = "smb3server"              # give up being root once started; default: stay who started it
sandbox = false                    # refuse system calls that a file server never makes
xattrs = "auto"                    # where metadata lies: auto, trusted, user
users_file = "/etc/smb3server/users"   # lines NAME:NT_HASH or NAME:NT_HASH:UNIX_USER
guest = false
require_signing = false
require_encryption = false
test_fsctls = false                # answer smbtorture's own FSCTLs; for tests only
watchdog = 0.05                    # log requests that hold up everybody for so many seconds; default: 0, off
keytab = "/etc/krb5.keytab"
trusted_realms = ["EXAMPLE.COM"]   # where names mean accounts; default: those of the keytab's cifs/...
unknown_principals = "refuse"      # or "user:NAME": act as this user of the host
ntlm = true                        # take passwords, too
guests_see_accounts = false
hosts_allow = ["192.0.2.0/24"]
hosts_deny = []
min_dialect = "2.1"
rdma_min_dialect = "3.0"
max_dialect = "3.1.1"

[limits]                           # of Settings, see docs/configuration.md
max_connections = 4096

[[share]]
name = "data"
path = "/srv/data"
read_only = false
encrypt = false
guest = false
users = ["alice"]
read_list = ["bob"]                # these only read
write_list = ["alice"]             # with read_only = true: these write all the same
hosts_allow = ["192.0.2.0/24"]
hosts_deny = []
remark = "..."
continuous_availability = false    # persistent handles; needs a state directory, or a cluster
service = ""                       # the cluster's service it belongs to
access_based_enumeration = false   # folders list only what the user may read
hide_files = ["*.tmp"]             # shown as hidden
hide_dot_files = false             # .profile and the like shown as hidden
posix_locks = false                # byte-range locks hold against programs of the host, and theirs against clients
level2_oplocks = true
change_notify = true
streams = true                     # alternate data streams
symlinks = "beneath"               # follow symlinks that stay beneath the share; or "never"
force_user = "www-data"            # everybody acts as this user of the host; as root only
strict_allocate = false            # space that clients ask for ahead is reserved, however much it is
keep_inherited_flag = false        # store DACL_AUTO_INHERITED as clients send it, not by Windows' rule

[cluster]                          # the same on all nodes but for the node's name
etcd = "etcds://HOST:PORT,..."     # or --cluster; etcd:// without TLS
node = "a"                         # or --node
name = "smb3server"
ttl = 4                            # seconds until a dead node's services move
max_stall = 12                     # seconds until those of a node move that runs, but does nothing any more
ca = "/etc/smb3server/ca.pem"      # who signed etcd's certificate; default: the system's authorities
cert = "/etc/smb3server/node.pem"  # this node's certificate for etcd, and its key
key = "/etc/smb3server/node.key"
user = "smb3server"                # of etcd
password_file = "/etc/smb3server/etcd.password"
secret_file = "/etc/smb3server/cluster.secret"  # what records are sealed with: smb3server cluster secret FILE
unauthenticated_store = false      # do without it: nobody else can write to etcd

[[service]]
name = "files"
addresses = ["10.0.0.10/24@eth0"]  # they move with it
nodes = ["a", "b"]                 # that may have it, best first; default: any

[[user]]
name = "alice"
password = "..."                   # or nt_hash = "32 hexadecimal digits", or password_file = "FILE"
principal = "alice@EXAMPLE.COM"    # the Kerberos principal whose account it is; default: the name in a trusted realm
unix_user = "alice"                # act with this user's uid, gid and groups; as root only (default: see security.md)

[witness]                          # tell clients when to move (MS-SWN); without this section: off
listen = ["0.0.0.0", "::"]         # default: that of [server]
port = 0                           # 0: any; clients ask the endpoint mapper
endpoint_mapper = true
endpoint_mapper_port = 135
require_privacy = false            # refuse calls that are only signed
names = ["FILES"]                  # net names; default: the server's name
addresses = ["192.0.2.10"]         # virtual addresses of the names

[[witness.node]]                   # the other nodes, where clients of this one can register
name = "NODE-B"
addresses = ["192.0.2.12"]
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import pwd
import re
import socket
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from smb3server.auth.principals import parse as parse_principal
from smb3server.auth.users import Account, nt_hash, parse_hash
from smb3server.backends.base import User
from smb3server.backends.local.impersonate import may_act
from smb3server.cluster.address import parse as parse_virtual_address
from smb3server.cluster.cluster import ClusterConfig
from smb3server.cluster.service_owner import ServiceConfig
from smb3server.config.checks import LOG_LEVELS, MESSAGE_OVERHEAD, ConfigError, check, check_share, once
from smb3server.config.passwords import find_password, read_password, read_users
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.net.host_lists import EVERYBODY, HostLists, Network
from smb3server.net.host_lists import parse as parse_hosts
from smb3server.settings import store_access
from smb3server.settings.server import Settings
from smb3server.settings.store_url import parse_url

__all__ = ["Config", "ConfigError", "parse_arguments", "read_file"]

XATTR_CHOICES = ("auto", "trusted", "user")
RDMA_CHOICES = ("auto", "off", "iwarp", "roce", "verbs")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
DIALECTS = {"2.0.2": 0x0202, "2.1": 0x0210, "3.0": 0x0300, "3.0.2": 0x0302, "3.1.1": 0x0311}
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
LIMITS = tuple(
    entry.name
    for entry in fields(Settings)
    if entry.name.startswith(
        ("max_", "credits_", "interim_", "failed_", "authentication_", "negotiate_", "lockout_", "idle_")
    )
    and entry.name != "max_dialect"
)
"""Numbers of ``Settings`` that the section [limits] sets under the same names."""
_SECRETS = ("password", "nt_hash")
"""Keys whose values are not shown."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


@dataclass(slots=True)
class ShareConfig:
    name: str
    path: Path
    read_only: bool = False
    encrypt: bool = False
    guest: bool = False
    users: frozenset[str] | None = None
    read_list: frozenset[str] = frozenset()
    write_list: frozenset[str] = frozenset()
    hosts: HostLists = EVERYBODY
    remark: str = ""
    hidden: bool = False
    continuous_availability: bool = False
    service: str = ""
    access_based_enumeration: bool = False
    hide_files: tuple[str, ...] = ()
    hide_dot_files: bool = False
    keep_inherited_flag: bool = False
    strict_allocate: bool = False
    posix_locks: bool = False
    change_notify: bool = True
    streams: bool = True
    symlinks: str = "beneath"
    level2_oplocks: bool = True
    force_user: User | None = None

    def admits(self, account: str) -> bool:
        """Whether the share's ``users`` name this account."""
        return self.users is None or account.casefold() in self.users

    @property
    def never_written(self) -> bool:
        """Nobody writes."""
        return self.read_only and not self.write_list


@dataclass(slots=True)
class WitnessConfig:
    """Section [witness]."""

    listen: list[str] = field(default_factory=list)
    """Empty: where the server listens."""
    port: int = 0
    endpoint_mapper_port: int | None = 135
    """None: no endpoint mapper."""
    require_privacy: bool = False
    names: list[str] = field(default_factory=list)
    """Empty: the server's name."""
    addresses: list[Address] = field(default_factory=list)
    nodes: list[tuple[str, list[Address]]] = field(default_factory=list)
    """The other nodes."""


@dataclass(slots=True)
class Config:
    shares: list[ShareConfig] = field(default_factory=list)
    accounts: list[Account] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    listen: list[str] = field(default_factory=list)
    """Empty: all addresses."""
    port: int | None = None
    """None: 445, or above 1024 where that is not allowed."""
    rdma: str = "off"
    rdma_port: int | None = None
    """None: 5445."""
    state: Path | None = None
    run_as: str = ""
    """Name of the host's user that the server becomes; empty: it stays who started it."""
    sandbox: bool = False
    xattrs: str = "auto"
    """Namespace of extended attributes, as ``LocalOptions.xattrs``."""
    secret_files: list[Path] = field(default_factory=list)
    """Configuration files with passwords or hashes in them."""
    command_line_passwords: list[str] = field(default_factory=list, repr=False)
    """``NAME:PASSWORD`` as given."""
    log_level: str = "info"
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    witness: WitnessConfig | None = None


def default_name() -> str:
    """This machine's name as a NetBIOS name."""
    return re.sub(r"[^A-Za-z0-9-]", "", socket.gethostname().split(".")[0]).upper()[:15] or "SMB3SERVER"


def parse_share(text: str) -> ShareConfig:
    """``NAME=PATH[,user=USER][,ro]``."""
    name, separator, rest = text.partition("=")
    read_only = rest.endswith(",ro")
    path, forced, user = rest.removesuffix(",ro").rpartition(",user=")
    if not forced:
        path, user = user, ""
    if not separator or not path or (forced and not user):
        raise ConfigError(f"--share {text}: write NAME=PATH, NAME=PATH,ro or NAME=PATH,user=USER")
    share = ShareConfig(name, Path(path), read_only, force_user=unix_user(f"--share {name}: user", user or None, True))
    check_share(share)
    return share


def parse_rdma(text: str) -> str:
    """``auto``, ``off``, or fabrics separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in RDMA_CHOICES]:
        raise ConfigError(f"rdma: {unknown[0] or 'nothing'} is not one of {', '.join(RDMA_CHOICES)}")
    if len(names) > 1 and (len(set(names)) < len(names) or {"auto", "off"} & set(names)):
        raise ConfigError(f"rdma: {text}: auto and off stand alone, and a fabric is named once")
    return ",".join(names)


def parse_user(text: str, password_file: Path | None = None) -> Account:
    """``NAME:PASSWORD``, or ``NAME`` whose password comes from elsewhere (``passwords.find_password``)."""
    name, separator, password = text.partition(":")
    if not name:
        raise ConfigError("--user: write NAME or NAME:PASSWORD")
    return Account(name, nt_hash(password if separator else find_password(name, password_file)))


class _Table:
    """A TOML table of which every key must be known and of the right type."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self._where = where
        self._values = dict(values)

    def take(self, key: str, kind: type[Any], default: Any = None) -> Any:
        if key not in self._values:
            return default
        value = self._values.pop(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = type(value).__name__ if key in _SECRETS else repr(value)
            raise ConfigError(f"{self._where}: {key} must be of type {kind.__name__}, not {found}")
        return value

    def has(self, key: str) -> bool:
        return key in self._values

    def number(self, key: str, kinds: tuple[type[Any], ...], default: float) -> float:
        value = self._values.pop(key, default)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ConfigError(f"{self._where}: {key} must be a number, not {value!r}")
        return value  # type: ignore[no-any-return]

    def strings(self, key: str) -> list[str] | None:
        values = self.take(key, list)
        if values is not None and not all(isinstance(value, str) for value in values):
            raise ConfigError(f"{self._where}: {key} must be a list of strings")
        return values  # type: ignore[no-any-return]

    def finish(self) -> None:
        if self._values:
            raise ConfigError(f"{self._where}: unknown key {', '.join(sorted(self._values))}")


def read_file(path: Path, config: Config) -> None:
    """Add what the TOML file says."""
    document = _document(path)
    _read_server(_Table(f"{path}: [server]", _table(path, document, "server")), config)
    _read_limits(_Table(f"{path}: [limits]", _table(path, document, "limits")), config.settings)
    for entry in _tables(path, document, "share"):
        _read_share(_Table(f"{path}: [[share]]", entry), config)
    for entry in _tables(path, document, "user"):
        if path not in config.secret_files and any(key in entry for key in _SECRETS):
            config.secret_files.append(path)
        _read_user(_Table(f"{path}: [[user]]", entry), config)
    _read_cluster(_Table(f"{path}: [cluster]", _table(path, document, "cluster")), config.cluster)
    for entry in _tables(path, document, "service"):
        config.cluster.services.append(_read_service(_Table(f"{path}: [[service]]", entry)))
    if "witness" in document:
        config.witness = _read_witness(path, dict(_table(path, document, "witness")))
    if document:
        raise ConfigError(f"{path}: unknown section {', '.join(sorted(document))}")


def read_cluster(path: Path) -> ClusterConfig:
    """The cluster that a node's file tells of. Nothing else in it is looked at: shares and users are
    those of another machine. Raises ``ConfigError``."""
    cluster = ClusterConfig()
    _read_cluster(_Table(f"{path}: [cluster]", _table(path, _document(path), "cluster")), cluster)
    return cluster


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _table(path: Path, document: dict[str, Any], key: str) -> Mapping[str, Any]:
    value = document.pop(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key} must be a section: [{key}]")
    return value


def _tables(path: Path, document: dict[str, Any], key: str) -> list[Mapping[str, Any]]:
    values = document.pop(key, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ConfigError(f"{path}: {key} must be a list of sections: [[{key}]]")
    return values


def _read_server(table: _Table, config: Config) -> None:
    settings = config.settings
    settings.server_name = table.take("name", str, settings.server_name)
    settings.comment = table.take("comment", str, settings.comment)
    settings.allow_guest = table.take("guest", bool, settings.allow_guest)
    settings.allow_anonymous = table.take("anonymous", bool, settings.allow_anonymous)
    settings.require_signing = table.take("require_signing", bool, settings.require_signing)
    settings.require_encryption = table.take("require_encryption", bool, settings.require_encryption)
    settings.test_fsctls = table.take("test_fsctls", bool, settings.test_fsctls)
    settings.watchdog = float(table.number("watchdog", (int, float), settings.watchdog))
    if settings.watchdog < 0:
        raise ConfigError(f"watchdog: seconds, not {settings.watchdog}")
    settings.keytab = table.take("keytab", str, settings.keytab)
    settings.multichannel = table.take("multichannel", bool, settings.multichannel)
    settings.rss = table.take("rss", bool, settings.rss)
    settings.leases = table.take("leases", bool, settings.leases)
    settings.directory_leases = table.take("directory_leases", bool, settings.directory_leases)
    settings.ciphers = _chosen(table, "ciphers", CIPHERS, settings.ciphers)
    settings.signing_algorithms = _chosen(table, "signing_algorithms", SIGNING, settings.signing_algorithms)
    for key in ("min_dialect", "rdma_min_dialect", "max_dialect"):
        text = table.take(key, str)
        if text is not None:
            if text not in DIALECTS:
                raise ConfigError(f"{key}: one of {', '.join(DIALECTS)}, not {text}")
            setattr(settings, key, DIALECTS[text])
    settings.ntlm = table.take("ntlm", bool, settings.ntlm)
    settings.guests_see_accounts = table.take("guests_see_accounts", bool, settings.guests_see_accounts)
    settings.trusted_realms = tuple(table.strings("trusted_realms") or settings.trusted_realms)
    settings.unknown_principals = _unknown_principals(table.take("unknown_principals", str, "refuse"))
    settings.hosts = _hosts(table, "[server]")
    config.listen = table.strings("listen") or config.listen
    config.port = _port(table.take("port", int, config.port))
    config.rdma = parse_rdma(table.take("rdma", str, config.rdma))
    config.rdma_port = _port(table.take("rdma_port", int, config.rdma_port))
    settings.rdma_read_size = table.take("rdma_read_size", int, settings.rdma_read_size)
    settings.iwarp_crc = table.take("iwarp_crc", bool, settings.iwarp_crc)
    state = table.take("state", str)
    config.state = Path(state) if state else config.state
    config.log_level = table.take("log_level", str, config.log_level)
    config.run_as = table.take("run_as", str, config.run_as)
    config.sandbox = table.take("sandbox", bool, config.sandbox)
    config.xattrs = table.take("xattrs", str, config.xattrs)
    if config.xattrs not in XATTR_CHOICES:
        raise ConfigError(f"xattrs: {config.xattrs} is not one of {', '.join(XATTR_CHOICES)}")
    users = table.take("users_file", str)
    table.finish()
    for name, digest, unix_name in read_users(Path(users)) if users else ():
        user = unix_user(f"{users}: {name}", unix_name)
        try:
            config.accounts.append(Account(name, parse_hash(digest), user))
        except ValueError as error:
            raise ConfigError(f"{users}: {name}: {error}") from error


def _unknown_principals(text: str) -> User | None:
    """``refuse``, or ``user:NAME``."""
    kind, _, name = text.partition(":")
    if text == "refuse":
        return None
    if kind != "user" or not name:
        raise ConfigError(f'unknown_principals: write "refuse" or "user:NAME", not {text!r}')
    user = unix_user("unknown_principals", name, shared=True)
    if user is None or user.uid == 0:
        raise ConfigError("unknown_principals: strangers do not act as root; name another user of the host")
    return user


def _hosts(table: _Table, where: str) -> HostLists:
    lists: list[tuple[Network, ...] | None] = []
    for key in ("hosts_allow", "hosts_deny"):
        entries = table.strings(key)
        try:
            lists.append(None if entries is None else parse_hosts(entries))
        except ValueError as error:
            raise ConfigError(f"{where}: {key}: {error}") from error
    allow, deny = lists
    return HostLists(allow, deny or ()) if allow is not None or deny else EVERYBODY


def _names(table: _Table, key: str) -> frozenset[str]:
    return frozenset(name.casefold() for name in table.strings(key) or ())


def _read_cluster(table: _Table, cluster: ClusterConfig) -> None:
    cluster.url = table.take("etcd", str, cluster.url)
    cluster.node = table.take("node", str, cluster.node)
    cluster.name = table.take("name", str, cluster.name)
    cluster.ttl = table.take("ttl", int, cluster.ttl)
    cluster.max_stall = table.take("max_stall", int, cluster.max_stall)
    access = cluster.access
    for key in ("ca", "cert", "key", "password_file", "secret_file"):
        text = table.take(key, str)
        if text is not None:
            setattr(access, key, Path(text))
    access.user = table.take("user", str, access.user)
    access.unauthenticated_store = table.take("unauthenticated_store", bool, access.unauthenticated_store)
    table.finish()


def _read_service(table: _Table) -> ServiceConfig:
    name = table.take("name", str)
    if not name or not _NAME.fullmatch(name):
        raise ConfigError(f"[[service]]: {name!r} is not a name: letters, digits, - and _")
    try:
        addresses = [parse_virtual_address(text) for text in table.strings("addresses") or ()]
    except ValueError as error:
        raise ConfigError(f"[[service]] {name}: {error}") from error
    service = ServiceConfig(name, addresses, table.strings("nodes") or [])
    table.finish()
    return service


def _check_cluster(config: Config) -> None:
    cluster = config.cluster
    names = [service.name for service in cluster.services]
    for share in config.shares:
        if share.service and share.service not in names:
            raise ConfigError(f"share {share.name}: there is no service {share.service}")
        if share.service and not cluster.url:
            raise ConfigError(f"share {share.name}: service {share.service} needs a cluster: --cluster")
        if share.continuous_availability and not share.service and config.state is None:
            raise ConfigError("continuous_availability needs a place for its state: --state DIR")
    if not cluster.url:
        return
    try:
        parse_url(cluster.url)
    except ValueError as error:
        raise ConfigError(f"--cluster {error}") from error
    if not _NAME.fullmatch(cluster.node) or not _NAME.fullmatch(cluster.name):
        raise ConfigError("--node and the cluster's name: letters, digits, - and _")
    if not 2 <= cluster.ttl <= 60:
        raise ConfigError("[cluster] ttl: 2 to 60 seconds")
    if cluster.max_stall and not cluster.ttl <= cluster.max_stall <= 600:
        raise ConfigError("[cluster] max_stall: at least the ttl, and at most 600 seconds")
    keeps_opens = any(share.service and share.continuous_availability for share in config.shares)
    try:
        store_access.check(cluster.url, cluster.name, cluster.access, keeps_opens)
    except ValueError as error:
        raise ConfigError(f"[cluster] {error}") from error
    if len(set(names)) < len(names):
        raise ConfigError("[[service]]: every name only once")


def _chosen(table: _Table, key: str, names: Mapping[str, int], default: tuple[int, ...]) -> tuple[int, ...]:
    """A list of names as the values they stand for."""
    chosen = table.strings(key)
    if chosen is None:
        return default
    if unknown := [name for name in chosen if name not in names]:
        raise ConfigError(f"{key}: {unknown[0]} is not one of {', '.join(names)}")
    return tuple(names[name] for name in chosen)


def _read_limits(table: _Table, settings: Settings) -> None:
    """Numbers of ``Settings`` by their own names."""
    given = set()
    for name in LIMITS:
        default = getattr(settings, name)
        if table.has(name):
            given.add(name)
        kinds: tuple[type[Any], ...] = (int,) if isinstance(default, int) else (int, float)
        value = table.number(name, kinds, default)
        if value < 0 or (isinstance(default, int) and default and value == 0):
            raise ConfigError(f"[limits]: {name} must be greater than 0, not {value}")
        setattr(settings, name, type(default)(value))
    table.finish()
    if "max_message_size" not in given:
        settings.max_message_size = max(settings.max_message_size, settings.max_io_size + MESSAGE_OVERHEAD)


def _port(value: int | None) -> int | None:
    if value is not None and not 0 <= value <= 65535:
        raise ConfigError(f"port {value} is not within 0..65535")
    return value


def _read_share(table: _Table, config: Config) -> None:
    name, path = table.take("name", str), table.take("path", str)
    if not name or not path:
        raise ConfigError("[[share]]: name and path are needed")
    users = table.strings("users")
    share = ShareConfig(
        name,
        Path(path),
        read_only=table.take("read_only", bool, False),
        encrypt=table.take("encrypt", bool, False),
        guest=table.take("guest", bool, False),
        users=frozenset(user.casefold() for user in users) if users is not None else None,
        read_list=_names(table, "read_list"),
        write_list=_names(table, "write_list"),
        hosts=_hosts(table, f"share {name}"),
        remark=table.take("remark", str, ""),
        hidden=table.take("hidden", bool, False),
        continuous_availability=table.take("continuous_availability", bool, False),
        service=table.take("service", str, ""),
        access_based_enumeration=table.take("access_based_enumeration", bool, False),
        hide_files=tuple(table.strings("hide_files") or ()),
        keep_inherited_flag=table.take("keep_inherited_flag", bool, False),
        strict_allocate=table.take("strict_allocate", bool, False),
        change_notify=table.take("change_notify", bool, True),
        streams=table.take("streams", bool, True),
        symlinks=table.take("symlinks", str, "beneath"),
        posix_locks=table.take("posix_locks", bool, False),
        level2_oplocks=table.take("level2_oplocks", bool, True),
        hide_dot_files=table.take("hide_dot_files", bool, False),
        force_user=unix_user(f"share {name}: force_user", table.take("force_user", str), shared=True),
    )
    table.finish()
    check_share(share)
    config.shares.append(share)


def unix_user(what: str, name: str | None, shared: bool = False) -> User | None:
    """Credentials of a user of the host; ``shared`` by several users. Acting as somebody else takes capabilities
    (``impersonate.may_act``)."""
    if name is None:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"{what}: this machine has no user {name}") from None
    if not may_act() and os.geteuid() != entry.pw_uid:
        raise ConfigError(f"{what}: the server has to run as root, or with CAP_SETUID and CAP_SETGID, to act as {name}")
    return User(entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)), shared)


def _read_user(table: _Table, config: Config) -> None:
    name, password, digest = table.take("name", str), table.take("password", str), table.take("nt_hash", str)
    file = table.take("password_file", str)
    user = unix_user(f"user {name}: unix_user", table.take("unix_user", str))
    principal = table.take("principal", str, "")
    table.finish()
    if not name or [password, digest, file].count(None) != 2:
        raise ConfigError("[[user]]: name and one of password, nt_hash and password_file are needed")
    if file is not None:
        password = read_password(Path(file))
    try:
        if principal:
            parse_principal(principal)
        digest = nt_hash(password) if digest is None else parse_hash(digest)
        config.accounts.append(Account(name, digest, user, principal))
    except ValueError as error:
        raise ConfigError(f"[[user]] {name}: {error}") from error


def _read_witness(path: Path, values: dict[str, Any]) -> WitnessConfig:
    nodes = _tables(path, values, "node")
    table = _Table(f"{path}: [witness]", values)
    port = _port(table.take("port", int, 0)) or 0
    mapper_port = _port(table.take("endpoint_mapper_port", int, 135))
    if not table.take("endpoint_mapper", bool, True):
        mapper_port = None
    witness = WitnessConfig(
        table.strings("listen") or [],
        port,
        mapper_port,
        table.take("require_privacy", bool, False),
        table.strings("names") or [],
        _addresses(f"{path}: [witness]", table.strings("addresses")),
    )
    table.finish()
    for entry in nodes:
        where = f"{path}: [[witness.node]]"
        table = _Table(where, entry)
        name, addresses = table.take("name", str), _addresses(where, table.strings("addresses"))
        table.finish()
        if not name or not addresses:
            raise ConfigError(f"{where}: name and addresses are needed")
        witness.nodes.append((name, addresses))
    return witness


def _addresses(where: str, given: list[str] | None) -> list[Address]:
    try:
        return [ipaddress.ip_address(entry) for entry in given or []]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smb3server",
        description="Share directories over SMB 2.0.2 to 3.1.1, on TCP and on SMB Direct (RDMA in user space).",
        epilog="Everything else is set in the configuration file; the command line wins over it. SIGTERM ends the "
        "server after the requests in flight.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="configuration file")
    parser.add_argument(
        "--share", action="append", default=[], metavar="NAME=PATH[,user=USER][,ro]", help="share a directory"
    )
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        metavar="NAME[:PASSWORD]",
        help="add a user; without a password: that of --password-file, of $SMB3SERVER_PASSWORD, or asked for",
    )
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="its first line is the users' password")
    parser.add_argument("--guest", action="store_true", help="let unknown users in as guests, without signing")
    parser.add_argument(
        "--rdma",
        nargs="?",
        const="auto",
        metavar="FABRICS",
        help="serve SMB Direct, too: auto (the default without a value), off, or fabrics: iwarp,roce,verbs",
    )
    parser.add_argument("--listen", action="append", default=[], metavar="ADDR", help="address to serve (default: all)")
    parser.add_argument("--port", type=int, help="TCP port (default: 445, as root)")
    parser.add_argument("--rdma-port", type=int, metavar="PORT", help="SMB Direct port (default: 5445)")
    parser.add_argument("--cluster", metavar="etcds://HOST:PORT,...", help="be a node of a cluster")
    parser.add_argument("--node", metavar="NAME", help="this node's name in the cluster")
    parser.add_argument("--state", type=Path, metavar="DIR", help="where state is kept that outlives the server")
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="default: info")
    return parser


def parse_arguments(arguments: Sequence[str] | None = None) -> Config:
    """The whole configuration. Raises ``ConfigError``; argparse itself exits on unknown options and ``--help``."""
    options = _parser().parse_args(arguments)
    config = Config()
    config.settings.server_name = default_name()
    if options.config is not None:
        read_file(options.config, config)
    once("share", (share.name for share in config.shares))
    once("user", (account.name for account in config.accounts))
    by_name = {share.name.casefold(): share for share in config.shares}
    named = [parse_share(text) for text in options.share]
    once("--share", (share.name for share in named))
    by_name.update({share.name.casefold(): share for share in named})
    config.shares = list(by_name.values())
    added = [parse_user(text, options.password_file) for text in options.user]
    config.command_line_passwords = [text for text in options.user if ":" in text]
    once("--user", (account.name for account in added))
    config.accounts += added
    if options.guest:
        config.settings.allow_guest = True
        for share in config.shares:
            share.guest = True
    _override(config, options)
    if not config.shares:
        raise ConfigError("nothing to share: give --share NAME=PATH or a configuration file with [[share]]")
    _check_cluster(config)
    if not config.accounts and not config.settings.allow_guest and not config.settings.keytab:
        raise ConfigError("nobody could log on: give --user NAME, --guest or a keytab")
    check(config)
    return config


def _override(config: Config, options: argparse.Namespace) -> None:
    config.cluster.url = options.cluster or config.cluster.url
    config.cluster.node = options.node or config.cluster.node
    convert: dict[str, Callable[[Any], Any]] = {"port": _port, "rdma_port": _port, "rdma": parse_rdma}
    for name in ("listen", "port", "rdma", "rdma_port", "state", "log_level"):
        value = getattr(options, name)
        if value is not None and value != []:
            setattr(config, name, convert.get(name, lambda given: given)(value))
