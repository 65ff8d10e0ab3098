"""The client's side of an anonymous logon by NTLM: without name, password and key. [MS-NLMP 3.1.5.1.2]"""

from __future__ import annotations

from smb3server.auth.ntlm_messages import (
    AUTHENTICATE_FIELDS,
    NEGOTIATE_FIELDS,
    AuthenticateFields,
    Flags,
    NegotiateFields,
)

_OFFERED = int(Flags.UNICODE | Flags.REQUEST_TARGET | Flags.NTLM | Flags.EXTENDED_SESSION_SECURITY | Flags.KEY_128)
_ANONYMOUS = 0x00000800
"""NTLMSSP_NEGOTIATE_ANONYMOUS. [MS-NLMP 2.2.2.5]"""
_NO_NAMES = bytes(16)
"""The empty domain and workstation of a NEGOTIATE_MESSAGE. [MS-NLMP 2.2.1.1]"""
_END = AUTHENTICATE_FIELDS.size


class AnonymousLogon:
    """What a session takes for a security context."""

    session_key = b""
    complete = False

    def step(self, token: bytes | None) -> bytes:
        """Return the message that follows ``token``, the server's; the first one follows none.

        The last message has no user, no NT response, and an LM response of one zero byte.
        """
        if token is None:
            return NEGOTIATE_FIELDS.pack(NegotiateFields(flags=_OFFERED)) + _NO_NAMES
        self.complete = True
        after = _END + 1
        return (
            AUTHENTICATE_FIELDS.pack(
                AuthenticateFields(
                    lm_length=1,
                    lm_max_length=1,
                    lm_offset=_END,
                    nt_offset=after,
                    domain_offset=after,
                    user_offset=after,
                    workstation_offset=after,
                    key_offset=after,
                    flags=_OFFERED | _ANONYMOUS,
                )
            )
            + b"\0"
        )
