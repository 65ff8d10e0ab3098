"""Searches of directories, and their wildcard expressions. [MS-SMB2 3.3.1.10, MS-FSA 2.1.4.4]

``*`` matches any characters, ``?`` one character, ``<`` (DOS_STAR) any characters up to the last dot of the name and
with it, as MS-FSA has it: "until encountering and matching the final . in the name".
``>`` (DOS_QM) matches one character other than a dot, or nothing before a dot or the end. ``"`` (DOS_DOT) matches a
dot, or nothing at the end.

Patterns come from clients, so the time to match is bounded by pattern length times name length. Expressions without DOS
wildcards become regular expressions without backtracking (atomic groups). Those with DOS wildcards run as a
bit-parallel automaton.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from smb3server.backends.base import Backend, DirectoryEntry, Handle
from smb3server.backends.name_rules import WINDOWS
from smb3server.backends.names import has_wildcards, may_be_short, short_name
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.upcase import upcase

Matcher = Callable[[str], bool]

_DOS = frozenset('<>"')
_STARS = re.compile(r"\*{2,}")
MAX_PATTERN = 1024
"""Most characters, with stars in a row counted as one. Names have at most 255: a longer pattern is malicious."""


@lru_cache(maxsize=256)
def compile_expression(pattern: str, key: Callable[[str], str] = upcase) -> Matcher:
    """Return a function that returns whether a name matches. ``key``: that of ``NameRules``. Raises ``StatusError``:
    OBJECT_NAME_INVALID if the pattern is too long."""
    if not pattern.strip("*"):
        return _everything
    pattern = _STARS.sub("*", pattern)
    if len(pattern) > MAX_PATTERN:
        raise StatusError(NtStatus.OBJECT_NAME_INVALID)
    folded = key(pattern)
    if not has_wildcards(pattern):
        return lambda name: key(name) == folded
    if _DOS.isdisjoint(pattern):
        return _plain(folded, key)
    return _automaton(folded, key)


def entry_matcher(pattern: str, key: Callable[[str], str] = upcase) -> Matcher:
    """Return a function that returns whether an entry of a directory matches, by its name or by its 8.3 name. Raises as
    ``compile_expression``. [MS-FSA 2.1.5.6.3]"""
    match = compile_expression(pattern, key)
    if match is _everything or not (has_wildcards(pattern) or may_be_short(upcase(pattern))):
        return match

    def matches(name: str) -> bool:
        if match(name):
            return True
        short = short_name(name)
        return bool(short) and match(short)

    return matches


def _everything(name: str) -> bool:
    return True


def _plain(pattern: str, key: Callable[[str], str]) -> Matcher:
    """Compile a pattern with no wildcards except ``*`` and ``?``.

    The leftmost match of each part between stars is as good as any other, so parts are atomic groups and there is no
    backtracking."""
    parts = ["".join("." if char == "?" else re.escape(char) for char in part) for part in pattern.split("*")]
    if len(parts) == 1:
        expression = parts[0]
    else:
        middle = "".join(f"(?>.*?{part})" for part in parts[1:-1] if part)
        expression = f"{parts[0]}{middle}.*{parts[-1]}"
    match = re.compile(expression, re.DOTALL).fullmatch
    return lambda name: match(key(name)) is not None


def _automaton(pattern: str, key: Callable[[str], str]) -> Matcher:
    """Compile a pattern with DOS wildcards. The state is the set of reachable pattern positions, one bit each."""
    size = len(pattern)
    final = 1 << size

    def positions(characters: str) -> int:
        return sum(1 << position for position, char in enumerate(pattern) if char in characters)

    stars, dos_stars, marks, dos_dots = positions("*"), positions("<"), positions(">"), positions('"')
    any_one = positions("?")
    skipped = stars | dos_stars
    literal: dict[str, int] = {}
    for position, char in enumerate(pattern):
        if char not in '*?<>"':
            literal[char] = literal.get(char, 0) | 1 << position

    def closure(states: int, free: int) -> int:
        """Add the positions that are reachable without consuming a character: those after positions of ``free`` in a
        row. The carry of the addition runs through each row."""
        return states | ((free + (states & free)) ^ free)

    def matches(name: str) -> bool:
        name = key(name)
        last_dot = name.rfind(".")
        states = 1
        for index, letter in enumerate(name):
            if letter == ".":
                states = closure(states, skipped | marks)
                staying = stars if index == last_dot else skipped
                moving = any_one | dos_dots | literal.get(letter, 0)
                if index == last_dot:
                    moving |= dos_stars
            else:
                states = closure(states, skipped)
                staying = skipped
                moving = any_one | marks | literal.get(letter, 0)
            states = (states & staying) | (states & moving) << 1
            if not states:
                return False
        return bool(closure(states, skipped | marks | dos_dots) & final)

    return matches


class Enumeration:
    """The search of one open directory: Open.EnumerationLocation and Open.EnumerationSearchPattern."""

    __slots__ = ("_search", "backend", "closed", "only", "pattern", "started", "turn", "unfinished")

    def __init__(self, handle: Handle, pattern: str, backend: Backend | None = None) -> None:
        """``backend``: the store of ``handle``, if a search for one name can wait for the folder to be read."""
        self.pattern = pattern
        self.backend = backend
        self.only = None if has_wildcards(pattern) else pattern
        self._search = handle.search(
            entry_matcher(pattern, (backend.name_rules if backend else WINDOWS).key), self.only
        )
        self.started = False
        """True once the first query was answered, with entries or NO_SUCH_FILE. From then on the end is NO_MORE_FILES.
        [MS-FSA 2.1.5.6.3: FirstQuery]"""
        self.turn = asyncio.Lock()
        """Held by a request that lists over several turns of the event loop; others wait for it."""
        self.unfinished = 0
        """Number of requests that list over several turns and are not answered yet."""
        self.closed = False

    def read(self, most: int) -> Sequence[DirectoryEntry] | None:
        """Return the next entries, as ``Search.read`` does."""
        if self.only is None or self.backend is None:
            return self._search.read(most)
        self.backend.defer_reading = True
        try:
            return self._search.read(most)
        finally:
            self.backend.defer_reading = False

    def unread(self, count: int) -> None:
        """Take back the last entries that ``read`` returned, as ``Search.unread`` does."""
        self._search.unread(count)

    def close(self) -> None:
        """Release the store's resources of the search."""
        self.closed = True
        self._search.close()
