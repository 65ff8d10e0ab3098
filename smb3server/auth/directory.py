"""The port by which all rooms ask for users, groups, SIDs and logons. [MS-LSAT 3.1.1.1, MS-SAMR 3.1.1]

``accounts.Accounts`` implements it with the users of this server and its host. A domain is another implementation.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from smb3server.access.descriptor import Sid
    from smb3server.access.identity import Identity
    from smb3server.access.policies import Policies
    from smb3server.access.privileges import Privilege
    from smb3server.auth.groups import Groups
    from smb3server.auth.tickets import Ticket
    from smb3server.auth.users import Account
    from smb3server.backends.base import User
    from smb3server.wire.status import NtStatus


class Use(enum.IntEnum):
    """Kind of the object that a SID names (SID_NAME_USE). [MS-LSAT 2.2.13]"""

    USER = 1
    GROUP = 2
    DOMAIN = 3
    ALIAS = 4
    WELL_KNOWN = 5
    UNKNOWN = 8


class Known(NamedTuple):
    """A name and its SID, as a look-up returns them."""

    sid: Sid
    use: Use
    domain: str
    name: str
    """Empty for a domain."""


class Proven(Protocol):
    """An account whose user has proved a password."""

    @property
    def identity(self) -> Identity: ...

    def refusal(self) -> NtStatus | None:
        """Return why the user may not log on now, or None."""
        ...


class Logons(Protocol):
    """Who has an account, and what proves it."""

    def find(self, name: str) -> Account | None:
        """Return the account of a name, if any."""
        ...

    def judges(self, name: str, domain: str) -> bool:
        """Return whether ``prove`` knows the user, or asks somebody who does. Others may become guests."""
        ...

    def prove(self, name: str, domain: str, challenge: bytes, response: bytes) -> tuple[Proven, bytes]:
        """Verify an NTLMv2 response to the server's ``challenge``, and return account and SessionBaseKey.

        A name without an account takes as long. Raises ``LogonError``, and ``LogonDelayed`` while somebody else is
        being asked. [MS-NLMP 3.3.2]
        """
        ...

    def check_password(self, name: str, password: str) -> Account | None:
        """Return the account whose password it is, or None. A name without an account takes as long."""
        ...


class Tickets(Protocol):
    """Who may log on with a Kerberos ticket."""

    def identity_of(self, principal: str, ticket: Ticket | None) -> Identity:
        """Return the identity of a principal that ``ticket`` has proved.

        Raises ``ValueError`` or ``LogonError`` if it may not log on, and ``LogonDelayed`` while somebody else is being
        asked. ``ticket`` is None if the server could not look into it.
        """
        ...


class Directory(Logons, Tickets, Protocol):
    """The accounts that a server knows."""

    @property
    def domain(self) -> str:
        """Name of the domain that has the accounts."""
        ...

    @property
    def domain_sid(self) -> Sid: ...

    @property
    def groups(self) -> Groups: ...

    @property
    def policies(self) -> Policies | None:
        """The central access policies of the server's domain. None: it applies none."""
        ...

    def today(self, identity: Identity) -> Identity:
        """Return the identity that a user who has proved to be ``identity`` has now. Raises ``ValueError`` if it may
        not log on any longer, be it with a password or with a ticket.
        """
        ...

    def learn(self, sids: Collection[Sid] = (), names: Collection[str] = ()) -> None:
        """Ask somebody else about what ``by_sid`` and ``by_name`` do not know, so that they do. Blocks."""
        ...

    def administers(self, identity: Identity | None) -> bool:
        """Return whether a user may change the server over the network: add shares, end sessions, set the passwords of
        others. Guests and anonymous users never may: they have proved nothing.
        """
        ...

    def may_be_asked_by(self, identity: Identity | None) -> bool:
        """Return whether a user may look up names."""
        ...

    def users(self) -> Iterator[tuple[int, Account]]:
        """Iterate over RIDs and accounts, ordered by name."""
        ...

    def by_sid(self, sid: Sid) -> Known | None:
        """Return the name of a SID, or None if it is not known."""
        ...

    def by_name(self, text: str) -> Known | None:
        """Look up ``name``, ``DOMAIN\\name``, ``name@domain`` or a domain. Returns None if it is not known."""
        ...

    def account_sid(self, name: str) -> Sid:
        """Return the SID of an account in the domain."""
        ...

    def group_sid(self, name: str) -> Sid:
        """Return the SID of one of ``groups``."""
        ...

    def identity_sid(self, identity: Identity) -> Sid:
        """Return the SID of a session's user itself, whatever user of the host it acts as."""
        ...

    def memberships(self, identity: Identity) -> frozenset[Sid]:
        """Return the SIDs of the groups that a user is in, besides those that every user is in."""
        ...

    def privileges(self, identity: Identity | None) -> Privilege:
        """Return the privileges of a user. Guests and anonymous users have none."""
        ...

    def members(self, alias: Sid) -> list[Sid] | None:
        """Return the members of a group, or None if there is no such group."""
        ...

    def host_users(self, sid: Sid) -> list[User]:
        """Return the users of the host that an account, or the members of a group, act as."""
        ...

    def on_host(self, sid: Sid) -> list[Sid]:
        """Return the SIDs of the users and groups of the host that stand for an account or a group."""
        ...
