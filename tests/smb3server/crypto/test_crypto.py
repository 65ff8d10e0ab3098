"""Keys, signatures and encryption, against published values where there are any."""

from __future__ import annotations

import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.crypto.encryption import TAG_SIZE, SessionCipher
from smb3server.crypto.kdf import derive_session_keys, derive_signing_key
from smb3server.crypto.preauth import INITIAL_HASH, extend
from smb3server.crypto.signing import CmacSigner, make_signer
from smb3server.wire.header import HEADER, Command, Header

PREAUTH = bytes.fromhex(
    "0DD13628CC3ED218EF9DF9772D436D0887AB9814BFAE63A80AA845F36909DB79"
    "28622DDDAD522D9751640A459762C5A9D6BB084CBB3CE6BDADEF5D5BCE3C6C01"
)


def test_signing_key_of_3_0() -> None:
    """Microsoft's "SMB 2 and SMB 3 security in Windows 10", SMB 3.0 sample."""
    key = derive_signing_key(0x0300, bytes.fromhex("7CD451825D0450D235424E44BA6E78CC"), b"")
    assert key.hex().upper() == "0B7E9C5CAC36C0F6EA9AB275298CEDCE"


def test_keys_of_3_1_1() -> None:
    """The same article's SMB 3.1.1 sample."""
    session_key = bytes.fromhex("270E1BA896585EEB7AF3472D3B4C75A7")
    keys = derive_session_keys(0x0311, session_key, session_key, Cipher.AES_128_CCM, PREAUTH)
    assert keys.signing.hex().upper() == "73FE7A9A77BEF0BDE49C650D8CCB5F76"
    assert keys.decryption.hex().upper() == "629BCBC54422A0F572B97F45989B6073"
    assert keys.encryption.hex().upper() == "E2AF0DCEFAC68DA71A0DFBD0D1350D74"


def test_long_keys_come_from_the_whole_session_key() -> None:
    full = bytes(range(32))
    long = derive_session_keys(0x0311, full[:16], full, Cipher.AES_256_GCM, PREAUTH)
    short = derive_session_keys(0x0311, full[:16], full, Cipher.AES_128_GCM, PREAUTH)
    assert (len(long.encryption), len(short.encryption)) == (32, 16)
    assert long.signing == short.signing


def test_2_x_signs_with_the_session_key() -> None:
    assert derive_signing_key(0x0210, b"k" * 16, b"") == b"k" * 16


