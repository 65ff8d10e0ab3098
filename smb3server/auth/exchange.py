"""The acceptor of SPNEGO, or of a mechanism that comes without SPNEGO. [RFC 4178 3.2, MS-SPNG 3.2]

Tokens are parsed here (``spnego_tokens``), and only the token of the chosen mechanism is passed on to it. The first
mechanism of the client's list that is supported is chosen. A mechListMIC is required only if an earlier one of the list
is not supported (RFC 4178 5). Otherwise it is optional: if the client sends one, it is verified and answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from smb3server.auth import ntlm_messages, spnego_tokens
from smb3server.auth.spnego_tokens import (
    ACCEPT_COMPLETED,
    ACCEPT_INCOMPLETE,
    KERBEROS,
    MS_KERBEROS,
    NTLM,
    REJECT,
    REQUEST_MIC,
    Init,
    Resp,
)
from smb3server.auth.users import LogonError

AP_REQ = b"\x6e"
"""Tag of KRB_AP_REQ (RFC 4120 5.5.1)."""


class Mechanism(Protocol):
    """The acceptor of one authentication mechanism. All methods may raise ``LogonError``, and ``ValueError`` or
    ``DecodeError`` for malformed input."""

    @property
    def complete(self) -> bool: ...

    @property
    def unproven(self) -> bool:
        """Whether the client was admitted without a proof. There is then no key for a mechListMIC."""
        ...

    def step(self, token: bytes) -> bytes:
        """Return the answer to the client's token."""
        ...

    def mic(self, data: bytes) -> bytes: ...

    def check_mic(self, data: bytes, mic: bytes) -> None: ...


Mechanisms = Mapping[bytes, Callable[[], "Mechanism | None"]]
"""Makers of mechanisms, by object identifier including tag and length. They return None if the mechanism is not
available."""


class Exchange:
    """One SPNEGO exchange. Pass the client's tokens to ``step`` until it is ``complete``."""

    __slots__ = ("_bare", "_list", "_mechanisms", "_mic_due", "_mic_sent", "_oid", "chosen", "complete")

    def __init__(self, mechanisms: Mechanisms) -> None:
        self._mechanisms = mechanisms
        self.chosen: Mechanism | None = None
        self.complete = False
        self._oid = b""
        self._list = b""
        self._bare = False
        self._mic_due = False
        self._mic_sent = False

    def step(self, token: bytes) -> bytes:
        """Return the answer to the client's token.

        Raises ``LogonError``, and ``ValueError`` or ``DecodeError`` for a malformed token. After ``LogonDelayed`` the
        step may be repeated.
        """
        if self.complete:
            raise ValueError("token after the last one")
        if self.chosen is None:
            return self._begin(token)
        if self._bare:
            return self._step_bare(self.chosen, token)
        return self._continue(self.chosen, spnego_tokens.parse_resp(token))

    def _begin(self, token: bytes) -> bytes:
        bare = _bare_mechanism(token)
        if bare:
            self._bare = True
            self.chosen = self._find(bare)
            if self.chosen is None:
                raise LogonError("unknown mechanism")
            return self._step_bare(self.chosen, token)
        init = spnego_tokens.parse_init(token)
        chosen = self._choose(init)
        self._list = init.mechanisms
        answer = chosen.step(init.token) if not self._mic_due and init.token else b""
        state = REQUEST_MIC if self._mic_due else ACCEPT_INCOMPLETE
        return self._answer(chosen, state, answer, init.mic)

    def _find(self, oid: bytes) -> Mechanism | None:
        make = self._mechanisms.get(oid)
        return make() if make is not None else None

    def _choose(self, init: Init) -> Mechanism:
        for oid in init.offered:
            found = self._find(oid)
            if found is not None:
                self.chosen, self._oid = found, oid
                self._mic_due = oid != init.first
                return found
        raise LogonError("no common mechanism")

    def _step_bare(self, chosen: Mechanism, token: bytes) -> bytes:
        answer = chosen.step(token)
        self.complete = chosen.complete
        return answer

    def _continue(self, chosen: Mechanism, resp: Resp) -> bytes:
        if resp.state == REJECT:
            raise LogonError("the client rejected the mechanism")
        # Only an acceptor's first answer may have these (RFC 4178 4.2.2).
        if resp.state == REQUEST_MIC or resp.mechanism not in (None, self._oid):
            raise ValueError("not an initiator's NegTokenResp")
        answer = b""
        # Old clients repeat the token in the field of the mechListMIC.
        mic = resp.mic if resp.mic and resp.mic != resp.token else b""
        if not chosen.complete:
            if not resp.token:
                raise LogonError("no answer to the challenge")
            answer = chosen.step(resp.token)
        elif not mic:
            raise LogonError("no mechListMIC")
        return self._answer(chosen, ACCEPT_INCOMPLETE, answer, mic, first=False)

    def _answer(self, chosen: Mechanism, state: int, token: bytes, mic: bytes, first: bool = True) -> bytes:
        """Return the NegTokenResp. ``state`` is its negState, unless the exchange is complete."""
        own_mic: bytes | None = None
        if not chosen.complete:
            if mic:
                raise ValueError("mechListMIC before there is a key for it")
        elif chosen.unproven:
            # A guest's mechListMIC depends on a password that the server does not know: it can neither verify it nor
            # make its own.
            self.complete = True
        else:
            if mic:
                chosen.check_mic(self._list, mic)
            if (mic or self._mic_due) and not self._mic_sent:
                own_mic = chosen.mic(self._list)
                self._mic_sent = True
            self.complete = bool(mic) or not self._mic_due
        if self.complete:
            state = ACCEPT_COMPLETED
        return spnego_tokens.pack_resp(Resp(state, self._oid if first else None, token or None, own_mic))


def _bare_mechanism(token: bytes) -> bytes:
    """Return the mechanism of a token that comes without SPNEGO, or nothing (b"") for other tokens."""
    if token.startswith(ntlm_messages.SIGNATURE):
        return NTLM
    if token.startswith(AP_REQ):
        # Tokens of RPC's Kerberos (GSS_C_DCE_STYLE) do not begin with the mechanism, unlike other GSS tokens.
        return KERBEROS
    try:
        named = spnego_tokens.gss_mechanism(token)
    except ValueError:
        return b""
    return KERBEROS if named in (KERBEROS, MS_KERBEROS) else b""
