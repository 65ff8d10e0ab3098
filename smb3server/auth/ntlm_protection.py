"""The keys of an NTLM logon, and what they protect: lists of mechanisms, and RPC's messages. [MS-NLMP 3.4]

pyspnego does the same and more. It is used for Kerberos alone, because a server without Kerberos starts in two thirds
of the time without it.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from typing import Protocol

from cryptography.hazmat.decrepit.ciphers.algorithms import ARC4
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext

from smb3server.auth.ntlm_messages import Flags

_SIGN, _SEAL, _EXTENDED = int(Flags.SIGN), int(Flags.SEAL), int(Flags.EXTENDED_SESSION_SECURITY)
_LM_KEY, _DATAGRAM, _KEY_EXCHANGE = int(Flags.LM_KEY), int(Flags.DATAGRAM), int(Flags.KEY_EXCHANGE)
_KEY_128, _KEY_56 = int(Flags.KEY_128), int(Flags.KEY_56)
_VERSION = b"\1\0\0\0"
SIGNATURE_SIZE = 16
INITIATOR, ACCEPTOR = b"client-to-server", b"server-to-client"
"""Sides, as their keys name them."""


class ProtectionError(Exception):
    """A message was changed since it was sent, or nothing was agreed on that could protect it."""


class Protection(Protocol):
    """What protects messages after a logon. Both sides count them. All methods may raise ``ProtectionError``."""

    @property
    def signs(self) -> bool:
        """Whether both sides agreed on signatures."""
        ...

    @property
    def seals(self) -> bool:
        """Whether both sides agreed on encryption."""
        ...

    @property
    def signature_size(self) -> int: ...

    @property
    def sealed_signature_size(self) -> int:
        """The size of the signature of an encrypted message."""
        ...

    @property
    def header_signing(self) -> bool | None:
        """Whether ``before`` and ``after`` are signed. None means that the caller chooses: they may be None."""
        ...

    def sign(self, data: bytes) -> bytes: ...

    def verify(self, data: bytes, signature: bytes) -> None: ...

    def seal(self, before: bytes | None, data: bytes, after: bytes | None) -> tuple[bytes, bytes]:
        """Return ``data`` encrypted, and a signature of all three parts."""
        ...

    def unseal(self, before: bytes | None, data: bytes, after: bytes | None, signature: bytes) -> bytes: ...


def rc4(key: bytes) -> CipherContext:
    """Return the stream of RC4 with a key; ``update`` encrypts with what follows. [MS-NLMP 6, RC4Init]"""
    return Cipher(ARC4(key), mode=None).encryptor()


def decrypt_key(key: bytes, encrypted: bytes) -> bytes:
    """Decrypt the session key that an NTLM client chose. [MS-NLMP 3.1.5.1.2, 6, RC4K]"""
    return rc4(key).update(encrypted)


def _derived(key: bytes, side: bytes, purpose: bytes) -> bytes:
    text = b"session key to " + side + b" " + purpose + b" key magic constant\0"
    return hashlib.md5(key + text, usedforsecurity=False).digest()


def _sealing_key(flags: int, session_key: bytes, side: bytes) -> bytes:
    """Return SEALKEY. [MS-NLMP 3.4.5.3]"""
    if flags & _EXTENDED:
        size = 16 if flags & _KEY_128 else 7 if flags & _KEY_56 else 5
        return _derived(session_key[:size], side, b"sealing")
    if flags & (_LM_KEY | _DATAGRAM):
        return session_key[:7] + b"\xa0" if flags & _KEY_56 else session_key[:5] + b"\xe5\x38\xb0"
    return session_key


class _Way:
    """One direction: its keys, and how many messages it had."""

    def __init__(self, flags: int, session_key: bytes, side: bytes, count: int = 0) -> None:
        self.stream = rc4(_sealing_key(flags, session_key, side))
        self.count = count
        self._extended, self._exchanged = flags & _EXTENDED, flags & _KEY_EXCHANGE
        self._key = _derived(session_key, side, b"signing")

    def signature(self, data: bytes) -> bytes:
        """Return the signature of the next message. [MS-NLMP 3.4.4]"""
        number = self.count.to_bytes(4, "little")
        self.count += 1
        if self._extended:
            checksum = hmac.digest(self._key, number + data, "md5")[:8]
            return _VERSION + (self.stream.update(checksum) if self._exchanged else checksum) + number
        self.stream.update(bytes(4))
        checksum = self.stream.update(zlib.crc32(data).to_bytes(4, "little"))
        mask = self.stream.update(bytes(4))
        return _VERSION + bytes(4) + checksum + bytes(a ^ b for a, b in zip(mask, number, strict=True))


def first_signature(flags: int, session_key: bytes, side: bytes, data: bytes, earlier: int = 0) -> bytes:
    """Sign ``data`` as the first message of one side of an NTLM session.

    ``earlier``: how many signatures there were, of either side. It matters without extended session security, where
    both sides share the number. That is a true signature if only ALWAYS_SIGN was negotiated, too: MS-SPNG 3.3.5.1 has
    no other."""
    return _Way(flags, session_key, side, 0 if flags & _EXTENDED else earlier).signature(data)


class NtlmProtection:
    """Implements ``Protection`` for an acceptor."""

    signature_size = sealed_signature_size = SIGNATURE_SIZE

    def __init__(self, flags: int, session_key: bytes, sent: int = 0, received: int = 0) -> None:
        """``sent`` and ``received``: how many signatures of the list of mechanisms there were. For messages the streams
        begin anew, and the numbers continue. [MS-SPNG 3.3.5.1]"""
        self.signs, self.seals = bool(flags & _SIGN), bool(flags & _SEAL)
        self.header_signing: bool | None = bool(flags & _EXTENDED)
        """Signatures cover all parts with extended session security, and only ``data`` without it."""
        self._out = _Way(flags, session_key, ACCEPTOR, sent)
        # Without extended session security both sides share keys and numbers.
        self._in = _Way(flags, session_key, INITIATOR, received) if flags & _EXTENDED else self._out
        if self._in is self._out:
            self._out.count = sent + received

    def sign(self, data: bytes) -> bytes:
        return self._out.signature(data)

    def verify(self, data: bytes, signature: bytes) -> None:
        if not hmac.compare_digest(self._in.signature(data), signature):
            raise ProtectionError("wrong signature")

    def seal(self, before: bytes | None, data: bytes, after: bytes | None) -> tuple[bytes, bytes]:
        sealed = self._out.stream.update(data)
        return sealed, self._out.signature((before or b"") + data + (after or b""))

    def unseal(self, before: bytes | None, data: bytes, after: bytes | None, signature: bytes) -> bytes:
        clear: bytes = self._in.stream.update(data)
        self.verify((before or b"") + clear + (after or b""), signature)
        return clear
