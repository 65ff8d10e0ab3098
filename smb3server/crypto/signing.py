"""Signatures of messages, over segments so that data is not copied, and of payloads: data that moves by RDMA. [MS-SMB2
3.1.4.1, 2.2.43.1]"""

from __future__ import annotations

import hmac
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.cmac import CMAC

from smb3server.crypto.algorithms import SigningAlgorithm
from smb3server.wire.header import SIGNATURE_OFFSET, Command
from smbdirect.codec import Buffer

_MESSAGE_ID = struct.Struct("<Q")
_GMAC_NONCE = struct.Struct("<QI")
_ZEROS = bytes(16)

_CANCEL = int(Command.CANCEL)
_FROM_SERVER = 1
_IS_CANCEL = 2
_OF_PAYLOAD = 0x80000000
"""Is zero in the nonces of messages. So no payload has the nonce of a message that the same key signs."""
_CBC_FROM = 262144
"""Bytes of a payload from which AES-CMAC goes through AES-CBC. Shorter ones are signed on the event loop."""
_SLICE = 262144
"""Bytes that AES-CBC encrypts at a time. The interpreter's lock is taken again after each."""
_JOINED = 1 << 17
"""Bytes of a message up to which to copy it costs less than to make a cipher that takes segments."""
_BLOCK = 16
_HIGH_BIT = 1 << 127
_R128 = 0x87
"""What a subkey of AES-CMAC is reduced by. [RFC 4493 2.3]"""


class Signer(ABC):
    """Signs and verifies messages and payloads with one key. The signature field of a message is zero while its
    signature is computed. A payload's signature covers the payload alone."""

    slow = True
    """Whether it is several times slower than the fastest algorithm."""

    @abstractmethod
    def sign(self, segments: Sequence[Buffer], message_id: int) -> bytes:
        """Return the 16 bytes of signature for a message from the server."""

    def verify(self, message: memoryview) -> bool:
        """Return whether the signature of a message from the client is right. Sets its signature field to zero."""
        given = bytes(message[SIGNATURE_OFFSET : SIGNATURE_OFFSET + 16])
        message[SIGNATURE_OFFSET : SIGNATURE_OFFSET + 16] = _ZEROS
        return hmac.compare_digest(given, self.expect(message))

    @abstractmethod
    def expect(self, message: memoryview, *more: Buffer) -> bytes:
        """Return the signature that a message from the client should have. ``more`` are its further segments."""

    def payload_nonce(self, message_id: int, from_server: bool) -> bytes:
        """Return the nonce for the payload of a message, empty if the algorithm has none. [MS-SMB2 3.3.5.12, 3.2.4.7]

        Messages have one payload at most, and MessageIds are used once: so no nonce is used twice."""
        return b""

    @abstractmethod
    def sign_payload(self, payload: memoryview, nonce: bytes) -> bytes:
        """Return the 16 bytes of signature of a payload. May run on any thread."""

    def verify_payload(self, payload: memoryview, nonce: bytes, signature: bytes) -> bool:
        """Return whether the signature of a payload is right. Nonce and signature come from the peer and may have wrong
        lengths. May run on any thread. [MS-SMB2 3.1.5.1]"""
        return hmac.compare_digest(signature, self.sign_payload(payload, nonce))


