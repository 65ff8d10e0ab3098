"""NTLM logons: what may not be tampered with (MS-NLMP 3.2.5.1.2, RFC 4178 5), and odd clients."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest
import spnego
from hypothesis import given, settings
from hypothesis import strategies as st
from spnego._spnego import NegState, NegTokenInit, NegTokenResp, unpack_token

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.wire.status import NtStatus, StatusError
from tests.lab.examples import examples
from tools.failover import logon

NTLM = "1.3.6.1.4.1.311.2.2.10"


def acceptor(guest: bool = False, anonymous: bool = False) -> Acceptor:
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    return Acceptor(users, "SERVER", guest, anonymous)


def refused(step: Callable[[], object]) -> int:
    with pytest.raises(StatusError) as caught:
        step()
    return caught.value.status


@pytest.mark.parametrize("protocol", ["ntlm", "negotiate"])
def test_both_sides_have_the_same_key(protocol: str) -> None:
    """pyspnego's client sends a mechListMIC and checks the server's."""
    made = acceptor()
    client = spnego.client("u", "pw", hostname="server", protocol=protocol)
    token = client.step()
    while not client.complete or made.identity is None:
        assert token
        answer = made.step(token)
        token = client.step(answer) if not client.complete else None
    assert made.session_key == client.session_key
    assert len(made.session_key) == 16


@pytest.mark.parametrize("offered", [2, 3, 0])
def test_a_client_without_unicode(monkeypatch: pytest.MonkeyPatch, offered: int) -> None:
    """OEM is chosen only if Unicode is not offered, and names are in it then. [MS-NLMP 2.2.2.5]"""
    (flags,) = struct.unpack_from("<I", logon.NEGOTIATE, 12)
    message = logon.NEGOTIATE[:12] + struct.pack("<I", flags & ~3 | offered) + logon.NEGOTIATE[16:]
    monkeypatch.setattr(logon, "NEGOTIATE", message)
    made = acceptor()
    if not offered:
        assert refused(lambda: made.step(message)) == NtStatus.LOGON_FAILURE
        return
    challenge = made.step(message)
    (chosen,) = struct.unpack_from("<I", challenge, 20)
    length, _, offset = struct.unpack_from("<HHI", challenge, 12)
    unicode = bool(offered & 1)
    assert chosen & 3 == (1 if unicode else 2)
    assert challenge[offset : offset + length] == "SERVER".encode("utf-16-le" if unicode else "ascii")
    account = logon.Account("u", "pw")
    if not unicode:
        account._user = b"u"
    token, key = account.answer(challenge)
    made.step(token[token.index(b"NTLMSSP\0") :])
    assert made.identity is not None and made.session_key == key


def test_neither_password_nor_proof_nor_mic_may_differ() -> None:
    right = logon.Account("u", "pw")
    made = acceptor()
    token, key = right.answer(made.step(logon.FIRST_TOKEN))
    made.step(token)
    assert made.identity is not None
    assert made.session_key == key
    made = acceptor()
    token, _ = logon.Account("u", "other").answer(made.step(logon.FIRST_TOKEN))
    assert refused(lambda: made.step(token)) == NtStatus.LOGON_FAILURE
    # Any bit of the message: it is covered by the proof, or by the MIC, or is not a message any more.
    start = token.index(b"NTLMSSP\0")
    for place in range(start, len(token)):
        made = acceptor()
        token, _ = right.answer(made.step(logon.FIRST_TOKEN))
        bent = bytearray(token)
        bent[place] ^= 1 << place % 8
        status = refused(lambda: made.step(bytes(bent)))  # noqa: B023
        assert status in (NtStatus.LOGON_FAILURE, NtStatus.INVALID_PARAMETER), place - start
        assert made.identity is None
        assert made.session_key == b""


def test_the_first_messages_are_covered_by_the_mic() -> None:
    """Somebody in between takes flags out of the client's NEGOTIATE_MESSAGE, or puts them into the challenge."""
    made = acceptor()
    at = logon.FIRST_TOKEN.index(b"NTLMSSP\0") + 12
    bent = bytearray(logon.FIRST_TOKEN)
    struct.pack_into("<I", bent, at, struct.unpack_from("<I", bent, at)[0] & ~0x40000000)
    token, _ = logon.Account("u", "pw").answer(made.step(bytes(bent)))
    assert refused(lambda: made.step(token)) == NtStatus.LOGON_FAILURE
    made = acceptor()
    challenge = bytearray(made.step(logon.FIRST_TOKEN))
    place = challenge.index(b"NTLMSSP\0") + 48
    challenge[place] ^= 1
    token, _ = logon.Account("u", "pw").answer(bytes(challenge))
    assert refused(lambda: made.step(token)) == NtStatus.LOGON_FAILURE


