"""Directory information levels: one encoder per level, made for long listings. [MS-FSCC 2.4.8 to 2.4.34]

Encoders set NextEntryOffset to 0. ``Packer`` pads an entry to 8 bytes and sets the field as soon as another entry
follows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from smb3server.wire import attributes as attr
from smb3server.wire.fields import decode_name
from smb3server.wire.file_info import FileInfoClass, chain
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError

_DIRECTORY = struct.Struct("<IIqqqqqqII")
_FULL = struct.Struct("<IIqqqqqqIII")
_ID_FULL = struct.Struct("<IIqqqqqqIIIIQ")
_BOTH = struct.Struct("<IIqqqqqqIIIBB24s")
_ID_BOTH = struct.Struct("<IIqqqqqqIIIBB24sHQ")
_NAMES = struct.Struct("<III")
_ID_EXTD = struct.Struct("<IIqqqqqqIIIIQQ")
_ID_EXTD_BOTH = struct.Struct("<IIqqqqqqIIIIQQBB24s")
_NEXT = struct.Struct("<I")


class Metadata(Protocol):
    """The metadata of a file that the levels contain. Times are FILETIMEs, sizes are bytes."""

    @property
    def creation_time(self) -> int: ...

    @property
    def last_access_time(self) -> int: ...

    @property
    def last_write_time(self) -> int: ...

    @property
    def change_time(self) -> int: ...

    @property
    def end_of_file(self) -> int: ...

    @property
    def allocation_size(self) -> int: ...

    @property
    def attributes(self) -> int: ...

    @property
    def ea_size(self) -> int: ...

    @property
    def reparse_tag(self) -> int: ...


Encoder = Callable[[Metadata, bytes, int], bytes]
"""Takes metadata, name in UTF-16LE and FileId. Returns the entry's fixed part."""


def _ea_size(info: Metadata) -> int:
    """Return the value of EaSize. It is the reparse tag of a reparse point, in levels without a field for the tag.
    [MS-FSCC 2.4.8]"""
    return info.reparse_tag if info.attributes & attr.REPARSE_POINT else info.ea_size


def _directory(i: Metadata, name: bytes, file_id: int) -> bytes:
    return _DIRECTORY.pack(
        0,
        0,
        i.creation_time,
        i.last_access_time,
        i.last_write_time,
        i.change_time,
        i.end_of_file,
        i.allocation_size,
        i.attributes,
        len(name),
    )


def _full(i: Metadata, name: bytes, file_id: int) -> bytes:
    return _directory(i, name, file_id) + _NEXT.pack(_ea_size(i))


def _id_full(i: Metadata, name: bytes, file_id: int) -> bytes:
    return _ID_FULL.pack(
        0,
        0,
        i.creation_time,
        i.last_access_time,
        i.last_write_time,
        i.change_time,
        i.end_of_file,
        i.allocation_size,
        i.attributes,
        len(name),
        _ea_size(i),
        0,
        file_id,
    )


def _both(i: Metadata, name: bytes, file_id: int) -> bytes:
    return _BOTH.pack(
        0,
        0,
        i.creation_time,
        i.last_access_time,
        i.last_write_time,
        i.change_time,
        i.end_of_file,
        i.allocation_size,
        i.attributes,
        len(name),
        _ea_size(i),
        0,
        0,
        b"",
    )


def _id_both(i: Metadata, name: bytes, file_id: int) -> bytes:
    return _ID_BOTH.pack(
        0,
        0,
        i.creation_time,
        i.last_access_time,
        i.last_write_time,
        i.change_time,
        i.end_of_file,
        i.allocation_size,
        i.attributes,
        len(name),
        _ea_size(i),
        0,
        0,
        b"",
        0,
        file_id,
    )


def _names(i: Metadata, name: bytes, file_id: int) -> bytes:
    return _NAMES.pack(0, 0, len(name))


def _id_extd(i: Metadata, name: bytes, file_id: int) -> bytes:
    return _ID_EXTD.pack(
        0,
        0,
        i.creation_time,
        i.last_access_time,
        i.last_write_time,
        i.change_time,
        i.end_of_file,
        i.allocation_size,
        i.attributes,
        len(name),
        i.ea_size,
        i.reparse_tag,
        file_id,
        0,
    )


def _id_extd_both(i: Metadata, name: bytes, file_id: int) -> bytes:
    return _id_extd(i, name, file_id) + struct.pack("<BB24s", 0, 0, b"")


class Level(NamedTuple):
    """One level: its encoder, and its layout for decoding."""

    encode: Encoder
    layout: struct.Struct
    name_length_field: int
    """Index of FileNameLength among the values of the layout."""


LEVELS: dict[int, Level] = {
    FileInfoClass.DIRECTORY: Level(_directory, _DIRECTORY, 9),
    FileInfoClass.FULL_DIRECTORY: Level(_full, _FULL, 9),
    FileInfoClass.ID_FULL_DIRECTORY: Level(_id_full, _ID_FULL, 9),
    FileInfoClass.BOTH_DIRECTORY: Level(_both, _BOTH, 9),
    FileInfoClass.ID_BOTH_DIRECTORY: Level(_id_both, _ID_BOTH, 9),
    FileInfoClass.NAMES: Level(_names, _NAMES, 2),
    FileInfoClass.ID_EXTD_DIRECTORY: Level(_id_extd, _ID_EXTD, 9),
    FileInfoClass.ID_EXTD_BOTH_DIRECTORY: Level(_id_extd_both, _ID_EXTD_BOTH, 9),
}


