"""Values that messages and stores share: FILE_ATTRIBUTE_*, reparse points, sizes of files. [MS-FSCC 2.6, 2.1.2]

They are plain integers, because every entry of a listing is tested for them. The operators of an ``enum.IntFlag`` cost
more than the rest of the test.
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
INTEGRITY_STREAM = 0x8000
NO_SCRUB_DATA = 0x20000

SETTABLE = READONLY | HIDDEN | SYSTEM | ARCHIVE | TEMPORARY | SPARSE | OFFLINE | NOT_INDEXED
"""The attributes that a file stores. Others in a request are ignored."""
DIRECTORY_SETTABLE = SETTABLE & ~(TEMPORARY | SPARSE)
"""The attributes that a directory stores."""

TAG_MOUNT_POINT, TAG_SYMLINK, TAG_DFS = 0xA0000003, 0xA000000C, 0x8000000A
"""IO_REPARSE_TAG_MOUNT_POINT, IO_REPARSE_TAG_SYMLINK, IO_REPARSE_TAG_DFS. [MS-FSCC 2.1.2.1]"""
TAG_NFS = 0x80000014
"""IO_REPARSE_TAG_NFS: a special file. [MS-FSCC 2.1.2.6]"""
NFS_FIFO = 0x4F464946
NFS_SOCKET = 0x4B434F53
NFS_CHARACTER_DEVICE = 0x00524843
NFS_BLOCK_DEVICE = 0x004B4C42
NFS_SYMLINK = 0x014B4E4C
TAG_AF_UNIX = 0x80000023
"""IO_REPARSE_TAG_AF_UNIX, and the tags of the Windows Subsystem for Linux. [MS-FSCC 2.1.2.1]"""
TAG_LX_FIFO = 0x80000024
TAG_LX_CHR = 0x80000025
TAG_LX_BLK = 0x80000026
TAG_LX_SYMLINK = 0xA000001D
MAX_REPARSE_BYTES = 16384
"""MAXIMUM_REPARSE_DATA_BUFFER_SIZE, including the header. [MS-FSCC 2.1.2]"""

MAX_OFFSET = (1 << 63) - 1
"""Size of the largest file in bytes: offsets and sizes are signed 64-bit integers. [MS-FSCC 2.4, MS-FSA 2.1.5.3]"""
