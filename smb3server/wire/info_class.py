"""Numbers of the file information levels, and how the entries of a list follow each other. [MS-FSCC 2.4]

Apart from ``file_info``: a listing needs these and none of its records, which take a command's start long to declare.
"""

from __future__ import annotations

import enum
import struct

from smbdirect.errors import DecodeError

_STEP = struct.Struct("<I")
"""NextEntryOffset."""


class FileInfoClass(enum.IntEnum):
    """Numbers of the levels. [MS-FSCC 2.4]"""

    DIRECTORY = 1
    FULL_DIRECTORY = 2
    BOTH_DIRECTORY = 3
    BASIC = 4
    STANDARD = 5
    INTERNAL = 6
    EA = 7
    ACCESS = 8
    NAME = 9
    RENAME = 10
    LINK = 11
    NAMES = 12
    DISPOSITION = 13
    POSITION = 14
    FULL_EA = 15
    MODE = 16
    ALIGNMENT = 17
    ALL = 18
    ALLOCATION = 19
    END_OF_FILE = 20
    ALTERNATE_NAME = 21
    STREAM = 22
    PIPE = 23
    PIPE_LOCAL = 24
    PIPE_REMOTE = 25
    MAILSLOT_QUERY = 26
    MAILSLOT_SET = 27
    COMPRESSION = 28
    OBJECT_ID = 29
    MOVE_CLUSTER = 31
    QUOTA = 32
    REPARSE_POINT = 33
    NETWORK_OPEN = 34
    ATTRIBUTE_TAG = 35
    TRACKING = 36
    ID_BOTH_DIRECTORY = 37
    ID_FULL_DIRECTORY = 38
    VALID_DATA_LENGTH = 39
    SHORT_NAME = 40
    SFIO_RESERVE = 44
    HARD_LINK = 46
    NORMALIZED_NAME = 48
    ID_GLOBAL_TX_DIRECTORY = 50
    STANDARD_LINK = 54
    REMOTE_PROTOCOL = 55
    ID = 59
    ID_EXTD_DIRECTORY = 60
    ID_EXTD_BOTH_DIRECTORY = 63
    DISPOSITION_EX = 64
    RENAME_EX = 65
    LINK_EX = 72
    ID_64_EXTD_DIRECTORY = 78
    ID_64_EXTD_BOTH_DIRECTORY = 79
    ID_ALL_EXTD_DIRECTORY = 80
    ID_ALL_EXTD_BOTH_DIRECTORY = 81


class TooManyEntriesError(DecodeError):
    """A list from the peer has too many entries."""


def chain(view: memoryview, minimum: int, limit: int = 1 << 32) -> list[tuple[int, int]]:
    """Return (start, end) of every entry of a list linked by NextEntryOffset.

    ``minimum`` is the size of an entry's fixed part in bytes. Raises ``DecodeError``, or ``TooManyEntriesError`` for
    more than ``limit`` entries.
    """
    found: list[tuple[int, int]] = []
    offset = 0
    while len(view):
        if len(view) - offset < minimum:
            raise DecodeError("list entry cut short")
        (step,) = _STEP.unpack_from(view, offset)
        if len(found) == limit:
            raise TooManyEntriesError(f"more than {limit} entries in a list")
        if step == 0:
            found.append((offset, len(view)))
            break
        if step < minimum or step > len(view) - offset:
            raise DecodeError("NextEntryOffset outside the list")
        found.append((offset, offset + step))
        offset += step
    return found
