"""Find contradictions in a configuration whose values are valid one by one.

They are reported at the start. Otherwise they would show as clients that cannot connect.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from smb3server.auth.groups import is_user, of_domain
from smb3server.config import processes
from smb3server.config.error import ConfigError, Problems, RightsError, label
from smb3server.config.model import Config, ShareConfig
from smb3server.config.sections import did_you_mean
from smb3server.config.sources.host_users import wrong_host_users
from smb3server.config.sources.users import clashes
from smb3server.net import store_access
from smb3server.net.store_url import parse_url
from smb3server.process.presence import exists, is_folder
from smb3server.process.words import user_name
from smb3server.settings.domain import SLICE
from smb3server.settings.limits import SMALLEST_IO
from smb3server.wire.negotiate import Dialect

_SERVER = "[server]"
_LIMITS = "[limits]"
LOGS = Path("/var/log/smb3server")
"""The folder that the unit and the Debian package make for logs."""


def check(config: Config) -> None:
    """Check a configuration that is not read from a file. Raises ``ConfigError``."""
    problems = Problems()
    find(config, problems)
    problems.finish()


def find(config: Config, problems: Problems) -> None:
    """Check the whole configuration, and note what is wrong in ``problems``."""
    for share in config.shares:
        owner = f"share {share.name}"
        with problems.of(owner, "path"):
            try:
                check_folder(share.path, share.require_mount)
            except FolderDownError:
                # Who types a path is there to mend it. A node without a service's folder must not take the service.
                if share.service or problems.place(owner).option:
                    raise
        _check_worm(owner, share, problems)
        if share.shadow_copies and not share.snapshots:
            problems.add(owner, "shadow_copies", "needs snapshots, which says where they are made")
        if share.shadow_copies and share.service:
            problems.add(
                owner, "shadow_copies", "the share of a service has none: the next node would not know of them"
            )
        if share.for_macs and not share.streams:
            problems.add(owner, "streams", "a share for Macs (macos, time_machine) needs streams")
    if config.homes is not None:
        _check_worm("[homes]", config.homes, problems)
    _check_namespaces(config, problems)
    _check_protection(config, problems)
    _check_limits(config, problems)
    _check_logons(config, problems)
    for owner, key, text in clashes(config.accounts, config.settings.groups):
        problems.add(owner, key, text)
    problems.check(wrong_host_users(config, config.accounts))
    _check_lists(config, problems)
    _check_domain(config, problems)
    _check_cluster(config, problems)
    if config.part is None:
        processes.find(config, problems)
    for key, file in (("log_file", config.log.file), ("audit_file", config.log.audit_file)):
        if file is not None:
            with problems.of(_SERVER, key):
                _check_log(file, config.run_as)
    if config.state is not None:
        _check_state(config.state, config.shares, problems)


def check_use(config: Config, file: Path | None, problems: Problems) -> None:
    """Check that there is something to share, and somebody to use it. ``file`` is the configuration file, if any.

    With a file the server starts without shares: they may be added while it runs.
    """
    if not config.shares and file is None:
        problems.add("", "", "nothing to share: give --share NAME=PATH or a configuration file with [[share]]")
    elif not config.shares:
        config.notes.append(f"{file} has no [[share]]; remedy: add one, or smb3server share add NAME PATH")
    elif not (config.accounts or config.keeps_users or config.settings.allow_guest or config.settings.keytab):
        problems.add(
            "",
            "",
            "no user could log on: make one with `smb3server user add NAME`, or give --user NAME, --guest or a keytab",
        )


class FolderDownError(ConfigError):
    """A share's folder cannot be used for the time being: a disk may not be there yet."""


class FolderForbiddenError(FolderDownError, RightsError):
    """A share's folder may not be read."""


