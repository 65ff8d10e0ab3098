"""Who somebody is to this server, once the logon has proven it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smb3server.backends.base import User

_MAX_SHOWN = 256
"""Characters: more than names of accounts and domains have (MS-SAMR 3.1.1.6)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a session acts for."""

    name: str
    domain: str = ""
    """Kerberos realm of a principal that has no account here; empty: the server's own account, whatever domain its
    client named. Of a guest, what its client said."""
    guest: bool = False
    anonymous: bool = False
    user: User | None = None
    """POSIX credentials for file access; None: those that the share has for such users."""

    def same_user(self, other: Identity) -> bool:
        """Whether what belongs to one belongs to the other."""
        return self.owner == other.owner

    @property
    def owner(self) -> str:
        """What a durable open is stored with (Open.DurableOwner). A guest chooses its name, so a guest's never equals
        that of a user who proved theirs; nor does that of a principal of another realm."""
        if self.guest or self.anonymous:
            return f"\0{'guest' if self.guest else 'anonymous'}\0{self.domain}\0{self.name}".casefold()
        # Realms and the names in them are told apart by case (RFC 4120 6.1, 6.2), names of accounts are not.
        return f"\0realm\0{self.domain}\0{self.name}" if self.domain else self.name.casefold()

    @property
    def listed_name(self) -> str:
        """What lists of users have it by, case-folded: an account's name, or ``name@REALM`` of a principal that has no
        account. Guests are on no list."""
        return (f"{self.name}@{self.domain}" if self.domain else self.name).casefold()

    def __str__(self) -> str:
        """For people: logs and status. Guests call themselves what they like, be it a line of a log or the codes of a
        terminal, as long as they like."""
        text = f"{self.domain}\\{self.name}" if self.domain else self.name or "ANONYMOUS"
        shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[:_MAX_SHOWN])
        return shown if len(text) <= _MAX_SHOWN else f"{shown}..."
