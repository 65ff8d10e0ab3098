"""NTLM messages as an acceptor decodes and encodes them. [MS-NLMP 2.2.1, 2.2.2.1, 2.2.2.7]

Pure functions. They raise ``ValueError`` or ``DecodeError`` for bad input.
"""

import enum
import functools
import re
import time
from typing import Annotated, NamedTuple

from smb3server.crypto.old import md4
from smb3server.wire import filetime
from smbdirect.codec import Codec
from smbdirect.fields import Bytes, Int16ul, Int32ul, Int64ul

SIGNATURE = b"NTLMSSP\0"
MIC_OFFSET, MIC_SIZE = 72, 16
"""Place of the MIC in AUTHENTICATE_MESSAGE, in bytes. [MS-NLMP 2.2.1.3]"""
PROOF_SIZE = 16
CLIENT_CHALLENGE_SIZE = 28
"""Bytes of NTLMv2_CLIENT_CHALLENGE before its AvPairs. [MS-NLMP 2.2.2.7]"""
_NEGOTIATE, _CHALLENGE, _AUTHENTICATE = 1, 2, 3
_OEM = "cp1252"
_HASHES = re.compile(r"[0-9A-Fa-f]{32}:[0-9A-Fa-f]{32}")
VERSION = bytes.fromhex("0a007c4f0000000f")
"""Version 10.0, build 20348, revision 15 of NTLM. [MS-NLMP 2.2.2.10]"""


def nt_hash(password: str) -> bytes:
    """Return the NT hash of a password, which may be given as "LMHASH:NTHASH". [MS-NLMP 3.3.1, NTOWFv1]"""
    if _HASHES.fullmatch(password):
        return bytes.fromhex(password[33:])
    return md4(password.encode("utf-16-le", "surrogatepass"))


class Flags(enum.IntFlag):
    """NegotiateFlags. [MS-NLMP 2.2.2.5]"""

    UNICODE = 0x00000001
    OEM = 0x00000002
    REQUEST_TARGET = 0x00000004
    SIGN = 0x00000010
    SEAL = 0x00000020
    DATAGRAM = 0x00000040
    LM_KEY = 0x00000080
    NTLM = 0x00000200
    ALWAYS_SIGN = 0x00008000
    TARGET_TYPE_DOMAIN = 0x00010000
    TARGET_TYPE_SERVER = 0x00020000
    EXTENDED_SESSION_SECURITY = 0x00080000
    TARGET_INFO = 0x00800000
    VERSION = 0x02000000
    KEY_128 = 0x20000000
    KEY_EXCHANGE = 0x40000000
    KEY_56 = 0x80000000


class AvId(enum.IntEnum):
    """Kinds of AvPairs (MsvAv*). [MS-NLMP 2.2.2.1]"""

    EOL = 0
    NB_COMPUTER_NAME = 1
    NB_DOMAIN_NAME = 2
    DNS_COMPUTER_NAME = 3
    DNS_DOMAIN_NAME = 4
    FLAGS = 6
    TIMESTAMP = 7


AV_FLAG_MIC = 0x2
"""MsvAvFlags: the AUTHENTICATE_MESSAGE has a MIC."""

_UNICODE = int(Flags.UNICODE)
_WITH_VERSION = int(Flags.VERSION)
_ANSWERED = int(
    Flags.KEY_56
    | Flags.KEY_EXCHANGE
    | Flags.KEY_128
    | Flags.VERSION
    | Flags.EXTENDED_SESSION_SECURITY
    | Flags.ALWAYS_SIGN
    | Flags.NTLM
    | Flags.SEAL
    | Flags.SIGN
    | Flags.UNICODE
)
_ALWAYS = int(Flags.REQUEST_TARGET | Flags.NTLM | Flags.TARGET_INFO | Flags.TARGET_TYPE_SERVER)


class Home(NamedTuple):
    """The domain that a server is a member of."""

    machine: str
    """Name of the server's account there, without its $."""
    workgroup: str
    """NetBIOS name of the domain."""
    realm: str
    """Name of the domain in DNS."""


class NegotiateFields(NamedTuple):
    """NEGOTIATE_MESSAGE up to its flags. The client's domain and workstation are ignored here. [MS-NLMP 2.2.1.1]"""

    signature: Annotated[bytes, Bytes(8)] = SIGNATURE
    message_type: Annotated[int, Int32ul] = _NEGOTIATE
    flags: Annotated[int, Int32ul] = 0