@pytest.mark.parametrize(
    ("length", "mac"),
    [
        (0, "bb1d6929e95937287fa37d129b756746"),
        (16, "070a16b46b4d4144f79bdd9dd04a287c"),
        (40, "dfa66747de9ae63030ca32611497c827"),
        (64, "51f0bebf7e3b9d92fc49741779363cfe"),
    ],
)
def test_cmac(length: int, mac: str) -> None:
    """RFC 4493 section 4."""
    message = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )[:length]
    signer = CmacSigner(bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c"))
    assert signer.sign((message,), 0).hex() == mac
    assert signer.sign((message[:7], message[7:]), 0).hex() == mac


def _message(command: int = Command.READ, payload: bytes = b"payload") -> bytearray:
    return bytearray(HEADER.pack(Header(command=command, message_id=7)) + payload)


@pytest.mark.parametrize("algorithm", list(SigningAlgorithm))
@pytest.mark.parametrize("size", [1000, 200_000])
def test_signature_over_segments_is_that_of_the_whole(algorithm: SigningAlgorithm, size: int) -> None:
    signer = make_signer(algorithm, b"k" * 16)
    message = _message(payload=os.urandom(size))
    whole = signer.sign((bytes(message),), 7)
    assert signer.sign((message[:64], message[64:100], memoryview(message)[100:]), 7) == whole
    assert len(whole) == 16


@pytest.mark.parametrize("algorithm", list(SigningAlgorithm))
@pytest.mark.parametrize("command", [Command.WRITE, Command.CANCEL])
def test_a_request_in_segments_has_the_signature_of_the_whole(algorithm: SigningAlgorithm, command: Command) -> None:
    signer = make_signer(algorithm, b"k" * 16)
    message = _message(command, os.urandom(1000))
    whole = signer.expect(memoryview(message))
    assert signer.expect(memoryview(message)[:112], memoryview(message)[112:]) == whole


@pytest.mark.parametrize("algorithm", list(SigningAlgorithm))
def test_verify(algorithm: SigningAlgorithm) -> None:
    signer = make_signer(algorithm, b"k" * 16)
    message = _message()
    message[48:64] = signer.expect(memoryview(message))
    assert signer.verify(memoryview(bytearray(message)))
    for position in (5, 48, 63, len(message) - 1):
        changed = bytearray(message)
        changed[position] ^= 1
        assert not signer.verify(memoryview(changed)), position


def test_gmac_nonce_tells_sender_and_cancel_apart() -> None:
    """MS-SMB2 3.1.4.1."""
    signer = make_signer(SigningAlgorithm.AES_GMAC, b"k" * 16)
    cancel = _message(Command.CANCEL)
    message_id = (7).to_bytes(8, "little")
    expected = AESGCM(b"k" * 16).encrypt(message_id + b"\2\0\0\0", b"", bytes(cancel))
    assert signer.expect(memoryview(cancel)) == expected
    assert signer.sign((cancel,), 7) == AESGCM(b"k" * 16).encrypt(message_id + b"\1\0\0\0", b"", bytes(cancel))


@pytest.mark.parametrize("cipher", [c for c in Cipher if c])
@pytest.mark.parametrize("size", [64, 1000, 16384, 16389])
@pytest.mark.parametrize("spare", [None, 0, TAG_SIZE - 1, TAG_SIZE, 100])
def test_encryption_round_trip_and_tampering(cipher: Cipher, size: int, spare: int | None) -> None:
    """``spare``: the bytes behind a message that decryption may use."""

    def decrypt(sealed: bytearray) -> memoryview | None:
        if spare is None:
            return client.decrypt(memoryview(bytearray(sealed)))
        room = memoryview(bytearray(sealed) + bytes(spare))
        return client.decrypt(room[: len(sealed)], room)

    key = bytes(range(32 if cipher in (Cipher.AES_256_CCM, Cipher.AES_256_GCM) else 16))
    one, other = bytes(key), bytes(reversed(key))
    server, client = SessionCipher(cipher, 5, one, other), SessionCipher(cipher, 5, other, one)
    plain = os.urandom(size)
    buffer = bytearray(52 + size + 16)
    server.encrypt((plain[:10], plain[10:]), size, memoryview(buffer))
    message = buffer[:-16]
    decrypted = decrypt(message)
    assert decrypted is not None and bytes(decrypted) == plain
    for position in (4, 20, 36, 44, 52, len(message) - 1):
        changed = bytearray(message)
        changed[position] ^= 1
        assert decrypt(changed) is None, position


def test_nonces_do_not_repeat() -> None:
    cipher = SessionCipher(Cipher.AES_128_GCM, 5, b"k" * 16, b"d" * 16)
    nonces = set()
    for _ in range(100):
        buffer = bytearray(52 + 4 + 16)
        cipher.encrypt((b"data",), 4, memoryview(buffer))
        nonces.add(bytes(buffer[20:36]))
    assert len(nonces) == 100


def test_wrong_key_size() -> None:
    with pytest.raises(ValueError, match="key size"):
        SessionCipher(Cipher.AES_256_GCM, 5, b"k" * 16, b"d" * 16)


def test_preauth_hash_does_not_depend_on_segmentation() -> None:
    assert extend(INITIAL_HASH, (b"ab", b"c")) == extend(INITIAL_HASH, (b"abc",))
