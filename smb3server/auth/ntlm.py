"""NTLMv2 acceptor (MS-NLMP 3.2.5) on pyspnego's messages, with accounts in memory.

pyspnego's own acceptor reads accounts from a file named in the environment, computes the MIC over re-encoded messages
and knows no anonymous users; those steps are replaced here. LM and NTLMv1 responses are refused.
"""

from __future__ import annotations

import hmac
import os
import struct
from typing import Any

from spnego._context import ContextProxy, ContextReq
from spnego._ntlm import NTLMProxy
from spnego._ntlm_raw.crypto import hmac_md5, ntowfv2, rc4k
from spnego._ntlm_raw.messages import (
    Authenticate,
    AvFlags,
    AvId,
    Challenge,
    FileTime,
    Negotiate,
    NegotiateFlags,
    NTClientChallengeV2,
    TargetInfo,
    Version,
)
from spnego.exceptions import InvalidTokenError, NegotiateOptions

from smb3server.auth.users import UserDatabase
from smb3server.session import Identity

_MIC_OFFSET = 72
"""Of the MIC in AUTHENTICATE_MESSAGE (MS-NLMP 2.2.1.3)."""
_ANSWERED_FLAGS = (
    NegotiateFlags.key_56
    | NegotiateFlags.key_exch
    | NegotiateFlags.key_128
    | NegotiateFlags.version
    | NegotiateFlags.extended_session_security
    | NegotiateFlags.always_sign
    | NegotiateFlags.ntlm
    | NegotiateFlags.seal
    | NegotiateFlags.sign
    | NegotiateFlags.unicode
)
_AV_PAIR = struct.Struct("<HH")
_PROOF_SIZE = 16
_CHALLENGE_V2_SIZE = 28
"""Bytes of NTLMv2_CLIENT_CHALLENGE before its AvPairs (MS-NLMP 2.2.2.7)."""


class LogonError(InvalidTokenError):  # type: ignore[misc]
    """Unknown user or wrong proof: STATUS_LOGON_FAILURE."""


def _check_av_pairs(challenge: bytes) -> None:
    """Windows looks at the form of NTLMv2_CLIENT_CHALLENGE before the proof. Raises ``ValueError``, which makes it
    INVALID_PARAMETER."""
    offset = _CHALLENGE_V2_SIZE
    while offset + 4 <= len(challenge):
        identifier, length = _AV_PAIR.unpack_from(challenge, offset)
        offset += 4 + length
        if identifier == AvId.eol:
            return
    raise ValueError("AvPairs of the NTLMv2 response do not end")


