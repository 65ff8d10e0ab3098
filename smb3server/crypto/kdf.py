"""Keys derived from a session key (MS-SMB2 3.1.4.2): SP 800-108 counter mode with HMAC-SHA256."""

from __future__ import annotations

import hmac
from typing import NamedTuple

from smb3server.crypto.algorithms import Cipher
from smb3server.wire.negotiate import Dialect

_FIRST_BLOCK = (1).to_bytes(4, "big")


class SessionKeys(NamedTuple):
    signing: bytes
    application: bytes
    encryption: bytes
    """Server to client; empty without a cipher."""
    decryption: bytes
    """Client to server."""


def derive(key: bytes, label: bytes, context: bytes, length: int = 16) -> bytes:
    """``length`` bytes, at most 32: the first block is all that SMB ever needs. Label and context without the
    separating zero byte, which the function puts between them."""
    fixed = b"".join((_FIRST_BLOCK, label, b"\0", context, (8 * length).to_bytes(4, "big")))
    return hmac.digest(key, fixed, "sha256")[:length]


def derive_signing_key(dialect: int, session_key: bytes, preauth_hash: bytes) -> bytes:
    """Signing key of a session or of one more channel (3.3.5.5.3)."""
    if dialect < Dialect.SMB_3_0:
        return session_key
    if dialect >= Dialect.SMB_3_1_1:
        return derive(session_key, b"SMBSigningKey\0", preauth_hash)
    return derive(session_key, b"SMB2AESCMAC\0", b"SmbSign\0")


def derive_session_keys(
    dialect: int, session_key: bytes, full_session_key: bytes, cipher_id: int, preauth_hash: bytes
) -> SessionKeys:
    """All keys of a new session (3.3.5.5.3). ``session_key`` is its first 16 bytes, zero padded; 256-bit ciphers use
    the whole one."""
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
