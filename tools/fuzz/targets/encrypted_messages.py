"""SMB2 TRANSFORM_HEADER and what is behind it, with every cipher. [MS-SMB2 2.2.41]"""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.crypto.algorithms import Cipher
from smb3server.crypto.encryption import TAG_SIZE, TRANSFORM, TRANSFORM_SIZE, SessionCipher
from smbdirect.errors import DecodeError
from tools.fuzz.target import Target, Wrong

CIPHERS = [cipher for cipher in Cipher if cipher is not Cipher.NONE]
_KEYS = {cipher: bytes(32 if "256" in cipher.name else 16) for cipher in CIPHERS}
PLAIN = b"what nobody may change" * 4


def _cipher(number: int) -> SessionCipher:
    cipher = CIPHERS[number % len(CIPHERS)]
    return SessionCipher(cipher, 7, _KEYS[cipher], _KEYS[cipher])


def _encrypted(number: int) -> bytes:
    buffer = bytearray(TRANSFORM_SIZE + len(PLAIN) + TAG_SIZE)
    _cipher(number).encrypt([PLAIN], len(PLAIN), memoryview(buffer))
    return bytes(buffer[:-TAG_SIZE])


def _run(data: bytes) -> None:
    message = memoryview(bytearray(data[1:]))
    TRANSFORM.unpack(message)
    plain = _cipher(data[0]).decrypt(message)
    if plain is not None and (bytes(plain) != PLAIN or data[21:] != _encrypted(data[0])[20:]):
        raise Wrong("a changed message counts as authentic")


def _seeds() -> Iterator[bytes]:
    for number in range(len(CIPHERS)):
        yield bytes((number,)) + _encrypted(number)


TARGET = Target(_run, _seeds, declared=(DecodeError,), max_input=1024)
