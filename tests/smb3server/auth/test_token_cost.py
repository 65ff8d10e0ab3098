"""What a stranger's security token can cost: bounds on every part of it (RFC 4178 4.2, X.690 8)."""

from __future__ import annotations

import sys
import time

import pytest
from spnego._spnego import NegTokenInit

from smb3server.auth import spnego_tokens
from smb3server.auth.acceptor import Acceptor
from smb3server.auth.exchange import Exchange
from smb3server.auth.users import Account, Principals, UserDatabase, nt_hash
from smb3server.wire.status import NtStatus, StatusError
from tools.failover import logon
from tools.failover.logon import tlv

LONGEST_TURN = 0.1

SPNEGO = bytes.fromhex("06062b0601050502")
NTLM = bytes.fromhex("060a2b06010401823702020a")
KERBEROS = bytes.fromhex("06092a864886f712010202")


def acceptor(kerberos: bool = False) -> Acceptor:
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    return Acceptor(users, "SERVER", kerberos=Principals(users) if kerberos else None)


def init(mechanisms: bytes, token: bytes = b"") -> bytes:
    inner = tlv(0xA0, tlv(0x30, mechanisms)) + (tlv(0xA2, tlv(0x04, token)) if token else b"")
    return tlv(0x60, SPNEGO + tlv(0xA0, tlv(0x30, inner)))


def refused(token: bytes) -> tuple[int, float]:
    """The status, and the seconds of processor time that it took."""
    made = acceptor()
    begun = time.process_time()
    with pytest.raises(StatusError) as caught:
        made.step(token)
    return caught.value.status, time.process_time() - begun


LONG_OID = tlv(0x06, b"\x2a" + b"\x81" * 59_998 + b"\x01")
MANY_OIDS = tlv(0x06, b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x7f") * 5_400
DEEP = b"\x30\x80" * 20_000


@pytest.mark.parametrize(
    "token",
    [
        init(LONG_OID),
        init(MANY_OIDS),
        init(NTLM + LONG_OID),
        init(KERBEROS + MANY_OIDS, logon.NEGOTIATE),
        init(DEEP),
        tlv(0x60, LONG_OID),
        tlv(0xA1, tlv(0x30, tlv(0xA1, LONG_OID))),
        init(NTLM, logon.NEGOTIATE + bytes(60_000)),
    ],
    ids=["long-oid", "many-oids", "long-oid-behind", "many-behind", "deep", "gss-oid", "response-oid", "long-ntlm"],
)
def test_a_token_of_60_kb_is_refused_at_once(token: bytes) -> None:
    status, seconds = refused(token)
    assert status in (NtStatus.INVALID_PARAMETER, NtStatus.LOGON_FAILURE)
    assert seconds < 0.05


def test_no_library_parses_spnego(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*arguments: object, **options: object) -> None:
        raise AssertionError("pyspnego parses what a stranger sent")

    for module, name in (("spnego._spnego", "unpack_token"), ("spnego._asn1", "unpack_asn1")):
        monkeypatch.setattr(sys.modules[module], name, unexpected)
    made = acceptor()
    answer = made.step(init(KERBEROS + NTLM, logon.NEGOTIATE))
    assert b"NTLMSSP" not in answer
    made = acceptor()
    token, key = logon.Account("u", "pw").answer(made.step(logon.FIRST_TOKEN))
    made.step(token)
    assert made.identity is not None
    assert made.session_key == key


@pytest.mark.parametrize(
    ("mechanisms", "good"),
    [
        (NTLM * spnego_tokens.MAX_MECHANISMS, True),
        (NTLM * (spnego_tokens.MAX_MECHANISMS + 1), False),
        (NTLM + tlv(0x06, bytes(spnego_tokens.MAX_OID)), True),
        (NTLM + tlv(0x06, bytes(spnego_tokens.MAX_OID + 1)), False),
        (NTLM + tlv(0x06, b""), False),
        (NTLM + tlv(0x30, b""), False),
        (b"", False),
    ],
)
def test_bounds_of_the_mechanism_list(mechanisms: bytes, good: bool) -> None:
    made = acceptor()
    token = init(mechanisms, logon.NEGOTIATE)
    if good:
        assert b"NTLMSSP\0\2" in made.step(token)
        return
    with pytest.raises(StatusError) as caught:
        made.step(token)
    assert caught.value.status == NtStatus.INVALID_PARAMETER


def test_a_kerberos_token_may_not_name_another_mechanism() -> None:
    """GSS-API would look for a parser of that name."""
    for inner in (tlv(0x60, SPNEGO + b"x"), tlv(0x60, NTLM + b"x"), b"NTLMSSP\0" + bytes(40), b"\x60\x84" + bytes(9)):
        made = acceptor(kerberos=True)
        with pytest.raises(StatusError) as caught:
            made.step(init(KERBEROS, inner))
        assert caught.value.status in (NtStatus.INVALID_PARAMETER, NtStatus.LOGON_FAILURE)
        assert made._kerberos is None or made._kerberos.kerberos.raw._context is None


@pytest.mark.parametrize(("kerberos", "most"), [(False, 8192), (True, 65536)])
def test_tokens_are_bounded_as_a_whole(kerberos: bool, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    monkeypatch.setattr(Exchange, "step", lambda self, token: parsed.append(len(token)) or b"")
    acceptor(kerberos=kerberos).step(bytes(most))
    with pytest.raises(StatusError) as caught:
        acceptor(kerberos=kerberos).step(bytes(most + 1))
    assert caught.value.status == NtStatus.INVALID_PARAMETER
    assert parsed == [most]


def test_windows_shaped_tokens() -> None:
    """Five mechanisms, Microsoft's number of Kerberos first (MS-SPNG 4.1): NTLM is chosen where Kerberos is not served,
    and then the list's integrity code is due (RFC 4178 5)."""
    offered = [
        "1.2.840.48018.1.2.2", "1.2.840.113554.1.2.2", "1.2.840.113554.1.2.2.3", "1.3.6.1.4.1.311.2.2.30",
        "1.3.6.1.4.1.311.2.2.10",
    ]  # fmt: skip
    token = NegTokenInit(offered, mech_token=bytes(3000)).pack()
    parsed = spnego_tokens.parse_init(token)
    assert len(parsed.offered) == 5
    assert parsed.first == spnego_tokens.MS_KERBEROS
    answer = acceptor().step(token)
    resp = spnego_tokens.parse_resp(answer)
    assert (resp.state, resp.mechanism, resp.token) == (spnego_tokens.REQUEST_MIC, spnego_tokens.NTLM, None)
