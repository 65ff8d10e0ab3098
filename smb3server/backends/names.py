"""Names: the rules of Windows (MS-FSCC 2.1.5), and how names on disk and names on the wire map onto each other.

What a POSIX file system allows and Windows does not is shown as characters of the Unicode private use area, the way
macOS (SFM) and Linux's cifs client (``mapposix``) understand and undo it:

====================  =====================
on disk               on the wire
====================  =====================
0x01-0x1F             U+F001-U+F01F
``" * : < > ? \\ |``   U+F020 U+F021 U+F022 U+F023 U+F024 U+F025 U+F026 U+F027
final space, dot      U+F028, U+F029
byte that is not      U+F780-U+F7FF
UTF-8, 0x80-0xFF
====================  =====================
"""

from __future__ import annotations

import errno
import functools
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from smb3server.backends.base import Path

MAX_COMPONENT_UNITS = 255
"""UTF-16 code units in a component or a stream's name (MS-FSCC 2.1.5.2, 2.1.5.3)."""
MAX_PATH_UNITS = 32767
MAX_DEPTH = 256
"""Components of a path: each is looked up by itself where its case differs. Not in the spec; programs of Windows that
know nothing of long paths stop at half as many (MAX_PATH)."""

PRIVATE_NAME = ".smb3server"
"""The side-car store's directory: no component of a client's path may be this, in any case."""

_RESERVED = frozenset('"\\/:|<>*?') | frozenset(map(chr, range(0x20)))
_WILDCARDS = frozenset('*?<>"')
_DISK_TO_WIRE = {code: 0xF000 + code for code in range(1, 0x20)}
_DISK_TO_WIRE.update({ord(char): 0xF020 + index for index, char in enumerate('"*:<>?\\|')})
_DISK_TO_WIRE.update({0xDC80 + index: 0xF780 + index for index in range(0x80)})
_WIRE_TO_DISK = {wire: disk for disk, wire in _DISK_TO_WIRE.items()}
_DISK_SPECIAL = frozenset(map(chr, _DISK_TO_WIRE))
_FINAL = {" ": "\uf028", ".": "\uf029"}
_FINAL_BACK = {wire: disk for disk, wire in _FINAL.items()}


class InvalidName(OSError):
    """A name that breaks the naming rules (EILSEQ): STATUS_OBJECT_NAME_INVALID."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(errno.EILSEQ, reason, name)


def utf16_units(name: str) -> int:
    """Return the number of UTF-16 code units."""
    return len(name) if name.isascii() else len(name.encode("utf-16-le", "surrogatepass")) // 2


def has_wildcards(name: str) -> bool:
    return not _WILDCARDS.isdisjoint(name)


def check_component(name: str) -> None:
    """Raise InvalidName for an impossible component. '.' and '..' are impossible here, trailing dots and spaces are
    allowed. [MS-FSCC 2.1.5.2]"""
    if not name or name in (".", ".."):
        raise InvalidName(name, "empty or relative component")
    if not _RESERVED.isdisjoint(name):
        raise InvalidName(name, "reserved character")
    if utf16_units(name) > MAX_COMPONENT_UNITS:
        raise InvalidName(name, "component longer than 255 characters")


def check_stream_name(name: str) -> None:
    """Raise InvalidName for an impossible name of a stream: only the separators and NUL are forbidden. [MS-FSCC
    2.1.5.3]"""
    if any(char in "\\/:\0" for char in name):
        raise InvalidName(name, "reserved character in a stream's name")
    if utf16_units(name) > MAX_COMPONENT_UNITS:
        raise InvalidName(name, "stream name longer than 255 characters")


def split_path(name: str) -> tuple[Path, str, bool | None]:
    """``a\\b:stream:$DATA`` to (components, stream, directory?).

    The third is True for ``::$INDEX_ALLOCATION``, False for ``::$DATA`` (the unnamed data stream: only files have one),
    None when nothing was said. Raises InvalidName, for a trailing backslash too: whoever tolerates one drops it first.
    """
    if not name:
        return (), "", None
    if len(name) > MAX_PATH_UNITS:
        raise InvalidName(name[:64], "path too long")
    head, _, last = name.rpartition("\\")
    components = head.split("\\") if head else []
    if name.startswith("\\"):
        raise InvalidName(name, "leading backslash")
    stream = ""
    directory: bool | None = None
    if ":" in last:
        last, stream, directory = _split_stream(last)
    if last or components:
        components.append(last)
    if len(components) > MAX_DEPTH:
        raise InvalidName(name[:64], "too many components")
    for component in components:
        check_component(component)
    return tuple(components), stream, directory


def _split_stream(last: str) -> tuple[str, str, bool | None]:
    """Take ``filename[:stream[:type]]`` apart, as ``split_path`` does. [MS-FSCC 2.1.5]"""
    parts = last.split(":")
    if len(parts) > 3:
        raise InvalidName(last, "too many colons")
    base, stream = parts[0], parts[1]
    kind = parts[2].upper() if len(parts) == 3 else None
    if kind == "$INDEX_ALLOCATION":
        if stream.upper() not in ("", "$I30"):
            raise InvalidName(last, "a directory has no such index")
        return base, "", True
    if kind not in (None, "$DATA"):
        raise InvalidName(last, "unknown stream type")
    if not stream:
        if kind is None:
            raise InvalidName(last, "empty stream name")
        return base, "", False
    check_stream_name(stream)
    return base, stream, None


def to_disk(name: str) -> str:
    """Return the on-disk name (surrogateescape) of a name on the wire. It is never '', '.' or '..', and has neither '/'
    nor NUL.

    Raises InvalidName if there is none; a name that maps to '.' or '..' stays unmapped."""
    disk = name
    if not name.isascii():
        if any("\ud800" <= char <= "\udfff" for char in name):
            raise InvalidName(name, "unpaired surrogate")
        disk = name.translate(_WIRE_TO_DISK)
        final = _FINAL_BACK.get(disk[-1])
        if final is not None:
            disk = disk[:-1] + final
        if disk in (".", ".."):
            disk = name
    if not disk or disk in (".", "..") or "/" in disk or "\0" in disk:
        raise InvalidName(name, "no name for a file")
    return disk


def to_disk_path(path: Path) -> list[str]:
    """Return ``to_disk`` of all components."""
    return [to_disk(component) for component in path]


def to_wire(disk: str) -> str:
    """Return the name that clients see for an on-disk name (as from os.fsdecode)."""
    if not _DISK_SPECIAL.isdisjoint(disk):
        disk = disk.translate(_DISK_TO_WIRE)
    final = _FINAL.get(disk[-1])
    return disk if final is None else disk[:-1] + final


@functools.cache
def _upcase_table() -> dict[int, int]:
    table = {}
    for code in range(0x80, 0xD800):
        upper = chr(code).upper()
        # Like NTFS's table: one unit to one unit, and nothing outside ASCII folds into it (dotless i, long s).
        if len(upper) == 1 and ord(upper) != code and 0x80 <= ord(upper) < 0x10000 and code != 0xB5:
            table[code] = ord(upper)
    for code in range(ord("a"), ord("z") + 1):
        table[code] = code - 32
    for code in range(0xFF41, 0xFF5B):
        table[code] = code - 32
    return table


def upcase(name: str) -> str:
    """Return a name for comparisons: the simple upper case of each UTF-16 unit, nearly as in Windows' upcase table."""
    return name.upper() if name.isascii() else name.translate(_upcase_table())


