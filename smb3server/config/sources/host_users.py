"""Which users of the host the server and its clients act as: nobody is root unless the operator says so."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable, Iterator, Sequence
from shlex import quote

from smb3server.auth.users import Account
from smb3server.backends.local.impersonate import may_act
from smb3server.config.error import ConfigError, Problems, RightsError
from smb3server.config.model import Config, ShareConfig
from smb3server.process.words import user_name

OWNER = "owner"
"""Value of ``drop_privileges`` that means the owner of the shares' folders."""
ALLOW_ROOT_VARIABLE = "SMB3SERVER_ALLOW_ROOT"
"""Stands for ``--allow-root`` where the command line is somebody else's."""


def wrong_host_users(config: Config, accounts: Iterable[Account]) -> Iterator[tuple[str, str, ConfigError]]:
    """Find settings by which somebody acts as a user of the host that nobody may act as: owner, key, what is wrong.

    Acting as another user takes CAP_SETUID and CAP_SETGID. Nobody acts as root, unless that is allowed. With
    ``drop_privileges`` nobody acts as anybody but the server's user.
    """
    named = [(f"user {entry.name}", "unix_user", entry.user) for entry in accounts]
    named += [(f"share {entry.name}", "force_user", entry.force_user) for entry in config.shares]
    if config.homes is not None:
        named.append(("[homes]", "force_user", config.homes.force_user))
    named.append(("[server]", "unknown_principals", config.settings.unknown_principals))
    own = pwd.getpwnam(config.run_as).pw_uid if config.drop_privileges and config.run_as else None
    allowed = config.allow_root or os.environ.get(ALLOW_ROOT_VARIABLE) == "1"
    for owner, key, user in named:
        if user is None:
            continue
        if user.uid == 0 and not allowed:
            text = (
                "is root, who may read and change everything on this machine; remedy: name another user of this "
                "machine, or leave it out (clients then act as the owner of the share's folder), or allow it: "
                "--allow-root, or allow_root = true in [server]"
            )
            yield owner, key, ConfigError(text)
        elif own is not None and user.uid != own:
            text = (
                f"is not {config.run_as}: with drop_privileges everybody acts as {config.run_as}; remedy: leave it "
                "out, or use run_as instead of drop_privileges"
            )
            yield owner, key, ConfigError(text)
        elif user.uid != os.geteuid() and not may_act():
            text = f"the server has to run as root, or with CAP_SETUID and CAP_SETGID, to act as {user_name(user.uid)}"
            yield owner, key, RightsError(text)


def check_host_users(config: Config, accounts: Iterable[Account]) -> None:
    """Check who acts as whom on the host. ``accounts`` are those of the server. Raises ``ConfigError``."""
    problems = Problems()
    problems.check(wrong_host_users(config, accounts))
    problems.finish()


def user_to_become(wanted: str, run_as: str, shares: Sequence[ShareConfig]) -> str:
    """Return the name of the user that ``drop_privileges`` means. Raises ``ConfigError``."""
    if run_as:
        raise ConfigError("excludes run_as, which keeps the rights to act as users: leave one of them out")
    name = _owner(shares) if wanted == OWNER else wanted
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(f"this machine has no user {name}") from None
    if uid == 0:
        raise ConfigError("root has all privileges; name another user: --drop-privileges=USER")
    return name


def _owner(shares: Sequence[ShareConfig]) -> str:
    """Return the name of the user who owns the folders of all shares. Raises ``ConfigError``."""
    owners: dict[int, str] = {}
    for share in shares:
        # A share whose folder is not there has no say.
        with contextlib.suppress(OSError):
            owners.setdefault(os.stat(share.path).st_uid, share.name)
    if len(owners) != 1:
        raise ConfigError(
            f"the folders of the shares have {'different owners' if owners else 'no owner'}; name one user: "
            "--drop-privileges=USER"
        )
    uid = next(iter(owners))
    if uid == 0:
        folder = quote(str(shares[0].path))
        raise ConfigError(f"root owns {folder}; remedy: chown USER {folder}, or name one: --drop-privileges=USER")
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise ConfigError(f"user {uid}, who owns the folders, has no name here: --drop-privileges=USER") from None
