"""The identity of a client's user, as the logon has established it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from smb3server.access.claims import Claims
    from smb3server.access.descriptor import Sid
    from smb3server.backends.base import User

HOST_GROUP = "@@"
"""Begins the entry of a group of the host in a list of users. Its id follows."""
_MAX_SHOWN = 256
"""Characters. Names of accounts and domains are shorter (MS-SAMR 3.1.1.6)."""


class Member(NamedTuple):
    """What the controller of a domain said about one of its users."""

    sid: Sid
    primary_group: Sid
    groups: frozenset[Sid]
    listed: frozenset[str] = frozenset()
    """The entries of lists of users that include the user, case-folded: names and SIDs, its own and its groups'."""
    claims: Claims | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The user that a session acts for."""

    name: str
    domain: str = ""
    """NetBIOS name of the domain of ``member``. Else the Kerberos realm of a principal that has no account here.
    Empty means an account of this server, whatever domain the client named. For a guest, the domain that the client
    named."""
    guest: bool = False
    anonymous: bool = False
    user: User | None = None
    """POSIX credentials for file access. None means those that the share has for users without any."""
    member: Member | None = None
    """What is known of a user of the domain that this server belongs to. None means that it is another user."""

    def same_user(self, other: Identity) -> bool:
        """Return whether both are the same user, so that each may use what belongs to the other."""
        return self.owner == other.owner

    @property
    def owner(self) -> str:
        """The text that identifies the owner of a durable open (Open.DurableOwner).

        A guest chooses its name, so the text of a guest never equals that of an authenticated user. Neither does that
        of a principal of another realm.
        """
        if self.guest or self.anonymous:
            return f"\0{'guest' if self.guest else 'anonymous'}\0{self.domain}\0{self.name}".casefold()
        if self.member is not None:
            return f"\0sid\0{self.member.sid}"
        # Realms and the names in them are case-sensitive (RFC 4120 6.1, 6.2), names of accounts are not.
        return f"\0realm\0{self.domain}\0{self.name}" if self.domain else self.name.casefold()

    @property
    def listed_name(self) -> str:
        """The name in lists of users, case-folded: an account's name, ``name@REALM`` of a principal that has no
        account, or ``DOMAIN\\name`` of a user of the domain.

        Guests are on no list.
        """
        if self.member is not None:
            return f"{self.domain}\\{self.name}".casefold()
        return (f"{self.name}@{self.domain}" if self.domain else self.name).casefold()

    def is_on(self, names: frozenset[str]) -> bool:
        """Return whether a list of users includes this user. Guests and anonymous users are on no list.

        ``names``: case-folded names as ``listed_name`` returns them, and groups of the host as ``@@GID``. Only a user
        of the host that is the account's own counts for these.
        """
        if self.guest or self.anonymous:
            return False
        if self.listed_name in names:
            return True
        if self.member is not None:
            return not names.isdisjoint(self.member.listed)
        own = self.user
        if own is None or own.shared or self.domain:
            return False
        return not names.isdisjoint([f"{HOST_GROUP}{gid}" for gid in (own.gid, *own.groups)])

    def __str__(self) -> str:
        """Return the name for logs and status, with non-printable characters escaped and at most ``_MAX_SHOWN``
        characters.

        Guests choose their names: these may contain line breaks, codes of terminals, or any number of characters.
        """
        text = f"{self.domain}\\{self.name}" if self.domain else self.name or "ANONYMOUS"
        shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[:_MAX_SHOWN])
        return shown if len(text) <= _MAX_SHOWN else f"{shown}..."
