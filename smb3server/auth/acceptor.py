"""One authentication under way: SPNEGO with NTLM and Kerberos, or either bare (MS-SPNG, RFC 4178).

The usual one, NTLM to begin with, takes a short way (``short_exchange``); pyspnego does the others.
"""

from __future__ import annotations

import importlib
import logging
import time
from typing import Any

import spnego
from spnego._context import GSSMech
from spnego._negotiate import NegotiateProxy
from spnego._spnego import NegTokenInit, unpack_token
from spnego.exceptions import BadMechanismError, SpnegoError

from smb3server.auth.ntlm import NtlmAcceptor
from smb3server.auth.ntlm_logon import LogonError, NtlmLogon
from smb3server.auth.principals import Principals
from smb3server.auth.short_exchange import ShortExchange
from smb3server.auth.users import UserDatabase
from smb3server.session import Identity
from smb3server.status import NtStatus, StatusError
from smbdirect.errors import DecodeError

log = logging.getLogger(__name__)

_AP_REQ = b"\x6e"
"""Tag of KRB_AP_REQ (RFC 4120 5.5.1)."""


class _Negotiate(NegotiateProxy):  # type: ignore[misc]
    """pyspnego's SPNEGO with the mechanisms given, and no others."""

    _complete: bool

    def __init__(self, contexts: dict[GSSMech, Any]) -> None:
        super().__init__(usage="accept", _negotiate_contexts=contexts)
        self._mechanisms = list(contexts)
        self._context_list: dict[GSSMech, Any] = {}
        for context in contexts.values():
            context._is_wrapped = True

    def _preferred_mech_list(self) -> list[GSSMech]:
        return self._mechanisms

    def _rebuild_context_list(self, mech_types: list[str] | None = None, channel_bindings: Any = None) -> list[str]:
        super()._rebuild_context_list(mech_types, channel_bindings)
        if mech_types is not None:
            # In the client's order: its first choice needs no mechListMIC (RFC 4178 5), its token is for that one.
            offered: dict[GSSMech, Any] = {}
            for oid in mech_types:
                for mech, entry in self._context_list.items():
                    if self._is_same_mech(mech, oid):
                        offered.setdefault(mech, entry)
            if not offered:
                raise BadMechanismError(context_msg="no common mechanism")
            self._context_list = offered
            self._mechanisms = list(offered)
        return [mech.value for mech in self._context_list]

    def _step_spnego_input(self, in_token: bytes | None = None, channel_bindings: Any = None) -> Any:
        complete: bool = self._complete
        token, mic, is_spnego = super()._step_spnego_input(in_token, channel_bindings)
        # Whether it is complete is for the acceptor to know, whatever negState the client sends.
        self._complete = complete
        if is_spnego and token and self._mech_list and not self._mech_sent:
            # RFC 4178 4.2.1: the optimistic token is for the first mechanism of the client's; of no use for another.
            first = self._mech_list[0]
            if self._init_sent and not self._is_same_mech(self._chosen_mech, first):
                token = None
        return token, mic, is_spnego

    def _step_spnego_mic(self, in_mic: bytes | None = None) -> bytes | None:
        """A guest's comes of a password that nobody here knows: there is nothing to verify it with, nor to make one."""
        if getattr(self._context, "unproven", False):
            self._mic_sent = self._mic_recv = True
            return None
        return super()._step_spnego_mic(in_mic)  # type: ignore[no-any-return]


