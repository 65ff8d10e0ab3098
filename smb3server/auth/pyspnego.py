"""All uses of undocumented parts of pyspnego.

Names that begin with an underscore may change with any release. Only this module uses them, pyproject.toml bounds the
version, and ``tests/smb3server/auth/test_pyspnego.py`` fails if a release changes them. The documented parts
(``spnego.client``, ``spnego.exceptions``, ``spnego.iov``) may be used anywhere.
"""

from __future__ import annotations

import hmac
import importlib
from typing import Any, Protocol

import spnego
from spnego._context import ContextProxy, ContextReq, GSSMech
from spnego._ntlm import NTLMProxy
from spnego._ntlm_raw.crypto import ntowfv1, rc4init, rc4k, sealkey, signkey
from spnego._ntlm_raw.messages import NegotiateFlags
from spnego._ntlm_raw.security import sign
from spnego._spnego import NegTokenInit
from spnego.exceptions import InvalidTokenError, NegotiateOptions, SpnegoError

from smb3server.access.identity import Identity


def nt_hash(password: str) -> bytes:
    """Return the NT hash of a clear-text password (NTOWFv1). [MS-NLMP 3.3.1]"""
    return ntowfv1(password)  # type: ignore[no-any-return]


def decrypt_key(key: bytes, encrypted: bytes) -> bytes:
    """Decrypt the session key that an NTLM client chose (RC4K). [MS-NLMP 3.1.5.1.2]"""
    return rc4k(key, encrypted)  # type: ignore[no-any-return]


def first_signature(flags: int, session_key: bytes, side: str, data: bytes) -> bytes:
    """Sign ``data`` as the first message of one side, 'initiate' or 'accept', of an NTLM session. [MS-NLMP 3.4.4]

    That is a true signature if only ALWAYS_SIGN was negotiated, too: MS-SPNG 3.3.5.1 has no other."""
    flags |= NegotiateFlags.sign
    handle = rc4init(sealkey(flags, session_key, side))
    return sign(flags, handle, signkey(flags, session_key, side), 0, data)  # type: ignore[no-any-return]


def pack_hint(kerberos: bool, ntlm: bool) -> bytes:
    """Pack the NegTokenInit2 of a negotiate response, with the mechanisms that a client may choose. [MS-SPNG 2.2.1]"""
    mechanisms = [GSSMech._ms_kerberos.value, GSSMech.kerberos.value] if kerberos else []
    if ntlm:
        mechanisms.append(GSSMech.ntlm.value)
    return NegTokenInit(mechanisms, hint_name=b"not_defined_in_RFC4178@please_ignore").pack()  # type: ignore[no-any-return]


class NtlmLogon(Protocol):
    """The acceptor's steps of an NTLM logon, and their results."""

    flags: int
    """NegotiateFlags that both sides agreed on."""

    @property
    def identity(self) -> Identity | None:
        """The user, or None until the logon has succeeded."""

    @property
    def session_key(self) -> bytes:
        """ExportedSessionKey. [MS-NLMP 3.2.5.1.2]"""

    def challenge(self, token: bytes) -> bytes:
        """Answer the NEGOTIATE_MESSAGE."""

    def authenticate(self, token: bytes) -> None:
        """Check the AUTHENTICATE_MESSAGE."""


