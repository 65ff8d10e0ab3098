"""The client's NTLM by itself. That servers take it show the tests of logons, against this server and Samba."""

from __future__ import annotations

import pytest
from spnego._ntlm_raw.crypto import ntowfv1

from smb3server.auth import ntlm_messages, spnego_tokens
from smb3server.auth.ntlm_messages import Flags, nt_hash
from smb3server.auth.ntlm_protection import ACCEPTOR, INITIATOR, first_signature
from smb3server.client.protocol.messages import LogonError
from smb3server.client.protocol.ntlm import NtlmLogon

ALL = int(ntlm_messages.challenge_flags(0xFFFFFFFF))


def challenge(flags: int = ALL) -> bytes:
    made = ntlm_messages.pack_challenge(flags, bytes(range(8)), "SERVER")
    return spnego_tokens.pack_resp(spnego_tokens.Resp(1, spnego_tokens.NTLM, made, None))


def test_the_hash_of_a_password() -> None:
    # MS-NLMP 4.2.2.1.2
    assert nt_hash("Password").hex() == "a4f49c406510bdcab6824ee7c30fd852"
    assert nt_hash(f"{'0' * 32}:{'aB' * 16}") == b"\xab" * 16
    assert nt_hash("pässwörd") == ntowfv1("pässwörd")


@pytest.mark.parametrize("missing", [0, int(Flags.KEY_EXCHANGE), int(Flags.KEY_128)])
def test_both_sides_signatures_are_those_of_the_acceptor(missing: int) -> None:
    logon = NtlmLogon("u", "pw", "", "host")
    logon.step(None)
    answer = logon.step(challenge(ALL & ~missing))
    assert answer is not None
    list_of_one = spnego_tokens.mechanism_list(spnego_tokens.NTLM)
    given = spnego_tokens.parse_resp(answer)
    assert given.token is not None
    flags = ntlm_messages.parse_authenticate(given.token).flags
    assert given.mic == first_signature(flags, logon.session_key, INITIATOR, list_of_one)
    right = first_signature(flags, logon.session_key, ACCEPTOR, list_of_one)
    assert logon.step(spnego_tokens.pack_resp(spnego_tokens.Resp(0, None, None, right))) is None
    with pytest.raises(LogonError, match="signature of the mechanisms"):
        logon.step(spnego_tokens.pack_resp(spnego_tokens.Resp(0, None, None, bytes(16))))


def test_a_server_without_extended_session_security_gets_no_response() -> None:
    logon = NtlmLogon("u", "pw", "", "host")
    logon.step(None)
    with pytest.raises(LogonError, match="before Windows 2000"):
        logon.step(challenge(ALL & ~int(Flags.EXTENDED_SESSION_SECURITY)))
    assert not logon.complete


def test_a_bad_answer_is_an_error_and_nothing_else() -> None:
    good = challenge()
    for end in range(len(good)):
        logon = NtlmLogon("u", "pw", "", "host")
        logon.step(None)
        with pytest.raises(LogonError):
            logon.step(good[:end])
    made = spnego_tokens.parse_resp(good).token
    assert made is not None
    for end in range(len(made)):
        logon = NtlmLogon("u", "pw", "", "host")
        logon.step(None)
        with pytest.raises(LogonError):
            logon.step(spnego_tokens.pack_resp(spnego_tokens.Resp(1, None, made[:end], None)))
