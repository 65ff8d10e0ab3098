"""The client's side of a logon by NTLMv2 within SPNEGO. [MS-NLMP 3.1.5.1, MS-SPNG 3.1.5, RFC 4178]

pyspnego does the same and more; importing it takes as long as everything else that listing a folder takes. It is used
for Kerberos. LM and NTLMv1 responses are never sent, and no logon goes without extended session security.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import time

from smb3server.auth import spnego_tokens as tokens
from smb3server.auth.ntlm_messages import (
    AUTHENTICATE_FIELDS,
    AV_FLAG_MIC,
    AV_PAIR,
    CHALLENGE_FIELDS,
    MIC_OFFSET,
    MIC_SIZE,
    NEGOTIATE_FIELDS,
    SIGNATURE,
    VERSION,
    AuthenticateFields,
    AvId,
    AvPair,
    Flags,
    NegotiateFields,
    nt_hash,
)
from smb3server.client.protocol.messages import LogonError
from smb3server.crypto.old import rc4
from smb3server.wire.filetime import from_ns
from smbdirect.errors import DecodeError

_OFFERED = int(
    Flags.KEY_56
    | Flags.KEY_EXCHANGE
    | Flags.KEY_128
    | Flags.VERSION
    | Flags.EXTENDED_SESSION_SECURITY
    | Flags.ALWAYS_SIGN
    | Flags.NTLM
    | Flags.SEAL
    | Flags.SIGN
    | Flags.REQUEST_TARGET
    | Flags.UNICODE
)
_NEEDED = int(Flags.UNICODE | Flags.EXTENDED_SESSION_SECURITY | Flags.TARGET_INFO)
_CHALLENGE = 2
_TARGET_NAME, _CHANNEL_BINDINGS = 9, 10
"""MsvAvTargetName and MsvAvChannelBindings. [MS-NLMP 2.2.2.1]"""
_SENT, _RECEIVED = b"client-to-server", b"server-to-client"


class NtlmLogon:
    """The steps of one logon."""

    def __init__(self, user: str, password: str, domain: str, host: str) -> None:
        """``host`` is the name by which the server is reached, which it may compare with its own."""
        self.complete = False
        self.session_key = b""
        """ExportedSessionKey."""
        self._user, self._domain = user, domain
        self._service = f"cifs/{host}"
        key = (user.upper() + domain).encode("utf-16-le", "surrogatepass")
        self._key = hmac.digest(nt_hash(password), key, "md5")
        """ResponseKeyNT. [MS-NLMP 3.3.2]"""
        # Version and MIC are not known to the layout, which ends with the flags.
        names = bytes(16)
        self._negotiate = NEGOTIATE_FIELDS.pack(NegotiateFields(flags=_OFFERED)) + names + VERSION
        self._flags = 0

    def step(self, token: bytes | None) -> bytes | None:
        """Return the message that follows ``token``, the server's; the first one follows none. Raises ``LogonError``.

        The last token of the server is checked, and nothing follows.
        """
        try:
            if token is None:
                return tokens.pack_init(tokens.NTLM, self._negotiate)
            found = tokens.parse_resp(token)
            if self.complete:
                self._check(found.mic)
                return None
            if found.mechanism not in (None, tokens.NTLM) or found.token is None:
                raise LogonError("the server takes no NTLM")
            made = self._authenticate(found.token)
        except (ValueError, DecodeError) as error:
            raise LogonError(f"the server's answer to the logon cannot be read: {error}") from error
        self.complete = True
        mic = self._sign(_SENT, tokens.mechanism_list(tokens.NTLM))
        return tokens.pack_resp(tokens.Resp(None, None, made, mic))

    def _authenticate(self, challenge: bytes) -> bytes:
        """Return the AUTHENTICATE_MESSAGE. [MS-NLMP 3.1.5.1.2]"""
        fields = CHALLENGE_FIELDS.unpack(challenge)
        if fields.signature != SIGNATURE or fields.message_type != _CHALLENGE:
            raise ValueError("not a CHALLENGE_MESSAGE")
        if fields.flags & _NEEDED != _NEEDED:
            raise LogonError("the server knows NTLM of before Windows 2000 only, which this client does not speak")
        end = fields.target_info_offset + fields.target_info_length
        if end > len(challenge):
            raise ValueError("TargetInfo is not within the message")
        pairs = _pairs(challenge[fields.target_info_offset : end])
        flags = self._flags = fields.flags & _OFFERED
        clock = pairs.get(AvId.TIMESTAMP)
        if clock is not None:
            known = int.from_bytes(pairs.get(AvId.FLAGS, bytes(4)), "little")
            pairs[AvId.FLAGS] = struct.pack("<I", known | AV_FLAG_MIC)
        pairs[_CHANNEL_BINDINGS] = bytes(16)
        pairs[_TARGET_NAME] = self._service.encode("utf-16-le")
        info = b"".join(AV_PAIR.pack(AvPair(kind, len(value))) + value for kind, value in pairs.items())
        info += bytes(AV_PAIR.size)
        when = clock if clock is not None else struct.pack("<Q", from_ns(time.time_ns()))
        mine = os.urandom(8)
        asked = b"\1\1" + bytes(6) + when + mine + bytes(4) + info + bytes(4)
        proof = hmac.digest(self._key, fields.server_challenge + asked, "md5")
        base = hmac.digest(self._key, proof, "md5")
        lm = bytes(24) if clock is not None else hmac.digest(self._key, fields.server_challenge + mine, "md5") + mine
        sealed = b""
        self.session_key = base
        if flags & Flags.KEY_EXCHANGE:
            self.session_key = os.urandom(16)
            sealed = rc4(base, self.session_key)
        names = (self._domain.encode("utf-16-le"), self._user.encode("utf-16-le"), b"")
        made = _message(flags, lm, proof + asked, names, sealed)
        if clock is not None:
            mic = hmac.digest(self.session_key, self._negotiate + challenge + made, "md5")
            made[MIC_OFFSET : MIC_OFFSET + MIC_SIZE] = mic
        return bytes(made)

    def _check(self, mic: bytes | None) -> None:
        """Check the server's mechListMIC, if it sent one. [RFC 4178 5]"""
        if mic and not hmac.compare_digest(mic, self._sign(_RECEIVED, tokens.mechanism_list(tokens.NTLM))):
            raise LogonError("the server's signature of the mechanisms is wrong")

    def _sign(self, way: bytes, data: bytes) -> bytes:
        """Sign ``data`` as the first message of one side. [MS-NLMP 3.4.4.2, 3.4.5.2, 3.4.5.3]"""
        key = self.session_key
        signing = hashlib.md5(key + b"session key to " + way + b" signing key magic constant\0").digest()
        sealing_key = key if self._flags & Flags.KEY_128 else key[:7] if self._flags & Flags.KEY_56 else key[:5]
        sealing = hashlib.md5(sealing_key + b"session key to " + way + b" sealing key magic constant\0").digest()
        checksum = hmac.digest(signing, bytes(4) + data, "md5")[:8]
        if self._flags & Flags.KEY_EXCHANGE:
            checksum = rc4(sealing, checksum)
        return b"\1\0\0\0" + checksum + bytes(4)


