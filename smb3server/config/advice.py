"""Find what is allowed in a configuration, but is seldom meant: warnings of ``smb3server check``."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote

from smb3server.access.identity import HOST_GROUP
from smb3server.backends.local import quotas
from smb3server.backends.local.impersonate import may_act
from smb3server.config.checks import FolderDownError, FolderForbiddenError, check_folder
from smb3server.config.error import ConfigError, Problem, Problems, label
from smb3server.config.model import Config, ShareConfig
from smb3server.config.service_user import lacks_rights
from smb3server.config.values import snapshot_pattern
from smb3server.net import store_access
from smb3server.net.host import rdma_devices
from smb3server.process import capabilities, folder_ways
from smb3server.process.capabilities import Capability
from smb3server.process.presence import exists, is_folder

_SERVER = "[server]"
_OWN_FOLDERS = ("bin", "boot", "dev", "etc", "lib", "proc", "root", "run", "sbin", "sys", "usr", "var")
"""Folders below / that hold the system's own files."""
_FIRST_FREE_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


def advise(config: Config, problems: Problems) -> list[Problem]:
    """Return the warnings for a configuration, in the order of its file. ``problems`` has the places of settings."""
    advice = _Advice(config, problems)
    for find in (
        advice.files,
        advice.shares,
        advice.snapshots,
        advice.macs,
        advice.lending,
        advice.acting,
        advice.users,
        advice.guests,
        advice.network,
        advice.cluster,
    ):
        for owner, key, text in find():
            advice.found.append(Problem(text, label(owner, key), problems.place(owner, key)))
    notes = [Problem(note) for note in config.notes]
    return [*problems.warnings, *sorted(advice.found, key=lambda found: found.place[:3]), *notes]


Finding = tuple[str, str, str]
"""Owner and key of the setting, and the warning."""


