"""Accounts of Samba in the format of smbpasswd(5), which ``pdbedit -Lw`` prints for any other store of Samba, too.

    alice:1000:XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX:878D8014606CDA29677A44EFA1353FC7:[U          ]:LCT-5F3A1B2C:

The fields are name, user id of the host, LM hash, NT hash, flags in brackets, time of the last change in hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from smb3server.auth.password_rules import EMPTY_HASH
from smb3server.auth.users import parse_hash
from smb3server.auth.users_file import StoredUser, check_name

_CHANGED = re.compile(r"LCT-([0-9A-Fa-f]{8})")
_MACHINE, _NO_PASSWORD, _DISABLED, _USER = frozenset("WSI"), "N", "D", "U"


@dataclass(frozen=True, slots=True)
class Imported:
    """One line: an account, or why there is none."""

    name: str
    user: StoredUser | None = None
    uid: int | None = None
    """Id of the account's user of the host. None for the marker of no user (-1)."""
    reason: str = ""
    machine: bool = False
    """Whether it is the account of a machine, which nobody misses here."""


def read_smbpasswd(text: str) -> Iterator[Imported]:
    """Read the lines of a file. Raises ``ValueError``, whose text names the line, if it is no such file."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split(":")
        if len(parts) < 5 or not parts[1].isdecimal() or not (parts[4].startswith("[") and parts[4].endswith("]")):
            raise ValueError(f"line {number}: not a line of smbpasswd(5); `pdbedit -Lw` prints such lines")
        yield _read(parts)


def _read(parts: list[str]) -> Imported:
    name, flags = parts[0], parts[4].strip("[]")
    uid = int(parts[1])
    own = uid if uid not in (0xFFFFFFFF, 0) else None
    if set(flags) & _MACHINE or name.endswith("$"):
        return Imported(name, reason="the account of a machine", machine=True)
    try:
        check_name(name)
        digest = parse_hash(parts[3])
    except ValueError as error:
        return Imported(name, reason="no password is set" if parts[3].startswith(("NO PASS", "X")) else str(error))
    if _NO_PASSWORD in flags or digest == EMPTY_HASH:
        return Imported(name, reason="it has no password")
    changed = _CHANGED.match(parts[5]) if len(parts) > 5 else None
    seconds = int(changed[1], 16) if changed is not None else 0
    user = StoredUser(name, digest, changed=seconds if seconds < 0x7FFFFFFF else 0, disabled=_DISABLED in flags)
    return Imported(name, user, own)
