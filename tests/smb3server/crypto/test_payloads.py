"""Protection of payloads that move by RDMA (MS-SMB2 2.2.43.1, 3.2.4.7, 3.3.5.12, 3.3.5.13)."""

from __future__ import annotations

import hmac
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.signing import Signer, make_signer

CIPHERS = [cipher for cipher in Cipher if cipher]
SIZES = [1, 15, 16, 17, 4096, 70_001, 1 << 20]
KEY = bytes(range(32))


def ends(cipher: Cipher) -> tuple[SessionCipher, SessionCipher, bytes]:
    """Return server's and client's end, and the key from server to client."""
    size = 32 if cipher in (Cipher.AES_256_CCM, Cipher.AES_256_GCM) else 16
    one, other = KEY[:size], bytes(reversed(KEY))[:size]
    return SessionCipher(cipher, 5, one, other), SessionCipher(cipher, 5, other, one), one


def buffer_with(payload: bytes) -> memoryview:
    return memoryview(bytearray(payload))


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("size", SIZES)
def test_encrypted_payload_is_plain_aead_without_additional_data(cipher: Cipher, size: int) -> None:
    server, client, key = ends(cipher)
    plain = os.urandom(size)
    buffer = buffer_with(plain)
    nonce = server.new_nonce()
    tag = server.encrypt_payload(buffer, nonce)
    ccm = cipher in (Cipher.AES_128_CCM, Cipher.AES_256_CCM)
    assert (len(nonce), len(tag)) == (11 if ccm else 12, 16)
    assert bytes(buffer) + tag == (AESCCM if ccm else AESGCM)(key).encrypt(nonce, plain, None)
    received = buffer_with(bytes(buffer))
    assert client.decrypt_payload(received, nonce, tag)
    assert bytes(received) == plain


@pytest.mark.parametrize("cipher", CIPHERS)
def test_changed_payload_nonce_or_tag_is_not_accepted(cipher: Cipher) -> None:
    server, client, _ = ends(cipher)
    buffer = buffer_with(b"payload")
    nonce = server.new_nonce()
    tag = server.encrypt_payload(buffer, nonce)
    sealed = bytes(buffer)
    wrong_tag, wrong_nonce = bytes([tag[0] ^ 1]) + tag[1:], bytes([nonce[0] ^ 1]) + nonce[1:]
    assert client.decrypt_payload(buffer_with(sealed), nonce, tag)
    assert not client.decrypt_payload(buffer_with(b"x" + sealed[1:]), nonce, tag)
    for a_nonce, a_tag in (
        (nonce, wrong_tag),
        (wrong_nonce, tag),
        (nonce[:-1], tag),
        (nonce + b"\0", tag),
        (b"", tag),
        (nonce, tag[:-1]),
        (nonce, tag + b"\0"),
        (nonce, b""),
    ):
        assert not client.decrypt_payload(buffer_with(sealed), a_nonce, a_tag)


def test_payloads_and_messages_never_share_a_nonce() -> None:
    server, _, _ = ends(Cipher.AES_128_GCM)
    nonces = []
    for _ in range(20):
        nonces.append(server.new_nonce())
        message = bytearray(52 + 4 + 16)
        server.encrypt((b"data",), 4, memoryview(message))
        nonces.append(bytes(message[20:32]))
    assert len(set(nonces)) == 40


@pytest.mark.parametrize("size", [*SIZES, 262_143, 262_144, 262_145, 262_159, 524_288, 524_289, 600_000])
def test_signature_covers_the_payload_alone(size: int) -> None:
    key = KEY[:16]
    payload = memoryview(bytearray(os.urandom(size)))
    keyed = CMAC(AES(key))
    keyed.update(bytes(payload))
    nonce = make_signer(SigningAlgorithm.AES_GMAC, key).payload_nonce(7, from_server=True)
    expected = {
        SigningAlgorithm.HMAC_SHA256: hmac.digest(key, payload, "sha256")[:16],
        SigningAlgorithm.AES_CMAC: keyed.finalize(),
        SigningAlgorithm.AES_GMAC: AESGCM(key).encrypt(nonce, b"", payload),
    }
    for algorithm, signature in expected.items():
        assert make_signer(algorithm, key).sign_payload(payload, nonce) == signature


@pytest.mark.parametrize("algorithm", list(SigningAlgorithm))
def test_changed_payload_or_signature_is_not_accepted(algorithm: SigningAlgorithm) -> None:
    signer: Signer = make_signer(algorithm, KEY[:16])
    payload = memoryview(bytearray(os.urandom(1000)))
    nonce = signer.payload_nonce(9, from_server=False)
    signature = signer.sign_payload(payload, nonce)
    assert signer.verify_payload(payload, nonce, signature)
    for wrong in (b"", signature[:15], signature + b"\0", bytes([signature[0] ^ 1]) + signature[1:]):
        assert not signer.verify_payload(payload, nonce, wrong)
    payload[500] ^= 1
    assert not signer.verify_payload(payload, nonce, signature)


def test_gmac_wants_a_nonce_of_twelve_bytes() -> None:
    signer = make_signer(SigningAlgorithm.AES_GMAC, KEY[:16])
    payload = memoryview(b"payload")
    for length in (0, 7, 11, 13):
        nonce = bytes(length)
        signature = AESGCM(KEY[:16]).encrypt(nonce, b"", payload) if length >= 8 else bytes(16)
        assert not signer.verify_payload(payload, nonce, signature)


def test_nonces_of_gmac_differ_from_those_of_messages_and_between_the_ends() -> None:
    signer = make_signer(SigningAlgorithm.AES_GMAC, KEY[:16])
    nonces = {signer.payload_nonce(number, role) for number in range(10) for role in (False, True)}
    assert len(nonces) == 20
    # 3.1.4.1: this bit is zero in the nonce of every message.
    assert all(len(nonce) == 12 and nonce[11] & 0x80 for nonce in nonces)
    assert make_signer(SigningAlgorithm.AES_CMAC, KEY[:16]).payload_nonce(1, from_server=True) == b""


def test_payloads_may_be_protected_on_several_threads() -> None:
    server, client, _ = ends(Cipher.AES_256_CCM)
    signer = make_signer(SigningAlgorithm.AES_CMAC, KEY[:16])
    signatures = {number: signer.sign_payload(memoryview(bytes([number]) * 300_000), b"") for number in range(40)}

    def there_and_back(number: int) -> bool:
        plain = bytes([number]) * 300_000
        buffer = buffer_with(plain)
        signature = signer.sign_payload(buffer, b"")
        nonce = nonces[number]
        tag = server.encrypt_payload(buffer, nonce)
        return (
            client.decrypt_payload(buffer, nonce, tag)
            and bytes(buffer) == plain
            and signature == signatures[number]
            and signer.verify_payload(buffer, b"", signature)
        )

    nonces = [server.new_nonce() for _ in range(40)]
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(there_and_back, range(40)))
