"""Tickets that are refused: what the log says, what the client gets, and what it may do next. The realm is real, the
damaged and the forged tickets are impacket's."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyasn1.codec.der import decoder, encoder
from pyasn1.type.univ import noValue

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.tickets import open_ticket
from smb3server.auth.users import Principals, UserDatabase
from smb3server.backends.base import User
from smb3server.wire.status import NtStatus, StatusError
from tests.lab.command import serve, stop
from tests.lab.kdc import HOST, REALM, USER, Kdc, missing_programs
from tests.lab.leftovers import descriptors

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.krb5 import asn1, crypto
    from impacket.krb5.ccache import CCache
    from impacket.krb5.types import KerberosTime, Principal, Ticket

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("gssapi", "krb5")),
        reason="Python's gssapi and krb5 are not installed: pip install '.[kerberos]'",
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MECHANISM = bytes.fromhex("06092a864886f712010202")
SKEW, MODIFIED, REPEAT = 37, 31, 34
Change = Callable[[Any], None]


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    made = Kdc(tmp_path_factory.mktemp("realm"))
    made.log_on()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def realm(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kdc.environment.items():
        monkeypatch.setenv(name, value)


def acceptor(kdc: Kdc, answers: bool = True) -> Acceptor:
    principals = Principals(UserDatabase(), [REALM], User(65534, 65534))
    return Acceptor(
        UserDatabase(), "SERVER", kerberos=principals, keytab=str(kdc.keytab), ntlm=False, answers_refusals=answers
    )


def service_key(kdc: Kdc) -> Any:
    import krb5

    context = krb5.init_context()
    for entry in list(krb5.kt_resolve(context, str(kdc.keytab).encode())):
        if entry.key.enctype == 18:
            return crypto.Key(18, bytes(entry.key.data))
    raise AssertionError("no key")


def token(kdc: Kdc, change: Change | None = None, hours: int = 0) -> bytes:
    """A GSS token with the ticket of the cache. ``change`` alters what is sealed in it."""
    cache = CCache.loadFile(str(kdc.cache))
    credential = next(entry for entry in cache.credentials if b"cifs" in entry["server"].prettyPrint())
    ticket = decoder.decode(credential.ticket["data"], asn1Spec=asn1.Ticket())[0]
    if change is not None:
        key = service_key(kdc)
        sealed = decoder.decode(
            crypto.decrypt(key, 2, bytes(ticket["enc-part"]["cipher"])), asn1Spec=asn1.EncTicketPart()
        )[0]
        change(sealed)
        ticket["enc-part"]["cipher"] = crypto.encrypt(key, 2, encoder.encode(sealed), os.urandom(16))
    session = crypto.Key(int(credential["key"]["keytype"]), bytes(credential["key"]["keyvalue"]))
    now = datetime.now(UTC).replace(tzinfo=None)
    authenticator = asn1.Authenticator()
    authenticator["authenticator-vno"] = 5
    authenticator["crealm"] = REALM
    asn1.seq_set(authenticator, "cname", Principal(USER, type=1).components_to_asn1)
    authenticator["cusec"] = now.microsecond
    authenticator["ctime"] = KerberosTime.to_asn1(now + timedelta(hours=hours))
    authenticator["cksum"] = noValue
    authenticator["cksum"]["cksumtype"] = 0x8003
    authenticator["cksum"]["checksum"] = (16).to_bytes(4, "little") + bytes(16) + (0x22).to_bytes(4, "little")
    authenticator["seq-number"] = 1
    request = asn1.AP_REQ()
    request["pvno"] = 5
    request["msg-type"] = 14
    request["ap-options"] = "001" + "0" * 29  # mutual-required: GSS-API makes a KRB_ERROR for no other client
    made = Ticket()
    made.from_asn1(ticket)
    asn1.seq_set(request, "ticket", made.to_asn1)
    request["authenticator"] = noValue
    request["authenticator"]["etype"] = session.enctype
    request["authenticator"]["cipher"] = crypto.encrypt(session, 11, encoder.encode(authenticator), os.urandom(16))
    inner = MECHANISM + b"\x01\x00" + encoder.encode(request)
    return b"\x60" + _length(len(inner)) + inner


def _length(size: int) -> bytes:
    return bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")


def krb_error(answer: bytes) -> int:
    """The error code of the KRB_ERROR in a GSS token."""
    body = answer[answer.index(MECHANISM) + len(MECHANISM) :]
    assert body[:2] == b"\x03\x00"
    return int(decoder.decode(body[2:], asn1Spec=asn1.KRB_ERROR())[0]["error-code"])


def add(kind: int) -> Change:
    def change(sealed: Any) -> None:
        if not sealed["authorization-data"].hasValue():
            sealed["authorization-data"] = noValue
        at = len(sealed["authorization-data"])
        sealed["authorization-data"][at] = noValue
        sealed["authorization-data"][at]["ad-type"] = kind
        sealed["authorization-data"][at]["ad-data"] = b"\x30\x00" if kind == 1 else b"data"

    return change


def _unknown_restriction(given: bytes, kdc: Kdc) -> int | None:
    ticket = open_ticket(given, str(kdc.keytab))
    assert ticket is not None
    return ticket.unknown_restriction


def test_an_altered_ticket_with_nothing_unknown_is_accepted(kdc: Kdc) -> None:
    for change in (None, lambda sealed: None, add(1), add(128)):
        made = acceptor(kdc)
        given = token(kdc, change)
        made.step(given)
        assert made.identity is not None and made.identity.name == USER
        assert _unknown_restriction(given, kdc) is None


def test_a_logon_leaves_no_descriptor(kdc: Kdc) -> None:
    """``krb5`` closes a keytab when its last entry was read, and not before."""
    given = token(kdc)
    made = acceptor(kdc)
    before = descriptors().count(str(kdc.keytab))
    made.step(given)
    assert _unknown_restriction(given, kdc) is None
    assert descriptors().count(str(kdc.keytab)) <= before


@pytest.mark.parametrize("kind", [2, 5, 8, 0x7FFF])
def test_unknown_authorization_data_is_refused(kdc: Kdc, kind: int) -> None:
    """RFC 4120 5.2.6."""
    made = acceptor(kdc)
    with pytest.raises(StatusError) as caught:
        made.step(token(kdc, add(kind)))
    assert caught.value.status == NtStatus.LOGON_FAILURE and made.identity is None
    assert caught.value.reason is not None
    assert caught.value.reason.text == f"Kerberos: authorization data of unknown type {kind}"


def damage(given: bytes) -> bytes:
    return given[:-20] + bytes([given[-20] ^ 1]) + given[-19:]


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda kdc: damage(token(kdc)), MODIFIED, "ntegrity"),
        (lambda kdc: token(kdc, hours=2), SKEW, "lock skew"),
    ],
)
def test_a_refused_ticket_is_answered_and_another_may_follow(
    kdc: Kdc, make: Callable[[Kdc], bytes], code: int, words: str
) -> None:
    """MS-KILE 3.4.5, RFC 4120 3.2.3: the client gets the KRB_ERROR, the log the reason."""
    made = acceptor(kdc)
    assert krb_error(made.step(make(kdc))) == code
    assert made.identity is None
    refusal = made.take_refusal()
    assert refusal is not None and words in refusal.text and made.take_refusal() is None
    made.step(token(kdc))
    assert made.identity is not None and made.identity.name == USER


def test_the_second_refused_ticket_ends_the_logon(kdc: Kdc) -> None:
    made = acceptor(kdc)
    given = token(kdc)
    acceptor(kdc).step(given)
    assert krb_error(made.step(given)) == REPEAT
    with pytest.raises(StatusError) as caught:
        made.step(given)
    assert caught.value.status == NtStatus.LOGON_FAILURE
    assert caught.value.reason is not None and "replay" in caught.value.reason.text


def test_where_refusals_are_not_answered_the_first_ends_it(kdc: Kdc) -> None:
    with pytest.raises(StatusError) as caught:
        acceptor(kdc, answers=False).step(damage(token(kdc)))
    assert caught.value.reason is not None and "ntegrity" in caught.value.reason.text


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_no_ticket_at_all(kdc: Kdc, tmp_path: Path, place: int) -> None:
    given = bytearray(token(kdc))
    given[place] ^= 0xFF
    with contextlib.suppress(StatusError):
        acceptor(kdc).step(bytes(given))
    with pytest.raises(ValueError):
        open_ticket(bytes(given[:60]), str(kdc.keytab))


@pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
def test_smbclient_with_a_ticket_for_an_older_key(tmp_path: Path) -> None:
    """The service has a new key that the keytab lacks: smbclient ends with an error, the log says which."""
    (tmp_path / "realm").mkdir()
    realm = Kdc(tmp_path / "realm")
    server = None
    try:
        realm.administer(f"cpw -randkey cifs/{HOST}@{REALM}")
        realm.log_on()
        file = tmp_path / "kerberos.toml"
        file.touch(0o600)
        file.write_text(f'[server]\nkeytab = "{realm.keytab}"\n[[user]]\nname = "{USER}"\npassword = "of NTLM"\n')
        with pytest.MonkeyPatch.context() as patch:
            for name, value in realm.environment.items():
                patch.setenv(name, value)
            server = serve(tmp_path, "--config", str(file))
            options = ("--use-kerberos=required", f"--use-krb5-ccache={realm.cache}", "-c", "ls")
            command = ("smbclient", f"//{HOST}/share", "-I", "127.0.0.1", "-p", str(server.port), *options)
            result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 1 and "session setup failed" in result.stdout + result.stderr
        assert re.search(r"logon refused: .*Kerberos: .*(key|Key|kvno)", (tmp_path / "log").read_text())
    finally:
        realm.stop()
        if server is not None:
            assert stop(server) == 0
