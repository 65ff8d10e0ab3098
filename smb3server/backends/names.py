"""The rules of Windows for names, and the mapping between names on disk and names on the wire. [MS-FSCC 2.1.5]

Characters that a POSIX file system allows and Windows does not are shown as characters of the Unicode private use area.
macOS (SFM) and Linux's cifs client (``mapposix``) understand this mapping and undo it:

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
from smb3server.wire.upcase import upcase

MAX_COMPONENT_UNITS = 255
"""UTF-16 code units in a component or a stream's name. [MS-FSCC 2.1.5.2, 2.1.5.3]"""
MAX_PATH_UNITS = 32767
"""Characters in a whole path."""
MAX_DEPTH = 256
"""Components in a path. The limit is needed because each component whose case differs is looked up by itself. It is not
in the specification. Windows programs without support for long paths stop at half as many (MAX_PATH)."""

PRIVATE_NAME = ".smb3server"
"""The name of the side-car store's directory. No component of a client's path may have it, in any case."""

_RESERVED = frozenset('"\\/:|<>*?') | frozenset(map(chr, range(0x20)))
_WILDCARDS = frozenset('*?<>"')
_DISK_TO_WIRE = {code: 0xF000 + code for code in range(1, 0x20)}
_DISK_TO_WIRE.update({ord(char): 0xF020 + index for index, char in enumerate('"*:<>?\\|')})
_DISK_TO_WIRE.update({0xDC80 + index: 0xF780 + index for index in range(0x80)})
_WIRE_TO_DISK = {wire: disk for disk, wire in _DISK_TO_WIRE.items()}
_WIRE_TO_POSIX = {wire: disk for wire, disk in _WIRE_TO_DISK.items() if disk < 0x80}
_DISK_SPECIAL = frozenset(map(chr, _DISK_TO_WIRE))
_PLAIN = r"(?!\.)[ !#-)+-.0-9;=@-\[\]-{}~]{1,255}(?<![ .])"
"""Matches a component of ASCII characters that is the same on disk and on the wire, and neither relative nor
private."""
_PLAIN_NAME = re.compile(rf"{_PLAIN}(?:\\{_PLAIN})*")
_PLAIN_PATH = re.compile(rf"{_PLAIN}(?:/{_PLAIN})*")
_FINAL = {" ": "\uf028", ".": "\uf029"}
_FINAL_BACK = {wire: disk for disk, wire in _FINAL.items()}