def _pairs(info: bytes) -> dict[int, bytes]:
    """Return the AvPairs of TargetInfo, in order. Raises ``ValueError``. [MS-NLMP 2.2.2.1]"""
    found: dict[int, bytes] = {}
    at = 0
    while at + AV_PAIR.size <= len(info):
        kind, length = AV_PAIR.unpack(info, at)
        at += AV_PAIR.size
        if kind == AvId.EOL:
            return found
        if at + length > len(info):
            break
        found[kind] = info[at : at + length]
        at += length
    raise ValueError("TargetInfo does not end")


def _message(flags: int, lm: bytes, nt: bytes, names: tuple[bytes, bytes, bytes], key: bytes) -> bytearray:
    """Return an AUTHENTICATE_MESSAGE without its MIC. [MS-NLMP 2.2.1.3]"""
    at = MIC_OFFSET + MIC_SIZE
    parts = (*names, lm, nt, key)
    places = []
    for part in parts:
        places.append((len(part), len(part), at))
        at += len(part)
    domain, user, workstation, lm_place, nt_place, key_place = places
    fields = AuthenticateFields(SIGNATURE, 3, *lm_place, *nt_place, *domain, *user, *workstation, *key_place, flags)
    return bytearray(b"".join((AUTHENTICATE_FIELDS.pack(fields), VERSION, bytes(MIC_SIZE), *parts)))
