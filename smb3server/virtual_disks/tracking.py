"""Change tracking: the ranges that are written, in a log file beside the disk. [MS-RSVD 3.2.5.5.11 to 3.2.5.5.13]

The log has 16 bytes for each write: offset and length, as little-endian numbers.
"""

from __future__ import annotations

import struct

from smb3server.backends.base import Handle
from smb3server.wire.svhdx import TrackingStatus

_RECORD = struct.Struct("<QQ")


class Tracking:
    """The tracking of one disk."""

    def __init__(self, log: Handle | None, most: int, append: bool) -> None:
        """``log``: None counts the writes only. ``most``: bytes that the log may have, 0 for any number.

        Raises ``OSError``."""
        self._log, self._most = log, most
        self.size = 0
        if log is not None and append:
            self.size = log.info().end_of_file
        elif log is not None:
            log.truncate(0)
        self.status = TrackingStatus.SUCCESS

    def note(self, offset: int, length: int) -> None:
        """Note a write before it is done. Raises ``OSError``."""
        if self.status is not TrackingStatus.SUCCESS:
            return
        if self._most and self.size + _RECORD.size > self._most:
            self.status = TrackingStatus.LOG_SIZE_EXCEEDED
            return
        if self._log is not None:
            self._log.write_from([_RECORD.pack(offset, length)], self.size)
        self.size += _RECORD.size

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
