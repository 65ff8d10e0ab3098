"""DACLs as text, for files that people read: ``D:(A;;FA;;;WD)``. [MS-DTYP 2.5.1]

Only allowed and denied ACEs are known, with masks as numbers or as the names of file rights, and without owner, group
or SACL. That is all that the permissions of a share need.
"""

from __future__ import annotations

import re

from smb3server.access.descriptor import Ace, AceType, Acl, Control, SecurityDescriptor, Sid
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_EXECUTE, FILE_GENERIC_READ, FILE_GENERIC_WRITE

_RIGHTS = {
    "FA": FILE_ALL_ACCESS,
    "FR": FILE_GENERIC_READ,
    "FW": FILE_GENERIC_WRITE,
    "FX": FILE_GENERIC_EXECUTE,
}
_SIDS = {
    "WD": Sid(1, (0,)),
    "AN": Sid(5, (7,)),
    "AU": Sid(5, (11,)),
    "BA": Sid(5, (32, 544)),
    "BU": Sid(5, (32, 545)),
    "BG": Sid(5, (32, 546)),
}
_TYPES = {"A": AceType.ALLOWED, "D": AceType.DENIED}
_ACE = re.compile(r"\(([AD]);;([0-9A-Za-z]+);;;([0-9A-Za-z-]+)\)")


def show(descriptor: SecurityDescriptor) -> str:
    """Return the DACL as text. Raises ``ValueError`` if it has ACEs of other kinds."""
    if descriptor.dacl is None:
        return "D:NO_ACCESS_CONTROL"
    kinds = {int(kind): letter for letter, kind in _TYPES.items()}
    names = {sid: name for name, sid in _SIDS.items()}
    rights = {mask: name for name, mask in _RIGHTS.items()}
    shown = []
    for ace in descriptor.dacl.aces:
        if ace.sid is None or ace.type not in kinds:
            raise ValueError("only ACEs that allow or deny are possible here")
        mask = rights.get(ace.mask, f"0x{ace.mask:x}")
        shown.append(f"({kinds[ace.type]};;{mask};;;{names.get(ace.sid, str(ace.sid))})")
    return "D:" + "".join(shown)


def parse(text: str) -> SecurityDescriptor:
    """Read what ``show`` returns. Raises ``ValueError``."""
    if text == "D:NO_ACCESS_CONTROL":
        return SecurityDescriptor(control=Control.DACL_PRESENT)
    aces = text.removeprefix("D:")
    if not text.startswith("D:") or _ACE.sub("", aces):
        raise ValueError(f"{text[:80]!r} is not a list of permissions: write D:(A;;FA;;;WD)")
    found = []
    for kind, mask, name in _ACE.findall(aces):
        sid = _SIDS[name] if name in _SIDS else Sid.parse(name)
        rights = _RIGHTS[mask] if mask in _RIGHTS else int(mask, 16 if mask.startswith("0x") else 10)
        found.append(Ace(_TYPES[kind], 0, rights, sid))
    return SecurityDescriptor(dacl=Acl(tuple(found)), control=Control.DACL_PRESENT)
