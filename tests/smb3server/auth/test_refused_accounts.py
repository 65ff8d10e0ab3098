"""Accounts that may not log on, although their password is right. [MS-SAMR 3.1.1.7.2]"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import spnego

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.guessing import Guesses
from smb3server.auth.users import Account, Principals, UserDatabase, nt_hash
from smb3server.wire.status import NtStatus, StatusError

PLAIN = Account("alice", nt_hash("pw"))
DISABLED = replace(PLAIN, disabled=True)
EXPIRED = replace(PLAIN, expires=int(time.time()) - 1)
MUST_CHANGE = replace(PLAIN, must_change=True)


def status_of_logon(account: Account, password: str, guesses: Guesses | None = None) -> int:
    users = UserDatabase()
    users.add(account)
    acceptor = Acceptor(users, "SERVER", guesses=guesses, address="192.0.2.1")
    context = spnego.client("alice", password, protocol="ntlm")
    try:
        acceptor.step(context.step(acceptor.step(context.step() or b"")) or b"")
    except StatusError as error:
        assert acceptor.identity is None
        return error.status
    return 0


@pytest.mark.parametrize(
    ("account", "expected"),
    [
        (PLAIN, 0),
        (replace(PLAIN, expires=int(time.time()) + 86_400), 0),
        (DISABLED, NtStatus.ACCOUNT_DISABLED),
        (EXPIRED, NtStatus.ACCOUNT_EXPIRED),
        (MUST_CHANGE, NtStatus.PASSWORD_MUST_CHANGE),
        (replace(MUST_CHANGE, disabled=True), NtStatus.ACCOUNT_DISABLED),
    ],
)
def test_only_who_knows_the_password_learns_why(account: Account, expected: int) -> None:
    assert status_of_logon(account, "pw") == expected
    assert status_of_logon(account, "wrong") == NtStatus.LOGON_FAILURE


def test_a_right_password_is_no_guess() -> None:
    guesses = Guesses(lockout_failures=2)
    for _ in range(3):
        assert status_of_logon(DISABLED, "pw", guesses) == NtStatus.ACCOUNT_DISABLED
    for _ in range(2):
        assert status_of_logon(DISABLED, "wrong", guesses) == NtStatus.LOGON_FAILURE
    assert status_of_logon(DISABLED, "pw", guesses) == NtStatus.ACCOUNT_LOCKED_OUT


@pytest.mark.parametrize(
    ("account", "admitted"), [(PLAIN, True), (DISABLED, False), (EXPIRED, False), (MUST_CHANGE, True)]
)
def test_tickets_of_such_accounts(account: Account, admitted: bool) -> None:
    users = UserDatabase()
    users.add(account)
    principals = Principals(users, ["EXAMPLE.COM"])
    if admitted:
        assert principals.identity_of("alice@EXAMPLE.COM").name == "alice"
        return
    with pytest.raises(ValueError, match="ACCOUNT_"):
        principals.identity_of("alice@EXAMPLE.COM")
