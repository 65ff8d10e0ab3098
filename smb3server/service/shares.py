"""Make the configured shares, with their stores and the users that clients act as there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from smb3server.auth.users import Account
from smb3server.backends.base import User
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.impersonate import may_act
from smb3server.backends.local.macos import MacBackend
from smb3server.backends.local.retention import Retention
from smb3server.backends.local.snapshot_folders import SnapshotFolders
from smb3server.backends.names import PRIVATE_NAME
from smb3server.backends.slow_store import make_slow
from smb3server.backends.snapshot_names import SnapshotPattern, hiding
from smb3server.backends.snapshots import Snapshots
from smb3server.commands.info.presentation import hidden_name_test, name_test
from smb3server.config.checks import FolderDownError
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.values import snapshot_pattern, split_folder
from smb3server.files.recycling import USER as RECYCLING_USER
from smb3server.files.recycling import Recycling, problem
from smb3server.process.storage_queue import StorageQueue
from smb3server.process.words import user_name
from smb3server.service import stand_in
from smb3server.settings.declaring import seconds
from smb3server.settings.discovery import DiscoveryConfig
from smb3server.state.share import Share, ShareCapabilities, ShareFlags
from smb3server.virtual_disks import checksum


def warn_of_roots(accounts: Iterable[Account]) -> list[str]:
    """Return a note for each user who is root on the host."""
    return [
        f"user {account.name}: unix_user is root, so this user may do everything in every share"
        for account in accounts
        if account.user is not None and account.user.uid == 0
    ]


_OWN = frozenset(
    ["backend", "notify", "permissions", "stores_opens", "placement", "lost", "emptied", "as_of", "original", "queue"]
)
"""Fields of a share that belong to the object: ``adopt`` leaves them as they are."""


Queues = MutableMapping[int, StorageQueue]
"""By device: what does the work on a file system that may answer late."""


def make_share(
    config: Config,
    share: ShareConfig,
    notes: list[str],
    backend: LocalBackend | None = None,
    queues: Queues | None = None,
) -> Share:
    """Make one share of ``config``, with a store of its own unless ``backend`` is given.

    ``queues``: those of the server. Notes for the operator are added to ``notes``. Raises ``ConfigError``.
    """
    # What can fail comes before the store is opened.
    default_user, folder = _default_user(share, config.accounts, notes)
    new = backend is None
    backend = _the_same(share, folder, _backend(config, share) if backend is None else backend, new)
    if new and queues is not None:
        _queue(share, backend, queues)
    made = Share(
        share.name,
        backend=backend,
        path=str(share.path),
        snapshots=_snapshots(config, share, backend.queue),
        rules=share,
        read_only=share.never_written,
        users=share.users,
        read_list=share.read_list,
        write_list=share.write_list if share.read_only else None,
        hosts=share.hosts,
        user=share.force_user,
        default_user=default_user,
        hidden=share.hidden or share.name.endswith("$"),
        service=share.service,
        capabilities=_capabilities(config, share),
        recycling=_recycling(share),
        hides=hidden_name_test(share.hide_files, share.hide_dot_files),
        flags=ShareFlags.ACCESS_BASED_DIRECTORY_ENUM if share.access_based_enumeration else 0,
        model=(config.discovery or DiscoveryConfig()).model,
    )
    if share.shared_virtual_disks:
        checksum.load()
    _make_recycle_folder(made, notes)
    if share.streams and backend.streams.refused:
        place = quote(str(share.path / PRIVATE_NAME))
        notes.append(
            f"share {share.name}: alternate data streams cannot be written, as {backend.streams.refused}; remedy: "
            f"mkdir -m 700 {place} && chown {os.geteuid()} {place}, then restart"
        )
    return made


class Prepared(NamedTuple):
    """A change of a share that is in use. Preparing it may fail, ``adopt`` does not."""

    share: Share
    """A share with the new settings. It is never served itself."""
    options: LocalOptions


def prepare(share: Share, config: Config, wanted: ShareConfig, notes: list[str]) -> Prepared:
    """Prepare a change of ``share`` to what ``config`` says. Its path and store stay. Raises ``ConfigError``."""
    if not isinstance(share.backend, LocalBackend):
        raise ConfigError(f"share {share.name}: it has no directory")
    return Prepared(make_share(config, wanted, notes, share.backend), _options(config, wanted))


def adopt(share: Share, prepared: Prepared) -> None:
    """Change a share that is in use, as ``effects.SHARE`` says."""
    if share.snapshots is not None:
        share.snapshots.close()
    if isinstance(share.backend, LocalBackend):
        share.backend.change(prepared.options)
    for entry in fields(Share):
        if entry.name not in _OWN:
            setattr(share, entry.name, getattr(prepared.share, entry.name))


def _options(config: Config, share: ShareConfig) -> LocalOptions:
    return LocalOptions(
        read_only=share.never_written,
        sidecar=_sidecar(config.state, share),
        xattrs=config.xattrs,
        symlinks=share.symlinks,
        file_mode=_mode(0o666, share.create_mask, share.force_create_mode),
        directory_mode=_mode(0o777, share.directory_mask, share.force_directory_mode),
        exact_modes=bool(share.force_create_mode or share.force_directory_mode)
        or (share.create_mask, share.directory_mask) != (None, None),
        case_sensitive=share.case_sensitive,
        vetoes=_vetoes(share),
        require_mount=share.require_mount,
        retention=_retention(share),
    )


_SECOND = 10**9


def _retention(share: ShareConfig) -> Retention | None:
    if not share.worm:
        return None
    keep = share.worm_retention
    return Retention(seconds(share.worm_grace_period) * _SECOND, None if keep is None else seconds(keep) * _SECOND)


def _vetoes(share: ShareConfig) -> Callable[[str], bool] | None:
    """Return which names exist for no client. The folders of snapshots are among them: there the rights would be those
    of that time alone, and somebody might write."""
    vetoes, pattern = name_test(share.veto_files), _pattern(share)
    return vetoes if pattern is None else hiding(pattern, vetoes)


def _pattern(share: ShareConfig) -> SnapshotPattern | None:
    return snapshot_pattern(share.snapshots, str(share.path), share.snapshot_times)


def _snapshots(config: Config, share: ShareConfig, queue: StorageQueue | None) -> Snapshots | None:
    pattern = _pattern(share)
    return None if pattern is None else snapshots_below(pattern, _options(config, share), queue)


def snapshots_below(pattern: SnapshotPattern, options: LocalOptions, queue: StorageQueue | None) -> Snapshots:
    """Return the snapshots that a pattern finds. ``options`` and ``queue``: those of the share's store."""
    past = replace(options, read_only=True, is_snapshot=True, sidecar=None, require_mount=False, retention=None)

    def make(folder: str) -> LocalBackend:
        store = LocalBackend(folder, past)
        if queue is not None:
            make_slow(store, queue)
        return store

    return Snapshots(SnapshotFolders(pattern), make)


