"""Security contexts of an association: tokens of binds, protection of requests and responses.
[MS-RPCE 2.2.2.11, 3.3.1.5.2]"""

import enum
import logging
from typing import Annotated, Any, NamedTuple

from spnego import ContextReq
from spnego.exceptions import SpnegoError
from spnego.iov import BufferType

from smb3server.access.identity import Identity
from smb3server.auth.acceptor import Acceptor
from smb3server.auth.pyspnego import NtlmContext
from smb3server.wire.status import Reason, StatusError
from smbdirect.codec import Codec
from smbdirect.fields import Int8ul, Int32ul

log = logging.getLogger(__name__)

SPNEGO, NTLM, KERBEROS = 9, 10, 16
"""Security providers. [MS-RPCE 2.2.1.1.7]"""
PROVIDERS = (SPNEGO, NTLM, KERBEROS)
_MIC_SIZE = {NTLM: 16}
_LIKELY_MIC_SIZE = 28
"""Bytes of a Kerberos signature with AES: a header of 16 and a checksum of 12. [RFC 4121 4.2.6.1]"""


class Level(enum.IntEnum):
    """Authentication levels. [MS-RPCE 2.2.1.1.8]"""

    NONE = 1
    CONNECT = 2
    CALL = 3
    PACKET = 4
    INTEGRITY = 5
    PRIVACY = 6


class AuthTrailer(NamedTuple):
    """sec_trailer. [MS-RPCE 2.2.2.11]"""

    type: Annotated[int, Int8ul] = 0
    level: Annotated[int, Int8ul] = 0
    pad_length: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int8ul] = 0
    context_id: Annotated[int, Int32ul] = 0


AUTH_TRAILER = Codec(AuthTrailer)


class SecurityError(Exception):
    """Authentication or verification failed. ``reason``: why a logon is refused, if the acceptor refused it."""

    def __init__(self, text: str, reason: Reason | None = None) -> None:
        super().__init__(text)
        self.reason = reason


class SecurityContext:
    """One authentication, and the protection of calls with its keys.

    Both sides count messages, so requests are verified in the order in which they were sent.
    """

    def __init__(self, acceptor: Acceptor, trailer: AuthTrailer, header_signing: bool) -> None:
        """Prepare an authentication. ``header_signing`` means that signatures also cover headers and trailers.
        [MS-RPCE 3.3.1.5.2.2]"""
        self.type = trailer.type
        self.level = trailer.level
        self.context_id = trailer.context_id
        self._acceptor = acceptor
        self._header_signing = header_signing
        self._verifier_size = 0
        self._ntlm: NtlmContext | None = None
        """NTLM's context, if extended session security was negotiated."""

    @property
    def identity(self) -> Identity | None:
        """The user, or None until the authentication is complete."""
        return self._acceptor.identity

    @property
    def claimed(self) -> str:
        """The account that the client named, whether it has proved its identity or not."""
        return self._acceptor.claimed

    @property
    def protects(self) -> bool:
        """Whether every fragment has a verifier."""
        return self.level >= Level.PACKET

    @property
    def private(self) -> bool:
        """Whether stubs are encrypted."""
        return self.level == Level.PRIVACY

    def step(self, token: bytes) -> bytes:
        """Return the answer to a token. Raises ``SecurityError``."""
        try:
            answer = self._acceptor.step(token)
        except StatusError as error:
            raise SecurityError(str(error), error.reason) from error
        if self.identity is not None and (self.identity.guest or self.identity.anonymous):
            raise SecurityError("guests have no keys to protect calls with")
        if self.identity is not None:
            self._check_strength()
        return answer

    def _check_strength(self) -> None:
        """Raise ``SecurityError`` if the client's flags do not allow its level. NTLM would sign with a constant
        otherwise."""
        given = self._context.context_attr
        if self.protects and not given & ContextReq.integrity:
            raise SecurityError("integrity was not negotiated")
        if self.private and not given & ContextReq.confidentiality:
            raise SecurityError("confidentiality was not negotiated")

        # NTLM's signatures cover all buffers with extended session security, and only the stub without it. The bind's
        # flag for header signing does not matter: impacket and Windows rely on this.
        extended = self._acceptor.extended_session_security
        if extended is not None:
            self._header_signing = extended
        if extended:
            self._ntlm = self._acceptor.ntlm

    def verifier_size(self) -> int:
        """Return the size of a verifier in bytes. It is needed before a fragment is signed, because the signed header
        has it."""
        if not self._verifier_size:
            if self.private:
                self._verifier_size = self._context.query_message_sizes().header
            else:
                ntlm = self._context.negotiated_protocol == "ntlm"
                self._verifier_size = _MIC_SIZE[NTLM] if ntlm else _LIKELY_MIC_SIZE
        return self._verifier_size

    def note_verifier(self, verifier: bytes) -> None:
        """Remember the size of a verifier, because all verifiers have the same."""
        self._verifier_size = len(verifier)

    def protect(self, header: bytes, stub: bytes, trailer: bytes) -> tuple[bytes, bytes]:
        """Return the stub to send and its verifier. Raises ``SecurityError``."""
        try:
            if self.private:
                return self._seal(header, stub, trailer)
            return stub, self._context.sign(header + stub + trailer if self._header_signing else stub)
        except SpnegoError as error:
            raise SecurityError(str(error)) from error

    def _seal(self, header: bytes, stub: bytes, trailer: bytes) -> tuple[bytes, bytes]:
        if self._ntlm is not None:
            return self._ntlm.seal_between(header, stub, trailer)
        iov: list[Any] = [BufferType.header, stub]
        if self._header_signing:
            iov = [BufferType.header, (BufferType.sign_only, header), stub, (BufferType.sign_only, trailer)]
        buffers = self._context.wrap_iov(iov, encrypt=True).buffers
        return buffers[2 if self._header_signing else 1].data or b"", buffers[0].data or b""

    def unprotect(self, header: bytes, stub: bytes, trailer: bytes, verifier: bytes) -> bytes:
        """Return the plain stub. Raises ``SecurityError`` if anything was changed after the client sent it."""
        try:
            if self.private:
                return self._unseal(header, stub, trailer, verifier)
            self._context.verify(header + stub + trailer if self._header_signing else stub, verifier)
        except SpnegoError as error:
            raise SecurityError(str(error)) from error
        except Exception as error:
            # The verifier is input of an untrusted peer, and libraries may raise any exception for it.
            log.debug("malformed verifier: %r", error)
            raise SecurityError("malformed verifier") from error
        return stub

    def _unseal(self, header: bytes, stub: bytes, trailer: bytes, verifier: bytes) -> bytes:
        iov: list[Any] = [(BufferType.header, verifier), stub]
        if self._header_signing:
            iov = [(BufferType.header, verifier), (BufferType.sign_only, header), stub, (BufferType.sign_only, trailer)]
        buffers = self._context.unwrap_iov(iov).buffers
        return buffers[2 if self._header_signing else 1].data or b""

    @property
    def _context(self) -> Any:
        return self._acceptor.context
