"""Writes the keytab of a machine account: the keys of its last passwords, for each name of its services.

The layout is that of MIT's and Heimdal's version 2. The keys are AES only. [RFC 3962, MS-KILE 3.1.1.2]
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

_VERSION = b"\x05\x02"
_NT_PRINCIPAL, _NT_SRV_HST = 1, 3
"""Kinds of principals. [RFC 4120 6.2]"""
_KEY_SIZES = {18: 32, 17: 16}
"""AES256-CTS-HMAC-SHA1-96 and AES128-CTS-HMAC-SHA1-96. [RFC 3962 7]"""
ENCRYPTION_TYPES = tuple(_KEY_SIZES)
_ROUNDS = 4096
_KERBEROS = bytes.fromhex("6b65726265726f737b9b5b2b93132b93")
"""The word "kerberos", folded to 16 bytes. [RFC 3961 A.1]"""
SUPPORTED = 0x18
"""The same as bits of msDS-SupportedEncryptionTypes. [MS-KILE 2.2.7]"""


class Version(NamedTuple):
    """A password of the account, and the number of its key."""

    password: str
    number: int
    set_at: int
    """Seconds since 1970."""


def salt(realm: str, machine: str) -> str:
    """Return the salt of a machine account's keys. [MS-KILE 3.1.1.2]"""
    return f"{realm.upper()}host{machine.lower()}.{realm.lower()}"


def principals(machine: str, host: str) -> list[str]:
    """Return the principals that clients ask tickets for."""
    names = dict.fromkeys((host, machine.lower(), machine.upper()))
    return [f"{service}/{name}" for service in ("cifs", "host") for name in names] + [f"{machine.upper()}$"]


def key(encryption: int, password: str, key_salt: str) -> bytes:
    """Return the key of a password. [RFC 3962 4, RFC 3961 5.1]"""
    size = _KEY_SIZES[encryption]
    secret = hashlib.pbkdf2_hmac("sha1", password.encode(), key_salt.encode(), _ROUNDS, size)
    derived, block = b"", _KERBEROS
    while len(derived) < size:
        block = Cipher(AES(secret), ECB()).encryptor().update(block)
        derived += block
    return derived[:size]


def pack(realm: str, machine: str, host: str, versions: Iterable[Version]) -> bytes:
    """Return the content of the keytab."""
    data = [_VERSION]
    names = principals(machine, host)
    for version in versions:
        for encryption in ENCRYPTION_TYPES:
            contents = key(encryption, version.password, salt(realm, machine))
            data += [_entry(realm, name.split("/"), version, encryption, contents) for name in names]
    return b"".join(data)


def _counted(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def _entry(realm: str, parts: Sequence[str], version: Version, encryption: int, contents: bytes) -> bytes:
    kind = _NT_SRV_HST if len(parts) > 1 else _NT_PRINCIPAL
    body = struct.pack(">H", len(parts)) + _counted(realm.encode())
    body += b"".join(_counted(part.encode()) for part in parts)
    body += struct.pack(">IIBH", kind, version.set_at, version.number & 0xFF, encryption) + _counted(contents)
    # The number in full: the one byte above has no room for an account that is years old.
    body += struct.pack(">I", version.number)
    return struct.pack(">i", len(body)) + body


def numbers(data: bytes, service: str = "cifs") -> set[int]:
    """Return the numbers of the keys that a keytab has for a service. Raises ``ValueError`` for a damaged file."""
    if data[:2] != _VERSION:
        raise ValueError("not a keytab")
    found, at = set(), 2
    try:
        while at < len(data):
            (size,) = struct.unpack_from(">i", data, at)
            at += 4
            if size > 0 and at + size <= len(data):
                name, number = _look(data[at : at + size])
                found |= {number} if name == service else set()
            elif size > 0 or size == 0:
                raise ValueError("a keytab that is cut off")
            at += abs(size)
    except struct.error as error:
        raise ValueError("a damaged keytab") from error
    return found


def _look(entry: bytes) -> tuple[str, int]:
    """Return the first part of an entry's principal, and the number of its key. Raises ``struct.error``."""
    (count,) = struct.unpack_from(">H", entry)
    at, parts = 2, []
    for _ in range(count + 1):
        (size,) = struct.unpack_from(">H", entry, at)
        parts.append(entry[at + 2 : at + 2 + size])
        at += 2 + size
    number, _, size = struct.unpack_from(">BHH", entry, at + 8)
    at += 13 + size
    if len(entry) >= at + 4:
        (number,) = struct.unpack_from(">I", entry, at)
    return parts[1].decode(errors="replace") if count else "", number
