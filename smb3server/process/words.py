"""Words for people in log lines: names, addresses, amounts and times."""

from __future__ import annotations

import datetime
import pwd

from smb3server.process.log_lines import printable

MAX_NAME = 256
"""Most characters shown of a name that a peer has chosen."""
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_$@\\")


def quoted(name: str) -> str:
    """Return a name that a peer has chosen, in quotation marks if it is not made of letters and digits alone."""
    shown = printable(name, MAX_NAME)
    if shown and all(char in _SAFE or (ord(char) > 0x7F and char.isalnum()) for char in shown):
        return shown
    return '"' + shown.replace('"', "'") + '"'


def endpoint(address: tuple[str, int]) -> str:
    """Return an address with its port, as in ``192.0.2.7:50123`` and ``[2001:db8::7]:50123``."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def user_name(uid: int, nameless: str = "{}") -> str:
    """Return the name of a user of the host as its commands take it, else the number in the form ``nameless``."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return nameless.format(uid)


def amount(count: float) -> str:
    """Return a number of bytes for people."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} PiB"


def duration(seconds: float) -> str:
    """Return a time for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def timestamp(seconds: float) -> str:
    """Return a time since 1970 as RFC 3339, in UTC with milliseconds."""
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
