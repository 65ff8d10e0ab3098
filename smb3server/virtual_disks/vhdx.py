"""A VHDX file as a disk: where its sectors are, and how new blocks are allocated. [MS-VHDX]

The block allocation table is read where it is needed, so an image takes no memory that depends on its size. Blocks are
allocated at the end of the file: the file grows first, then the data is written, then the entry of the table, through
the log. Whatever was written since the last flush may get lost, in any order: the image stays consistent.

Opening an image changes nothing: what its log has is read as if it was replayed. The first change replays it.
"""

from __future__ import annotations

import errno
import itertools
import logging
import struct
import threading
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from smb3server.backends.base import Handle
from smb3server.virtual_disks import layout
from smb3server.virtual_disks.checksum import is_intact, sealed
from smb3server.virtual_disks.layout import LOG_SECTOR, MIB, BlockState, FileParameters, Header, ParameterFlags
from smb3server.virtual_disks.log_replay import Replayed, active_sequence
from smb3server.virtual_disks.log_writing import Log
from smb3server.virtual_disks.reading import BadImage, read_at
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError

log = logging.getLogger(__name__)

_ENTRY = struct.Struct("<Q")
_OFFSET_MASK = ~(MIB - 1)
_STATE_MASK = 7
_IN_PLACE = (BlockState.FULLY_PRESENT, BlockState.PARTIALLY_PRESENT)
_NO_LOG = bytes(16)
_MOST_PLACES = 65536
"""Blocks whose place is remembered."""


class Metadata(NamedTuple):
    """What a VHDX file says about its disk. [MS-VHDX 2.6.2]"""

    parameters: FileParameters
    virtual_size: int
    sector_size: int
    physical_sector_size: int
    disk_id: bytes
    """The GUID of page 83."""
    parent: dict[str, str] | None
    """The keys and values of the parent locator. None: the disk has no parent."""


class Run(NamedTuple):
    """Consecutive bytes of the disk that lie in one place."""

    offset: int
    """In the disk."""
    length: int
    where: int | None
    """The offset in the file. None: they are zeros, or those of the parent."""
    in_parent: bool


