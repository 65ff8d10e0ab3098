"""The configuration file.

[server]
name = "FILES"                     # NetBIOS name
listen = ["0.0.0.0", "::"]
port = 445
rdma = "auto"                      # auto, off, or fabrics: "iwarp,roce", "verbs"
rdma_port = 5445
rdma_read_size = 8388608           # bytes that clients may read at once by RDMA; 0: as much as fits a message
iwarp_crc = false                  # ask iWARP clients for checksums
state = "/var/lib/smb3server"
run_as = "smb3server"              # change to this user after the start; default: stay the same
sandbox = false                    # refuse system calls that a file server never makes
xattrs = "auto"                    # where metadata lies: auto, trusted, user
users_file = "/etc/smb3server/users"   # accounts that "smb3server user" changes; default: STATE/users
guest = false
require_signing = false
require_encryption = false
test_fsctls = false                # answer smbtorture's own FSCTLs; for tests only
watchdog = 0.05                    # log requests that block all clients for so many seconds; default: 0, off
keytab = "/etc/krb5.keytab"
trusted_realms = ["EXAMPLE.COM"]   # whose names are accounts; default: those of the keytab's cifs/...
unknown_principals = "refuse"      # or "user:NAME": act as this user of the host
ntlm = true                        # accept passwords, too
guests_see_accounts = false
hosts_allow = ["192.0.2.0/24"]
hosts_deny = []
admins = ["@staff"]                # users who may change the server from afar
min_password_length = 8            # of passwords that clients and "smb3server user" set
min_dialect = "2.1"
rdma_min_dialect = "3.0"
max_dialect = "3.1.1"

[groups]
staff = ["alice", "@interns"]      # as "@staff" in lists of users; "@@users" is a group of the host

[limits]                           # of Settings, see docs/configuration.md
max_connections = 4096

[[share]]
name = "data"
path = "/srv/data"
read_only = false
encrypt = false
guest = false
users = ["alice", "@staff"]
read_list = ["bob"]                # these may only read
write_list = ["alice"]             # with read_only = true: these may write nevertheless
hosts_allow = ["192.0.2.0/24"]
hosts_deny = []
remark = "..."
continuous_availability = false    # persistent handles; needs a state directory, or a cluster
service = ""                       # the cluster's service it belongs to
access_based_enumeration = false   # folders list only what the user may read
hide_files = ["*.tmp"]             # shown as hidden
hide_dot_files = false             # .profile and the like shown as hidden
posix_locks = false                # byte-range locks hold against programs of the host, and theirs against clients
delayed_write_times = false
level2_oplocks = true
change_notify = true
streams = true                     # alternate data streams
symlinks = "beneath"               # follow symlinks that stay beneath the share; or "never"
force_user = "www-data"            # all users act as this user of the host; as root only
strict_allocate = false            # space that clients ask for ahead is reserved, however much it is
keep_inherited_flag = false        # store DACL_AUTO_INHERITED as clients send it, not by Windows' rule

[cluster]                          # the same on all nodes, except the node's name
etcd = "etcds://HOST:PORT,..."     # or --cluster; etcd:// without TLS
node = "a"                         # or --node
name = "smb3server"
ttl = 4                            # seconds until a dead node's services move
max_stall = 12                     # seconds until the services of a stalled node move
ca = "/etc/smb3server/ca.pem"      # authority of etcd's certificate; default: the system's authorities
cert = "/etc/smb3server/node.pem"  # this node's certificate for etcd, and its key
key = "/etc/smb3server/node.key"
user = "smb3server"                # of etcd
password_file = "/etc/smb3server/etcd.password"
secret_file = "/etc/smb3server/cluster.secret"  # seals the records: smb3server cluster secret FILE
unauthenticated_store = false      # work without a secret: only where no one else can write to etcd

[[service]]
name = "files"
addresses = ["10.0.0.10/24@eth0"]  # move with the service
nodes = ["a", "b"]                 # that may serve it, best first; default: any

[[user]]
name = "alice"
password = "..."                   # or nt_hash = "32 hexadecimal digits", or password_file = "FILE"
principal = "alice@EXAMPLE.COM"    # the Kerberos principal whose account it is; default: the name in a trusted realm
unix_user = "alice"                # act with this user's uid, gid and groups; as root only (default: see security.md)

[witness]                          # notify clients that have to move (MS-SWN); without this section: off
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

import ipaddress
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from smb3server.auth.groups import Groups
from smb3server.auth.password_rules import EMPTY_HASH, MAX_LENGTH
from smb3server.auth.principals import parse as parse_principal
from smb3server.auth.users import Account, nt_hash, parse_hash
from smb3server.backends.base import User
from smb3server.config.checks import MESSAGE_OVERHEAD, NAME, check_share
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.passwords import read_password
from smb3server.config.table import SECRETS, Table, read_document, take_table, take_tables
from smb3server.config.values import check_port, parse_rdma, unix_user
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.net.host_lists import EVERYBODY, HostLists, Network
from smb3server.net.host_lists import parse as parse_hosts
from smb3server.settings.cluster import ClusterConfig, ServiceConfig, VirtualAddress
from smb3server.settings.server import Settings
from smb3server.settings.witness import WitnessConfig
from smb3server.wire.address import Address
from smb3server.wire.negotiate import DIALECT_NAMES
from smb3server.wire.rdma_transform import RdmaTransformId

XATTR_CHOICES = ("auto", "trusted", "user")
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
RDMA_TRANSFORMS = {"encryption": RdmaTransformId.ENCRYPTION, "signing": RdmaTransformId.SIGNING}
LIMITS = tuple(
    entry.name
    for entry in fields(Settings)
    if entry.name.startswith(
        ("max_", "credits_", "interim_", "failed_", "authentication_", "negotiate_", "lockout_", "idle_")
    )
    and entry.name != "max_dialect"
)
"""Members of ``Settings`` that the section [limits] sets under the same names."""


def read_file(path: Path, config: Config) -> None:
    """Add to ``config`` what the TOML file says. Raises ``ConfigError``."""
    document = read_document(path)
    _read_groups(path, take_table(path, document, "groups"), config.settings)
    _read_server(Table(f"{path}: [server]", take_table(path, document, "server")), config)
    _read_limits(Table(f"{path}: [limits]", take_table(path, document, "limits")), config.settings)
    for entry in take_tables(path, document, "share"):
        read_share(Table(f"{path}: [[share]]", entry), config)
    for entry in take_tables(path, document, "user"):
        if path not in config.secret_files and any(key in entry for key in SECRETS):
            config.secret_files.append(path)
        _read_user(Table(f"{path}: [[user]]", entry), config)
    _read_cluster(Table(f"{path}: [cluster]", take_table(path, document, "cluster")), config.cluster)
    for entry in take_tables(path, document, "service"):
        config.cluster.services.append(_read_service(Table(f"{path}: [[service]]", entry)))
    if "witness" in document:
        config.witness = _read_witness(path, dict(take_table(path, document, "witness")))
    if document:
        raise ConfigError(f"{path}: unknown section {', '.join(sorted(document))}")


def read_cluster(path: Path) -> ClusterConfig:
    """Read the cluster that a node's file describes.

    The rest of the file is ignored: its shares and users are those of another machine. Raises ``ConfigError``.
    """
    cluster = ClusterConfig()
    _read_cluster(Table(f"{path}: [cluster]", take_table(path, read_document(path), "cluster")), cluster)
    return cluster


def _read_server(table: Table, config: Config) -> None:
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
    settings.rdma_transforms = _chosen(table, "rdma_transforms", RDMA_TRANSFORMS, settings.rdma_transforms)
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
    settings.min_password_length = table.take("min_password_length", int, settings.min_password_length)
    if not 1 <= settings.min_password_length <= MAX_LENGTH:
        raise ConfigError(f"min_password_length: 1 to {MAX_LENGTH}, not {settings.min_password_length}")
    settings.admins = _names(table, "[server]", "admins", settings.groups) or frozenset()
    config.listen = table.strings("listen") or config.listen
    config.port = check_port(table.take("port", int, config.port))
    config.rdma = parse_rdma(table.take("rdma", str, config.rdma))
    config.rdma_port = check_port(table.take("rdma_port", int, config.rdma_port))
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
    if users:
        config.users_file = Path(users)


def _unknown_principals(text: str) -> User | None:
    """Read ``refuse`` (None), or ``user:NAME``. Raises ``ConfigError``."""
    kind, _, name = text.partition(":")
    if text == "refuse":
        return None
    if kind != "user" or not name:
        raise ConfigError(f'unknown_principals: write "refuse" or "user:NAME", not {text!r}')
    user = unix_user("unknown_principals", name, shared=True)
    if user is None or user.uid == 0:
        raise ConfigError(
            "unknown_principals: principals without an account must not act as root; name another user of the host"
        )
    return user


def _hosts(table: Table, where: str) -> HostLists:
    lists: list[tuple[Network, ...] | None] = []
    for key in ("hosts_allow", "hosts_deny"):
        entries = table.strings(key)
        try:
            lists.append(None if entries is None else parse_hosts(entries))
        except ValueError as error:
            raise ConfigError(f"{where}: {key}: {error}") from error
    allow, deny = lists
    return HostLists(allow, deny or ()) if allow is not None or deny else EVERYBODY


def _read_groups(path: Path, values: Mapping[str, Any], settings: Settings) -> None:
    table = Table(f"{path}: [groups]", values)
    try:
        settings.groups = Groups({name: table.strings(name) or () for name in values})
    except ValueError as error:
        raise ConfigError(f"{path}: [groups]: {error}") from error


def _names(table: Table, where: str, key: str, groups: Groups) -> frozenset[str] | None:
    """Read a list of users, with groups replaced with their members. Return None if the key is missing."""
    names = table.strings(key)
    try:
        return None if names is None else groups.expand(names)
    except ValueError as error:
        raise ConfigError(f"{where}: {key}: {error}") from error


def _read_cluster(table: Table, cluster: ClusterConfig) -> None:
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


def _read_service(table: Table) -> ServiceConfig:
    name = table.take("name", str)
    if not name or not NAME.fullmatch(name):
        raise ConfigError(f"[[service]]: {name!r} is not a name: letters, digits, - and _")
    try:
        addresses = [VirtualAddress.parse(text) for text in table.strings("addresses") or ()]
    except ValueError as error:
        raise ConfigError(f"[[service]] {name}: {error}") from error
    service = ServiceConfig(name, addresses, table.strings("nodes") or [])
    table.finish()
    return service


def _chosen(table: Table, key: str, names: Mapping[str, int], default: tuple[int, ...]) -> tuple[int, ...]:
    """Read a list of names and return the values that they stand for. Raises ``ConfigError``."""
    chosen = table.strings(key)
    if chosen is None:
        return default
    if unknown := [name for name in chosen if name not in names]:
        raise ConfigError(f"{key}: {unknown[0]} is not one of {', '.join(names)}")
    return tuple(names[name] for name in chosen)


def _read_limits(table: Table, settings: Settings) -> None:
    """Read the members of ``Settings`` that have the same names in the file. Raises ``ConfigError``."""
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


def read_share(table: Table, config: Config) -> None:
    """Add the share that a section describes to ``config``. Raises ``ConfigError``."""
    name, path = table.take("name", str), table.take("path", str)
    if not name or not path:
        raise ConfigError("[[share]]: name and path are needed")
    where, groups = f"share {name}", config.settings.groups
    share = ShareConfig(
        name,
        Path(path),
        read_only=table.take("read_only", bool, False),
        encrypt=table.take("encrypt", bool, False),
        guest=table.take("guest", bool, False),
        users=_names(table, where, "users", groups),
        read_list=_names(table, where, "read_list", groups) or frozenset(),
        write_list=_names(table, where, "write_list", groups) or frozenset(),
        hosts=_hosts(table, where),
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
        delayed_write_times=table.take("delayed_write_times", bool, False),
        level2_oplocks=table.take("level2_oplocks", bool, True),
        hide_dot_files=table.take("hide_dot_files", bool, False),
        force_user=unix_user(f"share {name}: force_user", table.take("force_user", str), shared=True),
    )
    table.finish()
    check_share(share)
    config.shares.append(share)


def _read_user(table: Table, config: Config) -> None:
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
        if digest == EMPTY_HASH:
            raise ValueError("the password is empty; remedy: give it one, or let guests in with guest = true")
        config.accounts.append(Account(name, digest, user, principal))
    except ValueError as error:
        raise ConfigError(f"[[user]] {name}: {error}") from error


def _read_witness(path: Path, values: dict[str, Any]) -> WitnessConfig:
    nodes = take_tables(path, values, "node")
    table = Table(f"{path}: [witness]", values)
    port = check_port(table.take("port", int, 0)) or 0
    mapper_port = check_port(table.take("endpoint_mapper_port", int, 135))
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
        table = Table(where, entry)
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
