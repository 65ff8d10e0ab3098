"""Message signatures, over segments so that payloads are not copied. [MS-SMB2 3.1.4.1]"""

from __future__ import annotations

import hmac
import struct
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


class Signer(ABC):
    """Signs and verifies messages with one key. The signature field of a message is zero while its signature is
    computed."""

    @abstractmethod
    def sign(self, segments: Sequence[Buffer], message_id: int) -> bytes:
        """Return the 16 bytes of signature for a message from the server."""

    def verify(self, message: memoryview) -> bool:
        """Return whether the signature of a message from the client is right. Sets its signature field to zero."""
        given = bytes(message[SIGNATURE_OFFSET : SIGNATURE_OFFSET + 16])
        message[SIGNATURE_OFFSET : SIGNATURE_OFFSET + 16] = _ZEROS
        return hmac.compare_digest(given, self.expect(message))

    @abstractmethod
    def expect(self, message: memoryview) -> bytes:
        """Return the signature that a message from the client should have."""


class HmacSigner(Signer):
    """HMAC-SHA256, of which the first 16 bytes are used."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")

    def sign(self, segments: Sequence[Buffer], message_id: int) -> bytes:
        state = self._keyed.copy()
        for segment in segments:
            state.update(segment)
        return state.digest()[:16]

    def expect(self, message: memoryview) -> bytes:
        return self.sign((message,), 0)


class CmacSigner(Signer):
    """AES-128-CMAC. Its 16 bytes are used."""

    def __init__(self, key: bytes) -> None:
        self._keyed = CMAC(algorithms.AES(key))

    def sign(self, segments: Sequence[Buffer], message_id: int) -> bytes:
        state = self._keyed.copy()
        for segment in segments:
            state.update(segment)  # type: ignore[arg-type]
        return state.finalize()

    def expect(self, message: memoryview) -> bytes:
        return self.sign((message,), 0)


class GmacSigner(Signer):
    """AES-128-GMAC: the message is the additional data of an empty GCM encryption.

    The nonce consists of the MessageId, the sender's role, and whether the message is a CANCEL.
    """

    def __init__(self, key: bytes) -> None:
        self._algorithm = algorithms.AES(key)
        self._aead = AESGCM(key)

    def sign(self, segments: Sequence[Buffer], message_id: int) -> bytes:
        nonce = _GMAC_NONCE.pack(message_id, _FROM_SERVER)
        if len(segments) == 1:
            return self._aead.encrypt(nonce, b"", segments[0])
        state = Cipher(self._algorithm, modes.GCM(nonce)).encryptor()
        for segment in segments:
            state.authenticate_additional_data(segment)
        state.finalize()
        return state.tag

    def expect(self, message: memoryview) -> bytes:
        role = _IS_CANCEL if message[12] == _CANCEL and message[13] == 0 else 0
        (message_id,) = _MESSAGE_ID.unpack_from(message, 24)
        return self._aead.encrypt(_GMAC_NONCE.pack(message_id, role), b"", message)


_SIGNERS: dict[int, type[HmacSigner | CmacSigner | GmacSigner]] = {
    SigningAlgorithm.HMAC_SHA256: HmacSigner,
    SigningAlgorithm.AES_CMAC: CmacSigner,
    SigningAlgorithm.AES_GMAC: GmacSigner,
}


def make_signer(algorithm: int, key: bytes) -> Signer:
    """Make the signer for a negotiated algorithm. ``key`` has 16 bytes."""
    return _SIGNERS[algorithm](key)
