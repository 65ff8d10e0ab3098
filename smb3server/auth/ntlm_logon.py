"""The acceptor of NTLMv2, with accounts in memory. LM and NTLMv1 responses are refused. [MS-NLMP 3.2.5]

Only what a logon needs is computed: three HMAC-MD5 and an RC4 of 16 bytes, and one more HMAC-MD5 for a MIC.
``ntlm_protection`` handles keys that protect messages.
"""

from __future__ import annotations

import hmac
import os

from smb3server.access.identity import Identity
from smb3server.auth import ntlm_messages as messages
from smb3server.auth.directory import Logons
from smb3server.auth.guessing import Guesses, LogonDelayed, LogonRefused
from smb3server.auth.ntlm_messages import CLIENT_CHALLENGE_SIZE, MIC_OFFSET, MIC_SIZE, PROOF_SIZE, Authenticate, Flags
from smb3server.auth.ntlm_protection import ACCEPTOR, INITIATOR, decrypt_key, first_signature
from smb3server.auth.users import LogonError
from smb3server.wire.status import NtStatus

_UNICODE, _OEM = int(Flags.UNICODE), int(Flags.OEM)
_KEY_EXCHANGE = int(Flags.KEY_EXCHANGE)
_PROTECTS = int(Flags.SIGN | Flags.SEAL)
_RESTRICTIONS = {
    NtStatus.ACCOUNT_DISABLED: ("disabled", "the account is disabled"),
    NtStatus.ACCOUNT_EXPIRED: ("expired", "the account has expired"),
    NtStatus.PASSWORD_MUST_CHANGE: ("must_change", "the password must be changed first"),
}
"""Codes and words for the log."""


