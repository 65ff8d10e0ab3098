"""Extended attributes of a file: their sizes and how changes are merged. [MS-FSCC 2.4.16]"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

from smb3server.wire.file_info import EaEntry

MAX_EA_BYTES = 65536
"""Limit on all EAs of a file together, as FILE_FULL_EA_INFORMATION counts them. [MS-FSCC 2.4.12]"""


def ea_cost(name: bytes, value: bytes) -> int:
    """Return the bytes of one EA in the size that Windows reports, without the 4 bytes of the list's header."""
    # 5: the fixed fields and the NUL behind the name.
    return 5 + len(name) + len(value)


def ea_size(eas: Sequence[EaEntry]) -> int:
    """Return EaSize in bytes: 0 without EAs, else the packed list with its own 4-byte length. [MS-FSCC 2.4.14]"""
    return 4 + sum(ea_cost(ea.name, ea.value) for ea in eas) if eas else 0


def merge_eas(present: Iterable[EaEntry], changes: Sequence[EaEntry]) -> list[EaEntry]:
    """Return the EAs of a file after ``changes``. [MS-FSA 2.1.5.15.6]

    Names are compared without regard to case. An empty value removes an EA. If a name is given twice, the last one
    counts. This takes one pass, however many EAs there are. Raises ``OSError``: EINVAL for a bad name, E2BIG if all
    EAs together have more than ``MAX_EA_BYTES``."""
    merged = {ea.name.upper(): ea for ea in present}
    for ea in changes:
        if not 0 < len(ea.name) <= 255 or b"\0" in ea.name:
            raise OSError(errno.EINVAL, "bad EA name")
        folded = ea.name.upper()
        # An EA that is set again moves to the end of the list.
        merged.pop(folded, None)
        if ea.value:
            merged[folded] = ea
    eas = list(merged.values())
    if ea_size(eas) > MAX_EA_BYTES:
        raise OSError(errno.E2BIG, "EAs larger than 64 KiB")
    return eas
