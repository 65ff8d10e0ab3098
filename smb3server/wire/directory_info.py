"""Directory information levels: one encoder per level, made for long listings. [MS-FSCC 2.4.8 to 2.4.34]

Each entry but the last is padded to 8 bytes, and its NextEntryOffset leads to the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from smb3server.wire import attributes as attr
from smb3server.wire.fields import decode_name
from smb3server.wire.info_class import FileInfoClass, chain
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError

SHORT_NAME_SIZE = 24
"""Bytes of an entry's ShortName. For Macs it holds the size of the resource fork and the most important of Finder's
information."""
_DIRECTORY = struct.Struct("<IIqqqqqqII")
_FULL = struct.Struct("<IIqqqqqqIII")
_ID_FULL = struct.Struct("<IIqqqqqqIIIIQ")
_BOTH = struct.Struct("<IIqqqqqqIIIBB24s")
_ID_BOTH = struct.Struct("<IIqqqqqqIIIBB24sHQ")
_NAMES = struct.Struct("<III")
_ID_EXTD = struct.Struct("<IIqqqqqqIIIIQQ")
_ID_EXTD_BOTH = struct.Struct("<IIqqqqqqIIIIQQBB24s")
_ID_64_EXTD = struct.Struct("<IIqqqqqqIIIIQ")
_ID_64_EXTD_BOTH = struct.Struct("<IIqqqqqqIIIIQBB24s")
_ID_ALL_EXTD = struct.Struct("<IIqqqqqqIIIIQQQ")
_ID_ALL_EXTD_BOTH = struct.Struct("<IIqqqqqqIIIIQQQBB24s")
_NEXT = struct.Struct("<I")
_ID = struct.Struct("<IQ")
"""Reserved and FileId."""
_SHORT = struct.Struct("<BB24s")
"""ShortNameLength, Reserved and ShortName."""
_EXTD = struct.Struct("<IIQQ")
"""EaSize, ReparsePointTag, and FileId in 128 bits."""
_EXTD_64 = struct.Struct("<IIQ")
"""EaSize, ReparsePointTag, and FileId in 64 bits."""
_EXTD_ALL = struct.Struct("<IIQQQ")
"""EaSize, ReparsePointTag, FileId, and FileId128."""


class Metadata(Protocol):
    """The metadata of a file that the levels contain. Times are FILETIMEs, sizes are bytes."""

    @property
    def key(self) -> tuple[int, int]:
        """The volume, and the file's number on it."""

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


Encoder = Callable[[int, Metadata, int, bytes], bytes]
"""Takes NextEntryOffset, metadata, the length of the name and the 8.3 name. Returns the entry's fixed part."""


def _ea_size(info: Metadata) -> int:
    """Return the value of EaSize. It is the reparse tag of a reparse point, in levels without a field for the tag.
    [MS-FSCC 2.4.8]"""
    return info.reparse_tag if info.attributes & attr.REPARSE_POINT else info.ea_size


