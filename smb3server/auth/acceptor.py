"""One authentication in progress: SPNEGO with NTLM and Kerberos, or either without SPNEGO. [MS-SPNG, RFC 4178]

The peer is not authenticated. So the size of its tokens is bounded here, SPNEGO and NTLM are parsed in this room
(``exchange``, ``ntlm_logon``), and a library receives only the token of the chosen mechanism.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from smb3server.access.identity import Identity
from smb3server.auth.directory import Logons, Tickets
from smb3server.auth.exchange import AP_REQ, Exchange, Mechanism
from smb3server.auth.guessing import Guesses, LogonDelayed
from smb3server.auth.ntlm_logon import NtlmLogon
from smb3server.auth.ntlm_messages import Home
from smb3server.auth.ntlm_protection import NtlmProtection, Protection, ProtectionError
from smb3server.auth.spnego_tokens import KERBEROS, MS_KERBEROS, NTLM, gss_mechanism, pack_hint
from smb3server.auth.tickets import Ticket, open_ticket
from smb3server.auth.users import LogonError
from smb3server.process import parts
from smb3server.wire.status import NtStatus, Reason, StatusError
from smbdirect.errors import DecodeError

if TYPE_CHECKING:
    from smb3server.auth.pyspnego import TicketRefused

log = logging.getLogger(__name__)

MAX_TOKEN = 8192
"""Bytes of one security token without Kerberos. NTLM's largest tokens are below 2 KiB."""
MAX_KERBEROS_TOKEN = 65536
"""Bytes of one security token with Kerberos. Tickets of users in many groups are large (MaxTokenSize of Windows is
48000)."""


class _Ntlm:
    """Implements ``exchange.Mechanism`` for NTLM."""

    def __init__(self, logon: NtlmLogon) -> None:
        self._logon = logon
        self._challenged = False
        self._sent = self._received = 0
        """Signatures of the list of mechanisms."""
        self._protection: NtlmProtection | None = None

    @property
    def complete(self) -> bool:
        return self._logon.identity is not None

    @property
    def unproven(self) -> bool:
        return self._logon.unproven

    @property
    def protection(self) -> NtlmProtection | None:
        """What protects messages after the exchange."""
        if self._protection is None and self.complete:
            logon = self._logon
            self._protection = NtlmProtection(logon.flags, logon.session_key, self._sent, self._received)
        return self._protection

    def step(self, token: bytes) -> bytes:
        if len(token) > MAX_TOKEN:
            raise ValueError(f"NTLM token of {len(token)} bytes")
        if not self._challenged:
            self._challenged = True
            return self._logon.challenge(token)
        self._logon.authenticate(token)
        return b""

    def mic(self, data: bytes) -> bytes:
        made = self._logon.mechanism_list_mic(data, self._received)
        self._sent += 1
        return made

    def check_mic(self, data: bytes, mic: bytes) -> None:
        self._logon.check_mechanism_list_mic(data, mic, self._sent)
        self._received += 1


class _Kerberos:
    """Implements ``exchange.Mechanism`` for Kerberos. The system's GSS-API handles the tokens. [RFC 4121]"""

    unproven = False

    def __init__(self, service: str, keytab: str, answers_refusals: bool) -> None:
        """``answers_refusals``: the client gets the KRB_ERROR for the first ticket that is refused, and may send
        another. Raises ``ProtectionError`` if Kerberos is not available."""
        # Loads pyspnego and GSS-API. A server with a keytab has loaded them at its start (``kerberos_available``).
        from smb3server.auth import pyspnego

        self._library = pyspnego
        self.kerberos = pyspnego.KerberosContext(service, keytab)
        self.refusal: Reason | None = None
        """Why the first ticket was refused."""
        self.ticket: Ticket | None = None
        """The accepted ticket. None if its encryption type is one that the server does not decrypt itself."""
        self._service = service
        self._keytab = keytab
        self._answers_refusals = answers_refusals
        self._begun = False

    @property
    def protection(self) -> Protection | None:
        return self.kerberos if self.complete else None

    @property
    def complete(self) -> bool:
        return bool(self.kerberos.raw.complete)

    def step(self, token: bytes) -> bytes:
        # GSS-API would pass a token of another mechanism to that mechanism's parser, if the system has one.
        has_ticket = not self._begun
        if has_ticket and not token.startswith(AP_REQ) and gss_mechanism(token) not in (KERBEROS, MS_KERBEROS):
            raise ValueError("not a Kerberos token")
        self._begun = True
        try:
            answer = self.kerberos.step(token)
        except self._library.TicketRefused as error:
            return self._refuse(error)
        # RPC's Kerberos (GSS_C_DCE_STYLE) ends with an AP-REP of the client, which has no ticket.
        if has_ticket:
            self.ticket = open_ticket(token, self._keytab)
            unknown = self.ticket.unknown_restriction if self.ticket is not None else None
            if unknown is not None:
                raise LogonError(f"Kerberos: authorization data of unknown type {unknown}", code="kerberos")
        return answer

    def _refuse(self, error: TicketRefused) -> bytes:
        """Return the KRB_ERROR for the first ticket that is refused. Raises ``LogonError``. [MS-KILE 3.4.5]"""
        if not self._answers_refusals or self.refusal is not None or not error.token:
            raise LogonError(f"Kerberos: {error}", code="kerberos") from error
        self.refusal = _kerberos(error)
        self.kerberos = self._library.KerberosContext(self._service, self._keytab)
        self._begun = False
        return error.token

    def mic(self, data: bytes) -> bytes:
        return self.kerberos.sign(data)

    def check_mic(self, data: bytes, mic: bytes) -> None:
        self.kerberos.verify(data, mic)


