"""SPNEGO from the acceptor's side, against clients that do not keep to it (RFC 4178)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import spnego
from spnego._spnego import NegState, NegTokenInit, NegTokenResp, unpack_token

from smb3server.access.identity import Identity
from smb3server.auth.acceptor import Acceptor
from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.wire.status import NtStatus, StatusError

NTLM, KERBEROS = "1.3.6.1.4.1.311.2.2.10", "1.2.840.113554.1.2.2"


def acceptor(guest: bool = False) -> Acceptor:
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    return Acceptor(users, "SERVER", allow_guest=guest)


def ntlm_negotiate() -> bytes:
    return spnego.client("u", "pw", protocol="ntlm").step() or b""


@pytest.mark.parametrize("begin", [False, True], ids=["first", "after-a-challenge"])
@pytest.mark.parametrize("state", list(NegState))
@pytest.mark.parametrize("mech", [None, NTLM, KERBEROS])
def test_a_client_cannot_declare_itself_authenticated(state: NegState, mech: str | None, begin: bool) -> None:
    made = acceptor()
    if begin:
        made.step(NegTokenInit([NTLM], mech_token=ntlm_negotiate()).pack())
    for _ in range(3):
        try:
            made.step(NegTokenResp(neg_state=state, supported_mech=mech).pack())
        except StatusError as error:
            assert error.status in (NtStatus.LOGON_FAILURE, NtStatus.INVALID_PARAMETER)
        assert made.identity is None


def test_a_mechanism_list_integrity_code_that_is_due_cannot_be_skipped() -> None:
    """Kerberos first in the client's list, which is not offered here: NTLM then needs the code (RFC 4178 5)."""
    made = acceptor()
    context = spnego.client("u", "pw", protocol="ntlm")
    challenge = unpack_token(made.step(NegTokenInit([KERBEROS, NTLM], mech_token=b"for Kerberos").pack()))
    assert challenge.neg_state == NegState.request_mic
    challenge = unpack_token(made.step(NegTokenResp(response_token=context.step()).pack()))
    made.step(NegTokenResp(response_token=context.step(challenge.response_token)).pack())
    assert made.identity is None
    with pytest.raises(StatusError):
        made.step(NegTokenResp(neg_state=NegState.accept_complete).pack())
    assert made.identity is None


def log_on(made: Acceptor, user: str, password: str) -> Identity | None:
    context = spnego.client(user, password, protocol="negotiate", hostname="server", service="cifs")
    token = context.step()
    while token and made.identity is None:
        token = context.step(made.step(token))
    return made.identity


def test_who_logs_on() -> None:
    assert log_on(acceptor(), "U", "pw") == Identity("u")
    assert log_on(acceptor(guest=True), "stranger", "x") == Identity("stranger", guest=True)
    for user, password, guest in (("u", "wrong", True), ("stranger", "x", False)):
        with pytest.raises(StatusError) as caught:
            log_on(acceptor(guest), user, password)
        assert caught.value.status == NtStatus.LOGON_FAILURE


@pytest.mark.parametrize("mechs", [[], [KERBEROS], ["1.2.3.4"] * 50, [NTLM, KERBEROS, NTLM]])
def test_mechanism_lists(mechs: Sequence[str]) -> None:
    made = acceptor()
    try:
        answer = unpack_token(made.step(NegTokenInit(list(mechs), mech_token=ntlm_negotiate()).pack()))
    except StatusError as error:
        assert NTLM not in mechs
        assert error.status in (NtStatus.LOGON_FAILURE, NtStatus.INVALID_PARAMETER)
    else:
        assert answer.supported_mech == NTLM
        assert answer.response_token.startswith(b"NTLMSSP\0\2")
    assert made.identity is None


def test_what_belongs_to_whom() -> None:
    alice = Identity("Alice")
    assert alice.same_user(Identity("alice"))
    assert not alice.same_user(Identity("Alice", guest=True))
    assert not alice.same_user(Identity("alice", "EVIL.TEST"))
    assert not Identity("alice", "REALM").same_user(Identity("alice", "EVIL.TEST"))
    assert not Identity("alice", "REALM").same_user(Identity("ALICE", "REALM"))
    assert Identity("alice", "REALM").same_user(Identity("alice", "REALM"))
    assert not Identity("", anonymous=True).same_user(Identity("", guest=True))
