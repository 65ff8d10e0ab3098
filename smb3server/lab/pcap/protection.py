"""Signatures and encryption of the messages of one connection. [MS-SMB2 3.1.4.1, 3.1.4.3]"""

from __future__ import annotations

import struct

from smb3server.crypto.algorithms import Cipher
from smb3server.crypto.encryption import TRANSFORM_SIZE
from smb3server.lab.pcap import rules
from smb3server.lab.pcap.dialect import SMB_3_1_1, Negotiated
from smb3server.lab.pcap.direct_tcp import UpperMessage
from smb3server.lab.pcap.logons import Logons, signature_of
from smb3server.lab.pcap.sessions import Session
from smb3server.lab.pcap.smb2 import (
    FLAG_SIGNED,
    NEGOTIATE,
    SESSION_SETUP,
    STATUS_PENDING,
    TREE_CONNECT,
    Smb2Message,
)
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts

_TRANSFORM = struct.Struct("<4s16s16sIHHQ")
_ENCRYPTED = 1
NONCE_SIZES = {Cipher.AES_128_CCM: 11, Cipher.AES_256_CCM: 11, Cipher.AES_128_GCM: 12, Cipher.AES_256_GCM: 12}
"""Bytes of Nonce that count, by cipher. [MS-SMB2 2.2.41]"""
_NO_SESSION = (0xC0000203, 0xC000035C)
"""USER_SESSION_DELETED and NETWORK_SESSION_EXPIRED: there is no key to sign with. [MS-SMB2 3.2.5.1.3]"""


class Protection:
    """Judges how the messages of one connection are protected, and opens those that are encrypted."""

    def __init__(self, negotiated: Negotiated, logons: Logons, verdicts: Verdicts) -> None:
        self._negotiated = negotiated
        self._logons = logons
        self._verdicts = verdicts

    def session_of(self, message: UpperMessage) -> int:
        """Return the SessionId of an encrypted message; 0 if its header was not captured."""
        return int.from_bytes(message.data[44:52], "little")

    def decrypt(self, message: UpperMessage, session: Session) -> bytes | None:
        """Return the plain message, or None if there is no key for it or it is not authentic."""
        check, number, way, data = self._verdicts.check, message.number, message.direction, message.data
        text = "transform header: {}"
        if 0 <= message.known < TRANSFORM_SIZE:
            self._verdicts.unjudged(number, "an encrypted message is not captured whole")
            return None
        if not check(rules.TRANSFORM, len(data) > TRANSFORM_SIZE, number, way, text, f"{len(data)} bytes in all"):
            return None
        _, _, nonce, size, _, flags, _ = _TRANSFORM.unpack_from(data)
        fits = size == len(data) - TRANSFORM_SIZE
        kept = check(rules.TRANSFORM, fits, number, way, text, f"size {size} of {len(data) - TRANSFORM_SIZE}")
        check(rules.TRANSFORM, flags == _ENCRYPTED, number, way, text, f"flags {flags:#x}")
        nonce = nonce[: NONCE_SIZES.get(Cipher(self._negotiated.cipher), 16)]
        check(rules.NONCE, session.fresh_nonce(way, nonce), number, way, "nonce {} was used before", nonce.hex())
        cipher = session.ciphers.get(way)
        if cipher is None:
            self._verdicts.unjudged(number, f"encrypted messages of session {session.session_id:#x}: no key", True)
            return None
        if message.known >= 0:
            self._verdicts.unjudged(number, "an encrypted message is not captured whole")
            return None
        plain = cipher.decrypt(memoryview(bytearray(data))) if kept else None
        check(rules.DECRYPTED, plain is not None, number, way, "the message is not authentic")
        return None if plain is None else bytes(plain)

    def inside(self, message: UpperMessage, part: Smb2Message, session_id: int) -> None:
        """Judge the first header of a decrypted message. [MS-SMB2 3.3.5.2.1.1]"""
        text = "transform header: session {:#x}, the message in it {:#x}"
        same = part.session_id == session_id
        self._verdicts.check(
            rules.TRANSFORM, same, message.number, message.direction, text, session_id, part.session_id
        )

    def request(self, number: int, part: Smb2Message, session: Session, tree_id: int, encrypted: bool) -> None:
        """Judge the protection of a request."""
        if part.command in (NEGOTIATE, SESSION_SETUP):
            self._verify(number, part, session, Direction.TO_SERVER, encrypted)
            return
        check, way = self._verdicts.check, Direction.TO_SERVER
        tree = session.trees.get(tree_id)
        if session.encrypted or (tree is not None and tree.encrypted):
            whose = "session" if session.encrypted else f"share {tree.name if tree else ''}"
            check(rules.ENCRYPTED, encrypted, number, way, "{} in the clear, the {} is encrypted", part.name, whose)
        binding = self._negotiated.dialect >= SMB_3_1_1 and part.command == TREE_CONNECT and not session.unproven
        if session.known and (session.signing_required or binding):
            signed = encrypted or bool(part.flags & FLAG_SIGNED)
            check(rules.SIGNED, signed, number, way, "{} request {} is not signed", part.name, part.message_id)
        self._verify(number, part, session, way, encrypted)

    def response(
        self, number: int, part: Smb2Message, session: Session, request_signed: bool, secret: bool, encrypted: bool
    ) -> None:
        """Judge the protection of a response; ``secret`` means that its request was encrypted."""
        check, way = self._verdicts.check, Direction.TO_CLIENT
        if secret:
            check(rules.ENCRYPTED, encrypted, number, way, "{} in the clear to an encrypted request", part.name)
        elif (
            session.known
            and session.signing_required
            and request_signed
            and part.status != STATUS_PENDING
            and part.status not in _NO_SESSION
            and part.command not in (NEGOTIATE, SESSION_SETUP)
        ):
            signed = encrypted or bool(part.flags & FLAG_SIGNED)
            check(rules.SIGNED, signed, number, way, "{} response {} is not signed", part.name, part.message_id)
        if part.status not in _NO_SESSION:
            self._verify(number, part, session, way, encrypted)

    def _verify(self, number: int, part: Smb2Message, session: Session, direction: Direction, encrypted: bool) -> None:
        """Judge the signature of a message that is signed and not encrypted."""
        if encrypted or not part.flags & FLAG_SIGNED:
            return
        signers = self._logons.signers_of(part, session)
        if not signers:
            self._verdicts.unjudged(number, f"signatures of session {part.session_id:#x}: no key", True)
        elif part.known < len(part.data):
            self._verdicts.unjudged(number, "a signed message is not captured whole")
        else:
            right = any(signature_of(signer, part, direction) == part.signature for signer in signers)
            text = "wrong signature of {} {}"
            self._verdicts.check(rules.SIGNATURE, right, number, direction, text, part.name, part.message_id)