class ChallengeFields(NamedTuple):
    """The fixed part of CHALLENGE_MESSAGE. [MS-NLMP 2.2.1.2]"""

    signature: Annotated[bytes, Bytes(8)] = SIGNATURE
    message_type: Annotated[int, Int32ul] = _CHALLENGE
    target_name_length: Annotated[int, Int16ul] = 0
    target_name_max_length: Annotated[int, Int16ul] = 0
    target_name_offset: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0
    server_challenge: Annotated[bytes, Bytes(8)] = bytes(8)
    reserved: Annotated[bytes, Bytes(8)] = bytes(8)
    target_info_length: Annotated[int, Int16ul] = 0
    target_info_max_length: Annotated[int, Int16ul] = 0
    target_info_offset: Annotated[int, Int32ul] = 0
    version: Annotated[bytes, Bytes(8)] = bytes(8)


class AuthenticateFields(NamedTuple):
    """AUTHENTICATE_MESSAGE up to its flags. Version and MIC follow, but are optional. [MS-NLMP 2.2.1.3]"""

    signature: Annotated[bytes, Bytes(8)] = SIGNATURE
    message_type: Annotated[int, Int32ul] = _AUTHENTICATE
    lm_length: Annotated[int, Int16ul] = 0
    lm_max_length: Annotated[int, Int16ul] = 0
    lm_offset: Annotated[int, Int32ul] = 0
    nt_length: Annotated[int, Int16ul] = 0
    nt_max_length: Annotated[int, Int16ul] = 0
    nt_offset: Annotated[int, Int32ul] = 0
    domain_length: Annotated[int, Int16ul] = 0
    domain_max_length: Annotated[int, Int16ul] = 0
    domain_offset: Annotated[int, Int32ul] = 0
    user_length: Annotated[int, Int16ul] = 0
    user_max_length: Annotated[int, Int16ul] = 0
    user_offset: Annotated[int, Int32ul] = 0
    workstation_length: Annotated[int, Int16ul] = 0
    workstation_max_length: Annotated[int, Int16ul] = 0
    workstation_offset: Annotated[int, Int32ul] = 0
    key_length: Annotated[int, Int16ul] = 0
    key_max_length: Annotated[int, Int16ul] = 0
    key_offset: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0


class AvPair(NamedTuple):
    """The header of an AvPair, without its value. [MS-NLMP 2.2.2.1]"""

    identifier: Annotated[int, Int16ul] = 0
    length: Annotated[int, Int16ul] = 0


class Timestamp(NamedTuple):
    """The value of an MsvAvTimestamp pair."""

    filetime: Annotated[int, Int64ul] = 0


NEGOTIATE_FIELDS = Codec(NegotiateFields)
CHALLENGE_FIELDS = Codec(ChallengeFields)
AUTHENTICATE_FIELDS = Codec(AuthenticateFields)
AV_PAIR = Codec(AvPair)
TIMESTAMP = Codec(Timestamp)


class Authenticate(NamedTuple):
    """The fields of an AUTHENTICATE_MESSAGE that the acceptor uses."""

    user: str
    domain: str
    nt_response: bytes
    encrypted_key: bytes
    """EncryptedRandomSessionKey."""
    flags: int


def parse_negotiate(token: bytes) -> int:
    """Return the client's NegotiateFlags. Raises ``ValueError`` or ``DecodeError``."""
    fields = NEGOTIATE_FIELDS.unpack(token)
    if fields.signature != SIGNATURE or fields.message_type != _NEGOTIATE:
        raise ValueError("not a NEGOTIATE_MESSAGE")
    return fields.flags


def challenge_flags(offered: int) -> int:
    """Return the flags of a challenge: those of the client that the server accepts, and those that are always set.

    OEM is chosen only if Unicode is not offered. [MS-NLMP 2.2.2.5]"""
    characters = _UNICODE if offered & _UNICODE else int(Flags.OEM)
    return offered & _ANSWERED | _ALWAYS | characters


