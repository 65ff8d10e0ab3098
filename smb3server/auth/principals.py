"""Whose account a Kerberos principal has (RFC 4120 6): that it has a ticket says who it is, not that it may get in."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from smb3server.access.identity import Identity
from smb3server.auth.users import UserDatabase

if TYPE_CHECKING:
    from smb3server.backends.base import User

_PRINCIPAL = re.compile(r"([^@\\/\0]+)@([^@\\/\0]+)")
"""One component and a realm. What krb5_unparse_name has to escape, and names of services and hosts with their slash,
are nobody's account."""


def parse(text: str) -> tuple[str, str]:
    """Name and realm. Raises ``ValueError`` for what cannot be a user's principal."""
    found = _PRINCIPAL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a principal: write NAME@REALM")
    return found[1], found[2]


class Principals:
    """The rules of one server."""

    def __init__(
        self, users: UserDatabase, trusted_realms: Collection[str] = (), unknown_user: User | None = None
    ) -> None:
        """``trusted_realms``: in which names mean accounts. ``unknown_user``: whom those without one act as; None: they
        are refused."""
        self._users = users
        self.trusted_realms = frozenset(trusted_realms)
        self._unknown_user = unknown_user

    def identity_of(self, principal: str) -> Identity:
        """Who a principal that has proved itself is here. Raises ``ValueError`` for one that may not get in."""
        name, realm = parse(principal)
        account = self._users.of_principal(principal)
        if account is None and realm not in self.trusted_realms:
            raise ValueError(f"{principal!r}: the realm is not among trusted_realms")
        if account is None:
            account = self._users.find(name)
            if account is not None and account.principal:
                # The account is another principal's; this one may not even get in as an unknown of that name.
                raise ValueError(f"{principal!r}: the account {account.name} is that of {account.principal}")
        if account is not None:
            return Identity(account.name, user=account.user)
        if self._unknown_user is None:
            raise ValueError(f"{principal!r}: no account, and unknown_principals refuses it")
        return Identity(name, realm, user=self._unknown_user)
