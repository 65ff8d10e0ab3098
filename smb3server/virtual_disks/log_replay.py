"""The log that another writer of a VHDX file has left: the updates that it has, and the file as it is with them.

Finding them changes nothing, so that an image which is only read is not written to. [MS-VHDX 2.3.2, 2.3.3]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from smb3server.backends.base import FileInfo, Handle
from smb3server.backends.forwarding import ForwardingHandle
from smb3server.virtual_disks import layout
from smb3server.virtual_disks.checksum import is_intact
from smb3server.virtual_disks.layout import LOG_SECTOR, MIB, Header
from smb3server.virtual_disks.reading import BadImage, read_at
from smbdirect.message_transport import FileRange

MAX_LOG = 16 * MIB
"""Bytes of the longest log that is replayed. Hyper-V and QEMU make 1 MiB."""
_FIRST_UPDATED = layout.REGION_TABLE_OFFSETS[0]
"""What is before it, the headers and the file's identifier, is not updated through the log."""
_LAST_UPDATED = 4 * layout.MAX_VIRTUAL_SIZE


class Update(NamedTuple):
    """What a descriptor says."""

    offset: int
    """In the file."""
    length: int
    data: bytes | None
    """None: zeros."""


class _Entry(NamedTuple):
    length: int
    tail: int
    sequence_number: int
    updates: list[Update]
    flushed_file_offset: int
    last_file_offset: int


class ActiveSequence(NamedTuple):
    """The newest valid sequence of entries."""

    updates: list[Update]
    """In their order."""
    last_file_offset: int
    """Bytes that the file has at least."""


class _Log:
    """The log in memory."""

    def __init__(self, handle: Handle, header: Header) -> None:
        self._guid = header.log_guid
        self.length = header.log_length
        self._data = read_at(handle, header.log_offset, header.log_length)
        if len(self._data) < self.length:
            raise BadImage("the file ends before its log does")
        self._found: dict[int, _Entry | None] = {}
        self._checked = 0

    def _bytes(self, place: int, length: int) -> bytes:
        """Return bytes of the ring."""
        return self._data[place : place + length] + self._data[: max(place + length - self.length, 0)]

    def entry(self, place: int) -> _Entry | None:
        """Return the entry at a place. None: there is no valid one."""
        if place not in self._found:
            self._found[place] = self._parse(place)
        return self._found[place]

    def _parse(self, place: int) -> _Entry | None:
        """[MS-VHDX 2.3.1.1]"""
        header = layout.LOG_ENTRY_HEADER.unpack(self._bytes(place, LOG_SECTOR))
        length, count = header.entry_length, header.descriptor_count
        if (
            header.signature != b"loge"
            or header.log_guid != self._guid
            or not header.sequence_number
            or length % LOG_SECTOR
            or not 0 < length <= self.length
            or header.tail % LOG_SECTOR
            or header.tail >= self.length
            or header.flushed_file_offset % MIB
            or header.last_file_offset % MIB
            or descriptors_size(count) > length
        ):
            return None
        data = self._bytes(place, length)
        updates = _updates(data, count, header.sequence_number)
        if updates is None:
            return None
        # Valid entries do not overlap, so that all of them are not longer than the log.
        self._checked += length
        if self._checked > 2 * self.length:
            raise BadImage("its log is damaged: its entries overlap")
        if not is_intact(data):
            return None
        return _Entry(
            length, header.tail, header.sequence_number, updates, header.flushed_file_offset, header.last_file_offset
        )

    def sequence_from(self, tail: int) -> list[tuple[int, _Entry]]:
        """Return the entries from a place on that were written one after the other, with their places."""
        found: list[tuple[int, _Entry]] = []
        head = tail
        # A ring that is full ends there as well: the number of its first entry is not the next one.
        while (entry := self.entry(head)) is not None:
            if found and entry.sequence_number != found[-1][1].sequence_number + 1:
                break
            found.append((head, entry))
            head = (head + entry.length) % self.length
        return found


