"""Tickets for a server whose key is known, altered in the ways in which forged ones are wrong.

impacket's ``ticketer.py`` makes the ticket and its PAC. [RFC 4120 5, MS-PAC 2]
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from smb3server.auth.users import nt_hash
from smb3server.domain import keytab
from smb3server.domain.keytab import Version
from smb3server.domain.machine import Account, Machine
from tools.attacks import raw

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.krb5 import asn1, crypto
    from impacket.krb5.ccache import CCache
    from impacket.krb5.types import KerberosTime, Principal, Ticket

decoder: Any = importlib.import_module("pyasn1.codec.der.decoder")
encoder: Any = importlib.import_module("pyasn1.codec.der.encoder")
noValue: Any = importlib.import_module("pyasn1.type.univ").noValue

REALM, WORKGROUP, MACHINE = "EXAMPLE.TEST", "EXAMPLE", "FILES"
HOST = f"{MACHINE}.{REALM}".lower()
DOMAIN_SID = "S-1-5-21-1111111111-2222222222-3333333333"
PASSWORD = "the machine account's"
AES256, RC4 = 18, 23
_TICKET_USAGE, _AUTHENTICATOR_USAGE = 2, 11
"""Key usages. [RFC 4120 7.5.1]"""
_MECHANISM = bytes.fromhex("06092a864886f712010202")
_GSS_CHECKSUM = 0x8003
_FLAGS = 0x22
"""GSS_C_MUTUAL_FLAG and GSS_C_INTEG_FLAG. [RFC 4121 4.1.1]"""
Change = Callable[[Any], None]
"""Alters an EncTicketPart."""


def write_account(folder: Path) -> None:
    """Write the server's machine account: its keys, and the password."""
    account = Account(REALM, WORKGROUP, MACHINE, HOST, DOMAIN_SID, (Version(PASSWORD, 1, 1_700_000_000),))
    Machine(folder / "domain.secret", folder / "domain.keytab").write(account)


def machine_key(password: str = PASSWORD) -> bytes:
    """Return the AES-256 key of a machine account."""
    return keytab.key(AES256, password, keytab.salt(REALM, MACHINE))


def make_ticket(folder: Path, user: str, password: str, *claims: str) -> None:
    """Have impacket make a ticket, in the file of the user's name in ``folder``. ``claims``: more of its arguments.

    Raises ``CalledProcessError``."""
    script = Path(sys.executable).with_name("ticketer.py")
    names = ["-domain", REALM, "-domain-sid", DOMAIN_SID, "-spn", f"cifs/{HOST}", "-user-id", "1104"]
    command = [sys.executable, str(script), "-aesKey", machine_key(password).hex(), *names, *claims, user]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


class Forged:
    """A ticket of impacket's for ``user``."""

    def __init__(self, folder: Path, user: str = "alice", password: str = PASSWORD) -> None:
        """``password``: that of the machine account whose key seals and signs it. Raises ``CalledProcessError``."""
        self.user = user
        self.key = crypto.Key(AES256, machine_key(password))
        make_ticket(folder, user, password)
        made = CCache.loadFile(str(folder / f"{user}.ccache")).credentials[0]
        self.ticket = decoder.decode(made.ticket["data"], asn1Spec=asn1.Ticket())[0]
        self.session = crypto.Key(int(made["key"]["keytype"]), bytes(made["key"]["keyvalue"]))

    def opened(self) -> Any:
        """Return the EncTicketPart."""
        plain = crypto.decrypt(self.key, _TICKET_USAGE, bytes(self.ticket["enc-part"]["cipher"]))
        return decoder.decode(plain, asn1Spec=asn1.EncTicketPart())[0]

    def pac(self) -> bytes:
        """Return the PAC."""
        inner = decoder.decode(bytes(self.opened()["authorization-data"][0]["ad-data"]), asn1Spec=asn1.AD_IF_RELEVANT())
        return bytes(inner[0][0]["ad-data"])

    def token(
        self,
        change: Change | None = None,
        *,
        key: Any = None,
        etype: int | None = None,
        service: str = "",
        user: str = "",
    ) -> bytes:
        """Return a SPNEGO token with the ticket, and with an authenticator of now.

        ``key`` seals what ``change`` has altered. ``etype`` is what the ticket says about its encryption. ``user`` is
        whom the authenticator names."""
        sealed = self.opened()
        if change is not None:
            change(sealed)
        key = key or self.key
        ticket = decoder.decode(encoder.encode(self.ticket), asn1Spec=asn1.Ticket())[0]
        ticket["enc-part"]["etype"] = key.enctype if etype is None else etype
        ticket["enc-part"]["cipher"] = crypto.encrypt(
            key, _TICKET_USAGE, encoder.encode(sealed), os.urandom(8 if key.enctype == RC4 else 16)
        )
        if service:
            ticket["sname"]["name-string"][0] = service
        request = asn1.AP_REQ()
        request["pvno"], request["msg-type"] = 5, 14
        # mutual-required
        request["ap-options"] = "001" + "0" * 29
        made = Ticket()
        made.from_asn1(ticket)
        asn1.seq_set(request, "ticket", made.to_asn1)
        request["authenticator"] = noValue
        request["authenticator"]["etype"] = self.session.enctype
        request["authenticator"]["cipher"] = crypto.encrypt(
            self.session, _AUTHENTICATOR_USAGE, encoder.encode(_authenticator(user or self.user)), os.urandom(16)
        )
        return in_spnego(raw.der(0x60, _MECHANISM + b"\x01\x00" + encoder.encode(request)))


