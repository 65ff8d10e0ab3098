"""Sign, encrypt and take apart SMB2 messages as the text of MS-SMB2 says, beside ``transform_peer``.

Like that one it imports no code of the project.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

from tests.lab.transform_peer import TAG, Cipher, Keys, Kind, Signer, nonce_length

_HEADER = struct.Struct("<4sHHIHHIIQIIQ16s")  # [MS-SMB2 2.2.1.2]
_TRANSFORM = struct.Struct("<4s16s16sIHHQ")  # [MS-SMB2 2.2.41]
_CONTEXT = struct.Struct("<HHI")  # [MS-SMB2 2.2.3.1]
HEADER = _HEADER.size
SIGNATURE = slice(48, 64)
CANCEL = 12
SERVER_TO_REDIR, SIGNED = 1, 8
_CCM = (Cipher.AES_128_CCM, Cipher.AES_256_CCM)


class NotAuthentic(Exception):
    """A message whose signature or tag is wrong."""


@dataclass(frozen=True)
class Header:
    """Hold the fields of a header that this peer uses [MS-SMB2 2.2.1.2]."""

    command: int
    message_id: int
    status: int = 0
    charge: int = 1
    credits: int = 1
    flags: int = 0
    tree_id: int = 0
    session_id: int = 0

    @property
    def signed(self) -> bool:
        """Whether the message says that it is signed."""
        return bool(self.flags & SIGNED)

    def encode(self) -> bytes:
        """Build the 64 bytes, with no signature."""
        first = (b"\xfeSMB", HEADER, self.charge, self.status, self.command, self.credits, self.flags, 0)
        return _HEADER.pack(*first, self.message_id, 0, self.tree_id, self.session_id, bytes(16))


def decode_header(message: bytes) -> Header:
    """Take the header of a message apart; compounds are not spoken here."""
    found = _HEADER.unpack_from(message)
    protocol, size, charge, status, command, credits, flags, following, message_id, _, tree_id, session_id, _ = found
    if protocol != b"\xfeSMB" or size != HEADER or following:
        raise ValueError("not a single SMB2 message")
    return Header(command, message_id, status, charge, credits, flags, tree_id, session_id)


def sign_message(message: bytes, keys: Keys, algorithm: Signer) -> bytes:
    """Return the message with its signature and the flag that says so [MS-SMB2 3.1.4.1]."""
    header = decode_header(message)
    plain = replace(header, flags=header.flags | SIGNED).encode() + message[HEADER:]
    return plain[:48] + _signature(plain, keys, algorithm) + plain[64:]


def verify_message(message: bytes, keys: Keys, algorithm: Signer) -> None:
    """Refuse a message whose signature is wrong [MS-SMB2 3.1.5.1]."""
    plain = message[:48] + bytes(16) + message[64:]
    if not hmac.compare_digest(_signature(plain, keys, algorithm), message[SIGNATURE]):
        raise NotAuthentic("signature of a message")


def _signature(plain: bytes, keys: Keys, algorithm: Signer) -> bytes:
    if algorithm is Signer.HMAC_SHA256:
        return hmac.digest(keys.signing, plain, "sha256")[:TAG]
    if algorithm is Signer.AES_GMAC:
        header = decode_header(plain)
        role = bool(header.flags & SERVER_TO_REDIR) | (2 if header.command == CANCEL else 0)
        return AESGCM(keys.signing).encrypt(struct.pack("<QI", header.message_id, role), b"", plain)
    mac = CMAC(AES(keys.signing))
    mac.update(plain)
    return mac.finalize()


def seal(message: bytes, keys: Keys, cipher: Cipher, session_id: int, counter: int) -> bytes:
    """Return the encrypted message with its SMB2 TRANSFORM_HEADER [MS-SMB2 2.2.41, 3.1.4.3]."""
    nonce = counter.to_bytes(8, "little").ljust(16, b"\0")
    additional = _TRANSFORM.pack(b"", b"", nonce, len(message), 0, 1, session_id)[20:]
    size = nonce_length(Kind.ENCRYPTION, cipher)
    sealed = _aead(keys.encryption, cipher).encrypt(nonce[:size], message, additional)
    return b"\xfdSMB" + sealed[-TAG:] + additional + sealed[:-TAG]


def unseal(message: bytes, keys: Keys, cipher: Cipher) -> bytes:
    """Return what an encrypted message holds, or refuse it [MS-SMB2 3.3.5.2.1.1]."""
    _, tag, nonce, size, _, flags, _ = _TRANSFORM.unpack_from(message)
    data = message[_TRANSFORM.size :]
    if flags != 1 or size != len(data):
        raise NotAuthentic("transform header of a message")
    try:
        short = nonce[: nonce_length(Kind.ENCRYPTION, cipher)]
        return _aead(keys.decryption, cipher).decrypt(short, data + tag, message[20 : _TRANSFORM.size])
    except InvalidTag as error:
        raise NotAuthentic("tag of a message") from error


def _aead(key: bytes, cipher: Cipher) -> AESCCM | AESGCM:
    return AESCCM(key, TAG) if cipher in _CCM else AESGCM(key)


def extend(preauth_hash: bytes, message: bytes) -> bytes:
    """Extend the preauthentication integrity hash by a message [MS-SMB2 3.2.5.2, 3.3.5.4]."""
    return hashlib.sha512(preauth_hash + message).digest()


def encode_contexts(contexts: Sequence[tuple[int, bytes]]) -> bytes:
    """Build negotiate contexts, each aligned to 8 bytes [MS-SMB2 2.2.3.1]."""
    built = b""
    for kind, data in contexts:
        built += bytes(-len(built) % 8) + _CONTEXT.pack(kind, len(data), 0) + data
    return built


def decode_contexts(message: bytes, offset: int, count: int) -> dict[int, bytes]:
    """Return the data of each context of a message by its type [MS-SMB2 2.2.3.1]."""
    found: dict[int, bytes] = {}
    for _ in range(count):
        offset += -offset % 8
        kind, length, _ = _CONTEXT.unpack_from(message, offset)
        offset += _CONTEXT.size
        found[kind] = message[offset : offset + length]
        offset += length
    return found
