"""Kerberos' acceptor, and all uses of undocumented parts of pyspnego.

Names that begin with an underscore may change with any release. Only this module uses them, pyproject.toml bounds the
version, and ``tests/smb3server/auth/test_pyspnego.py`` fails if a release changes them. The documented parts
(``spnego.client``, ``spnego.exceptions``, ``spnego.iov``) may be used anywhere. Loading the library takes longer than
loading all that a server without Kerberos needs, so it is loaded for Kerberos alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import spnego
from spnego import ContextReq
from spnego._context import GSSMech
from spnego.exceptions import SpnegoError
from spnego.iov import BufferType

from smb3server.auth.ntlm_protection import ProtectionError

_LIKELY_SIGNATURE_SIZE = 28
"""Bytes of a Kerberos signature with AES: a header of 16 and a checksum of 12. [RFC 4121 4.2.6.1]"""

T = TypeVar("T")


def _tried(call: Callable[[], T]) -> T:
    """Return what ``call`` returns. Raises ``ProtectionError`` for the library's own error."""
    try:
        return call()
    except SpnegoError as error:
        raise ProtectionError(str(error)) from error


class TicketRefused(Exception):
    """GSS-API has refused a ticket. ``token``: what it has for the client (a KRB_ERROR), or nothing."""

    def __init__(self, reason: str, token: bytes) -> None:
        super().__init__(reason)
        self.token = token


class KerberosContext:
    """A Kerberos acceptor, made of pyspnego's context for the system's GSS-API. Implements ``Protection``."""

    signature_size = _LIKELY_SIGNATURE_SIZE
    header_signing = None

    def __init__(self, service: str, keytab: str) -> None:
        """Make an acceptor of tickets.

        ``service`` is the first part of the acceptor's principal. ``keytab`` is the file with its keys; empty means the
        file that the environment names. Raises ``ProtectionError`` if Kerberos is not available.
        """
        options: dict[str, Any] = {"_gssapi_credential": _acceptor_credential(keytab)} if keytab else {}
        self.raw: Any = _tried(lambda: spnego.server(protocol="kerberos", service=service, **options))
        # pyspnego then writes no tokens to its log.
        self.raw._is_wrapped = True

    def step(self, token: bytes) -> bytes:
        """Return the answer to the client's token. Raises ``TicketRefused``, or any exception for what is no ticket."""
        try:
            return self.raw.step(token) or b""
        except Exception as error:
            # gssapi keeps the error of a step that has made a token for the client. pyspnego then fails by another.
            refusal: Any = getattr(self.raw._context, "_last_err", None) or error.__cause__
            if not hasattr(refusal, "min_code"):
                if isinstance(error, SpnegoError):
                    raise ProtectionError(str(error)) from error
                raise
            why = refusal.get_all_statuses(refusal.min_code, False) or [str(refusal)]
            raise TicketRefused("; ".join(map(str, why)), refusal.token or b"") from error

    @property
    def begun(self) -> bool:
        """Whether the library has parsed a token. If so, a later error means a refused ticket, not a malformed
        token."""
        return self.raw._context is not None

    @property
    def lifetime(self) -> float:
        """Seconds for which the client's ticket is still valid."""
        return self.raw._context.lifetime  # type: ignore[no-any-return]

    @property
    def signs(self) -> bool:
        return bool(self.raw.context_attr & ContextReq.integrity)

    @property
    def seals(self) -> bool:
        return bool(self.raw.context_attr & ContextReq.confidentiality)

    @property
    def sealed_signature_size(self) -> int:
        return int(_tried(self.raw.query_message_sizes).header)

    def sign(self, data: bytes) -> bytes:
        return bytes(_tried(lambda: self.raw.sign(data)))

    def verify(self, data: bytes, signature: bytes) -> None:
        _tried(lambda: self.raw.verify(data, signature))

    def seal(self, before: bytes | None, data: bytes, after: bytes | None) -> tuple[bytes, bytes]:
        buffers = _tried(
            lambda: self.raw.wrap_iov(_buffers(BufferType.header, before, data, after), encrypt=True)
        ).buffers
        return buffers[1 if before is None else 2].data or b"", buffers[0].data or b""

    def unseal(self, before: bytes | None, data: bytes, after: bytes | None, signature: bytes) -> bytes:
        buffers = _tried(
            lambda: self.raw.unwrap_iov(_buffers((BufferType.header, signature), before, data, after))
        ).buffers
        return buffers[1 if before is None else 2].data or b""


def _buffers(header: Any, before: bytes | None, data: bytes, after: bytes | None) -> list[Any]:
    """Return the parts of a message, as the library takes them."""
    around = ([] if part is None else [(BufferType.sign_only, part)] for part in (before, after))
    first, last = around
    return [header, *first, data, *last]


def _acceptor_credential(keytab: str) -> Any:
    """Return the GSS-API credential that accepts tickets with the keys in a file. Raises ``ProtectionError``."""
    gssapi = importlib.import_module("gssapi")
    mechanism = gssapi.OID.from_int_seq(GSSMech.kerberos.value)
    try:
        return gssapi.Credentials(usage="accept", mechs=[mechanism], store={"keytab": keytab})
    except gssapi.exceptions.GSSError as error:
        raise ProtectionError(f"{SpnegoError(base_error=error, context_msg='Getting GSSAPI credential')}") from error
