"""SMB2_FILEID (MS-SMB2 2.2.14.1): what names an open on the wire."""

from __future__ import annotations

FileId = tuple[int, int]
"""(persistent, volatile)."""

RELATED_FILE_ID: FileId = (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""The open that the previous command of the compound worked on (3.3.5.2.7.2). In an IOCTL also: none."""