class InvalidName(OSError):
    """A name breaks the naming rules (EILSEQ). It becomes STATUS_OBJECT_NAME_INVALID."""

    folder: Path = ()
    """The components above the one that breaks them. That they exist is judged first. [MS-FSA 2.1.5.1 phases 6, 7]"""
    wrong_type = False
    """Whether a stream has the type of a directory, which is STATUS_INVALID_PARAMETER."""
    above = False
    """Whether the name leads above the share, which is STATUS_OBJECT_PATH_SYNTAX_BAD."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(errno.EILSEQ, reason, name)


def utf16_units(name: str) -> int:
    """Return the length of ``name`` in UTF-16 code units."""
    return len(name) if name.isascii() else len(name.encode("utf-16-le", "surrogatepass")) // 2


def has_wildcards(name: str) -> bool:
    """Return whether ``name`` contains a wildcard of a search pattern."""
    return not _WILDCARDS.isdisjoint(name)


def check_component(name: str) -> None:
    """Raise ``InvalidName`` if ``name`` cannot be a component of a path. [MS-FSCC 2.1.5.2]

    '.' and '..' are refused; trailing dots and spaces are allowed."""
    if not name or name in (".", ".."):
        raise InvalidName(name, "empty or relative component")
    if not _RESERVED.isdisjoint(name):
        raise InvalidName(name, "reserved character")
    if utf16_units(name) > MAX_COMPONENT_UNITS:
        raise InvalidName(name, "component longer than 255 characters")


def check_stream_name(name: str) -> None:
    """Raise ``InvalidName`` if ``name`` is too long or contains a separator or NUL. [MS-FSCC 2.1.5.3]"""
    if any(char in "\\/:\0" for char in name):
        raise InvalidName(name, "reserved character in a stream's name")
    if utf16_units(name) > MAX_COMPONENT_UNITS:
        raise InvalidName(name, "stream name longer than 255 characters")


def split_path(name: str) -> tuple[Path, str, bool | None]:
    """Split a name such as ``a\\b:stream:$DATA`` into (components, stream, directory).

    ``directory`` is True for ``::$INDEX_ALLOCATION``, False for ``::$DATA`` (the unnamed data stream: only files have
    one), and None if the name says nothing about it. Several backslashes between two components are one, as on Windows
    and Samba. Raises ``InvalidName``, also for a trailing backslash: a caller that tolerates one removes it first.
    """
    if not name:
        return (), "", None
    if len(name) > MAX_PATH_UNITS:
        raise InvalidName(name[:64], "path too long")
    if name.startswith("\\"):
        raise InvalidName(name, "leading backslash")
    *above, last = name.split("\\")
    if len(above) >= MAX_DEPTH:
        raise InvalidName(name[:64], "too many components")
    stream = ""
    directory: bool | None = None
    components: list[str] = []
    try:
        for component in filter(None, above):
            check_component(component)
            components.append(component)
        if ":" in last:
            last, stream, directory = _split_stream(last)
        if last or components:
            check_component(last)
            components.append(last)
    except InvalidName as error:
        error.folder = tuple(components)
        raise
    return tuple(components), stream, directory


def split_plain(name: str) -> Path | None:
    """Return the components of a name if it is nothing but plain ASCII components, as most names are. Otherwise return
    None: ``split_path`` has to look closer."""
    if len(name) > MAX_PATH_UNITS or not _PLAIN_NAME.fullmatch(name):
        return None
    path = tuple(name.split("\\"))
    return path if len(path) <= MAX_DEPTH else None


def split_posix(name: str) -> Path:
    """Split the name of a POSIX open into components in the form that they have everywhere else (``to_wire``).

    Only a slash separates, and every other character but NUL is one of the name. Empty components and "." are left out.
    ".." leads to the folder above. A client may have mapped characters as described above: then the result is the same.
    Raises ``InvalidName``: with ``above`` set for a name that leads out of the share. [POSIX-SMB2]"""
    if len(name) > MAX_PATH_UNITS:
        raise InvalidName(name[:64], "path too long")
    if name.startswith("/"):
        raise InvalidName(name[:64], "leading slash")
    found: list[str] = []
    for component in name.split("/"):
        if component == "..":
            if not found:
                error = InvalidName(name[:64], "leads out of the share")
                error.above = True
                raise error
            found.pop()
        elif component not in ("", "."):
            found.append(_from_posix(component))
    if len(found) > MAX_DEPTH:
        raise InvalidName(name[:64], "too many components")
    return tuple(found)


def _from_posix(component: str) -> str:
    if "\0" in component or any("\ud800" <= char <= "\udfff" for char in component):
        raise InvalidName(component[:64], "not a valid file name")
    if utf16_units(component) > MAX_COMPONENT_UNITS:
        raise InvalidName(component[:64], "component longer than 255 characters")
    return to_wire(component)


def to_posix(name: str) -> str:
    """Return the name that POSIX opens show for a name on the wire: as on disk, but for bytes that are not UTF-8."""
    if name.isascii():
        return name
    disk = name.translate(_WIRE_TO_POSIX)
    final = _FINAL_BACK.get(disk[-1:])
    shown = disk if final is None else disk[:-1] + final
    return name if shown in (".", "..") else shown


def _split_stream(last: str) -> tuple[str, str, bool | None]:
    """Split ``filename[:stream[:type]]`` as ``split_path`` does. [MS-FSCC 2.1.5]"""
    parts = last.split(":")
    if len(parts) > 3:
        raise InvalidName(last, "too many colons")
    base, stream = parts[0], parts[1]
    kind = parts[2].upper() if len(parts) == 3 else None
    if kind == "$INDEX_ALLOCATION":
        if stream.upper() not in ("", "$I30"):
            error = InvalidName(last, "a directory has no such index")
            error.wrong_type = True
            raise error
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
    """Return the on-disk name (surrogateescape) for a name on the wire.

    The result is never '', '.' or '..' and never contains '/' or NUL. A name that would map to '.' or '..' stays
    unmapped. Raises ``InvalidName`` if the name has no form on disk.
    """
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
        raise InvalidName(name, "not a valid file name")
    return disk


def to_disk_path(path: Path) -> list[str]:
    """Return ``to_disk`` of all components. Raises ``InvalidName``."""
    return [to_disk(component) for component in path]


def plain_on_disk(path: Path) -> bytes | None:
    """Return ``to_disk_path`` joined by slashes if none of the components needs a closer look, as with most paths: they
    are the same on disk, and not private. Otherwise return None."""
    joined = "/".join(path)
    if _PLAIN_PATH.fullmatch(joined) and joined.count("/") == len(path) - 1:
        return joined.encode()
    return None


def to_wire(disk: str) -> str:
    """Return the name that clients see for an on-disk name (as from ``os.fsdecode``)."""
    if not _DISK_SPECIAL.isdisjoint(disk):
        disk = disk.translate(_DISK_TO_WIRE)
    final = _FINAL.get(disk[-1])
    return disk if final is None else disk[:-1] + final


_NOT_PLAIN = re.compile("[" + re.escape("".join(_DISK_SPECIAL)) + "]|[ .](?:\0|\\Z)")
"""Matches the characters that ``to_wire`` changes, in on-disk names joined by NUL."""


def _are_plain(joined: str) -> bool:
    """Return whether on-disk names, joined by NUL, are ASCII and the same on the wire. There must be at least one."""
    return joined.isascii() and not _NOT_PLAIN.search(joined)


def to_wire_all(disk_names: Sequence[str]) -> Sequence[str]:
    """Return ``to_wire`` of many names. This is much cheaper if all of them are plain ASCII."""
    if disk_names and _are_plain("\0".join(disk_names)):
        return disk_names
    return [to_wire(name) for name in disk_names]


def fold_all(disk_names: Sequence[str]) -> list[str]:
    """Return ``upcase(to_wire(name))`` of many names. This is much cheaper if all of them are plain ASCII."""
    joined = "\0".join(disk_names)
    if disk_names and _are_plain(joined):
        return joined.upper().split("\0")
    return [upcase(to_wire(name)) for name in disk_names]


_PRIVATE_UPCASE = PRIVATE_NAME.upper()


def is_private(name: str) -> bool:
    """Return whether an on-disk name is that of the side-car store's directory, in any case."""
    return len(name) == len(PRIVATE_NAME) and name.upper() == _PRIVATE_UPCASE


