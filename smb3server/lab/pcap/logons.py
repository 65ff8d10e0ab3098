"""SESSION_SETUP of one connection: sessions begin, get channels, and get their keys. [MS-SMB2 3.3.5.5]"""

from __future__ import annotations

from dataclasses import dataclass

from smb3server.crypto import preauth
from smb3server.crypto.algorithms import Cipher
from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.kdf import derive_session_keys
from smb3server.crypto.signing import GmacSigner, Signer, make_signer
from smb3server.lab.pcap.dialect import SMB_3_0, Negotiated
from smb3server.lab.pcap.direct_tcp import UpperMessage
from smb3server.lab.pcap.given_secrets import NtlmLogon, Secrets, find_answer, find_challenge
from smb3server.lab.pcap.sessions import Session, SessionTable
from smb3server.lab.pcap.smb2 import (
    FLAG_SIGNED,
    SESSION_SETUP,
    STATUS_MORE_PROCESSING,
    STATUS_SUCCESS,
    Smb2Message,
)
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts

_BINDING = 1
_SIGNING_REQUIRED = 2
_GUEST, _NULL, _ENCRYPT = 1, 2, 4
_SIGNATURE_AT = 48
_UNFINISHED = 256
"""Logons under way that are remembered per connection."""


@dataclass
class _Logon:
    """One logon under way."""

    hash: bytes
    """Session.PreauthIntegrityHashValue up to the last message."""
    challenge: bytes = b""
    ntlm: NtlmLogon | None = None
    binding: bool = False
    signing_required: bool = False


def signature_of(signer: Signer, part: Smb2Message, direction: Direction) -> bytes:
    """Return the signature that a message should have. [MS-SMB2 3.1.4.1]"""
    data = bytearray(part.data)
    data[_SIGNATURE_AT : _SIGNATURE_AT + 16] = bytes(16)
    if direction is Direction.TO_CLIENT and isinstance(signer, GmacSigner):
        return signer.sign((data,), part.message_id)
    return signer.expect(memoryview(data))


class Logons:
    """Follows the logons of one connection."""

    def __init__(self, negotiated: Negotiated, table: SessionTable, secrets: Secrets, verdicts: Verdicts) -> None:
        self._negotiated = negotiated
        self._table = table
        self._secrets = secrets
        self._verdicts = verdicts
        self._logons: dict[int, _Logon] = {}
        """By SessionId. The first request of a logon has none: 0."""
        self.signers: dict[int, Signer] = {}
        """Channel.SigningKey by SessionId."""
        self.established: set[int] = set()
        """SessionIds that may be used on this connection."""
        self.complete = True
        """Whether the capture has all messages so far, so that keys can be derived from them."""

    def request(self, message: UpperMessage, part: Smb2Message) -> None:
        """Take a SESSION_SETUP request."""
        known = self._logons.pop(part.session_id, None)
        logon = known or _Logon(self._negotiated.preauth)
        logon.hash = preauth.extend(logon.hash, (part.data,))
        flags, mode = (part.fields("<BB", 2) or (0, 0))[:2]
        logon.binding = bool(flags & _BINDING)
        logon.signing_required = self._negotiated.signing_required or bool(mode & _SIGNING_REQUIRED)
        answer = find_answer(part.buffer())
        if answer is not None and logon.challenge:
            logon.ntlm = NtlmLogon(logon.challenge, answer)
        self._logons[part.session_id] = logon
        if len(self._logons) > _UNFINISHED:
            del self._logons[next(iter(self._logons))]

    def response(self, server: str, part: Smb2Message, asked: int, number: int) -> None:
        """Take the response to a SESSION_SETUP request with the SessionId ``asked``."""
        logon = self._logons.pop(asked, None)
        if logon is None:
            return
        if part.status == STATUS_MORE_PROCESSING:
            logon.hash = preauth.extend(logon.hash, (part.data,))
            logon.challenge = find_challenge(part.buffer()) or logon.challenge
            self._logons[part.session_id] = logon
        elif part.status == STATUS_SUCCESS:
            self._established(server, part, logon, number)

    def signers_of(self, part: Smb2Message, session: Session) -> list[Signer]:
        """Return what may sign a message: the key of its channel, and that of the session while it gets a channel.

        The section has the session's key sign requests to bind, and responses to SESSION_SETUP other than SUCCESS.
        Samba, and this project's server, use the channel's if there is one. [MS-SMB2 3.3.4.1.1, 3.3.5.2.4]
        """
        known = self.signers.get(part.session_id)
        found = [] if known is None else [known]
        if part.command == SESSION_SETUP and session.keys is not None:
            (flags,) = part.fields("<B", 2) or (0,)
            if part.status != STATUS_SUCCESS if part.is_response else flags & _BINDING:
                found.append(make_signer(session.signing, session.keys.signing))
        return found

    def _established(self, server: str, part: Smb2Message, logon: _Logon, number: int) -> None:
        session_id = part.session_id
        again = session_id in self.established
        self.established.add(session_id)
        if again:
            return  # Authenticated again: the keys stay. [MS-SMB2 3.3.5.5.3]
        table = self._table
        session = table.get(server, session_id) if logon.binding else table.replace(server, session_id)
        if logon.binding:
            session.complete = False
        else:
            (flags,) = part.fields("<H", 2) or (0,)
            session.dialect = self._negotiated.dialect
            session.unproven = bool(flags & (_GUEST | _NULL))
            session.encrypted = bool(flags & _ENCRYPT)
            session.signing_required = logon.signing_required and not session.unproven
            if logon.ntlm is not None:
                session.user = logon.ntlm.answer.user
        self._find_keys(session, part, logon, number)

    def _find_keys(self, session: Session, part: Smb2Message, logon: _Logon, number: int) -> None:
        """Find the key that fits the signature of the response, among those that were given."""
        candidates, certain = self._secrets.session_keys(session.session_id, logon.ntlm)
        if session.unproven or not candidates or not self._negotiated.dialect:
            return
        for key in candidates:
            signer = self._use(session, key, logon)
            if not part.flags & FLAG_SIGNED or signature_of(signer, part, Direction.TO_CLIENT) == part.signature:
                return
        if certain and self.complete:
            self._use(session, candidates[0], logon)  # The key is right: the signature is not, which is judged.
            return
        del self.signers[session.session_id]
        if not logon.binding:
            session.keys = None
            session.ciphers.clear()
        self._verdicts.unjudged(number, f"none of the keys fits session {session.session_id:#x}", True)

    def _use(self, session: Session, key: bytes, logon: _Logon) -> Signer:
        """Derive all keys from ``key`` and return the signer of this channel."""
        negotiated = self._negotiated
        short = key[:16].ljust(16, b"\0")
        keys = derive_session_keys(negotiated.dialect, short, key, negotiated.cipher, logon.hash)
        signer = self.signers[session.session_id] = make_signer(negotiated.signing, keys.signing)
        if not logon.binding:
            session.keys, session.signing = keys, negotiated.signing
            if negotiated.dialect >= SMB_3_0 and negotiated.cipher != Cipher.NONE:
                ends = keys.encryption, keys.decryption
                cipher, number = negotiated.cipher, session.session_id
                session.ciphers[Direction.TO_SERVER] = SessionCipher(cipher, number, *ends)
                session.ciphers[Direction.TO_CLIENT] = SessionCipher(cipher, number, *ends[::-1])
        return signer
