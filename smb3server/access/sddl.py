"""Security descriptors as text: ``D:(A;;FA;;;WD)``. [MS-DTYP 2.5.1]"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from smb3server.access.claims import Claim, ClaimType, ClaimValue
from smb3server.access.conditions.expression import pack as pack_condition
from smb3server.access.conditions.expression import unpack as unpack_condition
from smb3server.access.conditions.text import read_condition, show_condition
from smb3server.access.descriptor import Ace, AceFlag, AceType, Acl, Control, SecurityDescriptor, Sid
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_EXECUTE, FILE_GENERIC_READ, FILE_GENERIC_WRITE
from smb3server.access.resource_attributes import MAX_VALUES, pack_claim, unpack_claim
from smb3server.access.sid_names import show_sid
from smb3server.access.text_reader import Reader, escape, number, unescape

_TYPES = {
    "A": AceType.ALLOWED,
    "D": AceType.DENIED,
    "AU": AceType.AUDIT,
    "OA": AceType.ALLOWED_OBJECT,
    "OD": AceType.DENIED_OBJECT,
    "OU": AceType.AUDIT_OBJECT,
    "ML": AceType.MANDATORY_LABEL,
    "SP": AceType.SCOPED_POLICY_ID,
    "XA": AceType.ALLOWED_CALLBACK,
    "XD": AceType.DENIED_CALLBACK,
    "XU": AceType.AUDIT_CALLBACK,
    "ZA": AceType.ALLOWED_CALLBACK_OBJECT,
    "RA": AceType.RESOURCE_ATTRIBUTE,
}
_LETTERS = {int(kind): letters for letters, kind in _TYPES.items()}
_OBJECT = frozenset(
    (AceType.ALLOWED_OBJECT, AceType.DENIED_OBJECT, AceType.AUDIT_OBJECT, AceType.ALLOWED_CALLBACK_OBJECT)
)
_CONDITIONAL = frozenset(
    (
        AceType.ALLOWED_CALLBACK,
        AceType.DENIED_CALLBACK,
        AceType.AUDIT_CALLBACK,
        AceType.ALLOWED_CALLBACK_OBJECT,
    )
)
_FLAGS = {
    "OI": AceFlag.OBJECT_INHERIT,
    "CI": AceFlag.CONTAINER_INHERIT,
    "NP": AceFlag.NO_PROPAGATE_INHERIT,
    "IO": AceFlag.INHERIT_ONLY,
    "ID": AceFlag.INHERITED,
    "SA": AceFlag.SUCCESSFUL_ACCESS,
    "FA": AceFlag.FAILED_ACCESS,
}
_FILE_RIGHTS = {
    "FA": FILE_ALL_ACCESS,
    "FR": FILE_GENERIC_READ,
    "FW": FILE_GENERIC_WRITE,
    "FX": FILE_GENERIC_EXECUTE,
}
_RIGHTS = {
    **_FILE_RIGHTS,
    "GA": 0x10000000,
    "GX": 0x20000000,
    "GW": 0x40000000,
    "GR": 0x80000000,
    "SD": 0x00010000,
    "RC": 0x00020000,
    "WD": 0x00040000,
    "WO": 0x00080000,
    "CC": 0x00000001,
    "DC": 0x00000002,
    "LC": 0x00000004,
    "SW": 0x00000008,
    "RP": 0x00000010,
    "WP": 0x00000020,
    "DT": 0x00000040,
    "LO": 0x00000080,
    "CR": 0x00000100,
}
_LABEL_RIGHTS = {"NW": 0x1, "NR": 0x2, "NX": 0x4}
_CLAIMS = {
    "TI": ClaimType.INT64,
    "TU": ClaimType.UINT64,
    "TS": ClaimType.STRING,
    "TD": ClaimType.SID,
    "TX": ClaimType.OCTET_STRING,
    "TB": ClaimType.BOOLEAN,
}
_LIMITS = {ClaimType.INT64: range(-1 << 63, 1 << 63), ClaimType.UINT64: range(1 << 64), ClaimType.BOOLEAN: range(2)}
_NULL = "NO_ACCESS_CONTROL"
_ACL_BITS = {
    "P": int(Control.DACL_PROTECTED),
    "AR": int(Control.DACL_AUTO_INHERIT_REQ),
    "AI": int(Control.DACL_AUTO_INHERITED),
}
_ACL_FLAG = re.compile(r"P|AR|AI")
_ACL_FLAGS = re.compile(r"(?:P|AR|AI)*")
_CLAIM = re.compile(r"[A-Za-z]{2}")
_FIELD = re.compile(r"[^;()]*")
_PART = re.compile(r"([OGDS]):")


def show(descriptor: SecurityDescriptor) -> str:
    """Return a descriptor as text. Raises ``ValueError`` if there is no text for one of its ACEs."""
    control = descriptor.control
    parts = []
    if descriptor.owner is not None:
        parts.append(f"O:{show_sid(descriptor.owner)}")
    if descriptor.group is not None:
        parts.append(f"G:{show_sid(descriptor.group)}")
    if descriptor.dacl is not None or control & Control.DACL_PRESENT:
        flags = (Control.DACL_PROTECTED, Control.DACL_AUTO_INHERIT_REQ, Control.DACL_AUTO_INHERITED)
        parts.append(f"D:{_show_acl(descriptor.dacl, control, flags)}")
    if descriptor.sacl is not None or control & Control.SACL_PRESENT:
        flags = (Control.SACL_PROTECTED, Control.SACL_AUTO_INHERIT_REQ, Control.SACL_AUTO_INHERITED)
        parts.append(f"S:{_show_acl(descriptor.sacl, control, flags)}")
    return "".join(parts)


def _show_acl(acl: Acl | None, control: int, flags: tuple[Control, Control, Control]) -> str:
    shown = "".join(letters for letters, flag in zip(("P", "AR", "AI"), flags, strict=True) if control & flag)
    return shown + (_NULL if acl is None else "".join(map(_show_ace, acl.aces)))


def _show_ace(ace: Ace) -> str:
    letters = _LETTERS.get(ace.type)
    if letters is None or ace.sid is None:
        raise ValueError(f"an ACE of type {ace.type} has no text")
    flags = "".join(name for name, flag in _FLAGS.items() if ace.flags & flag)
    if ace.type in (AceType.RESOURCE_ATTRIBUTE, AceType.SCOPED_POLICY_ID) and not ace.mask:
        mask = ""
    else:
        mask = next((name for name, right in _FILE_RIGHTS.items() if right == ace.mask), f"0x{ace.mask:x}")
    fields = [letters, flags, mask, *_show_object(ace), show_sid(ace.sid)]
    if ace.type in _CONDITIONAL:
        fields.append(show_condition(unpack_condition(ace.data)))
    elif ace.type == AceType.RESOURCE_ATTRIBUTE:
        fields.append(_show_claim(unpack_claim(ace.data)))
    return f"({';'.join(fields)})"


def _show_object(ace: Ace) -> list[str]:
    """Return the two GUIDs of an object ACE. [MS-DTYP 2.4.4.3]"""
    if not ace.object:
        return ["", ""]
    present, rest, shown = ace.object[0], ace.object[4:], []
    for bit in (1, 2):
        shown.append(str(uuid.UUID(bytes_le=rest[:16])) if present & bit else "")
        rest = rest[16:] if present & bit else rest
    return shown


def _show_claim(claim: Claim) -> str:
    letters = {int(kind): name for name, kind in _CLAIMS.items()}[claim.type]
    values = (
        show_sid(value)
        if isinstance(value, Sid)
        else value.hex()
        if isinstance(value, bytes)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
        for value in claim.values
    )
    if any(isinstance(value, str) and '"' in value for value in claim.values):
        raise ValueError("quotation mark in a text")
    return f'("{escape(claim.name)}",{letters},0x{claim.flags:x},{",".join(values)})'


def parse(text: str, domain: Sid | None = None) -> SecurityDescriptor:
    """Read a descriptor. Raises ``ValueError``. ``domain``: of which domain the accounts are that letters name."""
    reader = Reader(text, domain)
    sids: dict[str, Sid] = {}
    acls: dict[str, Acl | None] = {}
    control = 0
    while not reader.at_end:
        part = reader.match(_PART)
        if part is None or part[1] in sids or part[1] in acls:
            raise ValueError(f"{text[:80]!r} is not a list of permissions: write D:(A;;FA;;;WD)")
        if part[1] in "OG":
            sids[part[1]] = reader.sid()
            continue
        of_sacl = part[1] == "S"
        flags = reader.match(_ACL_FLAGS)
        # The bits of the SACL are next to those of the DACL.
        control |= sum(_ACL_BITS[name] for name in set(_ACL_FLAG.findall(flags[0] if flags else ""))) << of_sacl
        control |= int(Control.SACL_PRESENT if of_sacl else Control.DACL_PRESENT)
        acls[part[1]] = None if reader.take(_NULL) else _read_acl(reader)
    return SecurityDescriptor(sids.get("O"), sids.get("G"), acls.get("D"), acls.get("S"), control)


def _read_acl(reader: Reader) -> Acl:
    aces = []
    reader.blanks()
    while reader.take("("):
        aces.append(_read_ace(reader))
        reader.blanks()
        reader.expect(")")
        reader.blanks()
    # MS-DTYP 2.4.5: ACLs with object ACEs have a revision of their own.
    return Acl(tuple(aces), 4 if any(ace.type in _OBJECT for ace in aces) else 2)


def _read_ace(reader: Reader) -> Ace:
    letters = _field(reader)
    kind = _TYPES.get(letters)
    if kind is None:
        raise ValueError(f"{letters[:20]!r} is no type of an ACE")
    reader.expect(";")
    flags = sum({_named(_FLAGS, pair, "flag of an ACE") for pair in _pairs(_field(reader))})
    reader.expect(";")
    mask = _read_mask(_field(reader), _LABEL_RIGHTS if kind == AceType.MANDATORY_LABEL else _RIGHTS)
    reader.expect(";")
    guids = [_field(reader)]
    reader.expect(";")
    guids.append(_field(reader))
    reader.expect(";")
    reader.blanks()
    sid = reader.sid()
    reader.blanks()
    data = b""
    if kind in _CONDITIONAL or kind == AceType.RESOURCE_ATTRIBUTE:
        reader.expect(";")
        reader.blanks()
        reader.expect("(")
        data = pack_condition(read_condition(reader)) if kind in _CONDITIONAL else pack_claim(_read_claim(reader))
        reader.blanks()
        reader.expect(")")
    if any(guids) and kind not in _OBJECT:
        raise ValueError("GUID in an ACE that is no object ACE")
    return Ace(int(kind), int(flags), mask, sid, data, _packed_guids(guids) if kind in _OBJECT else b"")


def _field(reader: Reader) -> str:
    found = reader.match(_FIELD)
    return found[0].strip() if found is not None else ""


def _pairs(letters: str) -> list[str]:
    return [letters[start : start + 2] for start in range(0, len(letters), 2)]


def _named(table: Mapping[str, int], name: str, what: str) -> int:
    if name not in table:
        raise ValueError(f"{name!r} is no {what}")
    return int(table[name])


def _read_mask(text: str, names: Mapping[str, int]) -> int:
    if text[:1].isdigit():
        mask = number(text)
        if mask >= 1 << 32:
            raise ValueError("access mask too large")
        return mask
    mask = 0
    for pair in _pairs(text):
        mask |= _named(names, pair, "right")
    return mask


def _packed_guids(guids: list[str]) -> bytes:
    """Return the flags and GUIDs of an object ACE. [MS-DTYP 2.4.4.3]"""
    present = sum(bit for bit, text in zip((1, 2), guids, strict=True) if text)
    return present.to_bytes(4, "little") + b"".join(uuid.UUID(text).bytes_le for text in guids if text)


def _read_claim(reader: Reader) -> Claim:
    reader.blanks()
    name = unescape(reader.quoted())
    if not name:
        raise ValueError("attribute without a name")
    _comma(reader)
    letters = reader.match(_CLAIM)
    kind = _CLAIMS.get(letters[0].upper()) if letters is not None else None
    if kind is None:
        raise reader.wrong("the type of an attribute")
    _comma(reader)
    flags, _ = reader.integer()
    if not 0 <= flags < 1 << 32:
        raise ValueError("flags of an attribute out of range")
    values: list[ClaimValue] = []
    reader.blanks()
    while reader.take(","):
        if len(values) == MAX_VALUES:
            raise ValueError("attribute of too many values")
        reader.blanks()
        values.append(_read_value(reader, kind))
        reader.blanks()
    if not values:
        raise ValueError("attribute without a value")
    return Claim(name, kind, tuple(values), flags)


def _comma(reader: Reader) -> None:
    reader.blanks()
    reader.expect(",")
    reader.blanks()


def _read_value(reader: Reader, kind: ClaimType) -> ClaimValue:
    if kind == ClaimType.STRING:
        return reader.quoted()
    if kind == ClaimType.SID:
        return reader.sid()
    if kind == ClaimType.OCTET_STRING:
        reader.take("#")
        return reader.octets()
    value, _ = reader.integer()
    if value not in _LIMITS[kind]:
        raise ValueError("value of an attribute out of range")
    return value