class Acceptor:
    """One authentication of a client. Pass the client's tokens to ``step`` until ``identity`` is set."""

    def __init__(
        self,
        users: Logons,
        server_name: str,
        allow_guest: bool = False,
        allow_anonymous: bool = False,
        kerberos: Tickets | None = None,
        service: str = "cifs",
        ntlm: bool = True,
        guesses: Guesses | None = None,
        address: str = "",
        keytab: str = "",
        answers_refusals: bool = False,
        home: Home | None = None,
    ) -> None:
        """Prepare one authentication.

        ``kerberos`` decides which principals may log on; None means that no tickets are accepted. ``service`` is the
        first part of the server's own principal. ``ntlm`` accepts passwords. ``guesses`` counts failed logons from
        ``address``; None means that failures are not counted. ``keytab`` is the file with the server's keys; empty
        means the file that the environment names. ``answers_refusals``: the client gets the KRB_ERROR for the first
        ticket that is refused, and may send another. ``refusal`` then says why. ``home`` is the domain that the server
        is a member of.
        """
        self._answers_refusals = answers_refusals
        self._refusal_taken = False
        self._logon = NtlmLogon(users, server_name, allow_guest, allow_anonymous, guesses, home)
        self._logon.address = address
        self._principals = kerberos
        self._service = service
        self._keytab = keytab
        self._ntlm: _Ntlm | None = None
        self._kerberos: _Kerberos | None = None
        self._max_token = MAX_KERBEROS_TOKEN if kerberos is not None else MAX_TOKEN
        mechanisms: dict[bytes, Callable[[], Mechanism | None]] = {NTLM: self._make_ntlm} if ntlm else {}
        if kerberos is not None:
            mechanisms |= {KERBEROS: self._make_kerberos, MS_KERBEROS: self._make_kerberos}
        self._exchange = Exchange(mechanisms)
        self._last_answer: bytes | None = None
        """The answer to the client's last token. None until the exchange is complete."""
        self.identity: Identity | None = None
        self.expiration_time: float | None = None
        """When the credentials expire, in seconds of the monotonic clock. None means that they never expire."""

    @property
    def address(self) -> str:
        """The client's address, by which failed logons are counted."""
        return self._logon.address

    @address.setter
    def address(self, address: str) -> None:
        self._logon.address = address

    @property
    def claimed(self) -> str:
        """The account that the client named, whether it has proved its identity or not. Empty if it has not named one
        yet.

        The client chooses the text: escape it before showing it.
        """
        return self._logon.claimed

    def take_refusal(self) -> Reason | None:
        """Return why the step that was just taken has refused a ticket and answered with a KRB_ERROR, else None."""
        kerberos = self._kerberos
        if kerberos is None or kerberos.refusal is None or self._refusal_taken:
            return None
        self._refusal_taken = True
        return kerberos.refusal

    def step(self, token: bytes) -> bytes:
        """Return the answer to the client's token.

        Raises ``StatusError``: LOGON_FAILURE, ACCOUNT_LOCKED_OUT, or INVALID_PARAMETER for a malformed token. Raises
        ``LogonDelayed`` if the step must be repeated later with the same token.
        """
        if len(token) > self._max_token:
            raise StatusError(NtStatus.INVALID_PARAMETER, reason=_malformed(f"token of {len(token)} bytes"))
        if self._last_answer is not None:
            # The exchange is over. Only the answer to who the user is was not there yet.
            self.identity = self._proven()
            return self._last_answer
        try:
            answer = self._exchange.step(token)
        except LogonDelayed:
            raise
        except LogonError as error:
            raise StatusError(error.status, reason=error.reason) from error
        except DecodeError as error:
            raise StatusError(NtStatus.INVALID_PARAMETER, reason=_malformed(str(error))) from error
        except ProtectionError as error:
            raise StatusError(NtStatus.LOGON_FAILURE, reason=Reason("bad_exchange", str(error))) from error
        except Exception as error:
            if self._kerberos is not None and self._kerberos.kerberos.begun:
                # The ticket is expired, for another service, replayed, or not authentic.
                raise StatusError(NtStatus.LOGON_FAILURE, reason=_kerberos(error)) from error
            # The libraries' parsers get input of an unauthenticated peer, and may raise any exception.
            raise StatusError(NtStatus.INVALID_PARAMETER, reason=_malformed(repr(error))) from error
        if self._exchange.complete:
            self._last_answer = answer
            self.identity = self._proven()
        return answer

    def _make_ntlm(self) -> Mechanism:
        self._ntlm = _Ntlm(self._logon)
        return self._ntlm

    def _make_kerberos(self) -> Mechanism | None:
        try:
            self._kerberos = _Kerberos(self._service, self._keytab, self._answers_refusals)
        except (ImportError, ProtectionError) as error:
            log.warning("Kerberos is not available: %s", error)
            return None
        return self._kerberos

    def _proven(self) -> Identity:
        """Return the identity that the chosen mechanism has established. Raises ``StatusError``."""
        if self._exchange.chosen is self._kerberos and self._kerberos is not None:
            return self._kerberos_identity(self._kerberos)
        if self._logon.identity is None:
            raise StatusError(NtStatus.LOGON_FAILURE)
        return self._logon.identity

    def _kerberos_identity(self, kerberos: _Kerberos) -> Identity:
        """Return the identity of the ticket's client, and set when the ticket expires. Raises ``StatusError``, and
        ``LogonDelayed``."""
        if self._principals is None:
            raise StatusError(NtStatus.LOGON_FAILURE)
        try:
            identity = self._principals.identity_of(kerberos.kerberos.raw.client_principal or "", kerberos.ticket)
        except LogonError as error:
            raise StatusError(error.status, reason=error.reason) from error
        except ValueError as error:
            raise StatusError(NtStatus.LOGON_FAILURE, reason=_kerberos(error)) from error
        self.expiration_time = time.monotonic() + kerberos.kerberos.lifetime
        return identity

    @property
    def mechanism(self) -> str:
        """The name of the chosen mechanism, Kerberos or NTLM."""
        return "Kerberos" if isinstance(self._exchange.chosen, _Kerberos) else "NTLM"

    @property
    def protection(self) -> Protection | None:
        """What the completed authentication protects messages with. None before it is complete."""
        chosen = self._exchange.chosen
        return chosen.protection if isinstance(chosen, _Ntlm | _Kerberos) else None

    @property
    def session_key(self) -> bytes:
        """The full session key of the completed authentication."""
        if self._exchange.chosen is self._kerberos and self._kerberos is not None:
            return self._kerberos.kerberos.raw.session_key  # type: ignore[no-any-return]
        return self._logon.session_key


