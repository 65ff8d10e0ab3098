"""Asks a controller which site of the domain this machine is in, by one datagram. [MS-ADTS 6.3.3]

Anybody may answer a datagram, so the answer decides no more than which controllers are tried first.
"""

from __future__ import annotations

import importlib
import re
import secrets
import socket
import struct
import time
from typing import Any

from smb3server.domain.ldap_client import BASE, LDAP_PORT, LdapError, decoded, equal

TIMEOUT = 1.0
"""Seconds for one controller."""
_MAX_ANSWER = 4096
_V5, _V5EX, _WITH_CLOSEST_SITE = 0x2, 0x4, 0x10
"""Bits of NtVer: which answer is wanted. [MS-ADTS 6.3.1.1]"""
_EXTENDED_ANSWER, _EXTENDED_ANSWER_PAUSED = 23, 24
"""LOGON_SAM_LOGON_RESPONSE_EX: the only answer that has a site. The other one is a paused controller's.
[MS-ADTS 6.3.1.3]"""
_FIXED = struct.Struct("<HHI16s")
"""Opcode, Sbz, Flags and DomainGuid. [MS-ADTS 6.3.1.9]"""
_DOMAIN, _BEFORE_SITE = 1, 7
"""Names before ClientSiteName: of forest, domain, host, both of NetBIOS, user, and the controller's own site."""
_MAX_LABELS = 128
"""Labels of a name, with the pointers between them."""
_SITE = re.compile(r"[A-Za-z0-9_-]{1,63}\Z")


def client_site(address: str, realm: str) -> str:
    """Return the site that a controller says this machine is in. Empty: it is in none. Blocks for ``TIMEOUT`` at most.

    Raises ``OSError`` and ``LdapError``."""
    number = secrets.randbelow(1 << 31)
    question = _question(number, realm)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as channel:
        channel.connect((address, LDAP_PORT))
        channel.send(question)
        end = time.monotonic() + TIMEOUT
        while True:
            channel.settimeout(max(end - time.monotonic(), 0.001))
            answer = decoded(channel.recv(_MAX_ANSWER))
            if int(answer["messageID"]) == number:
                return _site_of(answer, realm)
            if time.monotonic() >= end:
                raise TimeoutError("no answer in time")


def _question(number: int, realm: str) -> bytes:
    """Return the search for the attribute "netlogon". [MS-ADTS 6.3.3.2]"""
    from impacket.ldap import ldapasn1

    version = struct.pack("<I", _V5 | _V5EX | _WITH_CLOSEST_SITE)
    request = ldapasn1.SearchRequest()
    request["baseObject"] = ""
    request["scope"] = BASE
    request["derefAliases"] = 0
    request["sizeLimit"] = request["timeLimit"] = 0
    request["typesOnly"] = False
    request["filter"]["and"].setComponents(equal("DnsDomain", realm.lower().encode()), equal("NtVer", version))
    request["attributes"].setComponents("netlogon")
    message = ldapasn1.LDAPMessage()
    message["messageID"] = number
    message["protocolOp"].setComponentByName("searchRequest", request)
    return bytes(importlib.import_module("pyasn1.codec.ber.encoder").encode(message))


def _site_of(answer: Any, realm: str) -> str:
    if answer["protocolOp"].getName() != "searchResEntry":
        raise LdapError("the controller does not say the site")
    entry = answer["protocolOp"].getComponent()
    for one in entry["attributes"]:
        if str(one["type"]).lower() == "netlogon" and len(one["vals"]):
            return site_in(bytes(one["vals"][0]), realm)
    raise LdapError("the controller does not say the site")


def site_in(data: bytes, realm: str) -> str:
    """Return ClientSiteName of a NETLOGON_SAM_LOGON_RESPONSE_EX. Raises ``LdapError``. [MS-ADTS 6.3.1.9]"""
    if len(data) < _FIXED.size or _FIXED.unpack_from(data)[0] not in (_EXTENDED_ANSWER, _EXTENDED_ANSWER_PAUSED):
        raise LdapError("an answer about the site of another kind")
    at = _FIXED.size
    try:
        names = []
        for _ in range(_BEFORE_SITE + 1):
            name, at = _name(data, at)
            names.append(name)
        site = names[_BEFORE_SITE]
    except IndexError as error:
        raise LdapError("an answer about the site that is cut short") from error
    if names[_DOMAIN].casefold() != realm.casefold():
        raise LdapError("the site of another domain")
    # It becomes a part of a name in DNS.
    if site and not _SITE.match(site):
        raise LdapError("a site with a wrong name")
    return site


def _name(data: bytes, at: int) -> tuple[str, int]:
    """Return a name, and where the next one begins. Raises ``IndexError`` and ``LdapError``. [RFC 1035 4.1.4]"""
    labels: list[str] = []
    following = 0
    for _ in range(_MAX_LABELS):
        size = data[at]
        if size >= 0xC0:
            following = following or at + 2
            at = (size & 0x3F) << 8 | data[at + 1]
        elif size:
            if at + 1 + size > len(data):
                raise IndexError
            labels.append(data[at + 1 : at + 1 + size].decode("utf-8", "replace"))
            at += 1 + size
        else:
            return ".".join(labels), following or at + 1
    raise LdapError("a name without an end")