class Acceptor:
    """Feed it the client's tokens until ``identity`` is set."""

    def __init__(
        self,
        users: UserDatabase,
        server_name: str,
        allow_guest: bool = False,
        allow_anonymous: bool = False,
        kerberos: Principals | None = None,
        service: str = "cifs",
        keys_only: bool = False,
        ntlm: bool = True,
    ) -> None:
        """``kerberos``: which principals get in; None: no tickets are taken. ``service``: first part of the server's
        own principal. ``keys_only``: nobody wants its ``context``, so NTLM may take the short way. ``ntlm``: passwords
        are taken."""
        self._logon = NtlmLogon(users, server_name, allow_guest, allow_anonymous)
        self._principals = kerberos
        self._with_ntlm = ntlm
        self._service = service
        self._keys_only = keys_only
        self._short: ShortExchange | None = None
        self._ntlm: NtlmAcceptor | None = None
        self._kerberos: Any = None
        self._context: Any = None
        self._begun = False
        self.identity: Identity | None = None
        self.expiration_time: float | None = None
        """When the credentials expire, monotonic seconds; None: never."""

    def step(self, token: bytes) -> bytes:
        """The answer to the client's token. Raises LOGON_FAILURE, or INVALID_PARAMETER for a token that is none."""
        if not self._begun:
            self._begun = True
            if self._keys_only and self._with_ntlm:
                self._short = ShortExchange.begin(token, self._logon)
            if self._short is None:
                self._make_context(token)
        try:
            answer = self._short.step(token) if self._short is not None else self._context.step(token)
        except LogonError as error:
            raise StatusError(NtStatus.LOGON_FAILURE) from error
        except DecodeError as error:
            raise StatusError(NtStatus.INVALID_PARAMETER) from error
        except SpnegoError as error:
            log.debug("authentication failed: %s", error)
            raise StatusError(NtStatus.LOGON_FAILURE) from error
        except Exception as error:
            if self._kerberos is not None and self._kerberos._context is not None:
                # A ticket that is old, for somebody else, seen before, or not authentic.
                log.info("Kerberos: %s", error)
                raise StatusError(NtStatus.LOGON_FAILURE) from error
            # The parsers behind this meet whatever a stranger sends, and raise whatever comes to them.
            log.debug("malformed security token: %r", error)
            raise StatusError(NtStatus.INVALID_PARAMETER) from error
        if self._short is not None:
            self.identity = self._logon.identity
        elif self._context.complete:
            self.identity = self._proven()
        return answer or b""

    def _make_context(self, token: bytes) -> None:
        """pyspnego's, for this first token."""
        contexts: dict[GSSMech, Any] = {}
        if self._principals is not None:
            try:
                contexts[GSSMech.kerberos] = spnego.server(protocol="kerberos", service=self._service)
            except SpnegoError as error:
                log.warning("Kerberos is not available: %s", error)
        if self._with_ntlm:
            contexts[GSSMech.ntlm] = self._ntlm = NtlmAcceptor(self._logon)
        if not contexts:
            raise StatusError(NtStatus.LOGON_FAILURE)
        self._kerberos = contexts.get(GSSMech.kerberos)
        self._context = _Negotiate(contexts)
        if self._kerberos is not None and token[:1] == _AP_REQ:
            # RPC's Kerberos (GSS_C_DCE_STYLE) comes without the mechanism that GSS tokens begin with.
            self._context = self._kerberos
            self._context._is_wrapped = False

    def _proven(self) -> Identity:
        """Who the mechanism that was chosen says it is."""
        chosen = self._kerberos if self._context is self._kerberos else self._context._context
        if self._ntlm is not None and chosen is self._ntlm and self._ntlm.complete and self._ntlm.identity is not None:
            return self._ntlm.identity  # type: ignore[no-any-return]
        if self._kerberos is not None and chosen is self._kerberos and self._kerberos.complete:
            return self._kerberos_identity(self._kerberos)
        raise StatusError(NtStatus.LOGON_FAILURE)

    def _kerberos_identity(self, context: Any) -> Identity:
        """The ticket's client, for as long as the ticket lasts."""
        if self._principals is None:
            raise StatusError(NtStatus.LOGON_FAILURE)
        try:
            identity = self._principals.identity_of(context.client_principal or "")
        except ValueError as error:
            log.warning("Kerberos: %s", error)
            raise StatusError(NtStatus.LOGON_FAILURE) from error
        self.expiration_time = time.monotonic() + context._context.lifetime
        return identity

    @property
    def context(self) -> Any:
        """pyspnego's context, for messages protected by the completed authentication itself; None if there
        was none (``keys_only``)."""
        return self._context

    @property
    def ntlm(self) -> NtlmAcceptor | None:
        """None if the mechanism is another."""
        return self._ntlm if self._ntlm is not None and self._ntlm.complete else None

    @property
    def extended_session_security(self) -> bool | None:
        """Whether NTLM's was negotiated (MS-NLMP 2.2.2.5); None if the mechanism is another."""
        return self.ntlm.extended_session_security if self.ntlm is not None else None

    @property
    def session_key(self) -> bytes:
        """Of the completed authentication, whole."""
        if self._short is not None:
            return self._logon.session_key
        return self._context.session_key  # type: ignore[no-any-return]


def hint_token(kerberos: bool = False, ntlm: bool = True) -> bytes:
    """NegTokenInit2 for the negotiate response (MS-SPNG 2.2.1)."""
    mechanisms = [GSSMech._ms_kerberos.value, GSSMech.kerberos.value] if kerberos else []
    if ntlm or not mechanisms:
        mechanisms.append(GSSMech.ntlm.value)
    token = NegTokenInit(mechanisms, hint_name=b"not_defined_in_RFC4178@please_ignore").pack()
    unpack_token(token)
    return token  # type: ignore[no-any-return]


def keytab_realms(keytab: str) -> frozenset[str]:
    """Realms that it has a key for the service cifs of. Raises ``ValueError`` where it cannot be read or has none."""
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
    """None if Kerberos can be accepted, else why not."""
    try:
        importlib.import_module("gssapi")
        importlib.import_module("krb5")
    except ImportError as error:
        return f"{error}: install smb3server[kerberos]"
    return None