class Image:
    """An open VHDX file."""

    def __init__(self, handle: Handle, name: str, writable: bool) -> None:
        """Read headers and metadata. Raises ``OSError``; ``BadImage`` if they are not valid."""
        self.handle, self.name, self.writable = handle, name, writable
        self._lock = threading.RLock()
        """Held while blocks are allocated, never while data is read."""
        self._changed = False
        self._places: dict[int, int] = {}
        """By block: where it is written in place. Blocks do not move, and stay allocated."""
        self._log: Log | None = None
        """The log, once it is written. Invariant: the header names it then."""
        if self._read(0, 8) != layout.FILE_SIGNATURE:
            raise BadImage("no VHDX file")
        self._header, self._slot = self._read_header()
        if self._header.log_guid != _NO_LOG:
            self.handle = Replayed(handle, active_sequence(handle, self._header))
        try:
            regions = self._read_regions()
            self._bat = regions[layout.BAT_REGION]
            self._metadata_region = regions[layout.METADATA_REGION]
            self.metadata = self._read_metadata()
        except (KeyError, DecodeError, ValueError, struct.error) as error:
            raise BadImage(f"its metadata is not valid: {error}") from error
        self._settle()

    def _settle(self) -> None:
        size = self.metadata.parameters.block_size
        sector = self.metadata.sector_size
        if size & (size - 1) or not layout.MIN_BLOCK <= size <= layout.MAX_BLOCK:
            raise BadImage("its block size is not valid")
        if sector not in (512, 4096) or self.metadata.physical_sector_size not in (512, 4096):
            raise BadImage("its sector size is not valid")
        if not 0 < self.virtual_size <= layout.MAX_VIRTUAL_SIZE or self.virtual_size % sector:
            raise BadImage("its size is not valid")
        self.block_size = size
        self._chunk_ratio = chunk_ratio(sector, size)
        if self._bat.length < self._entries_for(self.virtual_size) * _ENTRY.size:
            raise BadImage("its block allocation table is too short")
        header = self._header
        if header.log_offset % MIB or header.log_length % MIB or (header.log_length and header.log_offset < MIB):
            raise BadImage("its log is not where it may be")
        taken = sorted(
            (offset, offset + length)
            for offset, length in (
                (header.log_offset, header.log_length),
                (self._bat.file_offset, self._bat.length),
                (self._metadata_region.file_offset, self._metadata_region.length),
            )
        )
        if any(end > begin for (_, end), (begin, _) in itertools.pairwise(taken)):
            raise BadImage("its log and its regions overlap")

    @property
    def virtual_size(self) -> int:
        """Bytes of the disk."""
        return self.metadata.virtual_size

    @property
    def has_parent(self) -> bool:
        """Whether blocks that are not in the file are in another one."""
        return bool(self.metadata.parameters.flags & ParameterFlags.HAS_PARENT)

    @property
    def is_fixed(self) -> bool:
        """Whether all blocks are to stay allocated."""
        return bool(self.metadata.parameters.flags & ParameterFlags.LEAVE_BLOCKS_ALLOCATED)

    @property
    def has_log(self) -> bool:
        """Whether the header names a log of this server's."""
        return self._log is not None

    @property
    def data_write_guid(self) -> bytes:
        """Changes when the data of the disk does. Children name it to recognize their parent."""
        return self._header.data_write_guid

    @property
    def file(self) -> Handle:
        """The file itself. Others may see more of it than is in its places."""
        return self.handle.open() if isinstance(self.handle, Replayed) else self.handle

    def is_child_of(self, parent: Image) -> bool:
        """Return whether an image has the data that it had when this one was made. [MS-VHDX 2.6.2.6.3]"""
        named = [(self.metadata.parent or {}).get(key, "") for key in ("parent_linkage", "parent_linkage2")]
        return "{" + str(uuid.UUID(bytes_le=parent.data_write_guid)) + "}" in [name.lower() for name in named]

    # Reading the structures

    def _read(self, offset: int, length: int) -> bytes:
        return read_at(self.handle, offset, length)

    def _read_header(self) -> tuple[Header, int]:
        """Return the newest valid header, and which of the two it is. [MS-VHDX 2.2.2.1]"""
        found: list[tuple[int, int, Header]] = []
        for slot, offset in enumerate(layout.HEADER_OFFSETS):
            data = self._read(offset, layout.HEADER_SIZE)
            if len(data) < layout.HEADER_SIZE or data[:4] != b"head" or not is_intact(data):
                continue
            header = layout.HEADER.unpack(data)
            if header.version == 1:
                found.append((header.sequence_number, slot, header))
        if not found:
            raise BadImage("it has no valid header")
        _, slot, header = max(found)
        return header, slot

    def _read_regions(self) -> dict[bytes, layout.RegionEntry]:
        for offset in layout.REGION_TABLE_OFFSETS:
            data = self._read(offset, layout.REGION_TABLE_SIZE)
            if len(data) < layout.REGION_TABLE_SIZE or data[:4] != b"regi" or not is_intact(data):
                continue
            count = layout.REGION_TABLE_HEADER.unpack(data).entry_count
            if count > layout.MAX_ENTRIES:
                raise BadImage("its region table is too long")
            start, size = layout.REGION_TABLE_HEADER.size, layout.REGION_ENTRY.size
            entries = [layout.REGION_ENTRY.unpack(data, start + index * size) for index in range(count)]
            known = (layout.BAT_REGION, layout.METADATA_REGION)
            if any(entry.required & 1 and entry.guid not in known for entry in entries):
                raise BadImage("it has a region that is not known")
            if any(entry.file_offset < MIB or entry.file_offset % MIB for entry in entries):
                raise BadImage("a region is not where it may be")
            return {entry.guid: entry for entry in entries}
        raise BadImage("it has no valid region table")

    def _read_metadata(self) -> Metadata:
        region = self._metadata_region
        table = self._read(region.file_offset, layout.METADATA_TABLE_SIZE)
        header = layout.METADATA_TABLE_HEADER.unpack(table)
        if header.signature != b"metadata" or header.entry_count > layout.MAX_ENTRIES:
            raise BadImage("it has no valid metadata table")
        items: dict[bytes, bytes] = {}
        self._items: dict[bytes, int] = {}
        for index in range(header.entry_count):
            entry = layout.METADATA_ENTRY.unpack(
                table, layout.METADATA_TABLE_HEADER.size + index * layout.METADATA_ENTRY.size
            )
            if entry.item_id not in _ITEMS:
                if entry.flags & layout.MetadataFlags.IS_REQUIRED:
                    raise BadImage("it has metadata that is not known")
                continue
            if entry.length > layout.MAX_LOCATOR or entry.offset + entry.length > region.length:
                raise BadImage("an item of its metadata is too long")
            items[entry.item_id] = self._read(region.file_offset + entry.offset, entry.length)
            self._items[entry.item_id] = region.file_offset + entry.offset
        parameters = layout.PARAMETERS.unpack(items[layout.FILE_PARAMETERS])
        parent = None
        if parameters.flags & ParameterFlags.HAS_PARENT:
            parent = _locator(items[layout.PARENT_LOCATOR])
        (size,) = _ENTRY.unpack(items[layout.VIRTUAL_DISK_SIZE])
        logical, physical = (
            int.from_bytes(items[item], "little") for item in (layout.LOGICAL_SECTOR_SIZE, layout.PHYSICAL_SECTOR_SIZE)
        )
        return Metadata(parameters, size, logical, physical, items[layout.PAGE_83_DATA][:16].ljust(16, b"\0"), parent)

    # Blocks

    def _entries_for(self, virtual_size: int) -> int:
        return entries_for(virtual_size, self.block_size, self._chunk_ratio, self.has_parent)

    def _entry_place(self, block: int) -> int:
        """Return where the file has the table's entry of a block."""
        return self._bat.file_offset + (block + block // self._chunk_ratio) * _ENTRY.size

    def entry(self, block: int) -> tuple[int, int]:
        """Return state and offset in the file of a block. Raises ``OSError``."""
        return self._entry_at(self._entry_place(block))

    def _entry_at(self, place: int) -> tuple[int, int]:
        within = place % LOG_SECTOR
        # The sector is in its place before it leaves ``pending``.
        pending = self._log.pending.get(place - within) if self._log is not None else None
        data = pending[within : within + _ENTRY.size] if pending is not None else self._read(place, _ENTRY.size)
        if len(data) < _ENTRY.size:
            raise BadImage("its block allocation table is cut off")
        (value,) = _ENTRY.unpack(data)
        offset = value & _OFFSET_MASK
        if value & _STATE_MASK in _IN_PLACE and offset < MIB:
            raise BadImage("a block lies in the headers")
        return value & _STATE_MASK, offset

    def set_entry(self, block: int, state: int, offset: int) -> None:
        """Change the table's entry of a block. Raises ``OSError``."""
        self._update(self._entry_place(block), _ENTRY.pack(offset | state))

    def runs(self, offset: int, length: int) -> Iterator[Run]:
        """Return where a range of the disk is. Raises ``OSError``. The range must lie in the disk."""
        while length:
            block, within = divmod(offset, self.block_size)
            part = min(length, self.block_size - within)
            state, where = self.entry(block)
            if state == BlockState.PARTIALLY_PRESENT and self.has_parent:
                yield from self._sectors(block, where, within, part)
            elif state in _IN_PLACE:
                yield Run(offset, part, where + within, False)
            else:
                zero = state in (BlockState.ZERO, BlockState.UNMAPPED) or not self.has_parent
                yield Run(offset, part, None, not zero)
            offset, length = offset + part, length - part

    def _sectors(self, block: int, where: int, within: int, length: int) -> Iterator[Run]:
        """Return the runs of a block of which only some sectors are present. [MS-VHDX 2.5.1.2]"""
        chunk, number = divmod(block, self._chunk_ratio)
        place = self._bat.file_offset + ((chunk + 1) * self._chunk_ratio + chunk) * _ENTRY.size
        state, bitmap = self._entry_at(place)
        if state != BlockState.FULLY_PRESENT:
            raise BadImage("a bitmap of sectors is missing")
        sector = self.metadata.sector_size
        per_block = self.block_size // sector
        first, last = within // sector, (within + length - 1) // sector
        begin = number * per_block + first
        bits = self._read(bitmap + begin // 8, (last - first) // 8 + 2)
        end, start = within + length, within
        present: bool | None = None
        for index in range(first, last + 1):
            bit = begin - begin % 8
            position = begin + index - first - bit
            here = bool(bits[position // 8] >> position % 8 & 1)
            at = max(index * sector, within)
            if present is not None and here != present:
                yield self._run(block, where, start, at, present)
                start = at
            present = here
        yield self._run(block, where, start, end, bool(present))

    def _run(self, block: int, where: int, start: int, end: int, present: bool) -> Run:
        offset = block * self.block_size + start
        return Run(offset, end - start, where + start if present else None, not present)

    def place_of(self, block: int) -> int | None:
        """Return the offset in the file of a block that can be written in place. None: it has none there.

        Raises ``OSError``."""
        place = self._places.get(block)
        if place is not None:
            return place
        state, where = self.entry(block)
        in_place = _IN_PLACE if not self.has_parent else (BlockState.FULLY_PRESENT,)
        if state not in in_place:
            return None
        if len(self._places) >= _MOST_PLACES:
            self._places.clear()
        self._places[block] = where
        return where

    def is_quick(self, offset: int, length: int) -> bool:
        """Return whether writing a range changes payload only, so that no flush has to be waited for."""
        blocks = range(offset // self.block_size, -(-(offset + length) // self.block_size))
        return self._changed and all(self.place_of(block) is not None for block in blocks)

    def allocate(self, block: int, within: int, data: Buffer, content: Iterator[Buffer] | None = None) -> None:
        """Allocate a block, and write to it. ``content``: what it has from its begin on; else zeros.

        The table names it last, so that whenever the server is killed the disk has either. Raises ``OSError``."""
        with self._lock:
            shows_parent = self.has_parent and self.entry(block)[0] != BlockState.ZERO
            end = -(-self.handle.info().end_of_file // MIB) * MIB
            self.handle.truncate(end + self.block_size)
            place = end
            for piece in content or ():
                self.handle.write_from([piece], place)
                place += len(piece)
            self.handle.write_from([data], end + within)
            if shows_parent:
                # If only the entry outlived a loss of power, the block would hide what the parent has.
                self.flush()
            self.set_entry(block, BlockState.FULLY_PRESENT, end)

    # Changing the structures

    def data_changes(self, hidden: bool = False) -> None:
        """Note that the disk's data changes. Before the first change the log is replayed, and the header gets new
        GUIDs. Raises ``OSError``. [MS-VHDX 2.2.2, 2.2.2.1]

        ``hidden``: the one child of the image hides the changes, and has to know it by its DataWriteGuid until it is
        read from no more (``data_changed``)."""
        if self._changed:
            return
        with self._lock:
            header = self._header._replace(file_write_guid=uuid.uuid4().bytes_le)
            if isinstance(self.handle, Replayed):
                self._store_header(header)
                self.handle.apply()
                self.handle = self.handle.open()
            if not hidden:
                header = header._replace(data_write_guid=uuid.uuid4().bytes_le)
            self._store_header(header._replace(log_guid=_NO_LOG))
            self._changed = True

    def data_changed(self) -> None:
        """Give the image a new DataWriteGuid after hidden changes. Raises ``OSError``."""
        with self._lock:
            self._store_header(self._header._replace(data_write_guid=uuid.uuid4().bytes_le))

    def _store_header(self, header: Header) -> None:
        """Write a header in place of the older one of the two, and then of the other one. After each of them the file
        is flushed, so that one of the two is always whole. Raises ``OSError``. [MS-VHDX 2.2.2.1]"""
        for _ in layout.HEADER_OFFSETS:
            header = header._replace(sequence_number=self._header.sequence_number + 1, checksum=0)
            slot = 1 - self._slot
            data = sealed(layout.HEADER.pack(header).ljust(layout.HEADER_SIZE, b"\0"))
            self.handle.write_from([data], layout.HEADER_OFFSETS[slot])
            self.handle.flush()
            self._header, self._slot = header, slot

    def _update(self, place: int, data: bytes) -> None:
        """Change bytes of the metadata through the log. Raises ``OSError``."""
        with self._lock:
            header = self._header
            if not header.log_length:
                raise BadImage("it has no log")
            known = self._log.pending if self._log is not None else {}
            first = place // LOG_SECTOR * LOG_SECTOR
            sectors: dict[int, bytes] = {}
            for offset in range(first, place + len(data), LOG_SECTOR):
                content = known.get(offset) or self._read(offset, LOG_SECTOR).ljust(LOG_SECTOR, b"\0")
                begin, end = max(place, offset), min(place + len(data), offset + LOG_SECTOR)
                sectors[offset] = (
                    content[: begin - offset] + data[begin - place : end - place] + content[end - offset :]
                )
            if self._log is not None:
                self._log.append(sectors)
                return
            # The header names the log when it has an entry: with a GUID and without an entry the file is corrupt.
            # Nothing is lost by writing there before, as a log without a GUID has no valid entries. [MS-VHDX 2.3.3]
            started = Log(self.handle, header.log_offset, header.log_length)
            started.append(sectors)
            self.handle.flush()
            self._store_header(header._replace(log_guid=started.guid))
            self._log = started

    def flush(self) -> None:
        """Flush the file. Raises ``OSError``."""
        if self._log is not None:
            self._log.flush()
        else:
            self.handle.flush()

    def empty_log(self) -> None:
        """Have all updates in their places and no log in the header, as others expect of a file that is not open.

        Raises ``OSError``: the log stays then, and whoever opens the file replays it."""
        with self._lock:
            if self._log is not None:
                self._log.settle()
                self._store_header(self._header._replace(log_guid=_NO_LOG))
                self._log = None

    def resize(self, size: int) -> None:
        """Set the size of the disk in bytes. Raises ``OSError``: EFBIG if the table has no room for it."""
        if not 0 < size <= layout.MAX_VIRTUAL_SIZE or size % self.metadata.sector_size:
            raise OSError(errno.EINVAL, "not a size that a disk may have")
        if self._entries_for(size) * _ENTRY.size > self._bat.length:
            raise OSError(errno.EFBIG, "the block allocation table has no room for more blocks")
        self.data_changes()
        self._update(self._items[layout.VIRTUAL_DISK_SIZE], _ENTRY.pack(size))
        self.metadata = self.metadata._replace(virtual_size=size)

    def safe_size(self) -> int:
        """Return the size in bytes behind the last block that has data."""
        for block in range(-(-self.virtual_size // self.block_size) - 1, -1, -1):
            if self.entry(block)[0] in _IN_PLACE:
                return min((block + 1) * self.block_size, self.virtual_size)
        return self.metadata.sector_size

    def close(self, leave: bool = False) -> None:
        """Close the file. ``leave``: leave its log as it is, as another node may have the file by now."""
        try:
            if not leave:
                self.empty_log()
        except OSError as error:
            log.warning("%s: its log has to be replayed: %s", self.name, error)
        finally:
            self.handle.close()


def chunk_ratio(sector_size: int, block_size: int) -> int:
    """Return the number of blocks whose sectors one bitmap describes. [MS-VHDX 2.5]"""
    return layout.CHUNK_SECTORS * sector_size // block_size


def entries_for(virtual_size: int, block_size: int, ratio: int, with_bitmaps: bool) -> int:
    """Return the number of entries of the table for a disk of ``virtual_size`` bytes. ``with_bitmaps``: with the entry
    of the last chunk's bitmap, which disks with a parent have. [MS-VHDX 2.5]"""
    blocks = -(-virtual_size // block_size)
    if with_bitmaps:
        return -(-blocks // ratio) * (ratio + 1)
    return blocks + (blocks - 1) // ratio


_ITEMS = frozenset(
    (
        layout.FILE_PARAMETERS,
        layout.VIRTUAL_DISK_SIZE,
        layout.PAGE_83_DATA,
        layout.LOGICAL_SECTOR_SIZE,
        layout.PHYSICAL_SECTOR_SIZE,
        layout.PARENT_LOCATOR,
    )
)


def _locator(data: bytes) -> dict[str, str]:
    """Return the keys and values of a parent locator. Raises ``ValueError``, ``DecodeError``."""
    header = layout.LOCATOR_HEADER.unpack(data)
    if header.locator_type != layout.VHDX_PARENT:
        raise ValueError("its parent is no VHDX file")
    found: dict[str, str] = {}
    for index in range(header.key_value_count):
        entry = layout.LOCATOR_ENTRY.unpack(data, layout.LOCATOR_HEADER.size + index * layout.LOCATOR_ENTRY.size)
        key, value = (
            data[offset : offset + length].decode("utf-16-le")
            for offset, length in ((entry.key_offset, entry.key_length), (entry.value_offset, entry.value_length))
        )
        found[key] = value
    return found
