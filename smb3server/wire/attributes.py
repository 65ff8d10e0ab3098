"""Values that messages and stores share: FILE_ATTRIBUTE_* (MS-FSCC 2.6), reparse points (2.1.2), sizes of files.

Plain integers, because every entry of a listing is tested for them: the operators of an ``enum.IntFlag`` cost more than
the rest of the test.
"""

from __future__ import annotations

READONLY = 0x1
HIDDEN = 0x2
SYSTEM = 0x4
DIRECTORY = 0x10
ARCHIVE = 0x20
NORMAL = 0x80
TEMPORARY = 0x100
SPARSE = 0x200
REPARSE_POINT = 0x400
COMPRESSED = 0x800
OFFLINE = 0x1000
NOT_INDEXED = 0x2000

SETTABLE = READONLY | HIDDEN | SYSTEM | ARCHIVE | TEMPORARY | SPARSE | OFFLINE | NOT_INDEXED
"""What a file stores of the attributes that it is given."""
DIRECTORY_SETTABLE = SETTABLE & ~(TEMPORARY | SPARSE)
"""The same for a directory."""

TAG_SYMLINK = 0xA000000C
"""IO_REPARSE_TAG_SYMLINK (MS-FSCC 2.1.2.1)."""
MAX_REPARSE_BYTES = 16384
"""MAXIMUM_REPARSE_DATA_BUFFER_SIZE, header included (MS-FSCC 2.1.2)."""

MAX_OFFSET = (1 << 63) - 1
"""Bytes of the largest file: offsets and sizes are signed 64-bit integers (MS-FSCC 2.4, MS-FSA 2.1.5.3)."""