def check_folder(path: Path, require_mount: bool = False) -> None:
    """Check the folder of a share. Raises ``ConfigError``, or ``FolderDownError`` if this may change by itself."""
    try:
        found = is_folder(path)
        there = found or exists(path)
    except (OSError, ValueError) as error:
        forbidden = isinstance(error, PermissionError)
        kind = FolderForbiddenError if forbidden else FolderDownError if isinstance(error, OSError) else ConfigError
        raise kind(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if there and not found:
        raise ConfigError(f"{path} is not a directory")
    if not found:
        raise FolderDownError(f"{path} does not exist")
    if require_mount and not os.path.ismount(path):
        raise FolderDownError(f"nothing is mounted on {path}, and require_mount is set")
    if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
        raise FolderForbiddenError(f"this server, which runs as uid {os.geteuid()}, may not read {path}")


def _check_worm(owner: str, share: ShareConfig, problems: Problems) -> None:
    if share.worm and share.recycle:
        text = "excludes worm: what may be deleted there is gone, and what may not cannot be moved"
        problems.add(owner, "recycle", text)
    if share.worm and share.for_macs:
        problems.add(owner, "worm", "excludes shares for Macs (macos, time_machine)")


def _check_namespaces(config: Config, problems: Problems) -> None:
    """Check that namespaces have names of their own, and that their targets here are there."""
    shares = {share.name.casefold() for share in config.shares}
    roots = {entry.name.casefold() for entry in config.namespaces}
    for entry in config.namespaces:
        owner = f"namespace {entry.name}"
        if entry.name.casefold() in shares:
            problems.add(owner, "name", "there is a share of this name")
        for link in entry.namespace.links:
            for target in link.targets:
                name = target.path[0].casefold()
                if not target.server and name == entry.name.casefold():
                    problems.add(owner, "link", f"link {link.name} leads to its own namespace")
                elif not target.server and name not in shares | roots and config.homes is None:
                    config.notes.append(
                        f"namespace {entry.name}: link {link.name} leads to share {target.path[0]}, which is not there"
                    )


def _check_protection(config: Config, problems: Problems) -> None:
    settings = config.settings
    for key in ("min_dialect", "rdma_min_dialect"):
        if getattr(settings, key) > settings.max_dialect and (key == "min_dialect" or config.rdma != "off"):
            problems.add(_SERVER, key, "is above max_dialect: no client could connect")
    if not settings.signing_algorithms:
        problems.add(_SERVER, "signing_algorithms", "name at least one")
    encrypted = [(f"share {share.name}", "encrypt") for share in config.shares if share.encrypt]
    encrypted += [(f"namespace {entry.name}", "encrypt") for entry in config.namespaces if entry.encrypt]
    if settings.require_encryption:
        encrypted.insert(0, (_SERVER, "require_encryption"))
    for owner, key in encrypted:
        if not settings.ciphers:
            problems.add(owner, key, "needs ciphers")
        if settings.max_dialect < Dialect.SMB_3_0:
            problems.add(owner, key, "needs max_dialect 3.0 or later")
    for share in config.shares:
        if share.posix and settings.max_dialect < Dialect.SMB_3_1_1:
            problems.add(f"share {share.name}", "posix", "needs max_dialect 3.1.1")


def _check_limits(config: Config, problems: Problems) -> None:
    settings = config.settings
    if 0 < settings.rdma_read_size < SMALLEST_IO:
        problems.add(_SERVER, "rdma_read_size", f"must be 0 or at least {SMALLEST_IO}")


def _check_logons(config: Config, problems: Problems) -> None:
    settings = config.settings
    if not settings.ntlm:
        for key, given in (("guest", settings.allow_guest), ("anonymous", settings.allow_anonymous)):
            if given:
                problems.add(_SERVER, key, "guests and anonymous users log on by NTLM: they need ntlm = true")
        if not settings.keytab:
            problems.add(_SERVER, "ntlm", "no user could log on: ntlm = false needs a keytab")
    if settings.keytab:
        return
    for key, present in (
        ("trusted_realms", settings.trusted_realms),
        ("unknown_principals", settings.unknown_principals),
    ):
        if present:
            problems.add(_SERVER, key, "needs a keytab")
    for account in config.accounts:
        if account.principal:
            problems.add(f"user {account.name}", "principal", "needs a keytab")


def _check_lists(config: Config, problems: Problems) -> None:
    """Check that lists name existing accounts. With a keytab they may also name principals without an account."""
    known = {account.name.casefold(): account.name for account in config.accounts}
    settings = config.settings
    lists = [
        (_SERVER, "admins", settings.admins),
        (_SERVER, "security_operators", settings.security_operators or frozenset()),
        (_SERVER, "backup_operators", settings.backup_operators),
    ]
    for share in config.shares:
        owner = f"share {share.name}"
        lists += [(owner, key, getattr(share, key) or frozenset()) for key in ("users", "read_list", "write_list")]
        if share.write_list and not share.read_only:
            problems.add(owner, "write_list", "is for shares with read_only = true")
        for name in sorted(share.read_list & share.write_list):
            problems.add(owner, "write_list", f"{name} is both in read_list and in write_list")
    lists += [(f"namespace {entry.name}", "users", entry.users or frozenset()) for entry in config.namespaces]
    if problems.concern("user", "[[user]]", "[server] users_file", "[groups]"):
        return  # Some users could not be read: they would be missed here.
    for owner, key, names in lists:
        if config.domain is None:
            for name in sorted(filter(of_domain, names)):
                problems.add(owner, key, f"{name} is of a domain: give [domain], which says which one")
        for name in sorted(filter(is_user, names - known.keys())):
            if config.settings.keytab and "@" in name:
                continue
            if of_domain(name):
                continue
            if config.keeps_users:
                # Users come and go while the server runs. A list that names one who is gone must not keep it from
                # starting.
                setting = label(owner, key)
                config.notes.append(f"{setting}: there is no user {name}; remedy: smb3server user add {name}")
            else:
                problems.add(owner, key, f"there is no user {name}{did_you_mean(name, known.values())}")


def _check_domain(config: Config, problems: Problems) -> None:
    """Check the numbers that users of the domain have on this host."""
    domain = config.domain
    if domain is None:
        return
    first, last = domain.id_range
    if not 0 < first < last < 1 << 31:
        problems.add("[domain]", "id_range", "must have a first and a greater last number, from 1 to 2147483647")
    elif domain.id_mapping == "autorid" and last - first + 1 < 2 * SLICE:
        problems.add("[domain]", "id_range", f"autorid needs {2 * SLICE} numbers at least")
    if domain.id_mapping == "rfc2307" and domain.secret is None:
        text = (
            "rfc2307 asks a controller, which takes a machine account: give `secret`, or `state` in [server], and join"
        )
        problems.add("[domain]", "idmap", text)
    if domain.trusted_ranges and domain.id_mapping != "rid":
        problems.add("[domain]", "trusted_ranges", "is for rid: autorid gives each domain numbers of its own")
    ranges = sorted([domain.id_range, *domain.trusted_ranges.values()])
    if any(not 0 < low < high < 1 << 31 for low, high in domain.trusted_ranges.values()):
        problems.add("[domain]", "trusted_ranges", "each has a first and a greater last number, from 1 to 2147483647")
    elif any(one[1] >= following[0] for one, following in itertools.pairwise(ranges)):
        problems.add(
            "[domain]", "trusted_ranges", "two domains would have the same numbers; one of them may be the own"
        )
    for account in config.accounts:
        if account.user is not None and any(low <= account.user.uid <= high for low, high in ranges):
            text = f"{account.user.uid} is in id_range, so a user of the domain may have it, too"
            problems.add(f"user {account.name}", "unix_user", text)


def _check_cluster(config: Config, problems: Problems) -> None:
    """Check the cluster, its services and the services that shares need."""
    cluster = config.cluster
    names = [service.name for service in cluster.services]
    for share in config.shares:
        owner = f"share {share.name}"
        if share.service and share.service not in names:
            problems.add(owner, "service", f"there is no service {share.service}{did_you_mean(share.service, names)}")
        if share.service and not cluster.url:
            problems.add(owner, "service", f"service {share.service} needs a cluster: give etcd in [cluster]")
        if share.continuous_availability and not share.service and config.state is None:
            problems.add(owner, "continuous_availability", "needs a state directory: give state in [server]")
    if not cluster.url:
        return
    with problems.of("[cluster]", "etcd"):
        parse_url(cluster.url)
    if not cluster.node:
        problems.add("[cluster]", "node", "is needed: this node's name in the cluster")
    if cluster.max_stall and cluster.max_stall < cluster.ttl:
        problems.add("[cluster]", "max_stall", f"must be at least the ttl, {cluster.ttl:g}")
    if problems.concern("[cluster]"):
        return
    keeps_opens = any(share.service and share.continuous_availability for share in config.shares)
    with problems.of("[cluster]", ""):
        store_access.check(cluster.url, cluster.access, keeps_opens)


def _check_log(file: Path, run_as: str) -> None:
    """Check that the server can write a log. Raises ``ConfigError``."""
    user = run_as or user_name(os.geteuid())
    folder = file.parent
    if not folder.is_dir():
        by_systemd = "systemd makes it (LogsDirectory=smb3server in the unit), or " if folder == LOGS else ""
        raise ConfigError(
            f"{folder} is not there; remedy: {by_systemd}install -d -o {user} -m 750 {quote(str(folder))}"
        )
    writable = os.access(file if file.exists() else folder, os.W_OK, effective_ids=True)
    if not writable and not run_as:
        raise RightsError(f"{user} may not write to {file}; remedy: chown {user}: {quote(str(folder))}")


def _check_state(state: Path, shares: Iterable[ShareConfig], problems: Problems) -> None:
    """Check that no share contains the state directory: its users could forge the state that the server stores."""
    place = Path(os.path.realpath(state))
    for share in shares:
        with problems.of(f"share {share.name}", "path"):
            if place.is_relative_to(os.path.realpath(share.path)):
                problems.add(_SERVER, "state", f"{state} lies inside share {share.name}; choose a folder outside")