class HmacSigner(Signer):
    """HMAC-SHA256, of which the first 16 bytes are used."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")

    def sign(self, segments: Sequence[Buffer], message_id: int) -> bytes:
        state = self._keyed.copy()
        for segment in segments:
            state.update(segment)
        return state.digest()[:16]

    def expect(self, message: memoryview, *more: Buffer) -> bytes:
        return self.sign((message, *more), 0)

    def sign_payload(self, payload: memoryview, nonce: bytes) -> bytes:
        return self.sign((payload,), 0)


class CmacSigner(Signer):
    """AES-128-CMAC. Its 16 bytes are used.

    The library's CMAC keeps the interpreter's lock. Its AES-CBC, of which CMAC is made, releases it. So the long
    payloads that worker threads sign go through AES-CBC. On one thread that costs 1 to 3 % more. [RFC 4493]"""

    def __init__(self, key: bytes) -> None:
        self._algorithm = algorithms.AES(key)
        self._keyed = CMAC(self._algorithm)
        self._subkeys: tuple[int, int] | None = None
        """For a last block that is whole, and for one that is padded. Made on first use."""

    def sign(self, segments: Sequence[Buffer], message_id: int) -> bytes:
        state = self._keyed.copy()
        for segment in segments:
            state.update(segment)  # type: ignore[arg-type]
        return state.finalize()

    def expect(self, message: memoryview, *more: Buffer) -> bytes:
        return self.sign((message, *more), 0)

    def sign_payload(self, payload: memoryview, nonce: bytes) -> bytes:
        if len(payload) < _CBC_FROM:
            return self.sign((payload,), 0)
        state = Cipher(self._algorithm, modes.CBC(_ZEROS)).encryptor()
        scratch = _scratch.memory
        # The last block has 1 to 16 bytes. [RFC 4493 2.4]
        before = (len(payload) - 1) // _BLOCK * _BLOCK
        for at in range(0, before, _SLICE):
            state.update_into(payload[at : min(at + _SLICE, before)], scratch)
        last = bytes(payload[before:])
        whole, padded = self._subkeys or self._make_subkeys()
        if len(last) == _BLOCK:
            block = int.from_bytes(last) ^ whole
        else:
            block = int.from_bytes((last + b"\x80").ljust(_BLOCK, b"\0")) ^ padded
        return state.update(block.to_bytes(_BLOCK))

    def _make_subkeys(self) -> tuple[int, int]:
        """Return the two subkeys. [RFC 4493 2.3]"""
        encrypted = Cipher(self._algorithm, modes.CBC(_ZEROS)).encryptor().update(_ZEROS)
        whole = _double(int.from_bytes(encrypted))
        made = self._subkeys = whole, _double(whole)
        return made


def _double(block: int) -> int:
    """Multiply by x in the field of AES-CMAC. [RFC 4493 2.3]"""
    return (block << 1) ^ (_HIGH_BIT << 1 | _R128) if block & _HIGH_BIT else block << 1


class _Scratch(threading.local):
    """Memory of one thread for ciphertext that nobody looks at."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(_SLICE + _BLOCK))


_scratch = _Scratch()


class GmacSigner(Signer):
    """AES-128-GMAC: the message is the additional data of an empty GCM encryption.

    The nonce consists of the MessageId, the sender's role, and whether the message is a CANCEL or a payload.
    """

    slow = False

    def __init__(self, key: bytes) -> None:
        self._algorithm = algorithms.AES(key)
        self._aead = AESGCM(key)

    def sign(self, segments: Sequence[Buffer], message_id: int, role: int = _FROM_SERVER) -> bytes:
        nonce = _GMAC_NONCE.pack(message_id, role)
        if len(segments) == 1:
            return self._aead.encrypt(nonce, b"", segments[0])
        if sum(map(len, segments)) <= _JOINED:
            return self._aead.encrypt(nonce, b"", b"".join(segments))
        state = Cipher(self._algorithm, modes.GCM(nonce)).encryptor()
        for segment in segments:
            state.authenticate_additional_data(segment)
        state.finalize()
        return state.tag

    def expect(self, message: memoryview, *more: Buffer) -> bytes:
        role = _IS_CANCEL if message[12] == _CANCEL and message[13] == 0 else 0
        (message_id,) = _MESSAGE_ID.unpack_from(message, 24)
        if more:
            return self.sign((message, *more), message_id, role)
        return self._aead.encrypt(_GMAC_NONCE.pack(message_id, role), b"", message)

    def payload_nonce(self, message_id: int, from_server: bool) -> bytes:
        return _GMAC_NONCE.pack(message_id, _OF_PAYLOAD | (_FROM_SERVER if from_server else 0))

    def sign_payload(self, payload: memoryview, nonce: bytes) -> bytes:
        return self._aead.encrypt(nonce, b"", payload)

    def verify_payload(self, payload: memoryview, nonce: bytes, signature: bytes) -> bool:
        # The library raises an exception for a nonce of less than 8 bytes.
        return len(nonce) == _GMAC_NONCE.size and super().verify_payload(payload, nonce, signature)


_SIGNERS: dict[int, type[HmacSigner | CmacSigner | GmacSigner]] = {
    SigningAlgorithm.HMAC_SHA256: HmacSigner,
    SigningAlgorithm.AES_CMAC: CmacSigner,
    SigningAlgorithm.AES_GMAC: GmacSigner,
}


def make_signer(algorithm: int, key: bytes) -> Signer:
    """Make the signer for a negotiated algorithm. ``key`` has 16 bytes."""
    return _SIGNERS[algorithm](key)