class _Advice:
    def __init__(self, config: Config, problems: Problems) -> None:
        self._config = config
        self._settings = config.settings
        self._file = next((place.file for place in problems.places.values() if place.file), "")
        self.found: list[Problem] = []

    def files(self) -> Iterator[Finding]:
        """Files that others can change, and keys that others can read."""
        if self._file and _others(Path(self._file), stat.S_IWOTH):
            yield "", "", f"{self._file}: every user of this machine can change it; remedy: chmod o-w {self._file}"
        if self._settings.keytab and _others(Path(self._settings.keytab), stat.S_IROTH):
            file = self._settings.keytab
            yield _SERVER, "keytab", f"every user of this machine can read its keys; remedy: chmod 600 {file}"
        if self._settings.keytab and not exists(Path(self._settings.keytab)):
            yield _SERVER, "keytab", f"{self._settings.keytab} does not exist: the server will not start"

    def snapshots(self) -> Iterator[Finding]:
        """Folders of snapshots that are not there, or not for this server."""
        for share in self._config.shares:
            pattern = snapshot_pattern(share.snapshots, str(share.path), share.snapshot_times)
            if pattern is None:
                continue
            place, owner = Path(pattern.folder), f"share {share.name}"
            try:
                found = is_folder(place) and os.access(place, os.R_OK | os.X_OK, effective_ids=True)
                there = exists(place)
            except OSError:
                found, there = False, True
            if found:
                continue
            why = "who runs this may not read it" if there else "it does not exist: there are no previous versions yet"
            yield owner, "snapshots", f"{place}: {why}"

    def shares(self) -> Iterator[Finding]:
        """Folders that hold more than is meant, and shares that nobody can use."""
        real = [(share, Path(os.path.realpath(share.path))) for share in self._config.shares]
        for share, path in real:
            owner = f"share {share.name}"
            try:
                check_folder(share.path, share.require_mount)
            except FolderDownError as error:
                if isinstance(error, FolderForbiddenError) and lacks_rights():
                    yield owner, "path", f"who runs this may not read {share.path}; the unit's server may"
                else:
                    yield owner, "path", f"{error}: the share stays down until that changes; the others are served"
            except ConfigError:
                continue  # It is a mistake, and named as one.
            if path == Path("/"):
                yield owner, "path", "the whole machine is shared, with the system's own files"
            elif path.parent == Path("/") and path.name in _OWN_FOLDERS:
                yield owner, "path", f"{path} holds the system's own files"
            for other, above in real:
                if other is not share and path.is_relative_to(above) and (path != above or other.name < share.name):
                    yield owner, "path", f"lies inside share {other.name}: its users reach these files by their rules"
            for key in ("recycle_keep_days", "recycle_max_total"):
                if getattr(share, key) and not share.recycle:
                    yield owner, key, "has no effect: recycle is false"
            if share.worm and (self._config.xattrs == "user" or self._config.drop_privileges):
                text = "users of this machine who may write the files can free them; remedy: run the server as root"
                yield owner, "worm", text
            if share.worm_retention is not None and not share.worm:
                yield owner, "worm_retention", "has no effect: worm is false"
            if share.users is not None and not share.users:
                yield owner, "users", "is empty: nobody can use the share"
            if share.hosts.allow is not None and not share.hosts.allow:
                yield owner, "hosts_allow", "is empty: nobody can use the share"
            if share.force_user is not None and share.force_user.uid == 0:
                yield owner, "force_user", "every user of the share acts as root: they can read and change all files"
            if share.continuous_availability and not share.service and self._config.cluster.url:
                yield owner, "continuous_availability", "without a service the share does not move to another node"

    def macs(self) -> Iterator[Finding]:
        """Settings for Macs that do nothing, or less than is meant."""
        announced = self._config.discovery is not None and self._config.discovery.mdns
        for share in self._config.shares:
            owner = f"share {share.name}"
            if share.time_machine and not announced:
                yield owner, "time_machine", "Macs do not find it by themselves: [discovery] with mdns announces it"
            if share.time_machine_max_size and not share.time_machine:
                yield owner, "time_machine_max_size", "does nothing without time_machine"
            if share.macos_file_ids and not share.for_macs:
                yield owner, "macos_file_ids", "does nothing without macos or time_machine"

    def lending(self) -> Iterator[Finding]:
        """Shares that are to lend files (``one_sided``), and cannot."""
        for share in self._config.shares:
            obstacles = (
                ("encrypt", share.encrypt),
                ("require_encryption", self._settings.require_encryption),
                ("require_signing", self._settings.require_signing),
                ("posix_locks", share.posix_locks),
                ("a cluster", bool(self._config.cluster.url)),
                ('rdma = "off"', self._config.rdma == "off"),
            )
            found = [name for name, present in obstacles if present]
            if share.one_sided and found:
                yield f"share {share.name}", "one_sided", f"no file is ever lent with {' and '.join(found)}"

    def acting(self) -> Iterator[Finding]:
        """Shares where users without a user of the host of their own can do less than is meant."""
        if self._config.drop_privileges or not may_act():
            return
        for share in self._config.shares:
            owner, without = (
                f"share {share.name}",
                any(account.user is None and share.admits(account) for account in self._config.accounts),
            )
            try:
                way = folder_ways.follow(os.fspath(share.path))
            except OSError as error:
                if error.errno == errno.ELOOP:
                    yield owner, "path", f"{error.filename} is {error.strerror}; the share is not served"
                continue
            one_quota = share.force_user is not None and _has_quotas(way.descriptor)
            found, stranger = os.fstat(way.descriptor), way.stranger(os.fstat(way.descriptor).st_uid)
            way.close()
            if one_quota:
                yield owner, "force_user", "all users of the share have one quota together, that of this user"
            if share.force_user is not None or not (share.guest or without):
                continue
            acting = "users without unix_user act as nobody there"
            if stranger and found.st_uid:
                remedy = "remedy: take away that right, or set force_user"
                yield owner, "path", f"{stranger}, who could put another folder in its place: {acting}; {remedy}"
            elif not share.never_written and not found.st_uid and not found.st_mode & stat.S_IWOTH:
                remedy = f"remedy: chown nobody {quote(str(share.path))}, or set force_user, or the users' unix_user"
                yield owner, "path", f"belongs to root: {acting}, who may not write; {remedy}"

    def users(self) -> Iterator[Finding]:
        """Users who may do everything."""
        for account in self._config.accounts:
            owner = f"user {account.name}"
            if account.user is not None and account.user.uid == 0:
                yield owner, "unix_user", f"{account.name} acts as root, and can read and change all files of shares"
        operators = self._settings.backup_operators
        if operators:
            who = ", ".join(sorted(name for name in operators if not name.startswith(HOST_GROUP)))
            text = (
                "can read and change all files of the shares that they may connect to, when they open them for backup"
            )
            yield _SERVER, "backup_operators", f"{who or 'the members of a group of the host'} {text}"

    def guests(self) -> Iterator[Finding]:
        """Guests who cannot come in, or see nothing."""
        settings, shares = self._settings, self._config.shares
        if settings.allow_guest and (settings.require_signing or settings.require_encryption):
            key = "require_signing" if settings.require_signing else "require_encryption"
            yield _SERVER, "guest", f"guests have no key to sign or encrypt with: {key} refuses them"
        let_in = settings.allow_guest or settings.allow_anonymous
        if let_in and shares and not any(_open_to_guests(share) for share in shares):
            yield _SERVER, "guest" if settings.allow_guest else "anonymous", "no share has guest = true"
        for share in shares:
            owner = f"share {share.name}"
            if share.guest and not let_in:
                yield owner, "guest", "has no effect: guest and anonymous of [server] are false"
            if share.guest and share.users is not None:
                yield owner, "guest", "has no effect beside users: guests are on no list"
            if share.guest and share.encrypt:
                yield owner, "guest", "guests have no key to encrypt with: encrypt refuses them"

    def network(self) -> Iterator[Finding]:
        """Ports that this user may not open, and fabrics that this machine does not have."""
        config = self._config
        for owner, key, port in self._ports():
            if port is not None and 0 < port < _first_free_port() and not _may_bind():
                yield (
                    owner,
                    key,
                    f"this user may not open port {port} (the unit's server may); remedy: "
                    "AmbientCapabilities=CAP_NET_BIND_SERVICE",
                )
        if "verbs" in config.rdma.split(",") and not rdma_devices():
            yield _SERVER, "rdma", "verbs: this machine has no RDMA device; smb3server doctor says what it has"
        if self._settings.hosts.allow is not None and not self._settings.hosts.allow:
            yield _SERVER, "hosts_allow", "is empty: nobody can connect"

    def _ports(self) -> Iterable[tuple[str, str, int | None]]:
        config = self._config
        yield _SERVER, "port", config.port
        if config.rdma != "off":
            yield _SERVER, "rdma_port", config.rdma_port
        if config.witness is not None:
            yield "[witness]", "port", config.witness.port
            yield "[witness]", "endpoint_mapper_port", config.witness.endpoint_mapper_port
        if config.web is not None:
            yield "[web]", "port", config.web.port
        if config.quic is not None:
            yield "[quic]", "port", config.quic.port

    def cluster(self) -> Iterator[Finding]:
        """A store that others can read or change."""
        cluster = self._config.cluster
        if cluster.url:
            for text in store_access.warnings(cluster.url, cluster.access):
                yield "[cluster]", "etcd", text


def _open_to_guests(share: ShareConfig) -> bool:
    return share.guest and share.users is None


def _has_quotas(folder: int) -> bool:
    try:
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        return quotas.find(descriptor) is not None
    finally:
        os.close(descriptor)


def _others(path: Path, bit: int) -> bool:
    try:
        return bool(path.stat().st_mode & bit)
    except OSError:
        return False


def _may_bind() -> bool:
    return bool(capabilities.get().permitted & Capability.NET_BIND_SERVICE)


def _first_free_port() -> int:
    try:
        return int(_FIRST_FREE_PORT.read_text())
    except (OSError, ValueError):
        return 1024