def descriptors_size(count: int) -> int:
    """Return the bytes of an entry that are before its data sectors. [MS-VHDX 2.3.1]"""
    size = layout.LOG_ENTRY_HEADER.size + count * layout.LOG_DESCRIPTOR.size
    return -(-size // LOG_SECTOR) * LOG_SECTOR


def _updates(data: bytes, count: int, sequence_number: int) -> list[Update] | None:
    """Return the updates of an entry. None: it is not valid. [MS-VHDX 2.3.1.2 to 2.3.1.4]"""
    updates: list[Update] = []
    at = descriptors_size(count)
    high, low = (sequence_number >> 32).to_bytes(4, "little"), (sequence_number & 0xFFFFFFFF).to_bytes(4, "little")
    for number in range(count):
        place = layout.LOG_ENTRY_HEADER.size + number * layout.LOG_DESCRIPTOR.size
        found = layout.LOG_DESCRIPTOR.unpack(data, place)
        length, content = LOG_SECTOR, None
        if found.signature == b"desc":
            sector = data[at : at + LOG_SECTOR]
            at += LOG_SECTOR
            if len(sector) < LOG_SECTOR or sector[:8] != b"data" + high or sector[-4:] != low:
                return None
            content = found.leading_bytes + sector[8:-4] + found.trailing_bytes
        elif found.signature == b"zero":
            length = int.from_bytes(found.leading_bytes, "little")
        else:
            return None
        if (
            found.sequence_number != sequence_number
            or found.file_offset % LOG_SECTOR
            or length % LOG_SECTOR
            or found.file_offset < _FIRST_UPDATED
            or found.file_offset + length > _LAST_UPDATED
        ):
            return None
        updates.append(Update(found.file_offset, length, content))
    return updates


def active_sequence(handle: Handle, header: Header) -> ActiveSequence:
    """Return what has to be replayed before the file is used. Raises ``OSError``; ``BadImage`` if the file or its log
    is damaged. [MS-VHDX 2.3.3]"""
    if header.log_version:
        raise BadImage("its log has a version that is not known")
    if not 0 < header.log_length <= MAX_LOG:
        raise BadImage("its log is missing, or too long to be replayed")
    log = _Log(handle, header)
    candidate: list[tuple[int, _Entry]] = []
    tail = 0
    while True:
        current = log.sequence_from(tail)
        places = [place for place, _ in current]
        is_valid = bool(current) and current[-1][1].tail in places
        if is_valid and (
            not candidate or current[-1][1].sequence_number > candidate[-1][1].sequence_number
        ):  # fmt: skip
            candidate = current[places.index(current[-1][1].tail) :]
        following = places[-1] + current[-1][1].length if is_valid else tail + LOG_SECTOR
        if not tail < following < log.length:
            break
        tail = following
    if not candidate:
        raise BadImage("its log is damaged: it has no valid sequence of entries")
    newest = candidate[-1][1]
    if handle.info().end_of_file < newest.flushed_file_offset:
        raise BadImage("the file is shorter than its log says: it was truncated")
    return ActiveSequence([update for _, entry in candidate for update in entry.updates], newest.last_file_offset)


class Replayed(ForwardingHandle):
    """A file as it is when its log has been replayed. The file itself changes with ``apply`` only."""

    def __init__(self, handle: Handle, sequence: ActiveSequence) -> None:
        self._handle, self._updates = handle, sequence.updates
        self._end = max((update.offset + update.length for update in sequence.updates), default=0)
        self._end = max(self._end, sequence.last_file_offset)
        self.key, self.kind, self.stream = handle.key, handle.kind, handle.stream
        self.created, self.file_created = handle.created, handle.file_created

    def open(self) -> Handle:
        return self._handle

    def close(self) -> None:
        self._handle.close()

    def fileno(self) -> int | None:
        return None

    def cached(self, offset: int, length: int) -> FileRange | None:
        return None

    def info(self) -> FileInfo:
        found = self._handle.info()
        return found._replace(end_of_file=max(found.end_of_file, self._end))

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        end = self.info().end_of_file
        count = 0
        for buffer in buffers:
            part = buffer[: max(end - offset - count, 0)]
            self._read(part, offset + count)
            count += len(part)
        return count

    def _read(self, view: memoryview, offset: int) -> None:
        present = self._handle.read_into([view], offset)
        view[present:] = bytes(len(view) - present)
        for update in self._updates:
            begin, end = max(update.offset, offset), min(update.offset + update.length, offset + len(view))
            if begin < end:
                data = update.data
                at = begin - update.offset
                view[begin - offset : end - offset] = (
                    bytes(end - begin) if data is None else data[at : at + end - begin]
                )

    def apply(self) -> None:
        """Write the updates to the file, and flush it. Doing it again does no harm. Raises ``OSError``."""
        handle = self._handle
        if handle.info().end_of_file < self._end:
            handle.truncate(self._end)
        for update in self._updates:
            if update.data is None:
                handle.zero_range(update.offset, update.length)
            else:
                handle.write_from([update.data], update.offset)
        handle.flush()
