"""The log of a VHDX file that this server writes. [MS-VHDX 2.3]

An update is written to the log first, and to its place when the log is on stable storage: with the next flush of the
disk, or when the log is full. Until then ``pending`` has it. Where the storage loses whatever was written since the
last flush, the log has either all of the updates that were written to their places, or none of them is there.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Mapping

from smb3server.backends.base import Handle
from smb3server.virtual_disks import layout
from smb3server.virtual_disks.checksum import sealed
from smb3server.virtual_disks.layout import LOG_SECTOR, MIB
from smb3server.virtual_disks.log_replay import descriptors_size

MAX_SECTORS = 2
"""Sectors that one entry updates."""
_RESERVE = descriptors_size(MAX_SECTORS) + (MAX_SECTORS + 1) * LOG_SECTOR
"""Bytes of the log that stay free, so that there is room for the entry which frees the others."""


class Log:
    """The log of one image. Any thread may call its methods."""

    def __init__(self, handle: Handle, offset: int, length: int) -> None:
        """``offset``, ``length``: where the file has the log. No entry there is valid, as the header names no log."""
        self._handle, self._offset, self._length = handle, offset, length
        self.guid = uuid.uuid4().bytes_le
        """LogGuid."""
        self.pending: dict[int, bytes] = {}
        """By offset in the file: sectors that are in the log, and not yet in their place."""
        self._lock = threading.RLock()
        self._head = 0
        """Where the next entry begins."""
        self._entries: deque[tuple[int, int]] = deque()
        """Number and place of the entries whose updates are not known to be on stable storage in their places."""
        self._newest = self._newest_tail = 0
        """Number of the newest entry, and its Tail."""
        self._stable = self._stable_tail = 0
        """The same of the newest entry that is on stable storage. Invariant: from that Tail to the head nothing is
        overwritten, as a replay would begin there."""
        self._applied = 0
        """The number up to which entries were written to their places."""
        self._flushed_size = 0
        """Bytes that the file has on stable storage."""

    def append(self, sectors: Mapping[int, bytes]) -> None:
        """Update sectors of the file, by their offsets. Raises ``OSError``: nothing is updated then."""
        with self._lock:
            length = descriptors_size(len(sectors)) + len(sectors) * LOG_SECTOR
            used = (self._head - self._stable_tail) % self._length
            is_full = self._length - used < length + _RESERVE
            if is_full:
                self.settle()
            number, place = self._newest + 1, self._head
            tail = self._entries[0][1] if self._entries else place
            entry = self._entry(sectors, number, tail)
            within = min(length, self._length - place)
            self._handle.write_from([entry[:within]], self._offset + place)
            if within < length:
                self._handle.write_from([entry[within:]], self._offset)
            self._newest, self._newest_tail = number, tail
            self._entries.append((number, place))
            self._head = (place + length) % self._length
            self.pending.update(sectors)
            if is_full:
                self.flush()

    def _entry(self, sectors: Mapping[int, bytes], number: int, tail: int) -> bytes:
        """Encode an entry. [MS-VHDX 2.3.1]"""
        size = descriptors_size(len(sectors))
        header = layout.LogEntryHeader(
            entry_length=size + len(sectors) * LOG_SECTOR,
            tail=tail,
            sequence_number=number,
            descriptor_count=len(sectors),
            log_guid=self.guid,
            flushed_file_offset=self._flushed_size // MIB * MIB,
            last_file_offset=-(-self._handle.info().end_of_file // MIB) * MIB,
        )
        head, content = layout.LOG_ENTRY_HEADER.pack(header), b""
        high, low = (number >> 32).to_bytes(4, "little"), (number & 0xFFFFFFFF).to_bytes(4, "little")
        for offset, data in sectors.items():
            head += layout.LOG_DESCRIPTOR.pack(layout.LogDescriptor(b"desc", data[-4:], data[:8], offset, number))
            content += b"data" + high + data[8:-4] + low
        return sealed(head.ljust(size, b"\0") + content)

    def flush(self) -> None:
        """Flush the file. Then write to their places the updates that were in the log before. Raises ``OSError``."""
        with self._lock:
            newest, tail, applied = self._newest, self._newest_tail, self._applied
            updates, size = dict(self.pending), self._handle.info().end_of_file
        self._handle.flush()
        with self._lock:
            self._flushed_size = max(self._flushed_size, size)
            if newest > self._stable:
                self._stable, self._stable_tail = newest, tail
            while self._entries and self._entries[0][0] <= applied:
                self._entries.popleft()
            # Another thread may have written newer ones meanwhile.
            if newest > self._applied:
                for offset, data in updates.items():
                    self._handle.write_from([data], offset)
                    if self.pending.get(offset) is data:
                        del self.pending[offset]
                self._applied = newest

    def settle(self) -> None:
        """Have all updates on stable storage in their places. Raises ``OSError``."""
        with self._lock:
            self.flush()
            self.flush()