def _directory(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _DIRECTORY.pack(
        following,
        0,
        i.creation_time,
        i.last_access_time,
        i.last_write_time,
        i.change_time,
        i.end_of_file,
        i.allocation_size,
        i.attributes,
        length,
    )


def _full(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _directory(following, i, length, short) + _NEXT.pack(_ea_size(i))


def _id_full(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _full(following, i, length, short) + _ID.pack(0, i.key[1])


def _both(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _full(following, i, length, short) + _SHORT.pack(len(short), 0, short)


def _id_both(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    # Most clients ask for this level.
    return _ID_BOTH.pack(
        following,
        0,
        i.creation_time,
        i.last_access_time,
        i.last_write_time,
        i.change_time,
        i.end_of_file,
        i.allocation_size,
        i.attributes,
        length,
        i.reparse_tag if i.attributes & attr.REPARSE_POINT else i.ea_size,
        len(short),
        0,
        short,
        0,
        i.key[1],
    )


def _names(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _NAMES.pack(following, 0, length)


def _id_extd(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _directory(following, i, length, short) + _EXTD.pack(i.ea_size, i.reparse_tag, i.key[1], 0)


def _id_extd_both(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _id_extd(following, i, length, short) + _SHORT.pack(len(short), 0, short)


def _id_64_extd(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _directory(following, i, length, short) + _EXTD_64.pack(i.ea_size, i.reparse_tag, i.key[1])


def _id_64_extd_both(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _id_64_extd(following, i, length, short) + _SHORT.pack(len(short), 0, short)


def _id_all_extd(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    number = i.key[1]
    return _directory(following, i, length, short) + _EXTD_ALL.pack(i.ea_size, i.reparse_tag, number, number, 0)


def _id_all_extd_both(following: int, i: Metadata, length: int, short: bytes) -> bytes:
    return _id_all_extd(following, i, length, short) + _SHORT.pack(len(short), 0, short)


class ForMacs(NamedTuple):
    """What an entry holds for a Mac that was promised ``apple.ServerCaps.READ_DIR_ATTR``."""

    info: Metadata
    maximal_access: int
    finder: bytes
    """The result of ``apple.pack_entry``."""
    mode: int
    file_id: int
    """0: none."""


def _id_both_for_macs(following: int, entry: ForMacs, length: int, short: bytes) -> bytes:
    """Return an entry of FileIdBothDirectoryInformation as Macs want it. (Apple's SMBClient, kernel/netsmb/smb_2.h)

    EaSize is the maximal access, ShortName holds what Finder shows, Reserved2 is the mode."""
    i = entry.info
    return _ID_BOTH.pack(
        following,
        0,
        i.creation_time,
        i.last_access_time,
        i.last_write_time,
        i.change_time,
        i.end_of_file,
        i.allocation_size,
        i.attributes,
        length,
        i.reparse_tag if i.attributes & attr.REPARSE_POINT else entry.maximal_access,
        SHORT_NAME_SIZE,
        0,
        entry.finder,
        entry.mode & 0xFFFF,
        entry.file_id,
    )


_COMMON = 10
"""How many values of a layout all levels have but NAMES; FileNameLength is the last of them."""
_SHORT_FIELDS = ("short_length", "reserved", "short_name")


class Level(NamedTuple):
    """One level: its encoder, its layout for decoding, and the values of the layout behind the common ones."""

    encode: Encoder
    layout: struct.Struct
    fields: tuple[str, ...] = ()

    def at(self, field: str) -> int:
        """Return the index of a value in the layout; -1 if the level does not have it."""
        return _COMMON + self.fields.index(field) if field in self.fields else -1


_EXTD_FIELDS = ("ea_size", "reparse_tag", "file_id")
LEVELS: dict[int, Level] = {
    FileInfoClass.DIRECTORY: Level(_directory, _DIRECTORY),
    FileInfoClass.FULL_DIRECTORY: Level(_full, _FULL, ("ea_size",)),
    FileInfoClass.ID_FULL_DIRECTORY: Level(_id_full, _ID_FULL, ("ea_size", "reserved", "file_id")),
    FileInfoClass.BOTH_DIRECTORY: Level(_both, _BOTH, ("ea_size", *_SHORT_FIELDS)),
    FileInfoClass.ID_BOTH_DIRECTORY: Level(_id_both, _ID_BOTH, ("ea_size", *_SHORT_FIELDS, "reserved", "file_id")),
    FileInfoClass.NAMES: Level(_names, _NAMES),
    FileInfoClass.ID_EXTD_DIRECTORY: Level(_id_extd, _ID_EXTD, _EXTD_FIELDS),
    FileInfoClass.ID_EXTD_BOTH_DIRECTORY: Level(_id_extd_both, _ID_EXTD_BOTH, (*_EXTD_FIELDS, "high", *_SHORT_FIELDS)),
    FileInfoClass.ID_64_EXTD_DIRECTORY: Level(_id_64_extd, _ID_64_EXTD, _EXTD_FIELDS),
    FileInfoClass.ID_64_EXTD_BOTH_DIRECTORY: Level(_id_64_extd_both, _ID_64_EXTD_BOTH, (*_EXTD_FIELDS, *_SHORT_FIELDS)),
    FileInfoClass.ID_ALL_EXTD_DIRECTORY: Level(_id_all_extd, _ID_ALL_EXTD, _EXTD_FIELDS),
    FileInfoClass.ID_ALL_EXTD_BOTH_DIRECTORY: Level(
        _id_all_extd_both, _ID_ALL_EXTD_BOTH, (*_EXTD_FIELDS, "low", "high", *_SHORT_FIELDS)
    ),
}
_PADDING = tuple(bytes(size) for size in range(8))


class Packer:
    """One QUERY_DIRECTORY response of at most ``limit`` bytes, filled by entries."""

    __slots__ = ("_encode", "_fixed", "_last", "_short_name", "buffer", "count", "limit")

    def __init__(self, info_class: int, limit: int, short_name: Callable[[str], str], for_macs: bool = False) -> None:
        """``short_name`` returns the 8.3 name of a name, or ''. It is called for levels with short names only.

        ``for_macs``: the entries are ``ForMacs``, and the level is FileIdBothDirectoryInformation."""
        level = LEVELS[info_class]
        self._encode: Callable[[int, Any, int, bytes], bytes] = _id_both_for_macs if for_macs else level.encode
        self._fixed = level.layout.size
        self._short_name = short_name if "short_name" in level.fields and not for_macs else None
        self.buffer = bytearray()
        self.limit = limit
        self.count = 0
        # Invariant: offset of the last entry in the buffer; 0 if there is none.
        self._last = 0

    def add(self, entries: Iterable[tuple[str, Metadata | ForMacs]]) -> int:
        """Append entries (name and metadata), up to the first that does not fit. Return how many were appended."""
        encode, fixed, short_name, limit = self._encode, self._fixed, self._short_name, self.limit
        end = len(self.buffer)
        start, last = end + 7 & ~7, self._last
        parts = [_PADDING[start - end]]
        added = 0
        short = b""
        for name, info in entries:
            encoded = name.encode("utf-16-le", "surrogatepass")
            length = len(encoded)
            end = start + fixed + length
            if end > limit:
                break
            if short_name is not None:
                short = short_name(name).encode("utf-16-le")
            # As if another entry followed: the last one is put right below.
            following = end + 7 & ~7
            parts += encode(following - start, info, length, short), encoded, _PADDING[following - end]
            last, start = start, following
            added += 1
        if added:
            if self.count:
                first = len(self.buffer) + 7 & ~7
                _NEXT.pack_into(self.buffer, self._last, first - self._last)
            parts.pop()
            self.buffer += b"".join(parts)
            _NEXT.pack_into(self.buffer, last, 0)
            self._last = last
            self.count += added
        return added


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


def decode_directory(info_class: int, data: Buffer) -> list[ListedEntry]:
    """Decode all entries of a response at one of ``LEVELS``. Raises ``DecodeError``."""
    level = LEVELS[info_class]
    layout = level.layout
    ea_at, tag_at, id_at, short_at = map(level.at, ("ea_size", "reparse_tag", "file_id", "short_length"))
    view = memoryview(data)
    found: list[ListedEntry] = []
    for start, end in chain(view, layout.size):
        # The last one stands for the values that the level does not have.
        values = (*layout.unpack_from(view, start), 0)
        length = values[2 if layout is _NAMES else _COMMON - 1]
        at = start + layout.size
        if length > end - at:
            raise DecodeError("directory entry's name outside its entry")
        name = decode_name(view[at : at + length])
        if layout is _NAMES:
            found.append(ListedEntry(name))
            continue
        ea_size, tag = values[ea_at], values[tag_at]
        if tag_at < 0 and values[8] & attr.REPARSE_POINT:
            ea_size, tag = 0, ea_size
        short = ""
        if short_at > 0:
            if values[short_at] > SHORT_NAME_SIZE:
                raise DecodeError("ShortNameLength above 24")
            short = decode_name(values[short_at + 2][: values[short_at]])
        found.append(ListedEntry._make((name, *values[2:9], ea_size, tag, values[id_at], short)))
    return found
