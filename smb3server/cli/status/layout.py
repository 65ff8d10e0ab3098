"""Tables that fit a screen of any width without losing anything.

A column for which there is no room goes to lines of its own under each row, as ``name value``. What is too long for its
column goes on in the next line. Nothing is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.text import Text

from smb3server.process.log_lines import printable

GAP = 2
"""Blanks between columns."""
_INDENT = "    "
_NOTHING = ("", "-")


class Column(NamedTuple):
    """One column of a table. Those to the right lose their place first."""

    name: str
    right: bool = False
    fixed: bool = False
    """Whether it stays in the row, however narrow the screen is."""
    wraps: bool = False
    """Whether it takes as little room as its name needs, if there is no more, and goes on in further lines."""


class Cell(NamedTuple):
    """The content of one cell."""

    text: str
    style: str = ""


@dataclass(slots=True)
class Table:
    """A titled table."""

    title: str
    columns: Sequence[Column]
    rows: list[list[Cell | str]] = field(default_factory=list)

    def add(self, *cells: Cell | str) -> None:
        """Add a row. Unprintable characters are escaped: clients choose some of the texts."""
        self.rows.append(
            [printable(cell) if isinstance(cell, str) else Cell(printable(cell.text), cell.style) for cell in cells]
        )


def fit(table: Table, width: int, most: int | None = None) -> list[Text]:
    """Lay out a table as lines of at most ``width`` cells. With ``most``, say how many rows there are beyond it."""
    shown = table.rows[:most]
    widths = [
        max([cell_len(column.name), *(cell_len(_text(row[at])) for row in shown)])
        for at, column in enumerate(table.columns)
    ]
    inside = _choose(table.columns, widths, width)
    lines = [Text(f"{table.title} ({len(table.rows)})", "bold")]
    if shown:
        names: list[Cell | str] = [Cell(column.name, "dim underline") for column in table.columns]
        lines += _row(names, table.columns, inside, widths)
    for row in shown:
        lines += _row(row, table.columns, inside, widths)
        lines += _details(row, table.columns, inside, width)
    if len(shown) < len(table.rows):
        lines.append(Text(f"{_INDENT}and {len(table.rows) - len(shown)} more", "dim"))
    return lines


def _text(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def _choose(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Return the columns that stay in the row, and narrow those that wrap."""
    inside = list(range(len(columns)))

    def excess() -> int:
        return sum(widths[at] for at in inside) + GAP * (len(inside) - 1) - width

    for at in reversed(range(len(columns))):
        least = sum(min(widths[at], 24) if columns[at].wraps else widths[at] for at in inside)
        if least + GAP * (len(inside) - 1) <= width:
            break
        if not columns[at].fixed:
            inside.remove(at)
    for at in sorted(inside, key=lambda at: -widths[at]):
        if columns[at].wraps and excess() > 0:
            widths[at] = max(widths[at] - excess(), cell_len(columns[at].name))
    for at in sorted(inside, key=lambda at: -widths[at]):
        # A screen too narrow for what must stay: everything wraps.
        if excess() > 0:
            widths[at] = max(widths[at] - excess(), 4)
    return inside


def _row(row: Sequence[Cell | str], columns: Sequence[Column], inside: list[int], widths: list[int]) -> list[Text]:
    parts = [_fold(_text(row[at]), widths[at]) for at in inside]
    lines = []
    for number in range(max(len(part) for part in parts)):
        line = Text()
        for part, at in zip(parts, inside, strict=True):
            piece = part[number] if number < len(part) else ""
            cell = row[at]
            blanks = " " * (widths[at] - cell_len(piece))
            if columns[at].right:
                line.append(blanks)
            line.append(piece, cell.style if isinstance(cell, Cell) else "")
            if not columns[at].right:
                line.append(blanks)
            line.append(" " * GAP)
        line.rstrip()
        lines.append(line)
    return lines


def _details(row: Sequence[Cell | str], columns: Sequence[Column], inside: list[int], width: int) -> list[Text]:
    """Return the lines for the columns that have no room in the row. What is empty is left out."""
    outside = [at for at in range(len(columns)) if at not in inside and _text(row[at]) not in _NOTHING]
    parts = [f"{columns[at].name} {_text(row[at])}" for at in outside]
    lines: list[Text] = []
    line = ""
    for part in parts:
        if line and cell_len(line) + 3 + cell_len(part) > width - len(_INDENT):
            lines.append(Text(_INDENT + line, "dim"))
            line = ""
        line = f"{line} · {part}" if line else part
        while cell_len(line) > width - len(_INDENT):
            first = chop_cells(line, max(width - len(_INDENT), 8))[0]
            lines.append(Text(_INDENT + first, "dim"))
            line = line[len(first) :]
    if line:
        lines.append(Text(_INDENT + line, "dim"))
    return lines


def _fold(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    return paragraph(text, width)


def paragraph(text: str, width: int, indent: str = "") -> list[str]:
    """Break a text into lines at blanks, or within words that are too long. Further lines begin with ``indent``.
    Unprintable characters are escaped."""
    text = printable(text)
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        trial = f"{line} {word}" if line else word
        if cell_len(trial) <= width:
            line = trial
            continue
        if line.strip():
            lines.append(line)
            line = ""
        *full, rest = chop_cells(indent + word if lines else word, width) or [""]
        lines += full
        line = rest
    return [*lines, line] if line or not lines else lines
