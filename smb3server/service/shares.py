"""Make the configured shares, with their stores and the users that clients act as there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from smb3server.auth.users import Account
from smb3server.backends.base import User
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.commands.info.presentation import hidden_name_test, name_test
from smb3server.config.checks import FolderDownError
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.values import split_folder
from smb3server.service import stand_in
from smb3server.state.recycling import Recycling
from smb3server.state.share import Share, ShareCapabilities, ShareFlags


def warn_of_roots(accounts: Iterable[Account]) -> list[str]:
    """Return a note for each user who is root on the host."""
    return [
        f"user {account.name}: unix_user is root, so this user may do everything in every share"
        for account in accounts
        if account.user is not None and account.user.uid == 0
    ]


_OWN = frozenset(["backend", "notify", "permissions", "stores_opens", "placement"])
"""Fields of a share that belong to the object: ``adopt`` leaves them as they are."""


def make_share(config: Config, share: ShareConfig, notes: list[str], backend: LocalBackend | None = None) -> Share:
    """Make one share of ``config``, with a store of its own unless ``backend`` is given.

    Notes for the operator are added to ``notes``. Raises ``ConfigError``.
    """
    # What can fail comes before the store is opened.
    default_user = _default_user(share, config.accounts, notes)
    return Share(
        share.name,
        backend=_backend(config, share) if backend is None else backend,
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
        default_user=default_user,
        hidden=share.hidden or share.name.endswith("$"),
        keep_inherited_flag=share.keep_inherited_flag,
        strict_allocate=share.strict_allocate,
        posix_locks=share.posix_locks,
        delayed_write_times=share.delayed_write_times,
        level2_oplocks=share.level2_oplocks,
        change_notify=share.change_notify,
        streams=share.streams,
        continuous_availability=share.continuous_availability,
        service=share.service,
        capabilities=_capabilities(config, share),
        max_uses=share.max_connections,
        recycling=_recycling(share),
        hides=hidden_name_test(share.hide_files, share.hide_dot_files),
        flags=ShareFlags.ACCESS_BASED_DIRECTORY_ENUM if share.access_based_enumeration else 0,
    )


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
        vetoes=name_test(share.veto_files),
        require_mount=share.require_mount,
    )


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
    excludes = name_test(share.recycle_exclude)
    return Recycling(split_folder(share.recycle_folder), excludes, share.recycle_max_size)


def _backend(config: Config, share: ShareConfig) -> LocalBackend:
    try:
        return LocalBackend(share.path, _options(config, share))
    except OSError as error:
        raise FolderDownError(f"share {share.name}: {error}") from error


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


def _default_user(share: ShareConfig, accounts: Sequence[Account], notes: list[str]) -> User | None:
    """Choose the user that guests, and users without a user of the host, act as; None means the server's own.

    Root is chosen only if the configuration names it.
    """
    if os.geteuid() != 0:
        return None
    if share.force_user is not None:
        if share.force_user.uid == 0:
            notes.append(f"share {share.name}: force_user is root, so every user of the share may do everything in it")
        return None
    try:
        user = stand_in.find(share.path)
        lacking = stand_in.lacks(share.path, user, share.never_written)
    except OSError as error:
        raise FolderDownError(f"share {share.name}: {share.path}: {error.strerror}") from error
    allowed = [account for account in accounts if share.admits(account)]
    if not (share.guest or any(account.user is None for account in allowed)):
        return user
    name = stand_in.name_of(user)
    note = f"share {share.name}: guests and users without unix_user act as {name}"
    if lacking:
        note += (
            f", who may not {lacking} there; remedy: chown {name} {quote(str(share.path))}, or set the share's "
            "force_user, or the users' unix_user"
        )
    notes.append(note)
    return user


def _capabilities(config: Config, share: ShareConfig) -> int:
    """Advertise CLUSTER for shares whose clients can be told to move: they then register with Witness.
    [MS-SMB2 2.2.10]"""
    found = int(ShareCapabilities.CONTINUOUS_AVAILABILITY) if share.continuous_availability else 0
    witness = config.witness is not None and bool(config.witness.nodes or config.cluster.url)
    if share.service or witness:
        found |= ShareCapabilities.CLUSTER
    return found
