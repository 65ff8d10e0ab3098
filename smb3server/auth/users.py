"""The local user database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smb3server.access.identity import Identity
from smb3server.auth import pyspnego

if TYPE_CHECKING:
    from smb3server.backends.base import User

_HASH = re.compile(r"[0-9a-fA-F]{32}")


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the local database."""

    name: str
    nt_hash: bytes = field(repr=False)
    """MD4 of the password in UTF-16. It grants the same access as the password, so keep it secret."""
    user: User | None = None
    """POSIX credentials for file access. None means those that a share has for users without any."""
    principal: str = ""
    """The Kerberos principal that has this account, ``name@REALM``. Empty means any principal of this name in a trusted
    realm."""

    @property
    def identity(self) -> Identity:
        """The identity that a client has after it has proved the account's password."""
        return Identity(self.name, user=self.user)


def nt_hash(password: str) -> bytes:
    """Return the NT hash of a clear-text password."""
    return pyspnego.nt_hash(password)


def parse_hash(text: str) -> bytes:
    """Parse an NT hash written as 32 hexadecimal digits. Raises ``ValueError``."""
    if not _HASH.fullmatch(text):
        raise ValueError("an NT hash has 32 hexadecimal digits")
    return bytes.fromhex(text)


class UserDatabase:
    """The accounts by name. Names are compared without case, as Windows does."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def add(self, account: Account) -> None:
        """Add an account, or replace the account of the same name."""
        self._accounts[account.name.casefold()] = account

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def of_principal(self, principal: str) -> Account | None:
        """Return the account that names this Kerberos principal, if any."""
        return next((account for account in self._accounts.values() if account.principal == principal), None)

    def find(self, name: str) -> Account | None:
        """Return the account of a name, if any."""
        return self._accounts.get(name.casefold())
