"""The PAC of a ticket: what the controller says about the user, and what proves that it was the controller. [MS-PAC]

A member of the domain verifies the server's signature, made with the key that also opens the ticket. The signatures of
the KDC are made with a key of the controllers alone (MS-PAC 2.8.2): only their form is checked.
"""

from __future__ import annotations

import hmac
import importlib
import itertools
import struct
from typing import NamedTuple

from smb3server.access.claims import Claims
from smb3server.access.descriptor import Sid
from smb3server.auth.tickets import WIN2K_PAC, Ticket
from smb3server.domain.claim_sets import claims_of, device_groups
from smb3server.domain.user import DomainUser
from smb3server.domain.validation import user_of

LOGON_INFO, SERVER_CHECKSUM, KDC_CHECKSUM, CLIENT_INFO = 1, 6, 7, 10
CLIENT_CLAIMS, DEVICE_INFO, DEVICE_CLAIMS = 13, 14, 15
UPN_DNS_INFO, TICKET_CHECKSUM, REQUESTOR, FULL_CHECKSUM = 12, 16, 18, 19
"""Types of buffers. [MS-PAC 2.4]"""
_MAX_BUFFERS = 64
_HEADER, _BUFFER = struct.Struct("<II"), struct.Struct("<IIQ")
_UPN = struct.Struct("<HHHHI")
_SAM_NAME_AND_SID = struct.Struct("<HHHH")
_HAS_SID = 0x2
"""The bit S of UPN_DNS_INFO's flags: the structure also has the account's name and SID."""
_CHECKSUM_USAGE = 17
"""KERB_NON_KERB_CKSUM_SALT. [MS-PAC 2.8.1]"""
_SIGNATURE_SIZES = {-138: 16, 15: 12, 16: 12}
"""Bytes of a signature, by its type: HMAC-MD5, and HMAC-SHA1-96 with AES-128 and AES-256. [MS-PAC 2.8]"""
_SIGNATURE_OF_KEY = {17: 15, 18: 16, 23: -138}
"""The type of signature that a key of an encryption type makes."""
_SERIALIZED = struct.Struct("<BBH4xI4xI")
"""What comes before a serialized structure: version, byte order and size of the header, the size of the rest, and the
pointer to the structure. [MS-RPCE 2.2.6]"""
_EPOCH = 116444736000000000
"""1970 in the units of FILETIME."""


class _Signature(NamedTuple):
    kind: int
    value: bytes
    start: int
    """Where the value begins in the PAC."""


def domain_user(ticket: Ticket) -> DomainUser:
    """Return the user whom the PAC of a ticket describes.

    The realm is that of the ticket, which KDCs on the way compare with the trust that it has come by. [MS-PAC 4.2.3]

    Raises ``ValueError`` if there is no PAC, if it is malformed or forged, or if it is about somebody else."""
    data = ticket.ignorable(WIN2K_PAC)
    if data is None:
        raise ValueError("the ticket has no PAC")
    buffers = _buffers(data)
    _verify(data, buffers, ticket)
    _check_client(_part(data, buffers, CLIENT_INFO), ticket)
    named = _named(data, buffers)
    user = _logon_info(_part(data, buffers, LOGON_INFO), ticket.realm)
    if REQUESTOR in buffers and Sid.unpack(_part(data, buffers, REQUESTOR)) != user.sid:
        raise ValueError("the PAC is about another user than who asked for the ticket")
    if named is not None and named != user.sid:
        raise ValueError("the PAC has two SIDs of its user")
    return user._replace(name=user.name or ticket.client, claims=_claims(data, buffers))


def _buffers(data: bytes) -> dict[int, tuple[int, int]]:
    """Return where the buffers begin and end, by type. Later ones of the same type are ignored. [MS-PAC 2.3, 2.4]"""
    if len(data) < _HEADER.size:
        raise ValueError("PAC cut short")
    count, version = _HEADER.unpack_from(data)
    first = _HEADER.size + count * _BUFFER.size
    if version or count > _MAX_BUFFERS or first > len(data):
        raise ValueError("malformed PAC")
    found: dict[int, tuple[int, int]] = {}
    for index in range(count):
        kind, size, offset = _BUFFER.unpack_from(data, _HEADER.size + index * _BUFFER.size)
        if offset % 8 or offset < first or offset + size > len(data):
            raise ValueError(f"malformed PAC: buffer of type {kind}")
        found.setdefault(kind, (offset, offset + size))
    ends = sorted(found.values())
    if any(following[0] < one[1] for one, following in itertools.pairwise(ends)):
        raise ValueError("malformed PAC: its buffers overlap")
    return found


def _part(data: bytes, buffers: dict[int, tuple[int, int]], kind: int) -> bytes:
    place = buffers.get(kind)
    if place is None:
        raise ValueError(f"the PAC has no buffer of type {kind}")
    return data[place[0] : place[1]]