def test_an_answer_counts_once_and_for_its_challenge() -> None:
    right = logon.Account("u", "pw")
    made, other = acceptor(), acceptor()
    token, _ = right.answer(made.step(logon.FIRST_TOKEN))
    other.step(logon.FIRST_TOKEN)
    assert refused(lambda: other.step(token)) == NtStatus.LOGON_FAILURE
    # Nor may one guess again at the same challenge.
    made = acceptor()
    challenge = made.step(logon.FIRST_TOKEN)
    wrong, _ = logon.Account("u", "guess").answer(challenge)
    token, _ = right.answer(challenge)
    assert refused(lambda: made.step(wrong)) == NtStatus.LOGON_FAILURE
    assert refused(lambda: made.step(token)) == NtStatus.LOGON_FAILURE
    assert made.identity is None


def test_a_wrong_mechanism_list_code() -> None:
    made = acceptor()
    context = spnego.client("u", "pw", protocol="ntlm")
    answer = unpack_token(made.step(NegTokenInit([NTLM], mech_token=context.step()).pack()))
    token = context.step(answer.response_token)
    sent = NegTokenResp(response_token=token, mech_list_mic=b"\1\0\0\0" + os.urandom(8) + bytes(4)).pack()
    assert refused(lambda: made.step(sent)) == NtStatus.LOGON_FAILURE
    assert made.identity is None


def test_a_client_that_repeats_its_token_as_the_code() -> None:
    made = acceptor()
    context = spnego.client("u", "pw", protocol="ntlm")
    answer = unpack_token(made.step(NegTokenInit([NTLM], mech_token=context.step()).pack()))
    token = context.step(answer.response_token)
    final = unpack_token(made.step(NegTokenResp(response_token=token, mech_list_mic=token).pack()))
    assert final.neg_state == NegState.accept_complete
    assert made.identity is not None


@pytest.mark.parametrize("state", [NegState.reject, NegState.request_mic])
def test_states_that_are_not_an_initiators(state: NegState) -> None:
    made = acceptor()
    token, _ = logon.Account("u", "pw").answer(made.step(logon.FIRST_TOKEN))
    inner = unpack_token(token).response_token
    status = refused(lambda: made.step(NegTokenResp(neg_state=state, response_token=inner).pack()))
    assert status in (NtStatus.LOGON_FAILURE, NtStatus.INVALID_PARAMETER)
    assert made.identity is None


def test_anonymous_and_guests_have_no_secret() -> None:
    for allowed in (False, True):
        made = acceptor(guest=allowed, anonymous=allowed)
        token, _ = logon.Account("stranger", "x").answer(made.step(logon.FIRST_TOKEN))
        if not allowed:
            assert refused(lambda: made.step(token)) == NtStatus.LOGON_FAILURE  # noqa: B023
            continue
        made.step(token)
        assert made.identity is not None
        assert made.identity.guest
        assert made.session_key == bytes(16)


def test_ntlmv1_and_nothing_at_all() -> None:
    for size in (0, 1, 16, 24, 43):
        made = acceptor()
        made.step(logon.NEGOTIATE)
        fields = b"".join(
            struct.pack("<HHI", len(part), len(part), 64 + at)
            for part, at in ((b"", 0), (bytes(size), 2), (b"", 0), (b"u\0", 0), (b"", 0), (b"", 0))
        )
        message = b"NTLMSSP\0\3\0\0\0" + fields + struct.pack("<I", 0x00088201 | 1) + b"u\0" + bytes(size)
        assert refused(lambda: made.step(message)) == NtStatus.LOGON_FAILURE  # noqa: B023


@settings(max_examples=examples(200), deadline=None)
@given(first=st.binary(max_size=120), second=st.binary(max_size=200), begun=st.booleans())
def test_whatever_a_stranger_sends(first: bytes, second: bytes, begun: bool) -> None:
    made = acceptor()
    for token in (logon.FIRST_TOKEN if begun else first, second, b"NTLMSSP\0\3\0\0\0" + second):
        try:
            made.step(token)
        except StatusError as error:
            assert error.status in (NtStatus.LOGON_FAILURE, NtStatus.INVALID_PARAMETER)
        assert made.identity is None
