"""Applying another configuration to a running server.

The new configuration was read and checked as a whole. Everything that can still fail, such as opening the directories
of new shares, comes before the first change: then nothing is changed at all. ``effects`` says when each setting counts.

What may stay is not cut: clients keep their connections, sessions and open files. What ends: tree connects to shares
that are gone or no longer admit their user, sessions of users who are gone, connections from addresses that are no
longer admitted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from smb3server.config.checks import FolderDownError, check
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.net.listener import TcpListener
from smb3server.server.server import Server
from smb3server.service import effects
from smb3server.service.kerberos import realms_of_keytab
from smb3server.service.namespaces import RunningNamespaces
from smb3server.service.running_shares import Change, RunningShares
from smb3server.service.users import LiveUsers
from smb3server.settings.declaring import Effect
from smb3server.settings.server import Settings
from smb3server.state.share import Share

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What a reload did, in the words of the configuration."""

    changes: list[str] = field(default_factory=list)
    """What was added, changed, removed or ended."""
    restart: list[str] = field(default_factory=list)
    """Changed settings that take effect after a restart."""
    notes: list[str] = field(default_factory=list)
    """Notes for the operator, as at the start."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"changes": self.changes, "restart": self.restart, "notes": self.notes}

    def write_log(self) -> None:
        """Log it."""
        for change in self.changes:
            log.info("%s", change)
        for note in self.notes:
            log.info("note: %s", note)
        if self.restart:
            log.warning("these changes need a restart: %s", ", ".join(self.restart))


_LISTS = frozenset({"admins", "security_operators", "backup_operators"})
"""Settings that say which privileges users have."""


class Reload:
    """Applies configurations to one server. The caller sees to it that only one is applied at a time."""

    def __init__(
        self,
        config: Config,
        server: Server,
        shares: RunningShares,
        namespaces: RunningNamespaces,
        users: LiveUsers,
        listeners: list[TcpListener],
    ) -> None:
        """``config``: the one that the server was started with. ``listeners``: the server's live list."""
        self.config = config
        """What is in effect now, and what a restart will change as it was at the start."""
        self._server = server
        self._shares = shares
        self._namespaces = namespaces
        self._users = users
        self._listeners = listeners
        self.limits_changed: Callable[[], None] = lambda: None
        """Called when limits of connections have changed."""

    def start_with(self, config: Config) -> None:
        """Count ``config`` as what the server was started with. Its settings are those of the server."""
        self.config = config
        self._users.use_accounts_of(config)

    async def apply(self, fresh: Config) -> Outcome:
        """Apply ``fresh``, which was checked on its own. Raises ``ConfigError``, and then changes nothing."""
        outcome = Outcome(notes=list(fresh.notes))
        config = self._possible(fresh, outcome)
        present = {share.name.casefold(): share for share in self.config.shares if self._shares.find(share.name)}
        wanted = {share.name.casefold(): share for share in config.shares}
        gone = [name for name in present if name not in wanted or _is_replaced(present[name], wanted[name])]
        new = [name for name in wanted if name not in present or name in gone]
        realms = realms_of_keytab(config.settings)
        kept = [name for name in wanted if name in present and name not in gone]
        prepared = {}
        for name in kept:
            # What is as it was needs no note again.
            notes = outcome.notes if wanted[name] != present[name] else []
            try:
                prepared[name] = self._shares.prepare(config, wanted[name], notes)
            except FolderDownError as error:
                outcome.notes.append(f"{error}: the share keeps its settings until another reload")
        made = self._make(config, [wanted[name] for name in new], outcome)
        before, self.config = self.config, config
        self._apply_settings(before, fresh.settings, realms, outcome)
        self._apply_users(self.config, outcome)
        outcome.changes += self._namespaces.leave(config.namespaces)
        for name in gone:
            self._remove(present[name], "removed" if name not in wanted else "replaced", outcome)
        for name, change in prepared.items():
            self._change(present[name], wanted[name], change, outcome)
        for share in made:
            await self._add(share, outcome)
        outcome.changes += self._namespaces.serve(config.namespaces)
        self._forget_others()
        return outcome

    async def bring_up(self, down: Mapping[str, str]) -> None:
        """Serve the shares whose folders were not there, and are there by now.

        ``down``: why folders cannot be used (``folders_down``).
        """
        outcome = Outcome()
        for wanted in self.config.shares:
            why = down.get(wanted.name)
            if self._shares.find(wanted.name) is not None:
                # Its store refuses clients by itself as long as the folder is gone.
                self._shares.down.pop(wanted.name, None)
                if why:
                    self._shares.down[wanted.name] = why
            elif why:
                self._shares.take_down(wanted, why)
            else:
                await self._bring_up(wanted, outcome)
        self._forget_others()
        outcome.write_log()

    async def _bring_up(self, wanted: ShareConfig, outcome: Outcome) -> None:
        try:
            share = self._shares.try_make(self.config, wanted, outcome.notes)
        except ConfigError as error:
            self._shares.take_down(wanted, str(error))
            return
        if share is not None:
            await self._add(share, outcome)

    def _forget_others(self) -> None:
        """Forget why shares were down that the configuration has no longer."""
        for name in self._shares.down.keys() - {share.name for share in self.config.shares}:
            del self._shares.down[name]

    def _possible(self, fresh: Config, outcome: Outcome) -> Config:
        """Return ``fresh`` with the values of today where only a restart could change them. Raises ``ConfigError``."""
        today = self.config
        for where, old, new, table in (
            ("[server] ", today, fresh, effects.SERVER),
            ("", today.settings, fresh.settings, effects.SETTINGS),
        ):
            found = effects.changed(old, new, table)
            outcome.restart += [where + name for name, effect in found.items() if effect is Effect.RESTART]
        kept = {name: getattr(today, name) for name, effect in effects.SERVER.items() if effect is Effect.RESTART}
        lasting = {
            name: getattr(today.settings, name) for name, effect in effects.SETTINGS.items() if effect is Effect.RESTART
        }
        config = replace(fresh, **kept, settings=msgspec.structs.replace(fresh.settings, **lasting))
        try:
            check(config)
        except ConfigError as error:
            raise ConfigError(
                f"{error} (before a restart, {', '.join(outcome.restart) or 'nothing'} stays as it is)"
            ) from error
        return config

    def _make(self, config: Config, wanted: list[ShareConfig], outcome: Outcome) -> list[Share]:
        """Make new shares, or none if one cannot be made. Those whose folders are not there stay down."""
        made: list[Share] = []
        try:
            for entry in wanted:
                share = self._shares.try_make(config, entry, outcome.notes)
                if share is None:
                    outcome.notes.append(f"share {entry.name} is down: {self._shares.down[entry.name]}")
                else:
                    made.append(share)
        except ConfigError:
            for share in made:
                self._shares.discard(share)
            raise
        return made

    # Settings

    def _apply_settings(self, before: Config, fresh: Settings, realms: frozenset[str], outcome: Outcome) -> None:
        """Change the settings that all parts of the server share."""
        settings = before.settings
        found = effects.changed(settings, fresh, effects.SETTINGS)
        for name, effect in found.items():
            if effect is not Effect.RESTART:
                setattr(settings, name, getattr(fresh, name))
                outcome.changes.append(f"{name}: {effect.value}")
        self.config = replace(self.config, settings=settings)
        if _LISTS & found.keys():
            self._forget_tokens()
        self._server.settings_changed()
        if self._server.local_accounts.principals is not None and not settings.trusted_realms:
            self._server.local_accounts.principals.trusted_realms = realms
        self.limits_changed()
        for listener in self._listeners:
            listener.first_byte_timeout = settings.negotiate_timeout
        if "hosts" in found:
            for connection in list(self._server.connection_list):
                if not settings.hosts.admits(connection.client_name):
                    outcome.changes.append(f"connection from {connection.client_name}: ended")
                    connection.disconnect("its address is no longer admitted")

    def _forget_tokens(self) -> None:
        """Compute the tokens of all sessions anew: the privileges of their users may be others now. They count
        for files opened from now on."""
        for session in self._server.sessions.by_id.values():
            session.token = None
            for tree in session.tree_connect_table.values():
                tree.caller = None

    # Users

    def _apply_users(self, config: Config, outcome: Outcome) -> None:
        """Change the accounts, and end the sessions of users who may no longer log on."""
        changes = self._users.use(config)
        for kind in ("added", "changed", "removed"):
            outcome.changes += [f"user {name}: {kind}" for name in getattr(changes, kind)]
        if changes.sessions_ended:
            outcome.changes.append(f"{changes.sessions_ended} sessions of users who may no longer log on: ended")

    # Shares

    def _remove(self, share: ShareConfig, how: str, outcome: Outcome) -> None:
        running = self._shares.find(share.name)
        if running is not None:
            ended = self._shares.remove(running)
            outcome.changes.append(f"share {share.name}: {how}{_ended(ended)}")

    def _change(self, old: ShareConfig, new: ShareConfig, change: Change, outcome: Outcome) -> None:
        """Change a share, and review it in any case: the users may have changed."""
        ended = self._shares.change(change)
        found = effects.changed(old, new, effects.SHARE)
        if found:
            told = ", ".join(f"{name} {effect.value}" for name, effect in found.items())
            outcome.changes.append(f"share {new.name}: {told}{_ended(ended)}")
        elif ended:
            outcome.changes.append(f"share {new.name}: {ended} tree connects ended")

    async def _add(self, share: Share, outcome: Outcome) -> None:
        try:
            await self._shares.add(share)
        except ConfigError as error:
            # The store of persistent opens failed. The other shares are served already.
            log.error("%s", error)
            outcome.notes.append(str(error))
            self.config = replace(
                self.config, shares=[entry for entry in self.config.shares if entry.name != share.name]
            )
        else:
            outcome.changes.append(f"share {share.name}: added")


def _is_replaced(old: ShareConfig, new: ShareConfig) -> bool:
    return Effect.REPLACED in effects.changed(old, new, effects.SHARE).values()


def _ended(count: int) -> str:
    return f"; {count} tree connects ended" if count else ""
