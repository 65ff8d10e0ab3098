"""Extended attributes of a file (MS-FSCC 2.4.16): their names, their sizes and how changes are merged."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

MAX_EA_BYTES = 65536
"""All EAs of a file as FILE_FULL_EA_INFORMATION counts them (MS-FSCC 2.4.12)."""


def ea_cost(name: bytes, value: bytes) -> int:
    """Return the bytes of one EA in the size that Windows reports, without the 4 bytes of the list: 5 of fixed fields,
    name, NUL, value."""
    return 5 + len(name) + len(value)


def ea_size(eas: list[tuple[bytes, bytes]]) -> int:
    """Return EaSize: 0 without EAs, else the bytes of the packed list with its own 4-byte length. [MS-FSCC 2.4.14]"""
    return 4 + sum(ea_cost(name, value) for name, value in eas) if eas else 0


def merge_eas(
    present: Iterable[tuple[bytes, bytes]], changes: Sequence[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """Return the EAs of a file after ``changes``, in one pass however many there are.

    Names are compared without regard to case, an empty value removes, of a name given twice the last counts (MS-FSA
    2.1.5.15.6). Raises ``OSError``: EINVAL for a bad name, E2BIG if all together have more than ``MAX_EA_BYTES``."""
    merged = {name.upper(): (name, value) for name, value in present}
    for name, value in changes:
        if not 0 < len(name) <= 255 or b"\0" in name:
            raise OSError(errno.EINVAL, "bad EA name")
        folded = name.upper()
        # What is set anew moves to the end of the list.
        merged.pop(folded, None)
        if value:
            merged[folded] = (name, value)
    eas = list(merged.values())
    if ea_size(eas) > MAX_EA_BYTES:
        raise OSError(errno.E2BIG, "EAs larger than 64 KiB")
    return eas
