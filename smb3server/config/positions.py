"""Where the keys and values of a TOML text stand.

``tomllib`` returns values without their places. This index has the place of each key, of each table's header and of
each entry of an array. It reads only text that ``tomllib`` has accepted, so it needs no errors of its own.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

KeyPath = tuple[str | int, ...]
"""Keys from the root down. A number is the index in an array, or in an array of tables."""

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    # The three quotes that end a long string may follow one or two that belong to it.
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' r"|'''.*?'''(?:'{0,2})" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'",
    re.DOTALL,
)
_OTHER_VALUE = re.compile(r"[^,\]}#\n]+")


class Positions:
    """The places in one text. Raises ``RecursionError`` for values that are nested too deeply."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._offsets: dict[KeyPath, int] = {}
        self._array_lengths: dict[KeyPath, int] = {}
        """Arrays of tables, and how many tables they have so far."""
        self._read()
        self._lines = [0, *(found.end() for found in re.finditer("\n", self._text))]

    def paths(self) -> set[KeyPath]:
        """Return the paths of all keys, tables and array entries."""
        return set(self._offsets)

    def find(self, path: KeyPath) -> tuple[int, int]:
        """Return line and column, both from 1, of a key or an entry, or of the nearest table that contains it."""
        while path and path not in self._offsets:
            path = path[:-1]
        offset = self._offsets.get(path, 0)
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def _read(self) -> None:
        table: KeyPath = ()
        self._skip()
        while self._at < len(self._text):
            begin = self._at
            if self._take("[["):
                *parents, last = self._keys()
                array = (*self._table(parents, begin), last)
                index = self._array_lengths.get(array, 0)
                self._array_lengths[array] = index + 1
                table = (*array, index)
                self._offsets.setdefault(array, begin)
                self._offsets[table] = begin
                self._take("]]")
            elif self._take("["):
                table = self._table(self._keys(), begin)
                self._offsets[table] = begin
                self._take("]")
            else:
                self._pair(table)
            self._skip()

    def _table(self, keys: list[str], begin: int) -> KeyPath:
        """Return the path of the table that a header at ``begin`` names.

        A key that names an array of tables means its last table."""
        path: KeyPath = ()
        for key in keys:
            path = (*path, key)
            self._offsets.setdefault(path, begin)
            if path in self._array_lengths:
                path = (*path, self._array_lengths[path] - 1)
        return path

    def _pair(self, table: KeyPath) -> None:
        begin = self._at
        path = table
        for key in self._keys():
            path = (*path, key)
            self._offsets.setdefault(path, begin)
        self._take("=")
        self._skip()
        self._value(path)

    def _keys(self) -> list[str]:
        """Read a key, which may be dotted."""
        keys = []
        while True:
            self._skip()
            if quoted := _STRING.match(self._text, self._at):
                self._at = quoted.end()
                keys.append(tomllib.loads(f"key = {quoted[0]}")["key"])
            elif bare := _BARE_KEY.match(self._text, self._at):
                self._at = bare.end()
                keys.append(bare[0])
            self._skip()
            if not self._take("."):
                return keys

    def _value(self, path: KeyPath) -> None:
        if found := _STRING.match(self._text, self._at):
            self._at = found.end()
        elif self._take("["):
            self._array(path)
        elif self._take("{"):
            self._skip()
            while not self._take("}"):
                self._pair(path)
                self._skip()
                self._take(",")
                self._skip()
        elif found := _OTHER_VALUE.match(self._text, self._at):
            self._at = found.end()

    def _array(self, path: KeyPath) -> None:
        index = 0
        self._skip()
        while not self._take("]"):
            self._offsets[(*path, index)] = self._at
            self._value((*path, index))
            index += 1
            self._skip()
            self._take(",")
            self._skip()

    def _skip(self) -> None:
        """Pass over blanks, line ends and comments."""
        found = _BLANK.match(self._text, self._at)
        if found is not None:
            self._at = found.end()

    def _take(self, text: str) -> bool:
        """Pass over ``text`` if it comes next; return whether it did."""
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True
