"""Find contradictions in a configuration whose values are valid one by one.

They are reported at the start, in one line. Otherwise they would show as clients that cannot connect.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

from smb3server.auth.groups import is_user
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.users import check_accounts
from smb3server.process import log_levels
from smb3server.settings import store_access
from smb3server.settings.server import Settings
from smb3server.settings.store_url import parse_url
from smb3server.wire.negotiate import Dialect

_SERVER_NAME = re.compile(r'[^\x00-\x20"*+,/:;<=>?\[\\\]|]{1,15}')
_BAD_SHARE_NAME = re.compile(r'[\x00-\x1f"/\\\[\]:|<>+=;,*?]')
_MAX_SHARE_NAME = 80
SMALLEST_IO = 1 << 16
"""Least value of MaxTransactSize, MaxReadSize and MaxWriteSize, in bytes. [MS-SMB2 3.3.5.4]"""
LARGEST_MESSAGE = (1 << 24) - 1
"""Largest direct TCP message in bytes: its length field has three bytes. [MS-SMB2 2.1]"""
MESSAGE_OVERHEAD = 1 << 16
"""Bytes of a message besides the data of a READ or WRITE: headers, transforms, other requests of its compound."""
SMALLEST_MESSAGE = 1024
NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
"""The name of a cluster, a node or a service."""


def check_share(share: ShareConfig) -> None:
    """Check one share on its own. Raises ``ConfigError``."""
    name = share.name
    if not name or len(name) > _MAX_SHARE_NAME or _BAD_SHARE_NAME.search(name) or name != name.strip():
        raise ConfigError(f"share {name!r}: not a valid share name")
    if name in (".", ".."):
        raise ConfigError(f"share {name!r}: not a valid share name")
    if name.casefold() == "ipc$":
        raise ConfigError("share IPC$: the name is reserved")
    if share.symlinks not in ("beneath", "never"):
        raise ConfigError(f'share {name}: symlinks is "beneath" or "never", not {share.symlinks!r}')
    try:
        found = share.path.is_dir()
    except (OSError, ValueError) as error:
        raise ConfigError(f"share {name}: {share.path}: {getattr(error, 'strerror', None) or error}") from error
    if not found:
        raise ConfigError(f"share {name}: {share.path} is not a directory")
    if not os.access(share.path, os.R_OK | os.X_OK, effective_ids=True):
        raise ConfigError(f"share {name}: this server, which runs as uid {os.geteuid()}, may not read {share.path}")


def check_address(text: str, where: str = "--listen") -> None:
    """Check an address to listen on; ``where`` names its source in errors. Raises ``ConfigError``."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(
            f"{where} {text}: not an IP address; write IPv6 without brackets, and ports separately"
        ) from None
    if isinstance(address, ipaddress.IPv6Address) and address.is_link_local and not address.scope_id:
        raise ConfigError(f"{where} {text}: a link-local address needs its interface, as in {text}%eth0")


def once(what: str, names: Iterable[str]) -> None:
    """Raise ``ConfigError`` if a name occurs twice; case does not matter. ``what`` names the setting in errors."""
    seen = set()
    for name in names:
        if name.casefold() in seen:
            raise ConfigError(f"{what} {name}: given twice")
        seen.add(name.casefold())


def check(config: Config) -> None:
    """Check the whole configuration. Raises ``ConfigError``."""
    settings = config.settings
    if not _SERVER_NAME.fullmatch(settings.server_name):
        raise ConfigError(
            f"[server]: name {settings.server_name!r} is not a NetBIOS name: 1 to 15 characters, no spaces"
        )
    try:
        log_levels.parse(config.log_level)
    except ValueError as error:
        raise ConfigError(f"log_level: {error}") from None
    for host in config.listen:
        check_address(host)
    once("--listen", config.listen)
    if config.witness is not None:
        for host in config.witness.listen:
            check_address(host, "[witness]: listen")
    _check_protection(config)
    _check_limits(settings)
    _check_users(config)
    if config.state is not None:
        _check_state(config.state, config.shares)


def check_cluster(config: Config) -> None:
    """Check the cluster, its services and the services that shares need. Raises ``ConfigError``."""
    cluster = config.cluster
    names = [service.name for service in cluster.services]
    for share in config.shares:
        if share.service and share.service not in names:
            raise ConfigError(f"share {share.name}: there is no service {share.service}")
        if share.service and not cluster.url:
            raise ConfigError(f"share {share.name}: service {share.service} needs a cluster: --cluster")
        if share.continuous_availability and not share.service and config.state is None:
            raise ConfigError("continuous_availability needs a state directory: give --state DIR")
    if not cluster.url:
        return
    try:
        parse_url(cluster.url)
    except ValueError as error:
        raise ConfigError(f"--cluster {error}") from error
    if not NAME.fullmatch(cluster.node) or not NAME.fullmatch(cluster.name):
        raise ConfigError("--node and the cluster's name: letters, digits, - and _")
    if not 2 <= cluster.ttl <= 60:
        raise ConfigError("[cluster] ttl: 2 to 60 seconds")
    if cluster.max_stall and not cluster.ttl <= cluster.max_stall <= 600:
        raise ConfigError("[cluster] max_stall: at least the ttl, and at most 600 seconds")
    keeps_opens = any(share.service and share.continuous_availability for share in config.shares)
    try:
        store_access.check(cluster.url, cluster.access, keeps_opens)
    except ValueError as error:
        raise ConfigError(f"[cluster] {error}") from error
    if len(set(names)) < len(names):
        raise ConfigError("[[service]]: a name is given twice")


