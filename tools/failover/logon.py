"""The client's half of an NTLMv2 logon, for one account whose keys are computed once. [MS-NLMP 3.1.5]"""

from __future__ import annotations

import hmac
import os
import struct

from cryptography.hazmat.decrepit.ciphers.algorithms import ARC4
from cryptography.hazmat.primitives.ciphers import Cipher

from smb3server.auth.users import nt_hash

_FLAGS = 0xE2888235
"""56-bit, key exchange, 128-bit, version, target information, extended session security, always sign, NTLM, sign, seal,
request target, Unicode: the flags that Windows sends, except obsolete ones.
"""
_VERSION = bytes.fromhex("0a00f4650000000f")
_SIGNATURE = b"NTLMSSP\0"
_NTLM_OID = bytes.fromhex("060a2b06010401823702020a")
_SPNEGO_OID = bytes.fromhex("06062b0601050502")
_FIXED = 88
"""Bytes of an AUTHENTICATE_MESSAGE before its payload, with Version and MIC. [MS-NLMP 2.2.1.3]"""
_AV_EOL, _AV_FLAGS, _AV_TIMESTAMP = 0, 6, 7
_AV_MIC = struct.pack("<HHI", _AV_FLAGS, 4, 2)


def tlv(tag: int, content: bytes) -> bytes:
    """Return a DER element."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    if size < 0x100:
        return bytes((tag, 0x81, size)) + content
    return bytes((tag, 0x82, size >> 8, size & 0xFF)) + content


NEGOTIATE = _SIGNATURE + struct.pack("<II", 1, _FLAGS) + bytes(16) + _VERSION
FIRST_TOKEN = tlv(
    0x60,
    _SPNEGO_OID + tlv(0xA0, tlv(0x30, tlv(0xA0, tlv(0x30, _NTLM_OID)) + tlv(0xA2, tlv(0x04, NEGOTIATE)))),
)


class Account:
    """Answers the challenges for one user."""

    def __init__(self, user: str, password: str) -> None:
        self._key = hmac.digest(nt_hash(password), user.upper().encode("utf-16-le"), "md5")
        self._user = user.encode("utf-16-le")

    def answer(self, token: bytes) -> tuple[bytes, bytes]:
        """Return the last token and the session key for the server's SPNEGO token.

        Raises ``ValueError`` if the token contains no challenge.
        """
        start = token.find(_SIGNATURE + b"\2\0\0\0")
        if start < 0:
            raise ValueError("no challenge in the server's token")
        challenge = token[start:]
        flags, nonce = struct.unpack_from("<I8s", challenge, 20)
        length, _, offset = struct.unpack_from("<HHI", challenge, 40)
        info = challenge[offset : offset + length]
        temp = (
            b"\1\1\0\0\0\0\0\0"
            + _timestamp(info)
            + os.urandom(8)
            + bytes(4)
            + (info[:-4] if info.endswith(bytes(4)) else info)
            + _AV_MIC
            + bytes(8)
        )
        proof = hmac.digest(self._key, nonce + temp, "md5")
        base = hmac.digest(self._key, proof, "md5")
        key = os.urandom(16)
        sealed = _rc4(base, key)
        response = proof + temp
        at = _FIXED
        fields = b""
        payload = b""
        for part in (bytes(24), response, b"", self._user, b"", sealed):
            fields += struct.pack("<HHI", len(part), len(part), at)
            payload += part
            at += len(part)
        head = _SIGNATURE + b"\3\0\0\0" + fields + struct.pack("<I", flags) + _VERSION
        # The MIC covers all three messages, with zeros in its own place (3.1.5.1.2).
        end = challenge_end(challenge)
        mic = hmac.digest(key, NEGOTIATE + challenge[:end] + head + bytes(16) + payload, "md5")
        message = head + mic + payload
        return tlv(0xA1, tlv(0x30, tlv(0xA2, tlv(0x04, message)))), key


def challenge_end(challenge: bytes) -> int:
    """Return the end of a CHALLENGE_MESSAGE that may be followed by other data: the end of its last field."""
    name, _, name_at = struct.unpack_from("<HHI", challenge, 12)
    info, _, info_at = struct.unpack_from("<HHI", challenge, 40)
    return max(int(name_at + name), int(info_at + info))


def _timestamp(info: bytes) -> bytes:
    """Return the server's timestamp, which a client must use if there is one."""
    at = 0
    while at + 4 <= len(info):
        kind, length = struct.unpack_from("<HH", info, at)
        if kind == _AV_TIMESTAMP:
            return info[at + 4 : at + 12]
        if kind == _AV_EOL:
            break
        at += 4 + length
    return bytes(8)


def _rc4(key: bytes, data: bytes) -> bytes:
    return Cipher(ARC4(key), mode=None).encryptor().update(data)
