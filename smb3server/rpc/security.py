"""Security contexts of an association: tokens of binds, protection of requests and responses.
[MS-RPCE 2.2.2.11, 3.3.1.5.2]"""

import enum
import logging
from typing import Annotated, NamedTuple

from smb3server.access.identity import Identity
from smb3server.auth.acceptor import Acceptor
from smb3server.auth.ntlm_protection import Protection, ProtectionError
from smb3server.wire.status import Reason, StatusError
from smbdirect.codec import Codec
from smbdirect.fields import Int8ul, Int32ul

log = logging.getLogger(__name__)

SPNEGO, NTLM, KERBEROS = 9, 10, 16
"""Security providers. [MS-RPCE 2.2.1.1.7]"""
PROVIDERS = (SPNEGO, NTLM, KERBEROS)


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
        given = self._protection
        if self.protects and not given.signs:
            raise SecurityError("integrity was not negotiated")
        if self.private and not given.seals:
            raise SecurityError("confidentiality was not negotiated")

        # NTLM's signatures cover all buffers with extended session security, and only the stub without it. The bind's
        # flag for header signing does not matter: impacket and Windows rely on this.
        if given.header_signing is not None:
            self._header_signing = given.header_signing

    def verifier_size(self) -> int:
        """Return the size of a verifier in bytes. It is needed before a fragment is signed, because the signed header
        has it."""
        if not self._verifier_size:
            given = self._protection
            self._verifier_size = given.sealed_signature_size if self.private else given.signature_size
        return self._verifier_size

    def note_verifier(self, verifier: bytes) -> None:
        """Remember the size of a verifier, because all verifiers have the same."""
        self._verifier_size = len(verifier)

    def _signed(self, header: bytes, trailer: bytes) -> tuple[bytes | None, bytes | None]:
        """Return what is signed before and after the stub."""
        return (header, trailer) if self._header_signing else (None, None)

    def protect(self, header: bytes, stub: bytes, trailer: bytes) -> tuple[bytes, bytes]:
        """Return the stub to send and its verifier. Raises ``SecurityError``."""
        before, after = self._signed(header, trailer)
        try:
            if self.private:
                return self._protection.seal(before, stub, after)
            return stub, self._protection.sign((before or b"") + stub + (after or b""))
        except ProtectionError as error:
            raise SecurityError(str(error)) from error

    def unprotect(self, header: bytes, stub: bytes, trailer: bytes, verifier: bytes) -> bytes:
        """Return the plain stub. Raises ``SecurityError`` if anything was changed after the client sent it."""
        before, after = self._signed(header, trailer)
        try:
            if self.private:
                return self._protection.unseal(before, stub, after, verifier)
            self._protection.verify((before or b"") + stub + (after or b""), verifier)
        except ProtectionError as error:
            raise SecurityError(str(error)) from error
        except Exception as error:
            # The verifier is input of an untrusted peer, and libraries may raise any exception for it.
            log.debug("malformed verifier: %r", error)
            raise SecurityError("malformed verifier") from error
        return stub

    @property
    def _protection(self) -> Protection:
        found = self._acceptor.protection
        if found is None:
            raise SecurityError("no keys to protect calls with")
        return found