class NtlmLogon:
    """The acceptor's state of one NTLM logon.

    Call ``challenge``, then ``authenticate``, once each. ``identity`` is set when ``authenticate`` has succeeded. Both
    raise ``LogonError``, and ``ValueError`` or ``DecodeError`` for a malformed message. ``authenticate`` may raise
    ``LogonDelayed``: then nothing has changed, and it must be called again later.
    """

    __slots__ = (
        "_allow_anonymous",
        "_allow_guest",
        "_challenge",
        "_guesses",
        "_negotiate",
        "_not_before",
        "_server_challenge",
        "_home",
        "_server_name",
        "_users",
        "address",
        "claimed",
        "flags",
        "identity",
        "session_key",
    )

    def __init__(
        self,
        users: Logons,
        server_name: str,
        allow_guest: bool,
        allow_anonymous: bool,
        guesses: Guesses | None = None,
        home: messages.Home | None = None,
    ) -> None:
        """Prepare one logon. ``guesses`` counts failures and delays logons; None means that failures are not
        counted. ``home`` is the domain that the server is a member of."""
        self._home = home
        self._guesses = guesses
        self._not_before: float | None = None
        """Time of ``guesses.clock`` from which the client's proof may be verified. None means that it is not known
        yet."""
        self.address = ""
        """The client's address, by which failures are counted."""
        self.claimed = ""
        """The account that the client named, with its domain if it named one, proven or not."""
        self._users = users
        self._server_name = server_name
        self._allow_guest = allow_guest
        self._allow_anonymous = allow_anonymous
        self._negotiate = b""
        self._challenge = b""
        self._server_challenge = b""
        self.identity: Identity | None = None
        self.session_key = b""
        """ExportedSessionKey."""
        self.flags = 0
        """NegotiateFlags of the AUTHENTICATE_MESSAGE."""

    @property
    def unproven(self) -> bool:
        """Whether the client was admitted as guest or anonymous user, without a proof of a password."""
        return self.identity is not None and (self.identity.guest or self.identity.anonymous)

    def challenge(self, token: bytes) -> bytes:
        """Answer the NEGOTIATE_MESSAGE ``token`` with a CHALLENGE_MESSAGE. [MS-NLMP 3.2.5.1.1]"""
        offered = messages.parse_negotiate(token)
        if not offered & (_UNICODE | _OEM):
            raise LogonError("the client supports neither Unicode nor OEM characters")
        self._server_challenge = os.urandom(8)
        self._negotiate = token
        self._challenge = messages.pack_challenge(
            messages.challenge_flags(offered), self._server_challenge, self._server_name, self._home
        )
        return self._challenge

    def authenticate(self, token: bytes) -> None:
        """Check the AUTHENTICATE_MESSAGE ``token`` and set ``identity``. [MS-NLMP 3.2.5.1.2]"""
        if self.identity is not None or not self._challenge:
            raise LogonError("no challenge is open")
        given = messages.parse_authenticate(token)
        response = given.nt_response
        anonymous = not given.user and not response
        self.claimed = f"{given.domain}\\{given.user}" if given.domain else given.user
        if not anonymous:
            self._await_turn(given.user)
        # A challenge is valid for one answer, right or wrong.
        challenge, self._challenge = self._challenge, b""
        if anonymous:
            self._accept_unproven(given, Identity("", anonymous=True), self._allow_anonymous)
            return
        if self._allow_guest and not self._users.judges(given.user, given.domain):
            if self._guesses is not None:
                self._guesses.withdraw(given.user, self.address)
            self._accept_unproven(given, Identity(given.user, given.domain, guest=True), True)
            return
        try:
            self._prove(given, challenge, token)
        except LogonDelayed:
            self._challenge = challenge
            raise
        except LogonError as error:
            if self._guesses is not None and error.status != NtStatus.LOGON_FAILURE:
                self._guesses.withdraw(given.user, self.address)
            raise
        if self._guesses is not None:
            self._guesses.proved(given.user, self.address)

    def _await_turn(self, name: str) -> None:
        """Raise ``LogonDelayed`` until the proof may be verified, or ``LogonError`` if it is refused."""
        guesses = self._guesses
        if guesses is None:
            return
        now = guesses.clock()
        if self._not_before is None:
            try:
                self._not_before = now + guesses.begin(name, self.address)
            except LogonRefused as refusal:
                self._challenge = b""
                status = NtStatus.ACCOUNT_LOCKED_OUT if refusal.locked else NtStatus.LOGON_FAILURE
                code = "locked_out" if refusal.locked else "too_many_failures"
                raise LogonError(str(refusal), status, code) from refusal
        if now < self._not_before:
            raise LogonDelayed(self._not_before - now)

    def _prove(self, given: Authenticate, challenge: bytes, token: bytes) -> None:
        """Verify the NTLMv2 response."""
        response = given.nt_response
        if len(response) < PROOF_SIZE + CLIENT_CHALLENGE_SIZE:
            raise LogonError("no NTLMv2 response")
        # Windows checks the format before the proof.
        av_flags = messages.av_flags(response[PROOF_SIZE:])
        account, key = self._users.prove(given.user, given.domain, self._server_challenge, response)
        session_key = _exchange(given, key)
        if av_flags & messages.AV_FLAG_MIC:
            self._verify_mic(session_key, challenge, token)
        # Only somebody who knows the password learns more about the account.
        status = account.refusal()
        if status is not None:
            code, words = _RESTRICTIONS.get(status, ("restricted", status.name))
            raise LogonError(f"the password is right, but {words}", status, code)
        self.session_key = session_key
        self.flags = given.flags
        self.identity = account.identity

    def _verify_mic(self, session_key: bytes, challenge: bytes, token: bytes) -> None:
        """Verify the MIC over all three messages as they were sent, with its own bytes zero. [MS-NLMP 3.2.5.1.2]"""
        end = MIC_OFFSET + MIC_SIZE
        if len(token) < end:
            raise LogonError("no MIC")
        covered = b"".join((self._negotiate, challenge, token[:MIC_OFFSET], bytes(MIC_SIZE), token[end:]))
        if not hmac.compare_digest(hmac.digest(session_key, covered, "md5"), token[MIC_OFFSET:end]):
            raise LogonError("wrong MIC")

    def _accept_unproven(self, given: Authenticate, identity: Identity, allowed: bool) -> None:
        """Accept an anonymous user or a guest. There is no shared secret, so the session has no keys."""
        if not allowed:
            raise LogonError("anonymous access is off", code="anonymous")
        self.session_key = _exchange(given, bytes(16)) if identity.anonymous else bytes(16)
        self.flags = given.flags
        self.identity = identity

    def mechanism_list_mic(self, mechanisms: bytes, earlier: int) -> bytes:
        """Return the acceptor's mechListMIC for the MechTypeList ``mechanisms``. ``earlier``: how many the client has
        sent. [RFC 4178 5]"""
        return first_signature(self.flags, self.session_key, ACCEPTOR, mechanisms, earlier)

    def check_mechanism_list_mic(self, mechanisms: bytes, mic: bytes, earlier: int) -> None:
        """Raise ``LogonError`` if the client's mechListMIC is wrong. ``earlier``: how many it was sent. [RFC 4178 5]"""
        expected = first_signature(self.flags, self.session_key, INITIATOR, mechanisms, earlier)
        if not hmac.compare_digest(expected, mic):
            raise LogonError("wrong mechListMIC")


def _exchange(given: Authenticate, key: bytes) -> bytes:
    """Return the ExportedSessionKey. Raises ``LogonError``. [MS-NLMP 3.2.5.1.2]"""
    if given.flags & _KEY_EXCHANGE and given.flags & _PROTECTS:
        if len(given.encrypted_key) != 16:
            raise LogonError("session key of a wrong size")
        return decrypt_key(key, given.encrypted_key)
    return key
