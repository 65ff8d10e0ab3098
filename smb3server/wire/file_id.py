"""SMB2_FILEID, the name of an open in messages. [MS-SMB2 2.2.14.1]"""

from __future__ import annotations

FileId = tuple[int, int]
"""(persistent, volatile)."""

RELATED_FILE_ID: FileId = (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""The open of the previous command in a compound. In an IOCTL it may also mean that there is no open.
[MS-SMB2 3.3.5.2.7.2]"""
