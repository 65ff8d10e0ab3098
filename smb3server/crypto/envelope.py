"""The envelope of a message: its signature, or the transform header and its encryption. [MS-SMB2 3.1.4.1, 3.1.4.3]

Server and client sign, seal, unseal and verify here alone. The order is that of the specification: a message is signed
or sealed, never both. It is compressed when it is signed, and before it is sealed (``compression``). [MS-SMB2 3.1.4.4]
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from smb3server.crypto.encryption import ENCRYPTED, TAG_SIZE, TRANSFORM, TRANSFORM_SIZE, SessionCipher
from smb3server.crypto.signing import Signer
from smb3server.wire.compression import COMPRESSION_PROTOCOL_ID
from smb3server.wire.header import HEADER_SIZE, PROTOCOL_ID, SIGNATURE_OFFSET, HeaderFlags
from smbdirect.codec import Buffer
from smbdirect.message_transport import PooledBuffer

_SIGNED = int(HeaderFlags.SIGNED)
_ZEROS = bytes(16)
_OWN_MEMORY = 16384
"""Bytes of a sealed message up to which memory of its own costs less than a pooled buffer."""

Release = Callable[[], None]


class EnvelopeError(Exception):
    """A sealed message that must not be looked at. The connection ends. [MS-SMB2 3.2.5.1.1.1, 3.3.5.2.1.1]"""


class Sealer(Protocol):
    """A session: the holder of the keys of sealed messages."""

    @property
    def cipher(self) -> SessionCipher | None: ...


S = TypeVar("S", bound=Sealer)


def sign_reply(header: bytearray | memoryview, message: Sequence[Buffer], signer: Signer, message_id: int) -> None:
    """Sign a message of the server. ``header`` is the first segment of ``message`` or begins with it. [MS-SMB2
    3.1.4.1]"""
    header[16] |= _SIGNED
    header[SIGNATURE_OFFSET:HEADER_SIZE] = signer.sign(message, message_id)


def sign_request(message: bytearray, signer: Signer, *more: Buffer) -> None:
    """Sign a message of the client, whose header has the flag. ``more`` are its further segments. [MS-SMB2 3.1.4.1]"""
    message[SIGNATURE_OFFSET:HEADER_SIZE] = signer.expect(memoryview(message), *more)


def is_from_server(message: memoryview, signer: Signer, message_id: int) -> bool:
    """Return whether the signature of a message from the server is right. Sets its signature field to zero. [MS-SMB2
    3.1.5.1]"""
    given = bytes(message[SIGNATURE_OFFSET:HEADER_SIZE])
    message[SIGNATURE_OFFSET:HEADER_SIZE] = _ZEROS
    return hmac.compare_digest(given, signer.sign((message,), message_id))


def seal(
    segments: Sequence[Buffer], cipher: SessionCipher, acquire: Callable[[int], PooledBuffer]
) -> tuple[memoryview, Release | None]:
    """Return the sealed message, and what to call when it is sent. None: its memory need not be given back.

    ``acquire`` lends memory of the connection. [MS-SMB2 3.1.4.3]"""
    length = sum(map(len, segments))
    size = TRANSFORM_SIZE + length + TAG_SIZE
    release: Release | None = None
    if size <= _OWN_MEMORY:
        memory = memoryview(bytearray(size))
    else:
        buffer = acquire(size)
        memory, release = buffer.view, buffer.release
    cipher.encrypt(segments, length, memory)
    return memory[:-TAG_SIZE], release


def seal_in(frame: memoryview, segments: Sequence[Buffer], cipher: SessionCipher) -> memoryview:
    """Return the sealed message, made around its last segment, which is in ``frame`` already."""
    position = TRANSFORM_SIZE
    for segment in segments[:-1]:
        frame[position : position + len(segment)] = segment
        position += len(segment)
    end = position + len(segments[-1])
    cipher.encrypt_in_place(end - TRANSFORM_SIZE, frame[: end + TAG_SIZE])
    return frame[:end]


def unseal(
    message: memoryview, session_of: Callable[[int], S | None], room: memoryview | None = None
) -> tuple[memoryview, S]:
    """Decrypt a message in place. Return what was sealed, which may be compressed, and the session whose key it was
    sealed with.

    ``message`` has at least the size of a transform header. ``session_of`` takes a SessionId. ``room``: see
    ``SessionCipher.decrypt``. Raises ``EnvelopeError``. [MS-SMB2 3.2.5.1.1.1, 3.3.5.2.1.1]"""
    _, _, _, size, _, flags, session_id = TRANSFORM.fields_from(message)
    session = session_of(session_id)
    if session is None or (cipher := session.cipher) is None:
        raise EnvelopeError("encrypted for a session that does not exist")
    if flags != ENCRYPTED or size != len(message) - TRANSFORM_SIZE:
        raise EnvelopeError("bad transform header")
    plain = cipher.decrypt(message, room)
    if plain is None:
        raise EnvelopeError("encrypted message is not authentic")
    if plain[:4] != PROTOCOL_ID:
        if plain[:4] != COMPRESSION_PROTOCOL_ID:
            raise EnvelopeError("encrypted message is not an SMB2 message")
    elif size < HEADER_SIZE:
        raise EnvelopeError("encrypted message shorter than a header")
    return plain, session
