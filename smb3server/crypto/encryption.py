"""Encryption in place, of messages and of data that moves by RDMA. [MS-SMB2 2.2.41, 2.2.43.1, 3.1.4.3]"""

import struct
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher as GcmContext
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from smb3server.crypto.algorithms import Cipher
from smbdirect.codec import Buffer, Codec
from smbdirect.fields import Bytes, Int16ul, Int32ul, Int64ul

TRANSFORM_PROTOCOL_ID = b"\xfdSMB"
TRANSFORM_SIZE = 52
TAG_SIZE = 16
ENCRYPTED = 0x0001


class TransformHeader(NamedTuple):
    """SMB2 TRANSFORM_HEADER. All fields from ``nonce`` on are authenticated. [MS-SMB2 2.2.41]"""

    protocol_id: Annotated[bytes, Bytes(4)] = TRANSFORM_PROTOCOL_ID
    signature: Annotated[bytes, Bytes(16)] = bytes(16)
    nonce: Annotated[bytes, Bytes(16)] = bytes(16)
    original_message_size: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int16ul] = 0
    flags: Annotated[int, Int16ul] = ENCRYPTED
    """EncryptionAlgorithm in 3.0 and 3.0.2, where the same number means AES-128-CCM."""
    session_id: Annotated[int, Int64ul] = 0


TRANSFORM = Codec(TransformHeader)

_TRANSFORM = struct.Struct("<4s16sQQIHHQ")
_NONCE_SIZE = {Cipher.AES_128_CCM: 11, Cipher.AES_256_CCM: 11, Cipher.AES_128_GCM: 12, Cipher.AES_256_GCM: 12}
_KEY_SIZE = {Cipher.AES_128_CCM: 16, Cipher.AES_128_GCM: 16, Cipher.AES_256_CCM: 32, Cipher.AES_256_GCM: 32}