def pack_challenge(flags: int, server_challenge: bytes, server_name: str, home: Home | None = None) -> bytes:
    """Return the CHALLENGE_MESSAGE of a server, with the current time.

    ``home``: None means that the server is its own domain. A controller compares the names that clients return with
    those of the machine account that asks it. [MS-NRPC 3.5.4.5.1, MS-NLMP 3.2.5.1.1]
    """
    name, info = _target(server_name, home)
    if not flags & _UNICODE:
        name = (home.workgroup if home is not None else server_name).encode(_OEM, "replace")
    if home is not None:
        flags = flags & ~Flags.TARGET_TYPE_SERVER | Flags.TARGET_TYPE_DOMAIN
    clock = AV_PAIR.pack(AvPair(AvId.TIMESTAMP, 8)) + TIMESTAMP.pack(Timestamp(filetime.from_ns(time.time_ns())))
    info_length = len(info) + len(clock) + AV_PAIR.size
    start = CHALLENGE_FIELDS.size
    fixed = CHALLENGE_FIELDS.pack(
        ChallengeFields(
            target_name_length=len(name),
            target_name_max_length=len(name),
            target_name_offset=start,
            flags=flags,
            server_challenge=server_challenge,
            target_info_length=info_length,
            target_info_max_length=info_length,
            target_info_offset=start + len(name),
            version=VERSION if flags & _WITH_VERSION else bytes(8),
        )
    )
    return b"".join((fixed, name, info, clock, bytes(AV_PAIR.size)))


@functools.lru_cache(maxsize=16)
def _target(server_name: str, home: Home | None) -> tuple[bytes, bytes]:
    """Return TargetName, and TargetInfo up to the time."""
    if home is None:
        target, computer, domain, host = server_name, server_name, server_name.lower(), server_name.lower()
    else:
        target, computer, domain = home.workgroup, home.machine, home.realm.lower()
        host = f"{computer.lower()}.{domain}"
    texts = (
        (AvId.NB_DOMAIN_NAME, target),
        (AvId.NB_COMPUTER_NAME, computer),
        (AvId.DNS_DOMAIN_NAME, domain),
        (AvId.DNS_COMPUTER_NAME, host),
    )
    pairs = [(kind, text.encode("utf-16-le")) for kind, text in texts]
    return pairs[0][1], b"".join(AV_PAIR.pack(AvPair(kind, len(value))) + value for kind, value in pairs)


def parse_authenticate(token: bytes) -> Authenticate:
    """Decode an AUTHENTICATE_MESSAGE. Raises ``ValueError`` or ``DecodeError``."""
    fields = AUTHENTICATE_FIELDS.unpack(token)
    if fields.signature != SIGNATURE or fields.message_type != _AUTHENTICATE:
        raise ValueError("not an AUTHENTICATE_MESSAGE")
    encoding = "utf-16-le" if fields.flags & _UNICODE else _OEM
    return Authenticate(
        _part(token, fields.user_offset, fields.user_length).decode(encoding),
        _part(token, fields.domain_offset, fields.domain_length).decode(encoding),
        _part(token, fields.nt_offset, fields.nt_length),
        _part(token, fields.key_offset, fields.key_length),
        fields.flags,
    )


def _part(token: bytes, offset: int, length: int) -> bytes:
    """Return one variable part. The offset of an empty part is ignored."""
    if not length:
        return b""
    if offset < AUTHENTICATE_FIELDS.size or offset + length > len(token):
        raise ValueError(f"{length} bytes at {offset} exceed the NTLM message")
    return token[offset : offset + length]


def av_flags(client_challenge: bytes) -> int:
    """Return MsvAvFlags of an NTLMv2_CLIENT_CHALLENGE, or 0 if it has none.

    Raises ``ValueError`` if the AvPairs are not terminated.
    """
    offset, end = CLIENT_CHALLENGE_SIZE, len(client_challenge)
    flags = 0
    while offset + 4 <= end:
        kind = client_challenge[offset] | client_challenge[offset + 1] << 8
        length = client_challenge[offset + 2] | client_challenge[offset + 3] << 8
        offset += 4
        if kind == 0:
            return flags
        if offset + length > end:
            break
        if kind == _AV_FLAGS:
            if length != 4:
                raise ValueError("MsvAvFlags of a wrong size")
            flags = int.from_bytes(client_challenge[offset : offset + 4], "little")
        offset += length
    raise ValueError("AvPairs of the NTLMv2 response do not end")


_AV_FLAGS = int(AvId.FLAGS)
