"""Names of files: those of this machine, and those that travel in SMB. [MS-FSCC 2.1.5]

Windows and SMB allow fewer characters than POSIX, and a colon begins the name of a stream. The others are carried as
characters of Unicode's private area, as Linux (mapposix), macOS and Samba (catia, fruit) do it: both ways, so a file
that was put comes back with its own name.
"""

from __future__ import annotations

import errno
import os

from smb3server.remote import errors

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
_BLANK_AT_END, _DOT_AT_END = "\uf028", "\uf029"
_TO_SHARE = str.maketrans(_CARRIED)
_FROM_SHARE = str.maketrans(
    {carried: plain for plain, carried in _CARRIED.items()} | {_BLANK_AT_END: " ", _DOT_AT_END: "."}
)
MAX_NAME = 255
"""Most UTF-16 code units of one component of a path, and most bytes of a name in Linux."""


def to_share(component: str) -> str:
    """Return a component of a path as it travels."""
    carried = component.translate(_TO_SHARE)
    if carried.endswith(" "):
        return carried[:-1] + _BLANK_AT_END
    if carried.endswith(".") and carried not in (".", ".."):
        return carried[:-1] + _DOT_AT_END
    return carried


def from_share(component: str) -> str:
    """Return a component as the local file system has it."""
    return component.translate(_FROM_SHARE)


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
    folder: a name with a separator, or a name of another folder, would lead out of it.
    """
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def part_of(name: str, version: str) -> str:
    """Return the name under which a file is written until it is complete.

    ``version`` is that of the source, so another source never continues what an earlier one left.
    """
    end = f".{version}.part"
    room = MAX_NAME - len(end)
    kept = name
    while len(os.fsencode(kept)) > room or len(kept.encode("utf-16-le", "surrogatepass")) // 2 > room:
        kept = kept[:-1]
    return f"{kept}{end}"