class SessionCipher:
    """Encrypts and decrypts the messages of one session, and its payloads: data that moves by RDMA.

    Messages and payloads share keys, and so the counter that nonces come from. Payloads have no additional data.
    """

    def __init__(self, cipher_id: int, session_id: int, encryption_key: bytes, decryption_key: bytes) -> None:
        """Prepare both directions. Raises ``ValueError`` if a key does not have the size that the cipher needs."""
        cipher = Cipher(cipher_id)
        if len(encryption_key) != _KEY_SIZE[cipher] or len(decryption_key) != _KEY_SIZE[cipher]:
            raise ValueError(f"wrong key size for {cipher.name}")
        self._keys = encryption_key, decryption_key
        self._encrypting: AESCCM | AESGCM | None = None
        """Made on first use, as is ``_decrypting``: most sessions never encrypt."""
        self._decrypting: AESCCM | AESGCM | None = None
        self._ccm = cipher in (Cipher.AES_128_CCM, Cipher.AES_256_CCM)
        self.slow = self._ccm
        """Whether it is several times slower than the fastest cipher."""
        self._nonce_size = _NONCE_SIZE[cipher]
        self._session_id = session_id
        # Invariant: larger than every nonce used so far, so no nonce repeats under a key. The key lives no longer than
        # the session, which never sends 2**64 messages.
        self._nonce = 0

    @property
    def used(self) -> bool:
        """Whether the client has sent an encrypted message."""
        return self._decrypting is not None

    def _encryptor(self) -> AESCCM | AESGCM:
        made = self._encrypting = (AESCCM if self._ccm else AESGCM)(self._keys[0])
        return made

    def _decryptor(self) -> AESCCM | AESGCM:
        made = self._decrypting = (AESCCM if self._ccm else AESGCM)(self._keys[1])
        return made

    def encrypt(self, segments: Sequence[Buffer], length: int, buffer: memoryview) -> None:
        """Write the transform header and the encrypted ``segments`` to ``buffer``.

        ``length`` is the size of all segments in bytes. ``buffer`` has ``TRANSFORM_SIZE + length + TAG_SIZE`` bytes.
        Its last ``TAG_SIZE`` bytes are scratch space that must not be sent.
        """
        position = TRANSFORM_SIZE
        for segment in segments:
            end = position + len(segment)
            buffer[position:end] = segment
            position = end
        self.encrypt_in_place(length, buffer)

    def encrypt_in_place(self, length: int, buffer: memoryview) -> None:
        """Encrypt the ``length`` bytes in ``buffer`` behind the place of the transform header, and write that. As
        ``encrypt``."""
        nonce = self._nonce
        self._nonce = nonce + 1
        header = _TRANSFORM.pack(TRANSFORM_PROTOCOL_ID, b"", nonce, 0, length, 0, ENCRYPTED, self._session_id)
        buffer[:TRANSFORM_SIZE] = header
        position = TRANSFORM_SIZE + length
        end = position + TAG_SIZE
        (self._encrypting or self._encryptor()).encrypt_into(
            header[20 : 20 + self._nonce_size],
            buffer[TRANSFORM_SIZE:position],
            header[20:],
            buffer[TRANSFORM_SIZE:end],
        )
        buffer[4:20] = buffer[position:end]

    def decrypt(self, message: memoryview, room: memoryview | None = None) -> memoryview | None:
        """Decrypt ``message`` in place and return the plain message, or None if it is not authentic.

        The caller has checked the header and the size. ``room`` begins with ``message``, and what is behind that may be
        changed. With ``TAG_SIZE`` bytes of it the message is not copied.
        """
        decrypting = self._decrypting or self._decryptor()
        text = message[TRANSFORM_SIZE:]
        header = bytes(message[:TRANSFORM_SIZE])
        tag, nonce, additional = header[4:20], header[20 : 20 + self._nonce_size], header[20:]
        # The interface that takes one call wants the tag behind the ciphertext. The streaming one costs several
        # microseconds more.
        end = len(message)
        sealed: Buffer
        if room is not None and len(room) >= end + TAG_SIZE:
            room[end : end + TAG_SIZE] = tag
            sealed = room[TRANSFORM_SIZE : end + TAG_SIZE]
        else:
            sealed = b"".join((text, tag))
        try:
            decrypting.decrypt_into(nonce, sealed, additional, text)
        except InvalidTag:
            return None
        return text

    def opened(self, message: bytes, from_client: bool) -> bytes | None:
        """Return what an encrypted message contains, or None if it is not authentic. ``from_client``: whether the
        client has sent it. For traces: nothing changes, neither the message nor ``used``."""
        tag, nonce, additional = message[4:20], message[20 : 20 + self._nonce_size], message[20:TRANSFORM_SIZE]
        cipher = (AESCCM if self._ccm else AESGCM)(self._keys[1 if from_client else 0])
        try:
            return cipher.decrypt(nonce, message[TRANSFORM_SIZE:] + tag, additional)
        except InvalidTag:
            return None

    def new_nonce(self) -> bytes:
        """Return a nonce for a payload. It is never used for anything else."""
        nonce = self._nonce
        self._nonce = nonce + 1
        return nonce.to_bytes(16, "little")[: self._nonce_size]

    def encrypt_payload(self, payload: memoryview, nonce: bytes) -> bytes:
        """Encrypt a payload in place, and return its tag. ``nonce`` comes from ``new_nonce``. May run on any thread."""
        if self._ccm:
            # Only the one-call interface has CCM. It wants room for the tag behind the ciphertext.
            sealed = (self._encrypting or self._encryptor()).encrypt(nonce, payload, None)
            payload[:] = memoryview(sealed)[:-TAG_SIZE]
            return sealed[-TAG_SIZE:]
        state = GcmContext(AES(self._keys[0]), GCM(nonce)).encryptor()
        state.update_into(payload, payload)
        state.finalize()
        return state.tag

    def takes(self, nonce: bytes, tag: bytes) -> bool:
        """Return whether nonce and tag of a payload have the right lengths. Only then it can be authentic."""
        return len(nonce) == self._nonce_size and len(tag) == TAG_SIZE

    def decrypt_payload(self, payload: memoryview, nonce: bytes, tag: bytes) -> bool:
        """Decrypt a payload in place. Return False if it is not authentic: its content is undefined then.

        Nonce and tag come from the peer and may have wrong lengths. May run on any thread."""
        if not self.takes(nonce, tag):
            return False
        try:
            if self._ccm:
                joined = b"".join((payload, tag))
                (self._decrypting or self._decryptor()).decrypt_into(nonce, joined, None, payload)
            else:
                state = GcmContext(AES(self._keys[1]), GCM(nonce, tag)).decryptor()
                state.update_into(payload, payload)
                state.finalize()
        except InvalidTag:
            return False
        return True
