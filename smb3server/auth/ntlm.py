"""The NTLM acceptor with pyspnego's protection of messages afterwards (MS-NLMP 3.4).

pyspnego's own acceptor reads accounts from a file named in the environment, computes the MIC over re-encoded messages
and knows no anonymous users; ``ntlm_logon`` stands in for those steps.
"""

from __future__ import annotations

import hmac
from typing import Any

from spnego._context import ContextProxy, ContextReq
from spnego._ntlm import NTLMProxy
from spnego._ntlm_raw.messages import NegotiateFlags
from spnego.exceptions import InvalidTokenError, NegotiateOptions

from smb3server.access.identity import Identity
from smb3server.auth.ntlm_logon import NtlmLogon


class NtlmAcceptor(NTLMProxy):  # type: ignore[misc]
    """``identity`` is set once ``complete``."""

    def __init__(self, logon: NtlmLogon) -> None:
        # Not NTLMProxy's own: it insists on the credential file.
        ContextProxy.__init__(self, [], None, None, None, ContextReq.default, "accept", "ntlm", NegotiateOptions.none)
        self._logon = logon
        self._complete = False
        # pyspnego then writes no token into its log, not even into one that nobody reads.
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
    def identity(self) -> Identity | None:
        return self._logon.identity

    @property
    def extended_session_security(self) -> bool:
        """Of the completed authentication."""
        return bool(self._context_attr & NegotiateFlags.extended_session_security)

    def seal_between(self, before: bytes, data: bytes, after: bytes) -> tuple[bytes, bytes]:
        """``data`` encrypted, and a signature of all three parts (MS-NLMP 3.4.3, 3.4.4.2). What ``wrap_iov`` does with
        extended session security, without its lists: thousands of clients are told of a failure at once."""
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
