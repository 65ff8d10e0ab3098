"""Keys derived from a session key: SP 800-108 counter mode with HMAC-SHA256. [MS-SMB2 3.1.4.2]"""

from __future__ import annotations

import hmac
from typing import NamedTuple

from smb3server.crypto.algorithms import Cipher
from smb3server.wire.negotiate import Dialect

_FIRST_BLOCK = (1).to_bytes(4, "big")


class SessionKeys(NamedTuple):
    """The keys of one session."""

    signing: bytes
    application: bytes
    encryption: bytes
    """Key from server to client. Empty without a cipher."""
    decryption: bytes
    """Key from client to server. Empty without a cipher."""


def derive(key: bytes, label: bytes, context: bytes, length: int = 16) -> bytes:
    """Return ``length`` bytes of key, at most 32: SMB never needs more than the first block. [MS-SMB2 3.1.4.2]

    ``label`` and ``context`` come without the separating zero byte, which is added here.
    """
    fixed = b"".join((_FIRST_BLOCK, label, b"\0", context, (8 * length).to_bytes(4, "big")))
    return hmac.digest(key, fixed, "sha256")[:length]


def derive_signing_key(dialect: int, session_key: bytes, preauth_hash: bytes) -> bytes:
    """Return the signing key of a session or of an additional channel. [MS-SMB2 3.3.5.5.3]"""
    if dialect < Dialect.SMB_3_0:
        return session_key
    if dialect >= Dialect.SMB_3_1_1:
        return derive(session_key, b"SMBSigningKey\0", preauth_hash)
    return derive(session_key, b"SMB2AESCMAC\0", b"SmbSign\0")


def derive_session_keys(
    dialect: int, session_key: bytes, full_session_key: bytes, cipher_id: int, preauth_hash: bytes
) -> SessionKeys:
    """Return all keys of a new session. [MS-SMB2 3.3.5.5.3]

    ``session_key`` has the first 16 bytes of ``full_session_key``, zero padded. 256-bit ciphers use
    ``full_session_key``.
    """
    signing = derive_signing_key(dialect, session_key, preauth_hash)
    if dialect < Dialect.SMB_3_0:
        return SessionKeys(signing, session_key, b"", b"")
    long = cipher_id in (Cipher.AES_256_CCM, Cipher.AES_256_GCM)
    key, length = (full_session_key, 32) if long else (session_key, 16)
    if dialect >= Dialect.SMB_3_1_1:
        application = derive(session_key, b"SMBAppKey\0", preauth_hash)
        encryption = derive(key, b"SMBS2CCipherKey\0", preauth_hash, length)
        decryption = derive(key, b"SMBC2SCipherKey\0", preauth_hash, length)
    else:
        application = derive(session_key, b"SMB2APP\0", b"SmbRpc\0")
        encryption = derive(key, b"SMB2AESCCM\0", b"ServerOut\0", length)
        decryption = derive(key, b"SMB2AESCCM\0", b"ServerIn \0", length)
    return SessionKeys(signing, application, encryption, decryption)
