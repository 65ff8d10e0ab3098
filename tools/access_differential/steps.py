"""The steps of a round: each is an open by one of two users, and perhaps one action.

Everything is plain data without reference to a server, so that a round can be stored, replayed and shortened.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any

READ_DATA, WRITE_DATA, APPEND_DATA, READ_EA, WRITE_EA, EXECUTE, DELETE_CHILD = 1, 2, 4, 8, 0x10, 0x20, 0x40
READ_ATTRIBUTES, WRITE_ATTRIBUTES, DELETE, READ_CONTROL = 0x80, 0x100, 0x10000, 0x20000
WRITE_DAC, WRITE_OWNER, SYNCHRONIZE = 0x40000, 0x80000, 0x100000
SYSTEM_SECURITY, MAXIMUM = 0x1000000, 0x2000000
GENERIC_ALL, GENERIC_EXECUTE, GENERIC_WRITE, GENERIC_READ = 0x10000000, 0x20000000, 0x40000000, 0x80000000
ALL = 0x1F01FF
"""FILE_ALL_ACCESS."""
SUPERSEDE, OPEN, CREATE, OPEN_IF, OVERWRITE, OVERWRITE_IF = range(6)
DIRECTORY_FILE, NON_DIRECTORY_FILE, DELETE_ON_CLOSE, BACKUP_INTENT = 0x1, 0x40, 0x1000, 0x4000
ATTRIBUTE_READONLY, ATTRIBUTE_HIDDEN, ATTRIBUTE_NORMAL = 0x1, 0x2, 0x80
OBJECT_INHERIT, CONTAINER_INHERIT, NO_PROPAGATE, INHERIT_ONLY = 1, 2, 4, 8


class Who(enum.StrEnum):
    """Principals. Each server has its own SIDs for them."""

    ALICE = "alice"
    BOB = "bob"
    ALICES_GROUP = "alice's group"
    BOBS_GROUP = "bob's group"
    EVERYONE = "everyone"
    AUTHENTICATED = "authenticated users"
    CREATOR_OWNER = "creator owner"
    OWNER_RIGHTS = "owner rights"
    STRANGER = "stranger"
    ADMINISTRATORS = "administrators"


@dataclass(frozen=True, slots=True)
class Ace:
    """An access control entry. [MS-DTYP 2.4.4]"""

    who: Who
    mask: int
    deny: bool = False
    flags: int = 0


class Do(enum.StrEnum):
    """Actions on an open."""

    NOTHING = "nothing"
    READ = "read"
    WRITE = "write"
    LIST = "list"
    RENAME = "rename"
    LINK = "link"
    DISPOSE = "dispose"
    BASIC = "basic"
    END_OF_FILE = "end of file"
    EA = "ea"
    OWNER = "owner"
    GROUP = "group"
    DACL = "dacl"
    QUERY_SECURITY = "query security"
    QUERY_ACCESS = "query access"
    QUERY_ATTRIBUTES = "query attributes"


HARMLESS = frozenset({Do.NOTHING, Do.READ, Do.LIST, Do.QUERY_SECURITY, Do.QUERY_ACCESS, Do.QUERY_ATTRIBUTES})
"""Actions that change nothing."""


@dataclass(frozen=True, slots=True)
class Step:
    """One CREATE, one action on the open, one CLOSE."""

    user: int
    """0 is alice, 1 is bob."""
    path: str
    """Path below the round's own folder; "" is that folder."""
    access: int
    disposition: int = OPEN
    options: int = 0
    attributes: int = 0
    do: Do = Do.NOTHING
    target: str = ""
    """The new path, for RENAME and LINK."""
    replace: bool = False
    """Whether an existing target is replaced, for RENAME and LINK."""
    number: int = 0
    """Attributes (BASIC), bytes (END_OF_FILE) or SECURITY_INFORMATION (QUERY_SECURITY)."""
    who: Who | None = None
    """The principal to set, for OWNER and GROUP."""
    aces: tuple[Ace, ...] = ()
    """The entries, for DACL."""

    def harmless(self) -> bool:
        """Return whether the step leaves both trees unchanged, whatever the answers are."""
        return self.do in HARMLESS and self.disposition == OPEN and not self.options & DELETE_ON_CLOSE

    def __str__(self) -> str:
        parts = [("alice", "bob")[self.user], f"opens {self.path or '(top)'!s} for {self.access:#x}"]
        if self.disposition != OPEN:
            parts.append(("SUPERSEDE", "OPEN", "CREATE", "OPEN_IF", "OVERWRITE", "OVERWRITE_IF")[self.disposition])
        parts += [f"options {self.options:#x}"] if self.options else []
        parts += [f"attributes {self.attributes:#x}"] if self.attributes else []
        if self.do != Do.NOTHING:
            parts.append(f"and does {self.do}")
            parts += [f"to {self.target}{' (replace)' if self.replace else ''}"] if self.target else []
            parts += [f"{self.number:#x}"] if self.number else []
            parts += [str(self.who)] if self.who else []
            parts += [
                f"[{'deny' if ace.deny else 'allow'} {ace.who} {ace.mask:#x} flags {ace.flags:#x}]" for ace in self.aces
            ]
        return " ".join(parts)


def to_json(step: Step) -> dict[str, Any]:
    """Return the step as JSON types."""
    return asdict(step)


def from_json(data: dict[str, Any]) -> Step:
    """Return the step from the JSON types that ``to_json`` made."""
    return Step(
        **{
            **data,
            "do": Do(data["do"]),
            "who": Who(data["who"]) if data["who"] else None,
            "aces": tuple(Ace(**{**ace, "who": Who(ace["who"])}) for ace in data["aces"]),
        }
    )
