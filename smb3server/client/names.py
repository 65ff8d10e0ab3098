"""Names of files: those of this machine, and those that travel in SMB. [MS-FSCC 2.1.5]

Windows and SMB allow fewer characters than POSIX, and a colon begins the name of a stream. The others are carried as
characters of Unicode's private area, as Linux (mapposix), macOS and Samba (catia, fruit) do it: both ways, so a file
that was put comes back with its own name. A name that has such a character itself travels with ``_LITERAL`` before it.

Names that Windows reserves for devices (CON, aux.txt) travel as they are: most servers have files of these names.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable

from smb3server.client import errors
from smb3server.wire.upcase import upcase

_CARRIED = {
    '"': "\uf020",
    "*": "\uf021",
    ":": "\uf022",
    "<": "\uf023",
    ">": "\uf024",
    "?": "\uf025",
    "\\": "\uf026",
    "|": "\uf027",
    **{chr(code): chr(0xF000 + code) for code in range(1, 0x20)},
}
_AT_END = {" ": "\uf028", ".": "\uf029"}
_LITERAL = "\uf000"
"""Says that the character after it stands for itself. It would carry NUL, which no name has."""
_PLAIN = {carried: plain for plain, carried in (_CARRIED | _AT_END).items()}


def _pattern(inside: Iterable[str], at_end: Iterable[str]) -> re.Pattern[str]:
    """Return what finds characters of ``inside``, and those of ``at_end`` at the end, with what is before them."""
    return re.compile(f"({_LITERAL}*)([{re.escape(''.join(inside))}]|[{re.escape(''.join(at_end))}]\\Z)")


_ODD = _pattern([*_CARRIED, *_CARRIED.values()], [*_AT_END, *_AT_END.values()])
_ODD_ON_SHARE = _pattern(_CARRIED.values(), _AT_END.values())
MAX_NAME = 255
"""Most UTF-16 code units of one component of a path, and most bytes of a name in Linux."""


def to_share(component: str) -> str:
    """Return a component of a path as it travels. No two names travel as one."""

    def carry(found: re.Match[str]) -> str:
        literal, character = found.groups()
        carried = _CARRIED.get(character) or _AT_END.get(character)
        # Before a carried character the number of marks is even, before one that stands for itself it is odd.
        return 2 * literal + (carried or _LITERAL + character)

    return component if component in (".", "..") else _ODD.sub(carry, component)


def from_share(component: str) -> str:
    """Return a component as the local file system has it."""

    def restore(found: re.Match[str]) -> str:
        marks, character = len(found[1]), found[2]
        return marks // 2 * _LITERAL + (character if marks % 2 else _PLAIN[character])

    return _ODD_ON_SHARE.sub(restore, component)


def key(component: str) -> str:
    """Return the form in which names of a share are compared: each UTF-16 unit in simple upper case. [MS-UCODEREF
    3.1.5]
    """
    return upcase(component)


def is_unicode(name: str) -> bool:
    """Return whether a local name is UTF-8, and can travel."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def may_be_substitute(name: str) -> bool:
    """Return whether a listed name has the form by which Samba lists names that Windows does not allow: AHY9U3~9.TXT.

    The true name is known to the server.
    """
    return _SUBSTITUTE.fullmatch(name) is not None


_SUBSTITUTE = re.compile(r"[0-9A-Z_]{6}~[0-9A-Z](\.[^.a-z]{1,3})?")


def can_travel(name: str) -> bool:
    """Return whether a component can be sent as it is."""
    return is_listable(name) and _FORBIDDEN.search(name) is None and name[-1] not in " ."


_FORBIDDEN = re.compile(f"[{re.escape(''.join(_CARRIED))}]")


def clean(path: str | os.PathLike[str]) -> str:
    """Return ``path`` with single slashes, without ``.`` and ``..``, and without a slash at either end; "" is the base.

    Raises ``RemoteError`` (EINVAL) if it leads out of the base or contains NUL.
    """
    parts: list[str] = []
    text = os.fspath(path)
    for part in text.split("/"):
        if part == "..":
            if not parts:
                raise errors.make(errno.EINVAL, text, reason="the path leads out of the folder that was connected to")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if "\0" in text:
        raise errors.make(errno.EINVAL, text, reason="a name cannot contain NUL")
    return "/".join(parts)


def join(base: str, name: str) -> str:
    """Join two cleaned paths."""
    return f"{base}/{name}" if base and name else base or name


def split(path: str) -> tuple[str, str]:
    """Return the folder and the name of a cleaned path."""
    folder, _, name = path.rpartition("/")
    return folder, name


def is_listable(name: str) -> bool:
    """Return whether a name of a server's listing, as the local file system would have it, is that of an entry of the
    folder: a name with a separator, or a name of another folder, would lead out of it. A local file system has no
    names with half a character.
    """
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and is_unicode(name)


def part_of(name: str, version: str) -> str:
    """Return the name under which a file is written until it is complete.

    ``version`` is that of the source, so another source never continues what an earlier one left.
    """
    return _with_end(name, f".{version}.part")


def aside_of(path: str, mark: str) -> str:
    """Return the path under which something waits for its removal."""
    folder, name = split(path)
    return join(folder, _with_end(name, f".{mark}.aside"))


def _with_end(name: str, end: str) -> str:
    room = MAX_NAME - len(end)
    kept = name
    while len(os.fsencode(kept)) > room or len(kept.encode("utf-16-le", "surrogatepass")) // 2 > room:
        kept = kept[:-1]
    return f"{kept}{end}"
