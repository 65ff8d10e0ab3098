"""Passwords in messages of MS-SAMR, against impacket's cryptography and a second implementation of AES in CBC mode."""

from __future__ import annotations

import hashlib
import hmac
import os
import warnings

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from smb3server.auth import sam_passwords
from smb3server.auth.users import nt_hash

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from Cryptodome.Cipher import ARC4
    from impacket import crypto

KEY = nt_hash("old password")
NAMES = (
    b"Microsoft SAM encryption key AEAD-AES-256-CBC-HMAC-SHA512 16\0",
    (b"Microsoft SAM MAC key AEAD-AES-256-CBC-HMAC-SHA512 16\0"),
)


def buffer(password: str) -> bytes:
    """SAMPR_USER_PASSWORD (2.2.6.21)."""
    data = password.encode("utf-16-le")
    return os.urandom(512 - len(data)) + data + len(data).to_bytes(4, "little")


def sealed_aes(key: bytes, clear: bytes, iv: bytes) -> tuple[bytes, bytes]:
    """AuthData and Cipher (3.2.2.4)."""
    encryption, authentication = (hmac.digest(key, name, "sha512") for name in NAMES)
    padding = 16 - len(clear) % 16
    encryptor = Cipher(algorithms.AES(encryption[:32]), modes.CBC(iv)).encryptor()
    cipher = encryptor.update(clear + bytes([padding]) * padding) + encryptor.finalize()
    return hmac.digest(authentication, b"\1" + iv + cipher + b"\1", "sha512"), cipher


def aes_buffer(password: str) -> bytes:
    """SAMPR_USER_PASSWORD_AES (2.2.6.32)."""
    data = password.encode("utf-16-le")
    return len(data).to_bytes(2, "little") + data + os.urandom(512 - len(data))


@given(st.text(max_size=120))
def test_each_way_gives_the_password_back(password: str) -> None:
    sealed = ARC4.new(KEY).encrypt(buffer(password))
    assert sam_passwords.open_buffer(KEY, sealed) == password
    salt = os.urandom(16)
    salted = ARC4.new(hashlib.md5(salt + KEY).digest()).encrypt(buffer(password)) + salt
    assert sam_passwords.open_salted_buffer(KEY, salted) == password
    tag, cipher = sealed_aes(KEY, aes_buffer(password), salt)
    assert sam_passwords.open_aes(KEY, tag, salt, cipher) == password


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_hashes_are_encrypted_as_impacket_does(old: bytes, key: bytes) -> None:
    sealed = sam_passwords.encrypt_hash(old, key)
    assert sealed == crypto.SamEncryptNTLMHash(old, key)
    assert sam_passwords.decrypt_hash(sealed, key) == old


@given(st.binary(max_size=600))
def test_what_is_no_password(data: bytes) -> None:
    assert sam_passwords.open_aes(KEY, bytes(64), bytes(16), data) is None
    if len(data) not in (516, 532):
        assert sam_passwords.open_buffer(KEY, data) is None
        assert sam_passwords.open_salted_buffer(KEY, data) is None


@pytest.mark.parametrize("size", [513, 1 << 31, 0xFFFFFFFF])
def test_a_length_that_exceeds_its_buffer(size: int) -> None:
    clear = bytes(512) + size.to_bytes(4, "little")
    assert sam_passwords.open_buffer(KEY, ARC4.new(KEY).encrypt(clear)) is None


@pytest.mark.parametrize(
    "clear",
    [b"", bytes(511), (513).to_bytes(2, "little") + bytes(512), b"\xff\xff" + bytes(512), b"\2\0\x00\xd8" + bytes(510)],
)
def test_a_right_tag_over_what_is_no_password(clear: bytes) -> None:
    iv = os.urandom(16)
    tag, cipher = sealed_aes(KEY, clear, iv)
    assert sam_passwords.open_aes(KEY, tag, iv, cipher) is None


def test_every_bit_of_tag_and_cipher_counts() -> None:
    iv = os.urandom(16)
    tag, cipher = sealed_aes(KEY, aes_buffer("password"), iv)
    assert sam_passwords.open_aes(KEY, tag, iv, cipher) == "password"
    for index in (0, 31, 63):
        changed = bytearray(tag)
        changed[index] ^= 1
        assert sam_passwords.open_aes(KEY, bytes(changed), iv, cipher) is None
    assert sam_passwords.open_aes(KEY, tag, bytes(16), cipher) is None
    assert sam_passwords.open_aes(KEY, tag, iv, cipher[:-16]) is None
    assert sam_passwords.open_aes(nt_hash("x"), tag, iv, cipher) is None


@pytest.mark.parametrize(("iterations", "expected"), [(4999, False), (5000, True), (1_000_001, False), (-1, False)])
def test_limits_of_iterations(iterations: int, expected: bool) -> None:
    key = sam_passwords.key_of_old_password(KEY, bytes(16), iterations)
    assert (key == hashlib.pbkdf2_hmac("sha512", KEY, bytes(16), 5000, 16)) is expected
