"""The secrets that a user of the command gives: passwords of accounts and keys of sessions."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import NamedTuple

from smb3server.auth.ntlm_messages import CHALLENGE_FIELDS, Authenticate, Flags, parse_authenticate
from smb3server.auth.ntlm_protection import decrypt_key
from smb3server.auth.users import nt_hash
from smbdirect.errors import DecodeError

_SIGNATURE = b"NTLMSSP\0"
_CHALLENGE, _AUTHENTICATE = b"\x02\0\0\0", b"\x03\0\0\0"
_PROOF_SIZE = 16


class SecretError(ValueError):
    """A secret on the command line or in a file cannot be read."""


class NtlmLogon(NamedTuple):
    """What the messages of an NTLM logon show."""

    server_challenge: bytes
    answer: Authenticate


def find_challenge(token: bytes) -> bytes:
    """Return the server's challenge in a security token; empty if there is none. [MS-NLMP 2.2.1.2]"""
    start = token.find(_SIGNATURE + _CHALLENGE)
    if start < 0:
        return b""
    try:
        return CHALLENGE_FIELDS.unpack(token[start:]).server_challenge
    except DecodeError:
        return b""


def find_answer(token: bytes) -> Authenticate | None:
    """Return the AUTHENTICATE_MESSAGE in a security token. [MS-NLMP 2.2.1.3]"""
    start = token.find(_SIGNATURE + _AUTHENTICATE)
    if start < 0:
        return None
    try:
        return parse_authenticate(token[start:])
    except (DecodeError, ValueError):
        return None


@dataclass
class Secrets:
    """All secrets that were given."""

    passwords: list[tuple[str, bytes]] = field(default_factory=list)
    """Account and NT hash. The account may be empty: any."""
    keys: list[tuple[int | None, bytes]] = field(default_factory=list)
    """SessionId and session key. The SessionId may be missing: any."""

    def __bool__(self) -> bool:
        return bool(self.passwords or self.keys)

    def add_password(self, text: str) -> None:
        """Add ``USER:PASSWORD`` or ``PASSWORD``."""
        user, colon, password = text.partition(":")
        self.passwords.append((user, nt_hash(password)) if colon else ("", nt_hash(text)))

    def add_key(self, text: str) -> None:
        """Add ``SESSIONID:KEY`` or ``KEY``, both in hexadecimal digits. Raises ``SecretError``."""
        number, colon, key = text.rpartition(":")
        try:
            self.keys.append((int(number, 16) if colon else None, bytes.fromhex(key)))
        except ValueError as error:
            # The text is a secret and is not repeated.
            raise SecretError("a session key is not of the form [SESSIONID:]KEY in hexadecimal digits") from error

    def add_file(self, text: str) -> None:
        """Add the lines of a file: ``password USER:PASSWORD`` or ``key [SESSIONID:]KEY``. Raises ``SecretError``."""
        for number, line in enumerate(text.splitlines(), 1):
            word, _, value = line.strip().partition(" ")
            if word == "password":
                self.add_password(value)
            elif word == "key":
                self.add_key(value)
            elif word and not word.startswith("#"):
                raise SecretError(f"line {number} begins neither with 'password' nor with 'key'")

    def session_keys(self, session_id: int, logon: NtlmLogon | None) -> tuple[list[bytes], bool]:
        """Return the keys that a session may have, and whether the first of them is certainly its key."""
        found = [key for number, key in self.keys if number == session_id]
        if logon is not None:
            found += [
                key
                for user, hashed in self.passwords
                if user.casefold() in ("", logon.answer.user.casefold()) and (key := exported_key(logon, hashed))
            ]
        return found + [key for number, key in self.keys if number is None], bool(found)


def exported_key(logon: NtlmLogon, hashed: bytes) -> bytes:
    """Return ExportedSessionKey of an NTLMv2 logon; empty if the password is another one. [MS-NLMP 3.3.2, 3.4.5]"""
    answer = logon.answer
    name = (answer.user.upper() + answer.domain).encode("utf-16-le")
    key = hmac.digest(hashed, name, "md5")
    proof, blob = answer.nt_response[:_PROOF_SIZE], answer.nt_response[_PROOF_SIZE:]
    if hmac.digest(key, logon.server_challenge + blob, "md5") != proof:
        return b""
    base = hmac.digest(key, proof, "md5")
    if answer.flags & Flags.KEY_EXCHANGE and answer.flags & (Flags.SIGN | Flags.SEAL):
        return decrypt_key(base, answer.encrypted_key) if len(answer.encrypted_key) == 16 else b""
    return base
