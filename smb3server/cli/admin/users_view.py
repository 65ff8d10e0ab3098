"""Users as tables and objects, and their import from Samba."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from typing import Any

from smb3server.access.identity import Identity
from smb3server.auth.groups import Groups
from smb3server.auth.users_file import Imported, Users, read_smbpasswd, show_time
from smb3server.cli.admin.users_store import Store
from smb3server.cli.exits import EXIT_USAGE, CommandError


def as_objects(users: Users, groups: Groups) -> list[dict[str, Any]]:
    """Return the accounts as plain data, ordered by name, without their hashes."""
    return [
        {
            "name": user.name,
            "unix_user": user.unix_user,
            "principal": user.principal,
            "full_name": user.full_name,
            "comment": user.comment,
            "groups": groups.of(Identity(user.name)),
            "changed": show_time(user.changed) if user.changed else None,
            "expires": show_time(user.expires) if user.expires else None,
            "disabled": user.disabled,
            "must_change": user.must_change,
        }
        for user in sorted(users, key=lambda user: user.name.casefold())
    ]


def as_table(users: list[dict[str, Any]]) -> str:
    """Return the accounts as a table. Times are shortened to days."""
    rows = [["NAME", "ACTS AS", "PASSWORD OF", "GROUPS", "NOTES"]]
    for user in users:
        notes = [key.replace("_", " ") for key in ("disabled", "must_change") if user[key]]
        notes += [f"expires {user['expires'][:10]}"] if user["expires"] else []
        notes += [user[key] for key in ("principal", "full_name", "comment") if user[key]]
        rows.append(
            [
                user["name"],
                user["unix_user"] or "-",
                (user["changed"] or "-")[:10],
                ",".join(user["groups"]) or "-",
                "; ".join(notes),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


class Import:
    """An import from Samba: what to do with each account, and what became of it."""

    def __init__(self, text: str, store: Store, replaces: bool, unix_users: bool | None) -> None:
        """``unix_users`` None means that accounts get users of the host if root imports them. Raises
        ``CommandError``."""
        try:
            self._found = list(read_smbpasswd(text))
        except ValueError as error:
            raise CommandError(str(error), EXIT_USAGE) from error
        self._groups = store.groups()
        self._replaces = replaces
        self._unix_users = os.geteuid() == 0 if unix_users is None else unix_users
        self.lines: list[str] = []
        """What to tell the operator."""
        self.done: list[str] = []
        self.missed: list[str] = []

    def into(self, users: Users) -> None:
        """Add the accounts to ``users``."""
        for entry in self._found:
            reason = entry.reason or self._obstacle(users, entry)
            if entry.user is None or reason:
                self.lines.append(f"left out {entry.name}: {reason}")
                if not entry.machine:
                    self.missed.append(entry.name)
                continue
            user = replace(entry.user, unix_user=self._unix_user(entry))
            users.put(user)
            self.done.append(user.name)
            notes = [f"acts as {user.unix_user}"] if user.unix_user else []
            notes += ["disabled"] if user.disabled else []
            self.lines.append(f"{user.name}{': ' if notes else ''}{', '.join(notes)}")

    def _obstacle(self, users: Users, entry: Imported) -> str:
        if users.find(entry.name) is not None and not self._replaces:
            return "there is such a user already (--replace replaces it)"
        if self._groups.find(entry.name) is not None:
            return "there is a group of this name"
        try:
            self._unix_user(entry)
        except KeyError:
            return (
                f"this machine has no user {entry.name} to act as; remedy: make one and import again, or import with "
                f"--no-unix-users, then `smb3server user set {entry.name} --unix-user NAME`"
            )
        return ""

    def _unix_user(self, entry: Imported) -> str:
        """Return the user of the host of the same name. Numbers are those of the machine that the list comes from."""
        return pwd.getpwnam(entry.name).pw_name if self._unix_users else ""