class NtlmContext(NTLMProxy):  # type: ignore[misc]
    """An NTLM acceptor that protects messages with pyspnego after the logon. [MS-NLMP 3.4]

    pyspnego's own acceptor reads accounts from a file named in the environment, computes the MIC over re-encoded
    messages and does not support anonymous users. ``logon`` replaces these steps.
    """

    def __init__(self, logon: NtlmLogon) -> None:
        # NTLMProxy.__init__ is not called, because it requires the credential file.
        ContextProxy.__init__(self, [], None, None, None, ContextReq.default, "accept", "ntlm", NegotiateOptions.none)
        self._logon = logon
        self._complete = False
        # pyspnego then formats no tokens for its log.
        self._is_wrapped = True
        self._credential = None
        self._temp_negotiate: bytes | None = None
        self._temp_challenge = None
        self._mic_required = False
        self._session_key: bytes | None = None
        self._sign_key_out: bytes | None = None
        self._sign_key_in: bytes | None = None
        self._handle_out: Any = None
        self._handle_in: Any = None
        self._NTLMProxy__seq_num_in = 0
        self._NTLMProxy__seq_num_out = 0

    def _step_accept_negotiate(self, token: bytes) -> bytes:
        self._temp_negotiate = token
        return self._logon.challenge(bytes(token))

    def _step_accept_authenticate(self, token: bytes, channel_bindings: object) -> None:
        self._logon.authenticate(bytes(token))
        self._session_key = self._logon.session_key
        self._context_attr = NegotiateFlags(self._logon.flags)
        self._complete = True

    @property
    def extended_session_security(self) -> bool:
        """Whether the completed authentication negotiated it. [MS-NLMP 2.2.2.5]"""
        return bool(self._context_attr & NegotiateFlags.extended_session_security)

    def mechanism_list_mic(self, data: bytes) -> bytes:
        """Sign the list of mechanisms. The cipher is then reset for messages, the sequence numbers continue.
        [MS-SPNG 3.3.5.1]"""
        made: bytes = self.sign(data)
        self._reset_ntlm_crypto_state()
        return made

    def check_mechanism_list_mic(self, data: bytes, mic: bytes) -> None:
        """Verify the client's signature of the list of mechanisms. Raises ``SpnegoError``. [MS-SPNG 3.3.5.1]"""
        self.verify(data, mic)
        self._reset_ntlm_crypto_state(outgoing=False)

    def seal_between(self, before: bytes, data: bytes, after: bytes) -> tuple[bytes, bytes]:
        """Return ``data`` encrypted, and a signature of all three parts. [MS-NLMP 3.4.3, 3.4.4.2]

        ``wrap_iov`` does the same with extended session security. This does without its lists, because thousands of
        clients are notified of a failure at the same time. Raises ``InvalidTokenError`` if no key was negotiated.
        """
        handle: Any = self._handle_out
        key: bytes | None = self._sign_key_out
        if handle is None or key is None or not self._context_attr & NegotiateFlags.seal:
            raise InvalidTokenError(context_msg="no keys to encrypt with")
        number = self._seq_num_out.to_bytes(4, "little")
        sealed = handle.update(data)
        checksum = hmac.digest(key, number + before + data + after, "md5")[:8]
        if self._context_attr & NegotiateFlags.key_exch:
            checksum = handle.update(checksum)
        return sealed, b"\x01\x00\x00\x00" + checksum + number


class TicketRefused(Exception):
    """GSS-API has refused a ticket. ``token``: what it has for the client (a KRB_ERROR), or nothing."""

    def __init__(self, reason: str, token: bytes) -> None:
        super().__init__(reason)
        self.token = token


class KerberosContext:
    """A Kerberos acceptor, made of pyspnego's context for the system's GSS-API."""

    def __init__(self, service: str, keytab: str) -> None:
        """Make an acceptor of tickets.

        ``service`` is the first part of the acceptor's principal. ``keytab`` is the file with its keys; empty means the
        file that the environment names. Raises ``SpnegoError`` if Kerberos is not available.
        """
        options: dict[str, Any] = {"_gssapi_credential": _acceptor_credential(keytab)} if keytab else {}
        self.raw: Any = spnego.server(protocol="kerberos", service=service, **options)
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


def _acceptor_credential(keytab: str) -> Any:
    """Return the GSS-API credential that accepts tickets with the keys in a file. Raises ``SpnegoError``."""
    gssapi = importlib.import_module("gssapi")
    mechanism = gssapi.OID.from_int_seq(GSSMech.kerberos.value)
    try:
        return gssapi.Credentials(usage="accept", mechs=[mechanism], store={"keytab": keytab})
    except gssapi.exceptions.GSSError as error:
        raise SpnegoError(base_error=error, context_msg="Getting GSSAPI credential") from error
