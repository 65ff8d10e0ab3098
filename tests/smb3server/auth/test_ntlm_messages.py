"""NTLM messages as the acceptor reads and writes them (MS-NLMP 2.2), against pyspnego's own and against nonsense."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spnego._ntlm_raw.messages import Authenticate, AvId, Challenge, Negotiate, NegotiateFlags

from smb3server.auth import ntlm_messages as messages
from smbdirect.errors import DecodeError

BAD = (ValueError, DecodeError)
FLAGS = int(NegotiateFlags.unicode | NegotiateFlags.ntlm | NegotiateFlags.sign | NegotiateFlags.key_exch)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(flags=st.integers(0, 0xFFFFFFFF), nonce=st.binary(min_size=8, max_size=8), name=names.filter(bool))
def test_challenges_say_what_they_should(flags: int, nonce: bytes, name: str) -> None:
    # Without Unicode there is no logon, and pyspnego would read the name as something else.
    agreed = messages.challenge_flags(flags | int(NegotiateFlags.unicode))
    read = Challenge.unpack(messages.pack_challenge(agreed, nonce, name))
    assert (int(read.flags), read.server_challenge, read.target_name) == (agreed, nonce, name)
    assert agreed & ~(flags | messages.challenge_flags(0) | int(NegotiateFlags.unicode)) == 0
    info = read.target_info
    assert info is not None
    assert (info[AvId.nb_computer_name], info[AvId.dns_computer_name]) == (name, name.lower())
    assert (info[AvId.nb_domain_name], info[AvId.dns_domain_name]) == (name, name.lower())
    assert AvId.timestamp in info


@given(
    user=names,
    domain=names,
    station=names,
    response=st.binary(max_size=300),
    key=st.binary(max_size=32),
    mic=st.booleans(),
)
def test_what_is_read_of_authentications(
    user: str, domain: str, station: str, response: bytes, key: bytes, mic: bool
) -> None:
    sent = Authenticate(
        FLAGS,
        b"\0" * 24,
        response,
        domain_name=domain,
        username=user,
        workstation=station,
        encrypted_session_key=key,
        mic=bytes(16) if mic else None,
    )
    read = messages.parse_authenticate(sent.pack())
    assert read == (user, domain, response, key, FLAGS)


def authenticate() -> bytes:
    return Authenticate(
        FLAGS, b"l" * 24, b"n" * 60, domain_name="D", username="u", encrypted_session_key=b"k" * 16
    ).pack()


def test_cut_short_anywhere() -> None:
    whole = authenticate()
    messages.parse_authenticate(whole)
    needed = len(whole)
    for length in range(needed):
        try:
            messages.parse_authenticate(whole[:length])
        except BAD:
            continue
        # All that is behind it is what nobody reads.
        fields = messages.AUTHENTICATE_FIELDS.unpack(whole)
        ends = [
            fields.nt_offset + fields.nt_length,
            fields.user_offset + fields.user_length,
            fields.domain_offset + fields.domain_length,
            fields.key_offset + fields.key_length,
        ]
        assert length >= max(ends)


@pytest.mark.parametrize("field", [20, 28, 36, 52], ids=["nt", "domain", "user", "key"])
@pytest.mark.parametrize("offset", [0, 63, 0xFFFFFFFF, 0x7FFFFFFF])
def test_parts_outside_the_message(field: int, offset: int) -> None:
    message = bytearray(authenticate())
    struct.pack_into("<I", message, field + 4, offset)
    with pytest.raises(BAD):
        messages.parse_authenticate(bytes(message))
    struct.pack_into("<HHI", message, field, 0xFFFF, 0xFFFF, 64)
    with pytest.raises(BAD):
        messages.parse_authenticate(bytes(message))


def test_messages_of_another_kind() -> None:
    negotiate = Negotiate(FLAGS).pack()
    assert messages.parse_negotiate(negotiate) == FLAGS
    with pytest.raises(BAD):
        messages.parse_negotiate(authenticate())
    with pytest.raises(BAD):
        messages.parse_authenticate(negotiate + bytes(100))
    for length in range(16):
        with pytest.raises(BAD):
            messages.parse_negotiate(negotiate[:length])


@given(data=st.binary(max_size=400))
def test_nonsense(data: bytes) -> None:
    for parse in (messages.parse_negotiate, messages.parse_authenticate, messages.av_flags):
        for sent in (data, messages.SIGNATURE + b"\3\0\0\0" + data, bytes(28) + data):
            try:
                parse(sent)
            except BAD:
                continue


pairs = st.lists(st.tuples(st.integers(1, 20).filter(lambda kind: kind != 6), st.binary(max_size=40)), max_size=8)


@given(before=pairs, after=pairs, flags=st.none() | st.integers(0, 0xFFFFFFFF), rest=st.binary(max_size=8))
def test_flags_among_av_pairs(
    before: list[tuple[int, bytes]], after: list[tuple[int, bytes]], flags: int | None, rest: bytes
) -> None:
    found = [*before, *([(6, flags.to_bytes(4, "little"))] if flags is not None else []), *after]
    body = b"".join(struct.pack("<HH", kind, len(value)) + value for kind, value in found)
    head = bytes(messages.CLIENT_CHALLENGE_SIZE)
    assert messages.av_flags(head + body + bytes(4) + rest) == (flags or 0)
    # Without their end they are none, wherever they are cut.
    for length in range(len(body) + 4):
        with pytest.raises(ValueError, match=r"\w"):
            messages.av_flags((head + body + bytes(4))[: len(head) + length])


@pytest.mark.parametrize("size", [0, 3, 5, 8])
def test_flags_of_a_wrong_size(size: int) -> None:
    with pytest.raises(ValueError, match="size"):
        messages.av_flags(bytes(28) + struct.pack("<HH", 6, size) + bytes(size) + bytes(4))
