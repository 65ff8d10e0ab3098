"""What the system's GSS-API does not check of a ticket: its authorization data. [RFC 4120 5.2.6]"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from smb3server.auth.spnego_tokens import gss_mechanism

IF_RELEVANT = 1
"""AD-IF-RELEVANT: whoever does not know what is in it may ignore it. [RFC 4120 5.2.6.1]"""
WIN2K_PAC = 128
"""AD-WIN2K-PAC: what the controller says about the user. [MS-PAC 2.2]"""
_KNOWN = frozenset({IF_RELEVANT, WIN2K_PAC})
_TICKET_KEY_USAGE = 2
"""Key usage of the encrypted part of a ticket. [RFC 4120 7.5.1]"""
_CHECKED = frozenset({17, 18, 23})
"""Encryption types that are decrypted here: AES with SHA-1 and RC4. [RFC 3962, RFC 4757]"""


class Ticket(NamedTuple):
    """The encrypted part of an accepted ticket, as far as the server uses it. [RFC 4120 5.3]"""

    client: str
    """The components of the client's name, joined by slashes."""
    realm: str
    """The client's realm."""
    authentication_time: int
    """When the client got its first ticket, in seconds since 1970."""
    key_type: int
    """Encryption type of ``key``."""
    key: bytes
    """The key of the keytab that opened the ticket. Keep it secret."""
    authorization: tuple[tuple[int, bytes], ...]
    """Types and values of the authorization data."""

    @property
    def unknown_restriction(self) -> int | None:
        """The type of authorization data that the server had to know and does not."""
        return next((kind for kind, _ in self.authorization if kind not in _KNOWN), None)

    def ignorable(self, wanted: int) -> bytes | None:
        """Return the first authorization data of a type, by itself or inside AD-IF-RELEVANT. Raises ``ValueError``."""
        asn1, decode = _modules()
        for kind, data in self.authorization:
            if kind == wanted:
                return data
            if kind == IF_RELEVANT:
                for entry in decode(data, asn1.AD_IF_RELEVANT()):
                    if int(entry["ad-type"]) == wanted:
                        return bytes(entry["ad-data"])
        return None


def open_ticket(token: bytes, keytab: str) -> Ticket | None:
    """Return the ticket in a client's token that GSS-API has accepted.

    ``token``: a GSS token or KRB_AP_REQ. ``keytab``: the file with the server's keys; empty means the one that the
    environment names. None means that the ticket's encryption type is not decrypted here. Raises ``ValueError`` for a
    token that is no AP-REQ, or that no key opens."""
    asn1, decode = _modules()
    sealed = decode(_ap_req(token), asn1.AP_REQ())["ticket"]["enc-part"]
    etype = int(sealed["etype"])
    if etype not in _CHECKED:
        return None
    plain, key = _open(etype, bytes(sealed["cipher"]), _keys(keytab, etype))
    part = decode(plain, asn1.EncTicketPart())
    entries = part["authorization-data"]
    return Ticket(
        "/".join(str(component) for component in part["cname"]["name-string"]),
        str(part["crealm"]),
        int(part["authtime"].asDateTime.timestamp()),
        etype,
        key,
        tuple((int(entry["ad-type"]), bytes(entry["ad-data"])) for entry in entries) if entries.hasValue() else (),
    )


def _ap_req(token: bytes) -> bytes:
    """Return the KRB_AP_REQ of a token. In a GSS token it follows the mechanism and the token's type. [RFC 4121 4.1]"""
    if token[:1] != b"\x60":
        return token
    mechanism = gss_mechanism(token)
    return token[token.index(mechanism) + len(mechanism) + 2 :]


def _modules() -> tuple[Any, Any]:
    """Import what only servers with Kerberos need. Return the module of the messages and the decoder."""
    decoder = importlib.import_module("pyasn1.codec.der.decoder")

    def decode(data: bytes, kind: Any) -> Any:
        try:
            return decoder.decode(data, asn1Spec=kind)[0]
        except Exception as error:
            # The decoder's own text has the whole schema.
            raise ValueError(f"not a {type(kind).__name__}") from error

    return importlib.import_module("impacket.krb5.asn1"), decode


def _keys(keytab: str, etype: int) -> list[bytes]:
    krb5 = importlib.import_module("krb5")
    context = krb5.init_context()
    table = krb5.kt_resolve(context, keytab.encode()) if keytab else krb5.kt_default(context)
    # The library closes the file at the table's end only.
    return [bytes(entry.key.data) for entry in list(table) if entry.key.enctype == etype]


def _open(etype: int, cipher: bytes, keys: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Return the clear text, and the key that opens it. Raises ``ValueError``."""
    crypto = importlib.import_module("impacket.krb5.crypto")
    for key in keys:
        try:
            return bytes(crypto.decrypt(crypto.Key(etype, key), _TICKET_KEY_USAGE, cipher)), key
        except (ValueError, crypto.InvalidChecksum):
            continue
    raise ValueError("no key of the keytab opens the ticket")
