"""Reads AppleDouble: what Macs, netatalk and Samba keep of a file beside its data, in ``._NAME`` or an attribute.

A header lists entries. This module knows Finder information, in which macOS also keeps extended attributes, and the
resource fork. [RFC 1740, appendix B]
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError

HEAD_SIZE = 1 << 18
"""Bytes that hold everything but the resource fork. macOS limits all attributes together to 128 KiB."""
_HEADER = struct.Struct(">II16sH")
_ENTRY = struct.Struct(">III")
_MAGIC, _VERSIONS = 0x00051607, (0x00010000, 0x00020000)
_RESOURCE_FORK, _FINDER_INFO = 2, 9
_FINDER_SIZE = 32
_MAX_ENTRIES = 64
_ATTRIBUTES = struct.Struct(">4sIIII12sHH")
"""Magic, debug tag, total size, where the values begin, their size, reserved, flags, number."""
_ATTRIBUTE = struct.Struct(">IIHB")
"""Where the value is in the file, its size, flags, size of the name with its NUL."""
_BLANK_FORK_SIZE = 286
_BLANK_TEXT = b"This resource fork intentionally left blank"


class AppleDouble(NamedTuple):
    """What an AppleDouble file holds. Offsets and sizes are bytes."""

    finder_info: bytes
    """32 bytes. Empty: there is none."""
    attributes: tuple[tuple[str, bytes], ...]
    """Extended attributes of macOS."""
    fork_offset: int
    fork_size: int
    """0: there is no resource fork."""


def parse(head: Buffer, size: int) -> AppleDouble:
    """Decode a file of ``size`` bytes that begins with ``head`` (up to ``HEAD_SIZE`` bytes). Raises ``DecodeError``."""
    if len(head) < _HEADER.size:
        raise DecodeError("AppleDouble ends in its header")
    magic, version, _, count = _HEADER.unpack_from(head)
    if magic != _MAGIC or version not in _VERSIONS or count > _MAX_ENTRIES:
        raise DecodeError("not AppleDouble")
    if _HEADER.size + count * _ENTRY.size > len(head):
        raise DecodeError("AppleDouble ends in its list of entries")
    entries: dict[int, tuple[int, int]] = {}
    for number in range(count):
        kind, offset, length = _ENTRY.unpack_from(head, _HEADER.size + number * _ENTRY.size)
        if length and offset + length > size:
            raise DecodeError("an entry of AppleDouble reaches beyond its end")
        entries[kind] = offset, length
    finder = b""
    attributes: tuple[tuple[str, bytes], ...] = ()
    if _FINDER_INFO in entries:
        offset, length = entries[_FINDER_INFO]
        if length >= _FINDER_SIZE and offset + _FINDER_SIZE <= len(head):
            finder = bytes(head[offset : offset + _FINDER_SIZE])
            attributes = _attributes(head, offset + _FINDER_SIZE + 2, offset + length)
    return AppleDouble(finder, attributes, *entries.get(_RESOURCE_FORK, (0, 0)))


def _attributes(head: Buffer, start: int, end: int) -> tuple[tuple[str, bytes], ...]:
    """Return the attributes behind Finder information. ``end``: of the entry that holds them."""
    if start + _ATTRIBUTES.size > min(end, len(head)):
        return ()
    magic, *_, count = _ATTRIBUTES.unpack_from(head, start)
    if magic != b"ATTR":
        return ()
    found: list[tuple[str, bytes]] = []
    at = start + _ATTRIBUTES.size
    for _ in range(count):
        if at + _ATTRIBUTE.size > len(head):
            raise DecodeError("the list of attributes ends too early")
        offset, length, _, name_length = _ATTRIBUTE.unpack_from(head, at)
        at += _ATTRIBUTE.size
        if at + name_length > len(head) or offset + length > len(head):
            raise DecodeError("an attribute reaches beyond the end")
        try:
            name = bytes(head[at : at + name_length]).rstrip(b"\0").decode()
        except UnicodeDecodeError:
            raise DecodeError("the name of an attribute is not UTF-8") from None
        if name:
            found.append((name, bytes(head[offset : offset + length])))
        at = at + name_length + 3 & ~3
    return tuple(found)


def is_blank_fork(fork: Buffer) -> bool:
    """Return whether a resource fork is the one that macOS writes where there is none."""
    return len(fork) == _BLANK_FORK_SIZE and bytes(fork[16 : 16 + len(_BLANK_TEXT)]) == _BLANK_TEXT
