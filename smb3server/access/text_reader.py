"""Reads the text of descriptors from left to right. [MS-DTYP 2.5.1.1]"""

from __future__ import annotations

import re

from smb3server.access.descriptor import Sid
from smb3server.access.sid_names import parse_sid

MAX_CHARACTERS = 1 << 17
"""Characters of a text. A descriptor of 64 KiB has less, unless it is all numbers."""

_BLANKS = re.compile(r"[\t\n\v\f\r ]*")
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)")
_SID = re.compile(r"S-1-(?:0x[0-9a-f]+|[0-9]+)(?:-[0-9]+)*|[a-z]{2}", re.IGNORECASE)
_QUOTED = re.compile(r'"([^"]*)"')
_OCTETS = re.compile(r"[0-9a-fA-F#]*")
_ESCAPE = re.compile(r"%([0-9a-fA-F]{4})")
_PLAIN = frozenset("#$'*+-./:;?@[\\]^_`{}~")


class Reader:
    """A text and how far it was read. What is not as it should be raises ``ValueError``."""

    def __init__(self, text: str, domain: Sid | None) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ValueError("text too long")
        self.text = text
        self.position = 0
        self._domain = domain

    @property
    def at_end(self) -> bool:
        return self.position == len(self.text)

    def wrong(self, what: str) -> ValueError:
        """Return the error that here is something else than ``what``."""
        found = self.text[self.position : self.position + 20]
        return ValueError(f"{what} expected at {found!r}" if found else f"{what} expected at the end")

    def blanks(self) -> None:
        self.match(_BLANKS)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return what a pattern matches here, and go behind it."""
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
        return found

    def take(self, token: str) -> bool:
        """Return whether ``token`` is next, and go behind it. Upper and lower case are the same."""
        end = self.position + len(token)
        if self.text[self.position : end].casefold() != token.casefold():
            return False
        self.position = end
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise self.wrong(repr(token))

    def sid(self) -> Sid:
        found = self.match(_SID)
        if found is None:
            raise self.wrong("a SID")
        return parse_sid(found[0], self._domain)

    def integer(self) -> tuple[int, str]:
        """Return a number and how it is written."""
        found = self.match(_INTEGER)
        if found is None:
            raise self.wrong("a number")
        return number(found[0]), found[0]

    def quoted(self) -> str:
        found = self.match(_QUOTED)
        if found is None:
            raise self.wrong("a text in quotation marks")
        return found[1]

    def octets(self) -> bytes:
        """Return bytes in hexadecimal. ``#`` stands for 0, and so does the one before them if a digit lacks."""
        found = self.match(_OCTETS)
        digits = found[0] if found is not None else ""
        return bytes.fromhex(("0" * (len(digits) % 2) + digits).replace("#", "0"))


def number(text: str) -> int:
    """Return an integer that is decimal, hexadecimal (0x) or octal (0). Raises ``ValueError``."""
    digits = text.lstrip("+-").lower()
    if len(digits) > 32:
        raise ValueError("number too large")
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    return int(digits, base) * (-1 if text.startswith("-") else 1)


def escape(name: str) -> str:
    """Return the name of an attribute with what must not stand in it as ``%`` and four digits."""
    return "".join(
        one if one.isalnum() or one in _PLAIN else "".join(f"%{unit:04x}" for unit in _units(one)) for one in name
    )


def unescape(name: str) -> str:
    """Return a name without ``%``. Raises ``ValueError``."""
    units = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), name)
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _units(char: str) -> list[int]:
    data = char.encode("utf-16-le", "surrogatepass")
    return [int.from_bytes(data[start : start + 2], "little") for start in range(0, len(data), 2)]