def _malformed(detail: str) -> Reason:
    return Reason("malformed", f"malformed security token: {detail}")


def _kerberos(error: Exception) -> Reason:
    return Reason("kerberos", f"Kerberos: {error}")


def hint_token(kerberos: bool = False, ntlm: bool = True) -> bytes:
    """Return the NegTokenInit2 for the negotiate response. [MS-SPNG 2.2.1]"""
    return pack_hint(kerberos, ntlm or not kerberos)


def keytab_realms(keytab: str) -> frozenset[str]:
    """Return the realms for whose service cifs a keytab has a key. Raises ``ValueError`` if it cannot be read or has
    none."""
    krb5 = importlib.import_module("krb5")
    try:
        context = krb5.init_context()
        entries = list(krb5.kt_resolve(context, keytab.encode()))
        names = {krb5.unparse_name_flags(context, entry.principal).decode(errors="replace") for entry in entries}
    except krb5.Krb5Error as error:
        raise ValueError(str(error)) from error
    realms = frozenset(name.rpartition("@")[2] for name in names if name.casefold().startswith("cifs/"))
    if not realms:
        known = ", ".join(sorted(names)) or "nothing"
        raise ValueError(f"no key for a service cifs/HOST@REALM in it, only for {known}")
    return realms


def kerberos_available() -> str | None:
    """Return None if Kerberos is available, otherwise the reason why it is not."""
    try:
        importlib.import_module("gssapi")
        importlib.import_module("krb5")
        # So that the first client with a ticket does not wait for it.
        importlib.import_module("smb3server.auth.pyspnego")
    except ImportError as error:
        return f"{error}; {parts.remedy('kerberos')}"
    return None