_NOT_PLAIN = re.compile("[" + re.escape("".join(_DISK_SPECIAL)) + "]|[ .](?:\0|\\Z)")
"""In on-disk names joined by NUL: what ``to_wire`` changes."""


def fold_all(disk_names: Sequence[str]) -> list[str]:
    """Return ``upcase(to_wire(name))`` of many names. This is much faster if most of them are plain ASCII."""
    joined = "\0".join(disk_names)
    if disk_names and joined.isascii() and not _NOT_PLAIN.search(joined):
        return joined.upper().split("\0")
    return [upcase(to_wire(name)) for name in disk_names]


_PRIVATE_UPCASE = PRIVATE_NAME.upper()


def private_at(disk_path: Sequence[str]) -> int | None:
    """Return the index of the first component that is the side-car store's directory; None: there is none."""
    return next((index for index, component in enumerate(disk_path) if is_private(component)), None)


def is_private(name: str) -> bool:
    """Return whether an on-disk name is that of the side-car store's directory, in any case."""
    return len(name) == len(PRIVATE_NAME) and name.upper() == _PRIVATE_UPCASE


_SHORT_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-$!#%&@^'(){}`")
_BASE36 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHORT_FORM = re.compile(r"[^~.]{1,6}~[0-9](\.[^~.]{1,3})?")


_HASH_DIGITS = 5
_HASHES: int = 36**_HASH_DIGITS
_HASHED_FORM = re.compile(r"[^~.]([0-9A-Z]{5})~1(?:\.[^~.]{1,3})?")


class Folded(NamedTuple):
    """A name as it is looked up in a directory."""

    text: str
    """On the wire, in upper case."""
    hash: int
    """``name_hash`` of it."""


def fold(disk_name: str) -> Folded:
    """Return what an on-disk name is looked up by."""
    text = upcase(to_wire(disk_name))
    return Folded(text, name_hash(text))


def name_hash(folded: str) -> int:
    """Return a hash of 26 bits of a name on the wire in upper case (``upcase``). The digits of its 8.3 name are made
    from it."""
    return zlib.crc32(folded.encode("utf-8", "surrogatepass")) % _HASHES


def hash_in_short_name(short: str) -> int | None:
    """Return ``name_hash`` of the names that have ``short`` as their 8.3 name; None if ``short_name`` never returns
    ``short``."""
    form = _HASHED_FORM.fullmatch(short)
    if form is None:
        return None
    value = 0
    for digit in reversed(form[1]):
        value = value * 36 + _BASE36.index(digit)
    return value


@functools.lru_cache(maxsize=32768)
def short_name(name: str) -> str:
    """Return the 8.3 name of a long one, the same every time; empty if ``name`` is an 8.3 name itself. [MS-FSCC
    2.1.5.2.1]

    It is made from a hash of the name, as there is no place to store numbers: two names share one with a chance of one
    in sixty million. Then the first in the directory has it."""
    upper = name.upper()
    stem, dot, extension = upper.rpartition(".")
    if not dot:
        stem, extension = upper, ""
    if 1 <= len(stem) <= 8 and len(extension) <= 3 and bool(dot) == bool(extension):
        if _SHORT_CHARS.issuperset(stem) and _SHORT_CHARS.issuperset(extension):
            return ""
        if _SHORT_FORM.fullmatch(upper) and _SHORT_CHARS.issuperset(upper.replace("~", "", 1).replace(".", "", 1)):
            return ""
    first = next((char for char in stem if char in _SHORT_CHARS), "_")
    tail = "".join(char for char in extension if char in _SHORT_CHARS)[:3]
    number = name_hash(upcase(name))
    digits = ""
    for _ in range(_HASH_DIGITS):
        number, digit = divmod(number, 36)
        digits += _BASE36[digit]
    return f"{first}{digits}~1.{tail}" if tail else f"{first}{digits}~1"


def may_be_short(name: str) -> bool:
    """Return whether ``name`` looks like a result of ``short_name``."""
    return "~1" in name and _SHORT_FORM.fullmatch(name) is not None
