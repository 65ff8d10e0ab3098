"""What the system's GSS-API does not check of a ticket: its authorization data. [RFC 4120 5.2.6]"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from smb3server.auth.spnego_tokens import gss_mechanism

IF_RELEVANT = 1
"""AD-IF-RELEVANT: whoever does not know what is in it may ignore it. [RFC 4120 5.2.6.1]"""
_KNOWN = frozenset({IF_RELEVANT, 128})
"""Also AD-WIN2K-PAC, which says more about the user and forbids nothing. [MS-PAC 2.2]"""
_TICKET_KEY_USAGE = 2
"""Key usage of the encrypted part of a ticket. [RFC 4120 7.5.1]"""
_CHECKED = frozenset({17, 18, 23})
"""Encryption types that are decrypted here: AES with SHA-1 and RC4. [RFC 3962, RFC 4757]"""


def unknown_restriction(token: bytes, keytab: str) -> int | None:
    """Return the type of authorization data in an accepted ticket that the server had to know and does not.

    ``token``: the client's GSS token or KRB_AP_REQ. ``keytab``: the file with the server's keys; empty means the one
    that the environment names. None means that there is none, or that the ticket's encryption type is not decrypted
    here. Raises ``ValueError`` for a token that is no AP-REQ, or that no key opens."""
    asn1, decode = _modules()
    ticket = decode(_ap_req(token), asn1.AP_REQ())["ticket"]
    sealed = ticket["enc-part"]
    etype = int(sealed["etype"])
    if etype not in _CHECKED:
        return None
    plain = _open(etype, bytes(sealed["cipher"]), _keys(keytab, etype))
    part = decode(plain, asn1.EncTicketPart())
    if not part["authorization-data"].hasValue():
        return None
    for entry in part["authorization-data"]:
        if int(entry["ad-type"]) not in _KNOWN:
            return int(entry["ad-type"])
    return None


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


def _open(etype: int, cipher: bytes, keys: Iterable[bytes]) -> bytes:
    crypto = importlib.import_module("impacket.krb5.crypto")
    for key in keys:
        try:
            return bytes(crypto.decrypt(crypto.Key(etype, key), _TICKET_KEY_USAGE, cipher))
        except (ValueError, crypto.InvalidChecksum):
            continue
    raise ValueError("no key of the keytab opens the ticket")