def _signature(data: bytes, buffers: dict[int, tuple[int, int]], kind: int) -> _Signature:
    """Return a PAC_SIGNATURE_DATA. The number of a read-only controller may follow it. [MS-PAC 2.8]"""
    packed = _part(data, buffers, kind)
    made_by = int.from_bytes(packed[:4], "little", signed=True)
    size = _SIGNATURE_SIZES.get(made_by, 0)
    if not size or len(packed) - 4 - size not in (0, 2):
        raise ValueError(f"malformed PAC: signature of type {kind}")
    return _Signature(made_by, packed[4 : 4 + size], buffers[kind][0] + 4)


def _verify(data: bytes, buffers: dict[int, tuple[int, int]], ticket: Ticket) -> None:
    """Verify the server's signature, over the PAC whose two signatures are zero. [MS-PAC 2.8.1, MS-KILE 3.4.5.3]"""
    own, controller = (_signature(data, buffers, kind) for kind in (SERVER_CHECKSUM, KDC_CHECKSUM))
    covered = bytearray(data)
    for signature in (own, controller):
        covered[signature.start : signature.start + len(signature.value)] = bytes(len(signature.value))
    for kind in (TICKET_CHECKSUM, FULL_CHECKSUM):
        if kind in buffers:
            _signature(data, buffers, kind)
    if own.kind != _SIGNATURE_OF_KEY.get(ticket.key_type):
        raise ValueError("the PAC's signature is of another type than the ticket's key")
    crypto = importlib.import_module("impacket.krb5.crypto")
    right = crypto.make_checksum(own.kind, crypto.Key(ticket.key_type, ticket.key), _CHECKSUM_USAGE, bytes(covered))
    if not hmac.compare_digest(bytes(right), own.value):
        raise ValueError("the PAC is forged: its signature is wrong")


def _check_client(packed: bytes, ticket: Ticket) -> None:
    """Compare PAC_CLIENT_INFO with the ticket that it is in. [MS-PAC 2.7]"""
    if len(packed) < 10:
        raise ValueError("malformed PAC: client cut short")
    began, size = struct.unpack_from("<QH", packed)
    if 10 + size > len(packed):
        raise ValueError("malformed PAC: client cut short")
    if (began - _EPOCH) // 10_000_000 != ticket.authentication_time:
        raise ValueError("the PAC is that of another ticket")
    if packed[10 : 10 + size].decode("utf-16-le") != ticket.client:
        raise ValueError("the PAC is about another user than the ticket")


def _named(data: bytes, buffers: dict[int, tuple[int, int]]) -> Sid | None:
    """Return the SID that UPN_DNS_INFO has. [MS-PAC 2.10]"""
    if UPN_DNS_INFO not in buffers:
        return None
    packed = _part(data, buffers, UPN_DNS_INFO)
    if len(packed) < _UPN.size:
        raise ValueError("malformed PAC: names cut short")
    *_, flags = _UPN.unpack_from(packed)
    if not flags & _HAS_SID:
        return None
    if len(packed) < _UPN.size + _SAM_NAME_AND_SID.size:
        raise ValueError("malformed PAC: names cut short")
    _, _, sid_size, sid_start = _SAM_NAME_AND_SID.unpack_from(packed, _UPN.size)
    return Sid.unpack(_slice(packed, sid_start, sid_size))


def _claims(data: bytes, buffers: dict[int, tuple[int, int]]) -> Claims | None:
    """Return the claims about the user and its device. [MS-PAC 2.11 to 2.13]"""
    packed = {
        kind: _part(data, buffers, kind) for kind in (CLIENT_CLAIMS, DEVICE_INFO, DEVICE_CLAIMS) if kind in buffers
    }
    found = Claims(
        claims_of(packed.get(CLIENT_CLAIMS, b"")),
        claims_of(packed.get(DEVICE_CLAIMS, b"")),
        device_groups(packed[DEVICE_INFO]) if DEVICE_INFO in packed else frozenset(),
    )
    return found if any(found) else None


def _slice(packed: bytes, start: int, size: int) -> bytes:
    if start + size > len(packed):
        raise ValueError("malformed PAC: names cut short")
    return packed[start : start + size]


def _logon_info(packed: bytes, realm: str) -> DomainUser:
    """Return the user of a serialized KERB_VALIDATION_INFO. [MS-PAC 2.5, MS-RPCE 2.2.6]"""
    layouts = importlib.import_module("impacket.krb5.pac")
    if len(packed) < _SERIALIZED.size or _SERIALIZED.unpack_from(packed)[:3] != (1, 0x10, 8):
        raise ValueError("malformed PAC: logon information cut short")
    info = layouts.KERB_VALIDATION_INFO()
    try:
        info.fromString(packed[_SERIALIZED.size :])
        info.fromStringReferents(packed[_SERIALIZED.size + len(info.getData()) :])
        return user_of(info, realm)
    except ValueError:
        raise
    except Exception as error:
        # impacket's decoder may raise any exception for malformed input.
        raise ValueError(f"malformed PAC: {error!r}"[:200]) from error
