"""The accounts of a running server: which there are, and what happens to sessions when they change."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smb3server.auth.users import Account
from smb3server.auth.users_file import show_time
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.users import check_accounts, read_accounts
from smb3server.server.server import Server
from smb3server.service import stand_in

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

    def apply(self, accounts: Iterable[Account]) -> Changes:
        """Have these accounts and no others from now on.

        A session ends if its account is gone, or is disabled or expired now. Other sessions stay, with the rights that
        they have: another password or user of the host counts for the next logon.
        """
        users = self._server.users
        before = {account.name.casefold(): account for account in users}
        users.replace(accounts)
        after = {account.name.casefold(): account for account in users}
        changes = Changes(
            sorted(after[key].name for key in after.keys() - before.keys()),
            sorted(after[key].name for key in after.keys() & before.keys() if after[key] != before[key]),
            sorted(before[key].name for key in before.keys() - after.keys()),
            self._end_sessions(),
        )
        if changes != Changes():
            log.info("users: %s", changes)
        return changes

    def _end_sessions(self) -> int:
        """End the sessions whose account may not log on any longer. Return how many there were."""
        ended = 0
        for session in list(self._server.sessions.by_id.values()):
            identity = session.identity
            if identity is None or identity.guest or identity.anonymous or identity.domain:
                continue
            account = self._server.users.find(identity.name)
            # A password that must be changed, or a ticket instead of a password, counts at logons only.
            if account is None or account.refusal(by_password=False) is not None:
                why = "its account was removed or disabled"
                self._server.events.session_ended(session, session.connection, why)
                self._server.sessions.remove(session)
                ended += 1
        return ended

    def reload(self) -> Changes:
        """Read the users file again. Raises ``ConfigError``: then nothing has changed."""
        path = self._config.users_file
        stored = read_accounts(path, self._config.run_as) if path is not None and self._config.keeps_users else []
        fixed = [account for account in self._config.accounts if not account.stored]
        # As at the start: an account of the command line or the configuration file wins.
        accounts = [*stored, *fixed]
        check_accounts(accounts, self._config.settings.groups)
        self._config.accounts[:] = accounts
        return self.apply(accounts)

    # Commands of the admin socket

    def reload_command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Serve ``reload_users``: read the users file again, if it is the one that ``file`` names, or whatever it is if
        the request names none."""
        path, named = self._config.users_file, request.get("file")
        if isinstance(named, str) and (path is None or path.absolute() != Path(named).absolute()):
            return {"uses_file": False}
        try:
            changes = self.reload()
        except ConfigError as error:
            return {"error": f"users stay as they were: {error}"}
        return {
            "uses_file": True,
            "added": changes.added,
            "changed": changes.changed,
            "removed": changes.removed,
            "sessions_ended": changes.sessions_ended,
        }

    def list_command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Serve ``users``: the accounts without their hashes, the groups, and the users file."""
        path, groups = self._config.users_file, self._server.settings.groups
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
            "groups": self._server.settings.groups.of(identity),
            "administrator": self._server.administrators.include(identity),
            "sessions": sum(
                session.identity is not None and session.identity.same_user(identity)
                for session in self._server.sessions.by_id.values()
            ),
        }
