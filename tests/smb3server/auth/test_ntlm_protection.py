"""What an NTLM logon's keys protect, compared with pyspnego as the client (MS-NLMP 3.4)."""

from __future__ import annotations

import hmac
from typing import Any

import pytest
import spnego
from spnego._context import GSSMech
from spnego._ntlm_raw import crypto
from spnego._ntlm_raw.messages import NegotiateFlags
from spnego._spnego import NegTokenInit, unpack_token
from spnego.exceptions import SpnegoError
from spnego.iov import BufferType

from smb3server.auth import ntlm_messages
from smb3server.auth.acceptor import Acceptor
from smb3server.auth.ntlm_messages import Flags
from smb3server.auth.ntlm_protection import INITIATOR, NtlmProtection, ProtectionError, decrypt_key, first_signature
from smb3server.auth.spnego_tokens import pack_hint
from smb3server.auth.users import Account, UserDatabase, nt_hash

BEFORE, AFTER = b"header", b"trailer"
NOTHING = Flags(0)
MESSAGES = [b"", b"first", bytes(range(256)) * 300]


def logged_on(protocol: str, monkeypatch: pytest.MonkeyPatch, without: Flags = NOTHING) -> tuple[Any, NtlmProtection]:
    """A client of pyspnego and the acceptor's protection. ``without``: what the acceptor's challenge does not offer."""
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    offered = ntlm_messages.challenge_flags
    monkeypatch.setattr(ntlm_messages, "challenge_flags", lambda flags: offered(flags) & ~int(without))
    made = Acceptor(users, "SERVER")
    client = spnego.client("u", "pw", protocol=protocol, hostname="server", service="host")
    token = client.step()
    while token:
        answer = made.step(token)
        token = client.step(answer) if answer else None
    assert made.identity is not None and isinstance(made.protection, NtlmProtection)
    assert made.protection is made.protection
    return client, made.protection


STRENGTHS = [NOTHING, Flags.KEY_128, Flags.KEY_128 | Flags.KEY_56, Flags.KEY_EXCHANGE]


@pytest.mark.parametrize("protocol", ["ntlm", "negotiate"])
@pytest.mark.parametrize("without", STRENGTHS, ids=["all", "56", "40", "no-exchange"])
def test_signatures_and_sealed_messages(protocol: str, without: Flags, monkeypatch: pytest.MonkeyPatch) -> None:
    client, protection = logged_on(protocol, monkeypatch, without)
    assert protection.signs and protection.seals and protection.header_signing
    for data in MESSAGES:
        client.verify(data, protection.sign(data))
        protection.verify(data, client.sign(data))
        sealed, signature = protection.seal(BEFORE, data, AFTER)
        assert len(signature) == protection.sealed_signature_size == client.query_message_sizes().header
        around: list[Any] = [(BufferType.header, signature), (BufferType.sign_only, BEFORE), sealed]
        opened = client.unwrap_iov([*around, (BufferType.sign_only, AFTER)])
        assert opened.buffers[2].data == data
        around = [BufferType.header, (BufferType.sign_only, BEFORE), data, (BufferType.sign_only, AFTER)]
        signature, _, sealed, _ = (buffer.data for buffer in client.wrap_iov(around, encrypt=True).buffers)
        assert protection.unseal(BEFORE, sealed, AFTER, signature) == data


@pytest.mark.parametrize("protocol", ["ntlm", "negotiate"])
def test_without_extended_session_security(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides share keys and numbers, and nothing but the stub is signed."""
    client, protection = logged_on(protocol, monkeypatch, Flags.EXTENDED_SESSION_SECURITY)
    assert protection.header_signing is False
    for data in MESSAGES:
        client.verify(data, protection.sign(data))
        protection.verify(data, client.sign(data))
        sealed, signature = protection.seal(None, data, None)
        assert client.unwrap_iov([(BufferType.header, signature), sealed]).buffers[1].data == data
        signature, sealed = (buffer.data for buffer in client.wrap_iov([BufferType.header, data]).buffers)
        assert protection.unseal(None, sealed, None, signature) == data


def test_what_was_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    client, protection = logged_on("ntlm", monkeypatch)
    signature = client.sign(b"data")
    with pytest.raises(ProtectionError):
        protection.verify(b"Data", signature)
    with pytest.raises(ProtectionError):
        # Not again: the number counts on.
        protection.verify(b"data", signature)
    for damaged in (b"", signature[:-1], bytes(16)):
        with pytest.raises(ProtectionError):
            protection.unseal(BEFORE, b"sealed", AFTER, damaged)
    with pytest.raises(SpnegoError):
        client.verify(b"Data", protection.sign(b"data"))


def test_known_values() -> None:
    """MS-NLMP 4.2.4.2.3 and 4.2.4.4: NTLMv2 with extended session security and a 128-bit key."""
    assert decrypt_key(bytes.fromhex("8de40ccadbc14a82f15cb0ad0de95ca3"), bytes.fromhex(
        "c5dad2544fc9799094ce1ce90bc9d03e")) == b"\x55" * 16  # fmt: skip
    plain = "Plaintext".encode("utf-16-le")

    class Client(NtlmProtection):
        """The example is the client's side."""

        def __init__(self) -> None:
            super().__init__(0xE28A8233, b"\x55" * 16)
            self._out = self._in

    sealed, signature = Client().seal(None, plain, None)
    assert sealed.hex() == "54e50165bf1936dc996020c1811b0f06fb5f"
    assert signature.hex() == "010000007fb38ec5c55d497600000000"


def test_the_hint_offers_what_is_allowed() -> None:
    oids = {mech: mech.value for mech in (GSSMech._ms_kerberos, GSSMech.kerberos, GSSMech.ntlm)}
    for kerberos, ntlm, expected in ((True, True, list(oids.values())), (False, True, [GSSMech.ntlm.value])):
        packed = pack_hint(kerberos, ntlm)
        read = unpack_token(packed)
        assert isinstance(read, NegTokenInit) and read.mech_types == expected
        assert packed == NegTokenInit(expected, hint_name=b"not_defined_in_RFC4178@please_ignore").pack()


@pytest.mark.parametrize("exchanged", [False, True])
def test_with_always_sign_alone_a_mech_list_mic_is_true(exchanged: bool) -> None:
    """MS-NLMP 3.4.4.2, MS-SPNG 3.3.5.1: not the signature 01 00...00 of messages that nobody signs."""
    flags = int(NegotiateFlags.always_sign | NegotiateFlags.extended_session_security | NegotiateFlags.key_128)
    if exchanged:
        flags |= int(NegotiateFlags.key_exch)
    key = bytes(range(16))
    found = first_signature(flags, key, INITIATOR, b"mechanisms")
    checksum = hmac.digest(crypto.signkey(flags, key, "initiate"), bytes(4) + b"mechanisms", "md5")[:8]
    if exchanged:
        checksum = crypto.rc4init(crypto.sealkey(flags, key, "initiate")).update(checksum)
    assert found == b"\1\0\0\0" + checksum + bytes(4)
