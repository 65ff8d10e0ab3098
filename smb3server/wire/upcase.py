"""The upper case by which names of files, streams and users are compared. [MS-UCODEREF 3.1.5.3]"""

from __future__ import annotations

import functools


@functools.cache
def _upcase_table() -> dict[int, int]:
    table = {}
    for code in range(0x80, 0xD800):
        upper = chr(code).upper()
        # Like NTFS's table: one unit maps to one unit, and no character outside ASCII maps into ASCII (dotless i,
        # long s).
        if len(upper) == 1 and ord(upper) != code and 0x80 <= ord(upper) < 0x10000 and code != 0xB5:
            table[code] = ord(upper)
    for code in range(ord("a"), ord("z") + 1):
        table[code] = code - 32
    for code in range(0xFF41, 0xFF5B):
        table[code] = code - 32
    return table


def upcase(name: str) -> str:
    """Return ``name`` in upper case, for comparing names.

    Each UTF-16 unit becomes its simple upper case. This is nearly Windows' upcase table."""
    return name.upper() if name.isascii() else name.translate(_upcase_table())
