"""Passwords as messages of MS-SAMR carry them, encrypted with a key that both sides know. [MS-SAMR 2.2.6, 3.2.2]

All functions return None for what cannot be a password: then the key was wrong, or the peer is malicious.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CBC, ECB

from smb3server.auth.ntlm_protection import decrypt_key

BUFFER_SIZE = 516
"""Bytes of SAMPR_ENCRYPTED_USER_PASSWORD: 256 characters, then the password's length. [MS-SAMR 2.2.6.21]"""
SALT_SIZE = 16
"""Bytes of the ClearSalt behind such a buffer in SAMPR_ENCRYPTED_USER_PASSWORD_NEW. [MS-SAMR 2.2.6.22]"""
AES_SIZE = 514
"""Bytes of SAMPR_USER_PASSWORD_AES: the password's length, then 256 characters. [MS-SAMR 2.2.6.32]"""
MIN_ITERATIONS, MAX_ITERATIONS = 5000, 1_000_000
"""Limits of PBKDF2Iterations. [MS-SAMR 3.1.5.10.4]"""
_VERSION, _VERSION_LENGTH = b"\x01", b"\x01"
_ENC_KEY = b"Microsoft SAM encryption key AEAD-AES-256-CBC-HMAC-SHA512 16\0"
_MAC_KEY = b"Microsoft SAM MAC key AEAD-AES-256-CBC-HMAC-SHA512 16\0"


def open_buffer(key: bytes, sealed: bytes) -> str | None:
    """Decrypt a SAMPR_ENCRYPTED_USER_PASSWORD (RC4): the password stands at the end. [MS-SAMR 2.2.6.21, 3.2.2.1]"""
    if len(sealed) != BUFFER_SIZE:
        return None
    clear = decrypt_key(key, sealed)
    size = int.from_bytes(clear[-4:], "little")
    return _text(clear[BUFFER_SIZE - 4 - size : BUFFER_SIZE - 4]) if size <= BUFFER_SIZE - 4 else None


def open_salted_buffer(session_key: bytes, sealed: bytes) -> str | None:
    """Decrypt a SAMPR_ENCRYPTED_USER_PASSWORD_NEW, whose key is made from its salt. [MS-SAMR 2.2.6.22, 3.2.2.2]"""
    if len(sealed) != BUFFER_SIZE + SALT_SIZE:
        return None
    salt = sealed[BUFFER_SIZE:]
    # MD5 is what the protocol says.
    key = hashlib.md5(salt + session_key, usedforsecurity=False).digest()
    return open_buffer(key, sealed[:BUFFER_SIZE])


def key_of_old_password(nt_hash: bytes, salt: bytes, iterations: int) -> bytes | None:
    """Return the content encryption key for SamrUnicodeChangePasswordUser4. [MS-SAMR 3.2.2.5]"""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        return None
    return hashlib.pbkdf2_hmac("sha512", nt_hash, salt, iterations, 16)


def open_aes(key: bytes, tag: bytes, iv: bytes, cipher: bytes) -> str | None:
    """Decrypt a SAMPR_ENCRYPTED_PASSWORD_AES: AEAD-AES-256-CBC-HMAC-SHA512. [MS-SAMR 2.2.6.32, 3.2.2.4]

    ``key`` is the content encryption key, ``iv`` the field Salt, ``tag`` the field AuthData.
    """
    mac_key = hmac.digest(key, _MAC_KEY, "sha512")
    expected = hmac.digest(mac_key, _VERSION + iv + cipher + _VERSION_LENGTH, "sha512")
    if not hmac.compare_digest(expected, tag) or len(iv) != 16 or not cipher or len(cipher) % 16:
        return None
    decryptor = Cipher(AES256(hmac.digest(key, _ENC_KEY, "sha512")[:32]), CBC(iv)).decryptor()
    clear = decryptor.update(cipher) + decryptor.finalize()
    padding = clear[-1]
    clear = clear[:-padding]
    if not 1 <= padding <= 16 or len(clear) < AES_SIZE:
        return None
    (size,) = struct.unpack_from("<H", clear)
    return _text(clear[2 : 2 + size]) if size <= AES_SIZE - 2 else None


def encrypt_hash(nt_hash: bytes, key: bytes) -> bytes:
    """Encrypt an NT hash as ENCRYPTED_NT_OWF_PASSWORD: two blocks of DES with 7 bytes of ``key`` each.
    [MS-SAMR 2.2.11.1]"""
    first, second = _des(key[:7]).encryptor(), _des(key[7:14]).encryptor()
    return first.update(nt_hash[:8]) + second.update(nt_hash[8:])


def decrypt_hash(sealed: bytes, key: bytes) -> bytes:
    """Undo ``encrypt_hash``. Every input gives some hash."""
    first, second = _des(key[:7]).decryptor(), _des(key[7:14]).decryptor()
    return first.update(sealed[:8]) + second.update(sealed[8:])


def _des(key: bytes) -> Cipher[ECB]:
    """Return DES with a key of 7 bytes, of which each 7 bits become a byte. [MS-SAMR 2.2.11.1.2]"""
    bits = int.from_bytes(key, "big")
    spread = bytes((bits >> shift & 0x7F) << 1 for shift in range(49, -1, -7))
    # Three times the same key is simple DES. Parity bits are not looked at.
    return Cipher(TripleDES(spread * 3), ECB())


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-16-le")
    except UnicodeDecodeError:
        return None