_SHORT = struct.Struct("<BB24s")
"""Layout of ShortNameLength, Reserved and ShortName."""
_SHORT_AT: dict[int, int] = {
    FileInfoClass.BOTH_DIRECTORY: 68,
    FileInfoClass.ID_BOTH_DIRECTORY: 68,
    FileInfoClass.ID_EXTD_BOTH_DIRECTORY: _ID_EXTD.size,
}


class Packer:
    """One QUERY_DIRECTORY response of at most ``limit`` bytes, filled entry by entry."""

    __slots__ = ("_encode", "_last", "_short_at", "buffer", "count", "has_short_names", "limit")

    def __init__(self, info_class: int, limit: int) -> None:
        self._encode = LEVELS[info_class].encode
        self._short_at = _SHORT_AT.get(info_class, 0)
        self.buffer = bytearray()
        self.limit = limit
        self.count = 0
        self.has_short_names = self._short_at > 0
        # Invariant: offset of the last entry in the buffer; 0 if there is none.
        self._last = 0

    def add(self, info: Metadata, name: bytes, file_id: int, short: bytes = b"") -> bool:
        """Append an entry. Return False, with nothing changed, if it does not fit.

        ``name`` and ``short`` are in UTF-16LE. ``short`` is for levels with short names only.
        """
        buffer = self.buffer
        size = len(buffer)
        start = (size + 7) & ~7
        entry = self._encode(info, name, file_id)
        if short:
            entry = entry[: self._short_at] + _SHORT.pack(len(short), 0, short) + entry[self._short_at + _SHORT.size :]
        if start + len(entry) + len(name) > self.limit:
            return False
        if self.count:
            if start != size:
                buffer += bytes(start - size)
            _NEXT.pack_into(buffer, self._last, start - self._last)
        buffer += entry
        buffer += name
        self._last = start
        self.count += 1
        return True


class ListedEntry(NamedTuple):
    """One decoded entry. Fields that its level does not have are 0."""

    name: str
    creation_time: int = 0
    last_access_time: int = 0
    last_write_time: int = 0
    change_time: int = 0
    end_of_file: int = 0
    allocation_size: int = 0
    attributes: int = 0
    ea_size: int = 0
    reparse_tag: int = 0
    file_id: int = 0
    short_name: str = ""


_EA_SIZE_LEVELS = frozenset(LEVELS) - {FileInfoClass.DIRECTORY, FileInfoClass.NAMES}
_EXTD_LEVELS = frozenset({FileInfoClass.ID_EXTD_DIRECTORY, FileInfoClass.ID_EXTD_BOTH_DIRECTORY})
_SHORT_NAME_FIELD = {
    FileInfoClass.BOTH_DIRECTORY: 11,
    FileInfoClass.ID_BOTH_DIRECTORY: 11,
    FileInfoClass.ID_EXTD_BOTH_DIRECTORY: 14,
}
_FILE_ID_FIELD = {
    FileInfoClass.ID_FULL_DIRECTORY: 12,
    FileInfoClass.ID_BOTH_DIRECTORY: 15,
    FileInfoClass.ID_EXTD_DIRECTORY: 12,
    FileInfoClass.ID_EXTD_BOTH_DIRECTORY: 12,
}


def decode_directory(info_class: int, data: Buffer) -> list[ListedEntry]:
    """Decode all entries of a response at one of ``LEVELS``. Raises ``DecodeError``."""
    level = LEVELS[info_class]
    layout = level.layout
    view = memoryview(data)
    found: list[ListedEntry] = []
    for start, end in chain(view, layout.size):
        values = layout.unpack_from(view, start)
        length = values[level.name_length_field]
        at = start + layout.size
        if length > end - at:
            raise DecodeError("directory entry's name outside its entry")
        name = decode_name(view[at : at + length])
        if info_class == FileInfoClass.NAMES:
            found.append(ListedEntry(name))
            continue
        extended = info_class in _EXTD_LEVELS
        ea_size = values[10] if info_class in _EA_SIZE_LEVELS else 0
        tag = values[11] if extended else 0
        if not extended and values[8] & attr.REPARSE_POINT:
            ea_size, tag = 0, ea_size
        short = ""
        if (field := _SHORT_NAME_FIELD.get(FileInfoClass(info_class))) is not None:
            if values[field] > 24:
                raise DecodeError("ShortNameLength above 24")
            short = decode_name(values[field + 2][: values[field]])
        id_field = _FILE_ID_FIELD.get(FileInfoClass(info_class))
        file_id = values[id_field] if id_field is not None else 0
        found.append(ListedEntry._make((name, *values[2:9], ea_size, tag, file_id, short)))
    return found
