"""Security descriptors: SIDs, ACEs, ACLs, and the self-relative encoding. Pure values and functions. [MS-DTYP 2.4]

Decoding raises ``ValueError`` for malformed input, and nothing else. Decoding and encoding again gives an equivalent
descriptor, including ACE types and bits that are not known here.

Related modules: ``check`` evaluates descriptors, ``inheritance`` computes a new object's descriptor, ``posix`` converts
to modes.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

MAX_BYTES = 65536
"""Maximum size of a whole descriptor."""
_MAX_SUB_AUTHORITIES = 15

_DESCRIPTOR = struct.Struct("<BBHIIII")
_ACL = struct.Struct("<BBHHH")
_ACE = struct.Struct("<BBH")
_U32 = struct.Struct("<I")


class Control(enum.IntFlag):
    """Control bits of a descriptor. [MS-DTYP 2.4.6]"""

    OWNER_DEFAULTED = 0x0001
    GROUP_DEFAULTED = 0x0002
    DACL_PRESENT = 0x0004
    DACL_DEFAULTED = 0x0008
    SACL_PRESENT = 0x0010
    SACL_DEFAULTED = 0x0020
    DACL_TRUSTED = 0x0040
    SERVER_SECURITY = 0x0080
    DACL_AUTO_INHERIT_REQ = 0x0100
    SACL_AUTO_INHERIT_REQ = 0x0200
    DACL_AUTO_INHERITED = 0x0400
    SACL_AUTO_INHERITED = 0x0800
    DACL_PROTECTED = 0x1000
    SACL_PROTECTED = 0x2000
    RM_CONTROL_VALID = 0x4000
    SELF_RELATIVE = 0x8000


class AceType(enum.IntEnum):
    """Types of ACEs. Unknown types stay plain numbers. [MS-DTYP 2.4.4.1]"""

    ALLOWED = 0x00
    DENIED = 0x01
    AUDIT = 0x02
    ALARM = 0x03
    ALLOWED_OBJECT = 0x05
    DENIED_OBJECT = 0x06
    AUDIT_OBJECT = 0x07
    ALLOWED_CALLBACK = 0x09
    DENIED_CALLBACK = 0x0A
    ALLOWED_CALLBACK_OBJECT = 0x0B
    DENIED_CALLBACK_OBJECT = 0x0C
    AUDIT_CALLBACK = 0x0D
    AUDIT_CALLBACK_OBJECT = 0x0F
    MANDATORY_LABEL = 0x11
    RESOURCE_ATTRIBUTE = 0x12
    SCOPED_POLICY_ID = 0x13


_OBJECT_TYPES = frozenset((0x05, 0x06, 0x07, 0x08, 0x0B, 0x0C, 0x0F, 0x10))
_SID_TYPES = frozenset((0x00, 0x01, 0x02, 0x03, 0x09, 0x0A, 0x0D, 0x0E, 0x11, 0x12, 0x13)) | _OBJECT_TYPES


class AceFlag(enum.IntFlag):
    """Flags of an ACE. [MS-DTYP 2.4.4.1]"""

    OBJECT_INHERIT = 0x01
    CONTAINER_INHERIT = 0x02
    NO_PROPAGATE_INHERIT = 0x04
    INHERIT_ONLY = 0x08
    INHERITED = 0x10
    SUCCESSFUL_ACCESS = 0x40
    FAILED_ACCESS = 0x80


class Sid(NamedTuple):
    """A security identifier. The revision is always 1. [MS-DTYP 2.4.2]"""

    authority: int
    sub_authorities: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Sid:
        """Parse text like S-1-5-32-544. The authority may be hexadecimal. Raises ``ValueError``. [MS-DTYP 2.4.2.1]"""
        parts = text.upper().split("-")
        if len(parts) < 3 or parts[0] != "S" or parts[1] != "1" or len(parts) - 3 > _MAX_SUB_AUTHORITIES:
            raise ValueError(f"not a SID: {text[:80]!r}")
        if not all(part.isascii() and part.isalnum() for part in parts):
            raise ValueError(f"not a SID: {text[:80]!r}")
        authority = int(parts[2], 16 if parts[2].startswith("0X") else 10)
        subs = tuple(map(int, parts[3:]))
        if authority >= 1 << 48 or any(sub >= 1 << 32 for sub in subs):
            raise ValueError(f"number too large in SID: {text[:80]!r}")
        return cls(authority, subs)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Sid:
        """Decode the SID that starts at ``offset``. More data may follow it. Raises ``ValueError``."""
        if offset < 0 or offset + 8 > len(data):
            raise ValueError("SID cut short")
        if data[offset] != 1:
            raise ValueError("unknown SID revision")
        count = data[offset + 1]
        if count > _MAX_SUB_AUTHORITIES or offset + 8 + 4 * count > len(data):
            raise ValueError("SID cut short")
        authority = int.from_bytes(data[offset + 2 : offset + 8], "big")
        return cls(authority, struct.unpack_from(f"<{count}I", data, offset + 8))

    def pack(self) -> bytes:
        """Return the encoded SID."""
        count = len(self.sub_authorities)
        return struct.pack(f"<BB6s{count}I", 1, count, self.authority.to_bytes(6, "big"), *self.sub_authorities)

    @property
    def size(self) -> int:
        """Size of the encoded SID in bytes."""
        return 8 + 4 * len(self.sub_authorities)

    def __str__(self) -> str:
        authority = str(self.authority) if self.authority < 1 << 32 else f"0x{self.authority:012X}"
        return "-".join(("S-1", authority, *map(str, self.sub_authorities)))


EVERYONE = Sid(1, (0,))
CREATOR_OWNER = Sid(3, (0,))
CREATOR_GROUP = Sid(3, (1,))
OWNER_RIGHTS = Sid(3, (4,))
NETWORK = Sid(5, (2,))
ANONYMOUS = Sid(5, (7,))
AUTHENTICATED_USERS = Sid(5, (11,))
LOCAL_SYSTEM = Sid(5, (18,))
BUILTIN_USERS = Sid(5, (32, 545))
BUILTIN_GUESTS = Sid(5, (32, 546))


class Ace(NamedTuple):
    """An access control entry. For types without a SID, ``sid`` is None and ``data`` is the whole body.
    [MS-DTYP 2.4.4]"""

    type: int
    flags: int
    mask: int
    sid: Sid | None
    data: bytes = b""
    """The bytes behind the SID: condition, claim, padding."""
    object: bytes = b""
    """Flags and GUIDs of an object ACE, as encoded."""

    def pack(self) -> bytes:
        """Return the encoded ACE, padded to 4 bytes."""
        if self.sid is None:
            body = self.data
        else:
            body = b"".join((_U32.pack(self.mask), self.object, self.sid.pack(), self.data))
        body += bytes(-len(body) % 4)
        return _ACE.pack(self.type, self.flags, _ACE.size + len(body)) + body


def allow(sid: Sid, mask: int, flags: int = 0) -> Ace:
    """Return an ACE that allows ``mask``."""
    return Ace(AceType.ALLOWED, flags, mask, sid)


def deny(sid: Sid, mask: int, flags: int = 0) -> Ace:
    """Return an ACE that denies ``mask``."""
    return Ace(AceType.DENIED, flags, mask, sid)


class Acl(NamedTuple):
    """An access control list. [MS-DTYP 2.4.5]"""

    aces: tuple[Ace, ...] = ()
    revision: int = 2

    def pack(self) -> bytes:
        """Return the encoded ACL. Raises ``ValueError`` if it would be larger than 64 KiB."""
        body = b"".join(ace.pack() for ace in self.aces)
        if _ACL.size + len(body) > 0xFFFF:
            raise ValueError("ACL larger than 64 KiB")
        return _ACL.pack(self.revision, 0, _ACL.size + len(body), len(self.aces), 0) + body


class SecurityDescriptor(NamedTuple):
    """A security descriptor. [MS-DTYP 2.4.6]

    A DACL that is None allows everything to every user. An empty DACL allows nothing, except the owner's implied
    rights.
    """

    owner: Sid | None = None
    group: Sid | None = None
    dacl: Acl | None = None
    sacl: Acl | None = None
    control: int = 0
    """Control bits. ``pack`` adds SELF_RELATIVE, and the PRESENT bits of the ACLs that are not None."""
    rm_control: int = 0

    def pack(self) -> bytes:
        """Return the self-relative encoding. Raises ``ValueError`` if it would be larger than 64 KiB."""
        control = self.control | Control.SELF_RELATIVE
        control |= Control.DACL_PRESENT if self.dacl is not None else 0
        control |= Control.SACL_PRESENT if self.sacl is not None else 0
        parts: list[bytes] = []
        offsets = []
        offset = _DESCRIPTOR.size
        for part in (self.owner, self.group, self.sacl, self.dacl):
            if part is None:
                offsets.append(0)
                continue
            packed = part.pack()
            parts.append(packed)
            offsets.append(offset)
            offset += len(packed)
        if offset > MAX_BYTES:
            raise ValueError("security descriptor larger than 64 KiB")
        return b"".join((_DESCRIPTOR.pack(1, self.rm_control, control, *offsets), *parts))


def _unpack_ace(data: memoryview, offset: int, end: int) -> tuple[Ace, int]:
    if offset + _ACE.size > end:
        raise ValueError("ACE cut short")
    kind, flags, size = _ACE.unpack_from(data, offset)
    if size < _ACE.size or size % 4 or offset + size > end:
        raise ValueError("bad ACE size")
    body = data[offset + _ACE.size : offset + size]
    if kind not in _SID_TYPES:
        return Ace(kind, flags, 0, None, bytes(body)), offset + size
    if len(body) < 4:
        raise ValueError("ACE cut short")
    (mask,) = _U32.unpack_from(body)
    position = 4
    if kind in _OBJECT_TYPES:
        if len(body) < 8:
            raise ValueError("object ACE cut short")
        (present,) = _U32.unpack_from(body, 4)
        # ACE_OBJECT_TYPE_PRESENT and ACE_INHERITED_OBJECT_TYPE_PRESENT (MS-DTYP 2.4.4.3): a GUID each.
        position += 4 + 16 * ((present & 1) + (present >> 1 & 1))
    sid = Sid.unpack(body, position)
    tail = position + sid.size
    return Ace(kind, flags, mask, sid, bytes(body[tail:]), bytes(body[4:position])), offset + size


def _unpack_acl(data: memoryview, offset: int) -> Acl:
    if offset + _ACL.size > len(data):
        raise ValueError("ACL cut short")
    revision, _, size, count, _ = _ACL.unpack_from(data, offset)
    if revision not in (2, 3, 4):
        raise ValueError("unknown ACL revision")
    end = offset + size
    if size < _ACL.size or end > len(data) or count > (size - _ACL.size) // _ACE.size:
        raise ValueError("bad ACL size")
    aces = []
    position = offset + _ACL.size
    for _ in range(count):
        ace, position = _unpack_ace(data, position, end)
        aces.append(ace)
    # MS-DTYP 2.4.5 names 2 and 4. Windows accepts all from MIN_ACL_REVISION (2) to MAX_ACL_REVISION (4), and smbcacls
    # sends 3 when it replaces an ACL. Everything in such an ACL is also allowed in one of revision 2.
    return Acl(tuple(aces), 2 if revision == 3 else revision)


def unpack(data: bytes | bytearray | memoryview) -> SecurityDescriptor:
    """Decode a self-relative descriptor. Raises ``ValueError``. [MS-DTYP 2.4.6]"""
    if not _DESCRIPTOR.size <= len(data) <= MAX_BYTES:
        raise ValueError("security descriptor of impossible length")
    view = memoryview(data)
    revision, rm_control, control, owner, group, sacl, dacl = _DESCRIPTOR.unpack_from(view)
    if revision != 1 or not control & Control.SELF_RELATIVE:
        raise ValueError("not a self-relative security descriptor")
    for offset in (owner, group, sacl, dacl):
        if offset and offset < _DESCRIPTOR.size:
            raise ValueError("offset into the header")
    return SecurityDescriptor(
        Sid.unpack(view, owner) if owner else None,
        Sid.unpack(view, group) if group else None,
        _unpack_acl(view, dacl) if dacl and control & Control.DACL_PRESENT else None,
        _unpack_acl(view, sacl) if sacl and control & Control.SACL_PRESENT else None,
        control,
        rm_control,
    )
