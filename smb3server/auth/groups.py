"""Groups of users, as lists of users name them.

A list of users has entries of four kinds. Names are compared without case.

- ``alice``: an account.
- ``alice@EXAMPLE.COM``: a Kerberos principal without an account.
- ``@staff``: all members of a group of the configuration. Groups may contain groups.
- ``DOMAIN\\alice``, ``@DOMAIN\\staff``, ``@S-1-5-21-...``: a user and groups of the domain that the server belongs to.
- ``@@users``: all accounts whose own user of the host is in this group of the host.
"""

from __future__ import annotations

import grp
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from smb3server.access.identity import HOST_GROUP

if TYPE_CHECKING:
    from smb3server.access.identity import Identity

GROUP = "@"


class Groups:
    """The groups of one configuration. They never change: a new configuration has new ones."""

    def __init__(self, members: Mapping[str, Collection[str]] | None = None) -> None:
        """Make groups from their names and the entries of their lists.

        Raises ``ValueError`` for a name that is no group's, or a group that contains itself.
        """
        self._listed: dict[str, Collection[str]] = {}
        self._names: dict[str, str] = {}
        for name, entries in (members or {}).items():
            if not name or name != name.strip() or set(name) & set("@\\:,\n\0"):
                raise ValueError(f"{name!r} is not a name for a group: leave out @ \\ : , and blanks at the ends")
            if name.casefold() in self._names:
                raise ValueError(f"group {name}: given twice")
            self._names[name.casefold()] = name
            self._listed[name.casefold()] = tuple(entries)
        self._members = {key: self._expand(entries, (key,)) for key, entries in self._listed.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Groups) and (self._names, self._members) == (other._names, other._members)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, as they are spelled, in alphabetical order."""
        return iter(sorted(self._names.values(), key=str.casefold))

    def find(self, name: str) -> str | None:
        """Return the name of a group as it is spelled, or None if there is no such group."""
        return self._names.get(name.casefold())

    def members(self, name: str) -> frozenset[str]:
        """Return the members of a group as ``expand`` does, or nobody if there is no such group."""
        return self._members.get(name.casefold(), frozenset())

    def of(self, identity: Identity) -> list[str]:
        """Return the names of the groups that a user is in."""
        return [self._names[key] for key, members in self._members.items() if identity.is_on(members)]

    def expand(self, entries: Collection[str]) -> frozenset[str]:
        """Return a list of users in the form that ``Identity.is_on`` takes.

        Groups are replaced with their members, groups of the host with their ids. Raises ``ValueError`` for an unknown
        group.
        """
        return self._expand(entries, ())

    def _expand(self, entries: Collection[str], within: tuple[str, ...]) -> frozenset[str]:
        found: set[str] = set()
        for entry in entries:
            if entry.startswith(HOST_GROUP):
                found.add(_host_group(entry))
            elif entry.startswith(GROUP) and of_domain(entry):
                found.add(entry.casefold())
            elif entry.startswith(GROUP):
                key = entry.removeprefix(GROUP).casefold()
                if key in within:
                    raise ValueError(f"group {self._names[key]} contains itself")
                if key not in self._listed:
                    raise ValueError(f"there is no group {entry.removeprefix(GROUP)}: define it in [groups]")
                found |= self._expand(self._listed[key], (*within, key))
            elif not entry:
                raise ValueError("an empty name")
            else:
                found.add(entry.casefold())
        return frozenset(found)


def _host_group(entry: str) -> str:
    """Return the entry of a group of the host, with its id in place of its name. Raises ``ValueError``."""
    name = entry.removeprefix(HOST_GROUP)
    try:
        return f"{HOST_GROUP}{grp.getgrnam(name).gr_gid}"
    except (KeyError, ValueError):
        raise ValueError(f"this machine has no group {name}") from None


def of_domain(entry: str) -> bool:
    """Return whether an entry of a list names a user or a group of a domain, by its name or its SID."""
    return "\\" in entry or entry.removeprefix(GROUP)[:4].upper() == "S-1-"


def is_user(entry: str) -> bool:
    """Return whether an entry of a list names one user, not a group."""
    return not entry.startswith(GROUP)