def _authenticator(user: str) -> Any:
    now = datetime.now(UTC).replace(tzinfo=None)
    found = asn1.Authenticator()
    found["authenticator-vno"] = 5
    found["crealm"] = REALM
    asn1.seq_set(found, "cname", Principal(user, type=1).components_to_asn1)
    found["cusec"], found["ctime"] = now.microsecond, KerberosTime.to_asn1(now)
    found["cksum"] = noValue
    found["cksum"]["cksumtype"] = _GSS_CHECKSUM
    found["cksum"]["checksum"] = (16).to_bytes(4, "little") + bytes(16) + _FLAGS.to_bytes(4, "little")
    found["seq-number"] = int.from_bytes(os.urandom(3), "little")
    return found


def in_spnego(token: bytes) -> bytes:
    """Return a NegTokenInit with a token of Kerberos. [RFC 4178 4.2.1]"""
    offer = raw.der(0xA0, raw.der(0x30, _MECHANISM)) + raw.der(0xA2, raw.der(0x04, token))
    return raw.der(0x60, bytes.fromhex("06062b0601050502") + raw.der(0xA0, raw.der(0x30, offer)))


def with_pac(change: Callable[[bytes], bytes]) -> Change:
    """Return a change of the PAC."""

    def alter(sealed: Any) -> None:
        entry = sealed["authorization-data"][0]
        inner = decoder.decode(bytes(entry["ad-data"]), asn1Spec=asn1.AD_IF_RELEVANT())[0]
        inner[0]["ad-data"] = change(bytes(inner[0]["ad-data"]))
        entry["ad-data"] = encoder.encode(inner)

    return alter


def without_pac(sealed: Any) -> None:
    """Leave the PAC out, as KDCs do that are no controllers."""
    kept = decoder.decode(encoder.encode(sealed), asn1Spec=asn1.EncTicketPart())[0]
    sealed.clear()
    for name in kept:
        if name != "authorization-data" and kept[name].hasValue():
            sealed[name] = kept[name]


def at_times(start: timedelta, end: timedelta) -> Change:
    """Return a change of the times from and until which the ticket is valid."""

    def alter(sealed: Any) -> None:
        now = datetime.now(UTC).replace(tzinfo=None)
        sealed["starttime"], sealed["endtime"] = KerberosTime.to_asn1(now + start), KerberosTime.to_asn1(now + end)

    return alter


def for_user(name: str) -> Change:
    """Return a change of the ticket's client. The PAC stays that of another."""

    def alter(sealed: Any) -> None:
        sealed["cname"]["name-string"][0] = name

    return alter


def rc4_key() -> Any:
    """Return the key that the machine account has where RC4 is allowed. [RFC 4757 2]"""
    return crypto.Key(RC4, nt_hash(PASSWORD))
