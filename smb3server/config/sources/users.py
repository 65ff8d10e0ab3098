"""The accounts of the users file, and what all accounts of a configuration must agree on."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from smb3server.auth.accounts import group_rid, rid
from smb3server.auth.groups import Groups
from smb3server.auth.users import Account, parse_principal
from smb3server.auth.users_file import StoredUser, UsersFileError, read_users
from smb3server.config.error import ConfigError, Problems
from smb3server.config.values import unix_user

FILE_NAME = "users"
ROOTS_FOLDER = Path("/etc/smb3server")


def default_users_file(state: Path | None) -> Path:
    """Return where the users file is if the configuration does not say: in the state directory, or for a server without
    one in /etc/smb3server, or for a server of another user than root in the user's own configuration folder.
    """
    if state is not None:
        return state / FILE_NAME
    if os.geteuid() == 0:
        return ROOTS_FOLDER / FILE_NAME
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "smb3server" / FILE_NAME


def users_file_of(document: Mapping[str, object], folder: Path) -> Path | None:
    """Return the users file of a configuration file's content. None if that names neither it nor a state directory.

    Relative paths count from ``folder``.
    """
    server = document.get("server")
    named = server.get("users_file") if isinstance(server, dict) else None
    state = server.get("state") if isinstance(server, dict) else None
    if isinstance(named, str) and named:
        return folder / named
    return default_users_file(folder / state) if isinstance(state, str) and state else None


def read_accounts(path: Path, run_as: str = "") -> list[Account]:
    """Read the accounts of a users file.

    ``run_as`` names the user of the host that the server becomes, who may own the file, too. Raises ``ConfigError``.
    """
    try:
        return [_account(path, user) for user in read_users(path, owners(run_as))]
    except UsersFileError as error:
        raise ConfigError(str(error)) from error


def owners(run_as: str) -> list[int]:
    """Return the id of the user that the server becomes, if there is such a user."""
    try:
        return [pwd.getpwnam(run_as).pw_uid] if run_as else []
    except KeyError:
        return []


def _account(path: Path, stored: StoredUser) -> Account:
    try:
        if stored.principal:
            parse_principal(stored.principal)
        user = unix_user(stored.unix_user) if stored.unix_user else None
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{path}: user {stored.name}: {error}") from error
    return Account(
        stored.name,
        stored.nt_hash,
        user,
        stored.principal,
        True,
        stored.full_name,
        stored.comment,
        stored.changed,
        stored.expires,
        stored.disabled,
        stored.must_change,
    )


def clashes(accounts: Iterable[Account], groups: Groups) -> Iterator[tuple[str, str, str]]:
    """Find accounts and groups that could be taken for each other: setting (owner and key), and what is wrong."""
    rids: dict[int, str] = {}
    names: dict[str, str] = {}
    principals: dict[str, str] = {}
    for account in accounts:
        owner, name = f"user {account.name}", account.name
        names[name.casefold()] = name
        other = rids.setdefault(rid(name), name)
        if other.casefold() != name.casefold():
            yield owner, "", f"would have the same SID as the user {other}: rename one of them"
        other = principals.setdefault(account.principal, name)
        if account.principal and other.casefold() != name.casefold():
            yield owner, "principal", f"{account.principal} is given twice, also to {other}"
    for group in groups:
        other = names.get(group.casefold()) or rids.setdefault(group_rid(group), group)
        if other != group or group.casefold() in names:
            yield "[groups]", group, f"group {group} and user {other}: rename one of them"


def check_accounts(accounts: Iterable[Account], groups: Groups) -> None:
    """Check that no two accounts or groups could be taken for each other. Raises ``ConfigError``."""
    problems = Problems()
    for owner, key, text in clashes(accounts, groups):
        problems.add(owner, key, text)
    problems.finish()
