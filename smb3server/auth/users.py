"""The local user database, and who may log on with an account of it: by a password, or by a Kerberos ticket."""

from __future__ import annotations

import hmac
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smb3server.access.identity import Identity
from smb3server.auth import ntlm_messages
from smb3server.auth.ntlm_messages import PROOF_SIZE
from smb3server.wire.status import NtStatus, Reason

if TYPE_CHECKING:
    from smb3server.auth.tickets import Ticket
    from smb3server.backends.base import User

_HASH = re.compile(r"[0-9a-fA-F]{32}")
_NOBODY = os.urandom(16)
"""Stands for the NT hash if there is no account of the name. The proof is verified all the same, so that neither the
answer nor its time shows which accounts exist."""


class LogonError(Exception):
    """The user may not log on."""

    def __init__(self, reason: str, status: NtStatus = NtStatus.LOGON_FAILURE, code: str = "bad_exchange") -> None:
        """Describe the failure. ``status`` is for the client. LOGON_FAILURE means that the user is unknown or the proof
        is wrong. ``code`` is that of ``Reason``."""
        super().__init__(reason)
        self.status = status
        self.reason = Reason(code, reason)


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
    stored: bool = False
    """Whether the users file has it, so that it can be changed while the server runs."""
    full_name: str = ""
    comment: str = ""
    changed: int = 0
    """When its password was last set, in seconds since 1970. 0 means that this is not known."""
    expires: int = 0
    """When it stops being valid, in seconds since 1970. 0 means never."""
    disabled: bool = False
    must_change: bool = False
    """Whether its password must be changed before it may log on with it."""

    def refusal(self, by_password: bool = True) -> NtStatus | None:
        """Return why its user may not log on now, or None. [MS-SAMR 2.2.1.12, 3.1.1.7.2]

        Tell this only to somebody who has proved to be the user. ``by_password`` is False for a Kerberos ticket.
        """
        if self.disabled:
            return NtStatus.ACCOUNT_DISABLED
        if self.expires and self.expires <= time.time():
            return NtStatus.ACCOUNT_EXPIRED
        return NtStatus.PASSWORD_MUST_CHANGE if self.must_change and by_password else None

    @property
    def identity(self) -> Identity:
        """The identity that a client has after it has proved the account's password."""
        return Identity(self.name, user=self.user)


def nt_hash(password: str) -> bytes:
    """Return the NT hash of a clear-text password."""
    return ntlm_messages.nt_hash(password)


def parse_hash(text: str) -> bytes:
    """Parse an NT hash written as 32 hexadecimal digits. Raises ``ValueError``."""
    if not _HASH.fullmatch(text):
        raise ValueError("an NT hash has 32 hexadecimal digits")
    return bytes.fromhex(text)


class UserDatabase:
    """The accounts by name. Names are compared without case, as Windows does."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self.version = 0
        """Another number after each change."""

    def __len__(self) -> int:
        return len(self._accounts)

    def add(self, account: Account) -> None:
        """Add an account, or replace the account of the same name."""
        self._accounts[account.name.casefold()] = account
        self.version += 1

    def replace(self, accounts: Iterable[Account]) -> None:
        """Have these accounts and no others from now on. Threads that look something up see all of the change, or
        nothing of it."""
        self._accounts = {account.name.casefold(): account for account in accounts}
        self.version += 1

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def of_principal(self, principal: str) -> Account | None:
        """Return the account that names this Kerberos principal, if any."""
        return next((account for account in self._accounts.values() if account.principal == principal), None)

    def find(self, name: str) -> Account | None:
        """Return the account of a name, if any."""
        return self._accounts.get(name.casefold())

    def judges(self, name: str, domain: str) -> bool:
        """Return whether there is an account of the name, whatever domain the client gave."""
        return self.find(name) is not None

    def prove(self, name: str, domain: str, challenge: bytes, response: bytes) -> tuple[Account, bytes]:
        """Verify an NTLMv2 response, as ``Logons.prove`` says. Raises ``LogonError``. [MS-NLMP 3.3.2]"""
        account = self.find(name)
        proof, blob = response[:PROOF_SIZE], response[PROOF_SIZE:]
        own = _NOBODY if account is None else account.nt_hash
        key = hmac.digest(own, (name.upper() + domain).encode("utf-16-le"), "md5")
        right = hmac.compare_digest(hmac.digest(key, challenge + blob, "md5"), proof)
        if account is None:
            raise LogonError("no such user", code="unknown_user")
        if not right:
            raise LogonError("wrong password", code="wrong_password")
        return account, hmac.digest(key, proof, "md5")

    def check_password(self, name: str, password: str) -> Account | None:
        """Return the account whose password it is, or None. A name without an account takes as long."""
        account = self.find(name)
        right = hmac.compare_digest(nt_hash(password), _NOBODY if account is None else account.nt_hash)
        return account if right else None


_PRINCIPAL = re.compile(r"([^@\\/\0]+)@([^@\\/\0]+)")
"""One component and a realm. Principals with characters that krb5_unparse_name escapes, and those of services and hosts
(with a slash), never have an account."""


def parse_principal(text: str) -> tuple[str, str]:
    """Return name and realm. Raises ``ValueError`` if the text cannot be a user's principal."""
    found = _PRINCIPAL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a principal: write NAME@REALM")
    return found[1], found[2]


class Principals:
    """Maps Kerberos principals to accounts. A ticket proves who a principal is, not that it may log on. [RFC 4120 6]"""

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

    def identity_of(self, principal: str, ticket: Ticket | None = None) -> Identity:
        """Return the identity of a principal that has proved itself by a ticket, whatever else the ticket says of it.

        Raises ``ValueError`` if it may not log on."""
        name, realm = parse_principal(principal)
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