_SHORT_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-$!#%&@^'(){}`")
_BASE36 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHORT_FORM = re.compile(r"[^~.]{1,6}~[0-9](\.[^~.]{1,3})?")


_HASHES: int = 36**5
"""Hashes have five digits of base 36."""
_PAIRS = 36**2
_TWO_DIGITS = [low_digit + high_digit for high_digit in _BASE36 for low_digit in _BASE36]
"""The digits of each number below ``_PAIRS``, the lower one first."""
_HASHED_FORM = re.compile(r"[^~.]([0-9A-Z]{5})~1(?:\.[^~.]{1,3})?")


class Folded(NamedTuple):
    """A name in the form that is looked up in a directory."""

    text: str
    """The name on the wire, in upper case."""
    hash: int
    """``name_hash`` of ``text``."""


def fold(disk_name: str) -> Folded:
    """Return the form by which an on-disk name is looked up."""
    text = upcase(to_wire(disk_name))
    return Folded(text, name_hash(text))


def name_hash(folded: str) -> int:
    """Return a hash of 26 bits of a name on the wire that ``upcase`` made. It gives the digits of the 8.3 name."""
    return zlib.crc32(folded.encode("utf-8", "surrogatepass")) % _HASHES


def hash_in_short_name(short: str) -> int | None:
    """Return the ``name_hash`` of all names with the 8.3 name ``short``; None if ``short_name`` never makes it."""
    form = _HASHED_FORM.fullmatch(short)
    if form is None:
        return None
    value = 0
    for digit in reversed(form[1]):
        value = value * 36 + _BASE36.index(digit)
    return value


@functools.lru_cache(maxsize=32768)
def short_name(name: str) -> str:
    """Return the 8.3 name of a long name, always the same. Empty if ``name`` is an 8.3 name, or that of a listing's
    entry for the folder itself or its parent. [MS-FSCC 2.1.5.2.1, MS-FSA 2.1.5.6.3]

    It is made from a hash of the name, because there is no place to store numbers. Two names have the same one with a
    chance of one in sixty million; then it leads to the first of them in the directory.
    """
    if name in (".", ".."):
        return ""
    upper = name.upper()
    stem, dot, extension = upper.rpartition(".")
    if not dot:
        stem, extension = upper, ""
    if 1 <= len(stem) <= 8 and len(extension) <= 3 and bool(dot) == bool(extension):
        if _SHORT_CHARS.issuperset(stem) and _SHORT_CHARS.issuperset(extension):
            return ""
        if _SHORT_FORM.fullmatch(upper) and _SHORT_CHARS.issuperset(upper.replace("~", "", 1).replace(".", "", 1)):
            return ""
    first = stem[0] if stem[:1] in _SHORT_CHARS else next((char for char in stem if char in _SHORT_CHARS), "_")
    tail = extension if _SHORT_CHARS.issuperset(extension) else "".join(filter(_SHORT_CHARS.__contains__, extension))
    number = name_hash(upper if name.isascii() else upcase(name))
    rest, pair = divmod(number, _PAIRS)
    digits = f"{_TWO_DIGITS[pair]}{_TWO_DIGITS[rest % _PAIRS]}{_BASE36[rest // _PAIRS]}"
    return f"{first}{digits}~1.{tail[:3]}" if tail else f"{first}{digits}~1"


def may_be_short(name: str) -> bool:
    """Return whether ``name`` has the form of the names that ``short_name`` makes."""
    return "~1" in name and _SHORT_FORM.fullmatch(name) is not None
