"""Times of snapshots, as names: those that clients use, and those that folders on the host have.

A pattern is a path in which one component has the time: ``.snapshots/@GMT-%Y.%m.%d-%H.%M.%S``,
``/tank/.zfs/snapshot/auto-%Y-%m-%d_%H.%M/data``. What follows that component is the way from the snapshot's root to the
share's folder. ``*`` in the component stands for any characters. A component of stars alone is the name of a subvolume
of btrfs, which knows by itself when it was made.
"""

from __future__ import annotations

import calendar
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smb3server.wire import filetime

_SECOND = 10_000_000
"""Units of a FILETIME."""
_TOKEN = re.compile(r"@GMT-(\d{4})\.(\d\d)\.(\d\d)-(\d\d)\.(\d\d)\.(\d\d)")
_DIRECTIVES = {
    "Y": r"(?P<Y>\d{4})",
    "y": r"(?P<y>\d{2})",
    "m": r"(?P<m>\d{2})",
    "d": r"(?P<d>\d{2})",
    "H": r"(?P<H>\d{2})",
    "M": r"(?P<M>\d{2})",
    "S": r"(?P<S>\d{2})",
    "s": r"(?P<s>\d{1,11})",
    "%": "%",
}


def token(seconds: int) -> str:
    """Return the name by which clients know the snapshot of a time. [MS-SMB2 2.2.32.2]"""
    return time.strftime("@GMT-%Y.%m.%d-%H.%M.%S", time.gmtime(seconds))


def filetime_of(seconds: int) -> int:
    """Return a time in seconds since 1970 as a FILETIME."""
    return filetime.EPOCH + seconds * _SECOND


def seconds_in(time_of_snapshot: int) -> int:
    """Return a FILETIME in seconds since 1970. The names of snapshots have no fractions."""
    return (time_of_snapshot - filetime.EPOCH) // _SECOND


def parse_token(name: str) -> int | None:
    """Return the time of a name that ``token`` has made. None: it is no such name."""
    found = _TOKEN.fullmatch(name)
    return seconds_of([int(group) for group in found.groups()]) if found is not None else None


def seconds_of(given: Sequence[int], local: bool = False) -> int | None:
    """Return a time in seconds since 1970. ``given``: year, month, day, hour, minute and second. ``local``: they are
    those of this machine's time zone. None: there is no such time, or a FILETIME cannot have it."""
    year, month, day, hour, minute, second = given
    numbers = (year, month, day, hour, minute, second, 0, 0, -1)
    try:
        found = int(time.mktime(numbers)) if local else calendar.timegm(numbers)
        back = time.localtime(found) if local else time.gmtime(found)
    except (OverflowError, ValueError):
        return None
    # These functions make the 3rd of March of a 31st of February. An hour may be missing where clocks are set forward.
    same = back[:3] == (year, month, day) and back[4:6] == (minute, second) and (local or back[3] == hour)
    return found if found > 0 and same else None


class PatternError(ValueError):
    """A pattern that names no snapshots. The text says why."""


@dataclass(frozen=True, slots=True)
class SnapshotPattern:
    """A pattern of the folders of snapshots, for one share."""

    folder: str
    """The folder that has the snapshots, an absolute path."""
    name: str
    """The component with the time, as it was given."""
    rest: tuple[str, ...]
    """The components from a snapshot's root to the share's folder."""
    matcher: re.Pattern[str]
    local: bool
    """Whether times in names are those of this machine's time zone."""
    hidden: str
    """The first component below the share's folder. "": the snapshots are elsewhere."""

    @property
    def by_subvolume(self) -> bool:
        """Whether the snapshots' times are those at which btrfs made them."""
        return not self.name.strip("*")

    def hides(self, name: str) -> bool:
        """Return whether a name, in any folder of the share, may be that of a folder with snapshots."""
        if not self.hidden:
            return False
        if self.hidden == self.name:
            return self.matcher.fullmatch(name) is not None
        return name.casefold() == self.hidden.casefold()

    def time_of(self, name: str) -> int | None:
        """Return the time in a name, in seconds since 1970. None: there is none."""
        found = self.matcher.fullmatch(name)
        if found is None:
            return None
        parts = {key: int(value) for key, value in found.groupdict().items()}
        if "s" in parts:
            return parts["s"] or None
        year = parts["Y"] if "Y" in parts else 2000 + parts["y"]
        return seconds_of([year, *(parts.get(key, 0) for key in "mdHMS")], self.local)

    def name_for(self, seconds: int) -> str:
        """Return the name of a snapshot made at a time. Raises ``PatternError`` if a name cannot tell the time."""
        if "*" in self.name:
            raise PatternError(f"{self.name!r} has a *, so that a new snapshot has no name of its own")
        if not any(f"%{letter}" in self.name for letter in "Ss"):
            raise PatternError(f"{self.name!r} has no seconds (%S)")
        found = time.localtime(seconds) if self.local else time.gmtime(seconds)
        return re.sub("%s", str(seconds), self.name) if "%s" in self.name else time.strftime(self.name, found)


def parse(pattern: str, share: str, local: bool = False) -> SnapshotPattern:
    """Read a pattern. ``share``: the share's folder, from which a relative pattern counts. ``local``: as
    ``SnapshotPattern.local``. Raises ``PatternError``."""
    given = pattern.rstrip("/").split("/")
    parts = given[1:] if pattern.startswith("/") else given
    if not all(parts) or any(part in (".", "..") for part in parts):
        raise PatternError("no component may be empty, . or ..")
    named = [index for index, part in enumerate(parts) if "%" in part or "*" in part]
    if len(named) != 1:
        raise PatternError('one component needs the time, as in ".snapshots/@GMT-%Y.%m.%d-%H.%M.%S"')
    index = named[0]
    matcher = _matcher(parts[index])
    above = parts[:index]
    if pattern.startswith("/"):
        folder = "/" + "/".join(above)
        inside = os.path.relpath(os.path.join(os.path.realpath(folder), parts[index]), os.path.realpath(share))
        hidden = inside.split("/")[0]
        hidden = "" if hidden == ".." else hidden
    else:
        folder = os.path.join(share, *above)
        hidden = parts[0]
    return SnapshotPattern(folder, parts[index], tuple(parts[index + 1 :]), matcher, local, hidden)


def _matcher(name: str) -> re.Pattern[str]:
    """Return an expression for the names of snapshots. Raises ``PatternError``."""
    expression = ""
    seen = set()
    for piece in re.findall(r"%.?|\*|[^%*]+", name, re.DOTALL):
        if piece == "*":
            expression += ".*"
        elif not piece.startswith("%"):
            expression += re.escape(piece)
        elif piece[1:] not in _DIRECTIVES:
            raise PatternError(f"{piece} is not known; known are {' '.join('%' + key for key in _DIRECTIVES)}")
        elif piece in seen and piece != "%%":
            raise PatternError(f"{piece} occurs twice")
        else:
            expression += _DIRECTIVES[piece[1:]]
            seen.add(piece)
    if name.strip("*") and "%s" not in seen and not ({"%Y", "%y"} & seen and {"%m", "%d"} <= seen):
        raise PatternError("the time needs year, month and day (%Y %m %d), or the seconds since 1970 (%s)")
    return re.compile(expression, re.DOTALL)


def hiding(pattern: SnapshotPattern, vetoes: Callable[[str], bool] | None) -> Callable[[str], bool] | None:
    """Return ``vetoes`` that hold for the folders of snapshots as well."""
    if not pattern.hidden:
        return vetoes
    if vetoes is None:
        return pattern.hides
    return lambda name: pattern.hides(name) or vetoes(name)