class NtlmAcceptor(NTLMProxy):  # type: ignore[misc]
    """``identity`` is set once ``complete``."""

    def __init__(self, users: UserDatabase, server_name: str, allow_guest: bool, allow_anonymous: bool) -> None:
        # Not NTLMProxy's own: it insists on the credential file.
        ContextProxy.__init__(self, [], None, None, None, ContextReq.default, "accept", "ntlm", NegotiateOptions.none)
        self._users = users
        self._server_name = server_name
        self._allow_guest = allow_guest
        self._allow_anonymous = allow_anonymous
        self._raw_negotiate = b""
        self._raw_challenge = b""
        self._server_challenge = b""
        self._complete = False
        self._credential = None
        self._temp_negotiate = None
        self._temp_challenge = None
        self._mic_required = False
        self._session_key: bytes | None = None
        self._sign_key_out: bytes | None = None
        self._sign_key_in: bytes | None = None
        self._handle_out: Any = None
        self._handle_in: Any = None
        self._NTLMProxy__seq_num_in = 0
        self._NTLMProxy__seq_num_out = 0
        self.identity: Identity | None = None

    def _step_accept_negotiate(self, token: bytes) -> bytes:
        negotiate = Negotiate.unpack(token)
        if not negotiate.flags & NegotiateFlags.unicode:
            raise InvalidTokenError(context_msg="client does not speak Unicode")
        flags = (
            negotiate.flags & _ANSWERED_FLAGS
            | NegotiateFlags.request_target
            | NegotiateFlags.ntlm
            | NegotiateFlags.target_info
            | NegotiateFlags.target_type_server
        )
        target_info = TargetInfo()
        target_info[AvId.nb_domain_name] = self._server_name
        target_info[AvId.nb_computer_name] = self._server_name
        target_info[AvId.dns_domain_name] = self._server_name.lower()
        target_info[AvId.dns_computer_name] = self._server_name.lower()
        target_info[AvId.timestamp] = FileTime.now()
        self._server_challenge = os.urandom(8)
        challenge = Challenge(
            flags,
            self._server_challenge,
            target_name=self._server_name,
            target_info=target_info,
            version=Version(10, 0, 20348) if flags & NegotiateFlags.version else None,
        ).pack()
        self._temp_negotiate = negotiate
        self._raw_negotiate = bytes(token)
        self._raw_challenge = challenge
        return challenge  # type: ignore[no-any-return]

    def _step_accept_authenticate(self, token: bytes, channel_bindings: object) -> None:
        auth = Authenticate.unpack(token)
        name, domain = auth.user_name or "", auth.domain_name or ""
        response = auth.nt_challenge_response or b""
        if not name and not response:
            self._accept_unproven(auth, Identity("", anonymous=True), self._allow_anonymous)
            return
        account = self._users.find(name)
        if account is None:
            self._accept_unproven(auth, Identity(name, domain, guest=True), self._allow_guest)
            return
        if len(response) < _PROOF_SIZE + _CHALLENGE_V2_SIZE:
            raise LogonError(context_msg="no NTLMv2 response")
        proof, blob = response[:_PROOF_SIZE], response[_PROOF_SIZE:]
        _check_av_pairs(blob)
        key = ntowfv2(name, account.nt_hash, domain)
        if not hmac.compare_digest(hmac_md5(key, self._server_challenge + blob), proof):
            raise LogonError(context_msg="wrong password")
        session_base_key = hmac_md5(key, proof)
        self._session_key = self._exchange(auth, session_base_key)
        flags = NTClientChallengeV2.unpack(blob).av_pairs.get(AvId.flags, AvFlags(0))
        if flags & AvFlags.mic:
            self._verify_mic(token)
        self._context_attr = auth.flags
        self._complete = True
        self.identity = Identity(account.name, domain, user=account.user)

    def _exchange(self, auth: Authenticate, key: bytes) -> bytes:
        """ExportedSessionKey (MS-NLMP 3.2.5.1.2)."""
        if auth.flags & NegotiateFlags.key_exch and auth.flags & (NegotiateFlags.sign | NegotiateFlags.seal):
            encrypted = auth.encrypted_random_session_key or b""
            if len(encrypted) != 16:
                raise InvalidTokenError(context_msg="session key of a wrong size")
            return rc4k(key, encrypted)  # type: ignore[no-any-return]
        return key

    def _verify_mic(self, token: bytes) -> None:
        zeroed = bytearray(token)
        given = bytes(zeroed[_MIC_OFFSET : _MIC_OFFSET + 16])
        zeroed[_MIC_OFFSET : _MIC_OFFSET + 16] = bytes(16)
        expected = hmac_md5(self._session_key, self._raw_negotiate + self._raw_challenge + bytes(zeroed))
        if not hmac.compare_digest(given, expected):
            raise LogonError(context_msg="wrong MIC")

    def _accept_unproven(self, auth: Authenticate, identity: Identity, allowed: bool) -> None:
        """Anonymous and guest: there is no shared secret, so the session has no keys."""
        if not allowed:
            raise LogonError(context_msg="no such user" if identity.guest else "anonymous access is off")
        self._session_key = self._exchange(auth, bytes(16)) if identity.anonymous else bytes(16)
        self._context_attr = auth.flags
        self._complete = True
        self.identity = identity

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

    @property
    def _requires_mech_list_mic(self) -> bool:
        """A mechListMIC is verified and answered where it comes; only a change of mechanism makes it a must (RFC 4178
        5). impacket: sends a MIC of NTLM's own and no mechListMIC."""
        return False

    @property
    def unproven(self) -> bool:
        """Let in without a proof of a password."""
        return self.identity is not None and (self.identity.guest or self.identity.anonymous)