def _queue(share: ShareConfig, backend: LocalBackend, queues: Queues) -> None:
    """Have the work on a share's store done off the event loop, if its storage may answer late.

    Shares of one file system have one queue: they may have the same files."""
    slow = backend.may_answer_late() if share.slow_storage == "auto" else share.slow_storage
    if slow:
        device = backend.root_key[0]
        make_slow(backend, queues.setdefault(device, StorageQueue(f"share {share.name}")))


def _mode(all_bits: int, mask: int | None, forced: int) -> int:
    """Return the permissions of new files. Without a mask the umask of the process decides."""
    if mask is None:
        mask = ~_umask()
    return all_bits & mask | forced


def _umask() -> int:
    """Return the umask of the process. There is no way to read it but to set it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _recycling(share: ShareConfig) -> Recycling | None:
    if not share.recycle:
        return None
    folder = split_folder(share.recycle_folder)
    if not any(RECYCLING_USER in entry for entry in folder):
        # What one user has deleted is not for the others.
        folder = (*folder, RECYCLING_USER)
    return Recycling(
        folder,
        name_test(share.recycle_exclude),
        share.recycle_max_size,
        share.recycle_keep_days,
        share.recycle_max_total,
    )


def _make_recycle_folder(share: Share, notes: list[str]) -> None:
    """Make the recycle folder before a client could make it for others."""
    if share.recycling is None or share.backend is None or share.read_only or share.service:
        return
    try:
        share.recycling.make(share.backend)
    except OSError as error:
        notes.append(
            f"share {share.name}: {problem(error)}; clients cannot delete files there; remedy: make {share.path} "
            "writable for this server, or set recycle = false"
        )


def _backend(config: Config, share: ShareConfig) -> LocalBackend:
    try:
        backend = (MacBackend if share.for_macs else LocalBackend)(share.path, _options(config, share))
    except OSError as error:
        raise FolderDownError(f"share {share.name}: {error}") from error
    if share.worm and not backend.store.has_attributes(share.path):
        backend.close()
        raise FolderDownError(
            f"share {share.name}: worm needs extended attributes, and {share.path} has none for this server "
            f"(xattrs = {config.xattrs!r})"
        )
    return backend


def _the_same(share: ShareConfig, folder: tuple[int, int] | None, backend: LocalBackend, new: bool) -> LocalBackend:
    """Return a share's store if it has the folder whose owner was looked at, and not one that took its place.

    Raises ``ConfigError``. A store that is ``new`` is then closed."""
    if folder is None or (backend.is_available() and backend.root_key == folder):
        return backend
    if new:
        backend.close()
    raise ConfigError(f"share {share.name}: {share.path} was replaced while it was opened; remedy: try again")


def _sidecar(state: Path | None, share: ShareConfig) -> str | None:
    """Choose the directory for metadata that the share's file system cannot hold; None means that there is none.

    A share that moves between nodes has none: the next node could not read it.
    """
    if state is None or share.service:
        return None
    folder = state / "sidecar"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"state directory {state}: {error}") from error
    return str(folder / share.name)


def _default_user(
    share: ShareConfig, accounts: Sequence[Account], notes: list[str]
) -> tuple[User | None, tuple[int, int] | None]:
    """Choose the user that guests, and users without a user of the host, act as; None means the server's own.

    Root is chosen only if the configuration names it. Return also the folder that was looked at, by device and inode
    number.
    """
    if share.force_user is not None and may_act():
        if share.force_user.uid == 0:
            notes.append(f"share {share.name}: force_user is root, so every user of the share may do everything in it")
        return None, None
    try:
        found = stand_in.look(share.path, share.never_written)
    except OSError as error:
        raise FolderDownError(f"share {share.name}: {error.filename or share.path}: {error.strerror}") from error
    user, lacking = (found.user, found.lacks) if may_act() else (None, _lacking(share))
    if share.guest or any(account.user is None for account in accounts if share.admits(account)):
        name = user_name(user.uid if user is not None else os.geteuid())
        notes += _who_acts(share, name, lacking, found.stranger if user is not None else "", user is None)
    return user, found.key


def _lacking(share: ShareConfig) -> str:
    """Return the access to the folder of a share that the server itself lacks."""
    descriptor = os.open(share.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return stand_in.lacks(descriptor, None, share.never_written)
    finally:
        os.close(descriptor)


def _who_acts(share: ShareConfig, name: str, lacking: str, stranger: str, own: bool) -> list[str]:
    """Return a note that says who acts in a share for users without one of their own, and what is wrong with that."""
    if own and not lacking:
        # There is nobody else whom they could act as.
        return []
    note = f"share {share.name}: guests and users without unix_user act as {name}"
    if stranger:
        note += f", not as the owner of the folder, because {stranger}, who could put another folder in its place"
    if lacking:
        folder = quote(str(share.path))
        note += f", who may not {lacking} there; remedy: chown {name} {folder}" + (
            "" if own else ", or set the share's force_user, or the users' unix_user"
        )
    elif stranger:
        note += "; remedy: take away that right, or set the share's force_user"
    return [note]


def _capabilities(config: Config, share: ShareConfig) -> int:
    """Advertise CLUSTER for shares whose clients can be told to move: they then register with Witness.
    [MS-SMB2 2.2.10]"""
    found = int(ShareCapabilities.CONTINUOUS_AVAILABILITY) if share.continuous_availability else 0
    witness = config.witness is not None and bool(config.witness.nodes or config.cluster.url)
    if share.service or witness:
        found |= ShareCapabilities.CLUSTER
    return found
