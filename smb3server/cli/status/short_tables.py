"""Tables of text, one line a row, whose last column may be as long as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

GAP = "  "


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table. What clients chose is escaped."""
    from smb3server.process.log_lines import printable

    lines = [names, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names) - 1)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        print(GAP.join([*cells, line[-1]]).rstrip())


def print_list(as_json: bool, found: list[Any], names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print what a server has: as JSON, or as a table."""
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_table(names, rows)


def since(seconds: float) -> str:
    """Return a number of seconds for people: ``4 s``, ``12 min``, ``3 h``, ``5 d``."""
    for most, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
