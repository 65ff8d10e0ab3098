"""SPNEGO tokens (RFC 4178 4.2), against pyspnego's own and against nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spnego._spnego import NegState, NegTokenInit, NegTokenResp, pack_mech_type_list, unpack_token

from smb3server.auth import spnego_tokens
from smb3server.auth.spnego_tokens import Init, Resp, pack_resp, parse_init, parse_resp

NTLM, KERBEROS, MS_KERBEROS = "1.3.6.1.4.1.311.2.2.10", "1.2.840.113554.1.2.2", "1.2.840.48018.1.2.2"
oids = st.lists(st.sampled_from([NTLM, KERBEROS, MS_KERBEROS]), min_size=1, max_size=5)
# Sizes on both sides of where DER lengths take one more byte.
tokens = st.none() | st.binary(max_size=20) | st.sampled_from([bytes(n) for n in (100, 127, 128, 255, 256, 70000)])


@settings(deadline=None)
@given(mechanisms=oids, token=tokens, mic=st.none() | st.binary(min_size=1, max_size=20), hint=st.booleans())
def test_first_tokens(mechanisms: list[str], token: bytes | None, mic: bytes | None, hint: bool) -> None:
    sent = NegTokenInit(mechanisms, mech_token=token, mech_list_mic=mic, hint_name=b"x" if hint else None).pack()
    whole = pack_mech_type_list(mechanisms)
    read = parse_init(sent)
    assert read == Init(whole, read.offered, token or b"", mic or b"")
    assert len(read.offered) == len(mechanisms)
    assert (read.first == spnego_tokens.NTLM) == (mechanisms[0] == NTLM)
    for length in {*range(min(len(sent), 200)), len(sent) - 1}:
        with pytest.raises(ValueError, match=r"\w"):
            parse_init(sent[:length])


@settings(deadline=None)
@given(
    state=st.none() | st.sampled_from(NegState),
    mech=st.none() | st.sampled_from([NTLM, KERBEROS]),
    token=tokens,
    mic=tokens,
)
def test_later_tokens(state: NegState | None, mech: str | None, token: bytes | None, mic: bytes | None) -> None:
    sent = NegTokenResp(state, mech, token, mic).pack()
    read = parse_resp(sent)
    assert (read.state, read.token, read.mic) == (state, token, mic)
    assert (read.mechanism is None) == (mech is None)
    assert (read.mechanism == spnego_tokens.NTLM) == (mech == NTLM)
    assert pack_resp(read) == sent
    for length in {*range(min(len(sent), 200)), len(sent) - 1}:
        with pytest.raises(ValueError, match=r"\w"):
            parse_resp(sent[:length])


@settings(deadline=None)
@given(state=st.integers(0, 3), token=tokens, mic=tokens)
def test_answers(state: int, token: bytes | None, mic: bytes | None) -> None:
    read = unpack_token(pack_resp(Resp(state, spnego_tokens.NTLM, token, mic)))
    assert (read.neg_state, read.supported_mech, read.response_token, read.mech_list_mic) == (state, NTLM, token, mic)


@settings(deadline=None)
@given(data=st.binary(max_size=200), changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4))
def test_nonsense(data: bytes, changes: list[tuple[int, int]]) -> None:
    bent = bytearray(NegTokenInit([NTLM, KERBEROS], mech_token=data).pack())
    other = bytearray(NegTokenResp(NegState.accept_incomplete, NTLM, data, b"m").pack())
    for place, value in changes:
        bent[place % len(bent)] = value
        other[place % len(other)] = value
    for parse in (parse_init, parse_resp):
        for sent in (data, bytes(bent), bytes(other)):
            try:
                parse(sent)
            except ValueError:
                continue


@pytest.mark.parametrize(
    "token",
    [
        "",
        "60",
        "6080",  # indefinite length
        "6085010000000000",  # a length of five bytes
        "6084ffffffff",
        "600806062b0601050502",  # nothing inside
        "601206062b0601050502a00830060a0101",
        "a1053003a0010a",
        "a107 3005 a003 0a0104",  # no such negState
        "a10c 300a a0030a0100 a0030a0100",  # a field twice
        "a2073005a0030a0100",
    ],
)
def test_tokens_that_are_none(token: str) -> None:
    for parse in (parse_init, parse_resp):
        with pytest.raises(ValueError, match=r"\w"):
            parse(bytes.fromhex(token))
