"""What protects the secure channel between a member and a controller: keys, credentials, sealed messages.

AES only. A controller that offers less is refused. [MS-NRPC 3.1.4, 3.3.4.2]
"""

from __future__ import annotations

import hmac
import os
import struct
import time

from cryptography.hazmat.decrepit.ciphers.modes import CFB8
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES

from smb3server.domain.rpc_client import RpcError

STRONG_KEYS, PASSWORD_SET_2, SECURE_RPC, AES_SHA2 = 0x00004000, 0x00020000, 0x40000000, 0x01000000
"""Bits of NegotiateFlags. [MS-NRPC 3.1.4.2]"""
NEGOTIATED = 0x212FFFFF | SECURE_RPC
"""What a member offers: all that current Windows and Samba do."""
REQUIRED = AES_SHA2 | SECURE_RPC | PASSWORD_SET_2
"""What a controller must accept."""
_KIND = 0x44
"""RPC_C_AUTHN_NETLOGON. [MS-RPCE 2.2.1.1.7]"""
_REQUEST, _RESPONSE = 0, 1
_NETBIOS_DOMAIN, _NETBIOS_HOST = 0x1, 0x2
"""Kind and flags of NL_AUTH_MESSAGE. [MS-NRPC 2.2.1.3.1]"""
_HEAD = struct.pack("<HHHH", 0x0013, 0x001A, 0xFFFF, 0)
"""HMAC-SHA256 and AES-128: the first fields of NL_AUTH_SHA2_SIGNATURE. [MS-NRPC 2.2.1.3.3]"""
_TOKEN_SIZE = 56


def session_key(nt_hash: bytes, client_challenge: bytes, server_challenge: bytes) -> bytes:
    """Return the session key from the hash of the machine's password. [MS-NRPC 3.1.4.3.1]"""
    return hmac.digest(nt_hash, client_challenge + server_challenge, "sha256")[:16]


def _cipher(key: bytes, iv: bytes) -> Cipher[CFB8]:
    return Cipher(AES(key), CFB8(iv))


def encrypt(key: bytes, data: bytes) -> bytes:
    """Encrypt with AES in CFB mode of 8 bits and an initialization vector of zero. [MS-NRPC 3.1.4.4.1]"""
    return _cipher(key, bytes(16)).encryptor().update(data)


class Credentials:
    """The chain of credentials of one secure channel, which its authenticators prove. [MS-NRPC 3.1.4.5]"""

    def __init__(self, key: bytes, client_challenge: bytes) -> None:
        self._key = key
        self.first = self._stored = encrypt(key, client_challenge)
        """The credential of NetrServerAuthenticate3."""

    def accepts(self, server_challenge: bytes, server_credential: bytes) -> bool:
        """Return whether the controller has proved that it knows the password."""
        return hmac.compare_digest(encrypt(self._key, server_challenge), server_credential)

    def next(self) -> tuple[int, bytes]:
        """Return time stamp and credential of the next authenticator."""
        now = int(time.time()) & 0xFFFFFFFF
        self._add(now)
        return now, encrypt(self._key, self._stored)

    def check(self, returned: bytes) -> None:
        """Check the authenticator that the controller has returned. Raises ``RpcError``."""
        self._add(1)
        if not hmac.compare_digest(encrypt(self._key, self._stored), returned):
            raise RpcError("the controller's authenticator is wrong")

    def _add(self, number: int) -> None:
        low = (int.from_bytes(self._stored[:4], "little") + number) & 0xFFFFFFFF
        self._stored = low.to_bytes(4, "little") + self._stored[4:]


class Sealing:
    """Implements ``rpc_client.Security``: the messages of one connection are sealed with the session key."""

    kind = _KIND
    token_size = _TOKEN_SIZE

    def __init__(self, key: bytes, domain: str, machine: str) -> None:
        self._key = key
        self._sealing = bytes(byte ^ 0xF0 for byte in key)
        self._names = b"".join(name.encode("ascii", "replace") + b"\0" for name in (domain, machine))
        self._sequence = 0

    def first_token(self) -> bytes:
        """Return the NL_AUTH_MESSAGE of the bind. [MS-NRPC 3.3.4.1.1]"""
        return struct.pack("<II", _REQUEST, _NETBIOS_DOMAIN | _NETBIOS_HOST) + self._names

    def check_answer(self, token: bytes) -> None:
        if len(token) < 8 or int.from_bytes(token[:4], "little") != _RESPONSE:
            raise RpcError("the controller's answer to the secure bind is wrong")

    def _number(self, initiator: bool) -> bytes:
        """Return the number of the next message. Both directions count in one row. [MS-NRPC 3.3.4.2.1]"""
        low, high = self._sequence & 0xFFFFFFFF, self._sequence >> 32
        self._sequence += 1
        return struct.pack(">II", low, high | (0x80000000 if initiator else 0))

    def _checksum(self, confounder: bytes, message: bytes) -> bytes:
        return hmac.digest(self._key, _HEAD + confounder + message, "sha256")[:8]

    def seal(self, stub: bytes) -> tuple[bytes, bytes]:
        """Return the sealed stub and its token. [MS-NRPC 3.3.4.2.1]"""
        number, confounder = self._number(initiator=True), os.urandom(8)
        checksum = self._checksum(confounder, stub)
        sealing: CipherContext = _cipher(self._sealing, number * 2).encryptor()
        hidden = sealing.update(confounder)
        sealed = sealing.update(stub)
        hidden_number = _cipher(self._key, checksum * 2).encryptor().update(number)
        return sealed, _HEAD + hidden_number + checksum + hidden + bytes(24)

    def unseal(self, sealed: bytes, token: bytes) -> bytes:
        """Return the stub of a sealed one. Raises ``RpcError``. [MS-NRPC 3.3.4.2.2]"""
        if len(token) != _TOKEN_SIZE or token[: len(_HEAD)] != _HEAD:
            raise RpcError("an answer that is not sealed with AES")
        checksum = token[16:24]
        number = self._number(initiator=False)
        if _cipher(self._key, checksum * 2).decryptor().update(token[8:16]) != number:
            raise RpcError("an answer that is out of its order, or not the controller's")
        opening: CipherContext = _cipher(self._sealing, number * 2).decryptor()
        confounder = opening.update(token[24:32])
        stub = opening.update(sealed)
        if not hmac.compare_digest(self._checksum(confounder, stub), checksum):
            raise RpcError("an answer whose seal is broken")
        return stub
