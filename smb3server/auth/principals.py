"""Maps Kerberos principals to accounts. A ticket proves who a principal is, not that it may log on. [RFC 4120 6]"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from smb3server.access.identity import Identity
from smb3server.auth.users import UserDatabase

if TYPE_CHECKING:
    from smb3server.backends.base import User

_PRINCIPAL = re.compile(r"([^@\\/\0]+)@([^@\\/\0]+)")
"""One component and a realm. Principals with characters that krb5_unparse_name escapes, and those of services and hosts
(with a slash), never have an account."""


def parse(text: str) -> tuple[str, str]:
    """Return name and realm. Raises ``ValueError`` if the text cannot be a user's principal."""
    found = _PRINCIPAL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a principal: write NAME@REALM")
    return found[1], found[2]


class Principals:
    """The rules of one server for mapping principals to accounts."""

    def __init__(
        self, users: UserDatabase, trusted_realms: Collection[str] = (), unknown_user: User | None = None
    ) -> None:
        """Set the rules.

        ``trusted_realms`` are the realms whose principals have the account of the same name. Principals without an
        account act as ``unknown_user``. None means that they are refused.
        """
        self._users = users
        self.trusted_realms = frozenset(trusted_realms)
        self._unknown_user = unknown_user

    def identity_of(self, principal: str) -> Identity:
        """Return the identity of a principal that has proved itself by a ticket. Raises ``ValueError`` if it may not
        log on."""
        name, realm = parse(principal)
        account = self._users.of_principal(principal)
        if account is None and realm not in self.trusted_realms:
            raise ValueError(f"{principal!r}: the realm is not among trusted_realms")
        if account is None:
            account = self._users.find(name)
            if account is not None and account.principal:
                # The account belongs to another principal. This one must not log on under its name, not even without
                # an account.
                raise ValueError(f"{principal!r}: the account {account.name} is that of {account.principal}")
        if account is not None:
            status = account.refusal(by_password=False)
            if status is not None:
                raise ValueError(f"{principal!r}: {status.name}")
            return account.identity
        if self._unknown_user is None:
            raise ValueError(f"{principal!r}: no account, and unknown_principals refuses it")
        return Identity(name, realm, user=self._unknown_user)
