"""Words for people in log lines: names, addresses, amounts and times."""

from __future__ import annotations

import datetime

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


def amount(count: int) -> str:
    """Return a number of bytes for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


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
