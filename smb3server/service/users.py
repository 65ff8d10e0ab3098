"""The accounts of a running server: which there are, and what happens to sessions when they change."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smb3server.access.identity import Identity
from smb3server.auth.users import Account
from smb3server.auth.users_file import show_time
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.sources.host_users import check_host_users
from smb3server.config.sources.users import check_accounts, read_accounts
from smb3server.server.server import Server
from smb3server.service import stand_in
from smb3server.state import endings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Changes:
    """What another set of accounts changes. Names are sorted."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    sessions_ended: int = 0

    def __str__(self) -> str:
        kinds = (("added", self.added), ("changed", self.changed), ("removed", self.removed))
        parts = [f"{kind} {', '.join(names)}" for kind, names in kinds if names]
        return f"{'; '.join(parts) or 'nothing changed'}; {self.sessions_ended} sessions ended"


class LiveUsers:
    """The accounts of one running server."""

    def __init__(self, server: Server, config: Config) -> None:
        """Use the accounts of ``config``, which ``server`` has already."""
        self._server = server
        self._config = config

    @property
    def config(self) -> Config:
        """The configuration whose accounts these are."""
        return self._config

    def use(self, config: Config) -> Changes:
        """Use another configuration, with the accounts that it has. See ``apply``."""
        self._config = config
        return self.apply(config.accounts)

    def apply(self, accounts: Iterable[Account]) -> Changes:
        """Have these accounts and no others from now on.

        A session ends if its user may not log on any longer: the account is gone, disabled or expired, guests are not
        allowed, a principal is not mapped. Other sessions stay. They act as the user of the host that their account
        has now, on files opened from now on. Another password counts for the next logon.
        """
        users = self._server.users
        before = {account.name.casefold(): account for account in users}
        users.replace(accounts)
        after = {account.name.casefold(): account for account in users}
        changes = Changes(
            sorted(after[key].name for key in after.keys() - before.keys()),
            sorted(after[key].name for key in after.keys() & before.keys() if after[key] != before[key]),
            sorted(before[key].name for key in before.keys() - after.keys()),
            endings.end_user(self._server, lambda identity: not self._may_log_on(identity)),
        )
        for session in self._server.sessions.by_id.values():
            if session.identity is not None:
                session.identity = self._as_today(session.identity)
        if changes != Changes():
            log.info("users: %s", changes)
        return changes

    def _may_log_on(self, identity: Identity) -> bool:
        server = self._server
        if identity.anonymous:
            return server.settings.allow_anonymous
        if identity.guest:
            return server.settings.allow_guest
        try:
            server.accounts.today(identity)
        except ValueError:
            return False
        return True

    def _as_today(self, identity: Identity) -> Identity:
        """Return the identity that a user has now, with its user of the host and the lists it is on."""
        if identity.guest or identity.anonymous:
            return identity
        return self._server.accounts.today(identity)

    def use_accounts_of(self, config: Config) -> None:
        """Count the accounts of ``config`` as those that the server has."""
        self._config = config

    def read_again(self, config: Config) -> list[Account]:
        """Return the accounts of ``config``, with those of the users file as they are now. Raises ``ConfigError``."""
        path = config.users_file
        stored = read_accounts(path, config.run_as) if path is not None and config.keeps_users else []
        fixed = [account for account in config.accounts if not account.stored]
        # As at the start: an account of the command line or the configuration file wins.
        accounts = [*stored, *fixed]
        check_accounts(accounts, config.settings.groups)
        check_host_users(config, accounts)
        return accounts

    def reload(self) -> Changes:
        """Read the users file again. Raises ``ConfigError``: then nothing has changed."""
        accounts = self.read_again(self._config)
        self._config.accounts[:] = accounts
        return self.apply(accounts)

    # Commands of the admin socket

    def reload_command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Serve ``reload_users``: read the users file again, if it is the one that ``file`` names, or whatever it is if
        the request names none."""
        path, named = self._config.users_file, request.get("file")
        if isinstance(named, str) and (path is None or path.resolve() != Path(named).resolve()):
            return {"uses_file": False}
        try:
            changes = self.reload()
        except ConfigError as error:
            return {"uses_file": True, "error": f"users stay as they were: {error}"}
        return {
            "uses_file": True,
            "added": changes.added,
            "changed": changes.changed,
            "removed": changes.removed,
            "sessions_ended": changes.sessions_ended,
            **({"in_cluster": True} if self._config.cluster.url else {}),
        }

    def list_command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Serve ``users``: the accounts without their hashes, the groups, and the users file."""
        path, groups = self._config.users_file, self._server.accounts.groups
        return {
            "file": str(path.absolute()) if path is not None else None,
            "users": [self._show(account) for _, account in self._server.accounts.users()],
            "groups": {name: sorted(groups.members(name)) for name in groups},
        }

    def _show(self, account: Account) -> dict[str, Any]:
        identity = account.identity
        return {
            "name": account.name,
            "stored": account.stored,
            "unix_user": stand_in.name_of(account.user) if account.user is not None else None,
            "principal": account.principal,
            "full_name": account.full_name,
            "comment": account.comment,
            "changed": show_time(account.changed) if account.changed else None,
            "expires": show_time(account.expires) if account.expires else None,
            "disabled": account.disabled,
            "must_change": account.must_change,
            "groups": self._server.accounts.groups.of(identity),
            "administrator": self._server.accounts.administers(identity),
            "sessions": sum(
                session.identity is not None and session.identity.same_user(identity)
                for session in self._server.sessions.by_id.values()
            ),
        }