def _check_protection(config: Config) -> None:
    settings = config.settings
    for key in ("min_dialect", "rdma_min_dialect"):
        if getattr(settings, key) > settings.max_dialect and (key == "min_dialect" or config.rdma != "off"):
            raise ConfigError(f"{key} is above max_dialect: no client could connect")
    if not settings.signing_algorithms:
        raise ConfigError("signing_algorithms: name at least one")
    encrypted = next((f"share {share.name}: encrypt" for share in config.shares if share.encrypt), "")
    encrypted = "require_encryption" if settings.require_encryption else encrypted
    if encrypted and not settings.ciphers:
        raise ConfigError(f"{encrypted} needs ciphers")
    if encrypted and settings.max_dialect < Dialect.SMB_3_0:
        raise ConfigError(f"{encrypted} needs max_dialect 3.0 or later")


def _check_limits(settings: Settings) -> None:
    for name in (
        "interim_delay",
        "failed_logon_delay",
        "max_logon_delay",
        "lockout_time",
        "authentication_timeout",
        "negotiate_timeout",
        "idle_session_timeout",
    ):
        if not math.isfinite(getattr(settings, name)):
            raise ConfigError(f"[limits]: {name} must be a finite number")
    largest = LARGEST_MESSAGE - MESSAGE_OVERHEAD
    if not SMALLEST_IO <= settings.max_io_size <= largest:
        raise ConfigError(f"[limits]: max_io_size must be {SMALLEST_IO} to {largest}, not {settings.max_io_size}")
    if not settings.max_io_size + SMALLEST_MESSAGE <= settings.max_message_size <= LARGEST_MESSAGE:
        raise ConfigError(
            f"[limits]: max_message_size must be {settings.max_io_size + SMALLEST_MESSAGE} (more than max_io_size) to "
            f"{LARGEST_MESSAGE}, not {settings.max_message_size}"
        )
    if settings.max_user_share > 1:
        raise ConfigError(f"[limits]: max_user_share must be at most 1, not {settings.max_user_share}")
    if settings.rdma_read_size and not SMALLEST_IO <= settings.rdma_read_size <= largest:
        raise ConfigError(
            f"[server]: rdma_read_size must be 0 or {SMALLEST_IO} to {largest}, not {settings.rdma_read_size}"
        )
    smallest = settings.max_message_before_authentication
    if not SMALLEST_MESSAGE <= smallest <= settings.max_message_size:
        raise ConfigError(f"[limits]: max_message_before_authentication must be {SMALLEST_MESSAGE} to max_message_size")


def _check_users(config: Config) -> None:
    """Check that lists name existing accounts. With a keytab they may also name principals without an account."""
    settings = config.settings
    known = {account.name.casefold() for account in config.accounts}
    lists = [("[server]: admins", settings.admins)]
    for share in config.shares:
        lists += [(f"share {share.name}: {key}", getattr(share, key)) for key in ("users", "read_list", "write_list")]
    for where, names in lists:
        unknown = sorted(filter(is_user, (names or frozenset()) - known))
        wrong = [name for name in unknown if not settings.keytab or "@" not in name]
        if wrong and not config.keeps_users:
            raise ConfigError(f"{where}: there is no user {wrong[0]}")
        # Users come and go while the server runs. A list that names one of yesterday must not keep it from starting.
        config.notes += [f"{where}: there is no user {name}; remedy: smb3server user add {name}" for name in wrong]
    for share in config.shares:
        if share.write_list and not share.read_only:
            raise ConfigError(f"share {share.name}: write_list is for shares with read_only = true")
        if both := sorted(share.read_list & share.write_list):
            raise ConfigError(f"share {share.name}: {both[0]} is both in read_list and in write_list")
    check_accounts(config.accounts, settings.groups)
    given = any(account.principal for account in config.accounts)
    if not settings.ntlm:
        if settings.allow_guest or settings.allow_anonymous:
            raise ConfigError("guests and anonymous users log on by NTLM: they need ntlm = true")
        if not settings.keytab:
            raise ConfigError("no user could log on: ntlm = false needs a keytab")
    if not settings.keytab and (settings.trusted_realms or settings.unknown_principals or given):
        raise ConfigError("trusted_realms, unknown_principals and principal need a keytab")


def _check_state(state: Path, shares: Iterable[ShareConfig]) -> None:
    """Check that no share contains the state directory: its users could forge the state that the server stores."""
    place = Path(os.path.realpath(state))
    for share in shares:
        if place.is_relative_to(os.path.realpath(share.path)):
            raise ConfigError(f"state directory {state}: lies inside share {share.name}; choose one outside")
