"""The usual logon without a general SPNEGO machine: the client's first choice is NTLM, and its first token is that
mechanism's (RFC 4178 3.2); or NTLM comes bare. Everything else is for ``acceptor`` and pyspnego.

NTLM being the client's first choice, nobody in between can have talked it out of a better one by changing the list, so
that a mechListMIC is optional (RFC 4178 5); where one comes it is verified and answered.
"""

from __future__ import annotations

from smb3server.auth import ntlm_messages, spnego_tokens
from smb3server.auth.ntlm_logon import LogonError, NtlmLogon
from smb3server.auth.spnego_tokens import ACCEPT_COMPLETED, ACCEPT_INCOMPLETE, NTLM, REJECT, REQUEST_MIC, Resp


class ShortExchange:
    """``begin`` one."""

    __slots__ = ("_logon", "_mechanisms", "_token")

    def __init__(self, logon: NtlmLogon, mechanisms: bytes, token: bytes) -> None:
        self._logon = logon
        self._mechanisms = mechanisms
        self._token = token

    @classmethod
    def begin(cls, token: bytes, logon: NtlmLogon) -> ShortExchange | None:
        """For a client's first token; None if it takes more."""
        if token.startswith(ntlm_messages.SIGNATURE):
            return cls(logon, b"", token)
        try:
            init = spnego_tokens.parse_init(token)
        except ValueError:
            return None
        if init.first != NTLM or init.mic or not ntlm_messages.is_negotiate(init.token):
            return None
        return cls(logon, init.mechanisms, init.token)

    def step(self, token: bytes) -> bytes:
        """The answer; the logon has an identity once it is the last. Raises ``LogonError``, and ``ValueError`` or
        ``DecodeError`` for a token that is none."""
        logon = self._logon
        if self._token:
            first, self._token = self._token, b""
            challenge = logon.challenge(first)
            if not self._mechanisms:
                return challenge
            return spnego_tokens.pack_resp(Resp(ACCEPT_INCOMPLETE, NTLM, challenge, None))
        if not self._mechanisms:
            logon.authenticate(token)
            return b""
        resp = spnego_tokens.parse_resp(token)
        if resp.state == REJECT:
            raise LogonError(context_msg="the client rejects")
        # Of these only an acceptor's first answer may speak (RFC 4178 4.2.2).
        if resp.state == REQUEST_MIC or resp.mechanism not in (None, NTLM):
            raise ValueError("not an initiator's NegTokenResp")
        if not resp.token:
            raise LogonError(context_msg="no answer to the challenge")
        logon.authenticate(resp.token)
        return spnego_tokens.pack_resp(Resp(ACCEPT_COMPLETED, None, None, self._mic(resp)))

    def _mic(self, resp: Resp) -> bytes | None:
        # Old clients repeat the token where the mechListMIC belongs. A guest's comes of a password that nobody here
        # knows: there is nothing to verify it with, nor to make one.
        if not resp.mic or resp.mic == resp.token or self._logon.unproven:
            return None
        try:
            self._logon.check_mechanism_list_mic(self._mechanisms, resp.mic)
        except LogonError:
            self._logon.identity = None
            raise
        return self._logon.mechanism_list_mic(self._mechanisms)
