"""Wildcard expressions of directory searches (MS-FSA 2.1.4.4), matched without regard to case.

``*`` any characters; ``?`` one character; ``<`` (DOS_STAR) any characters but the name's last dot; ``>`` (DOS_QM) one
character other than a dot, or nothing before a dot or the end; ``"`` (DOS_DOT) a dot, or nothing at the end.

Patterns come from clients, so the time to match is bounded by pattern length times name length: plain expressions
become regular ones without ambiguity (atomic groups), the DOS ones run as a bit-parallel automaton.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from smb3server.backends.names import has_wildcards, upcase

Matcher = Callable[[str], bool]

_DOS = frozenset('<>"')


@lru_cache(maxsize=256)
def compile_expression(pattern: str) -> Matcher:
    """A function that tells whether a name matches."""
    if not pattern.strip("*"):
        return _everything
    folded = upcase(pattern)
    if not has_wildcards(pattern):
        return lambda name: upcase(name) == folded
    if _DOS.isdisjoint(pattern):
        return _plain(folded)
    return _automaton(folded)


def _everything(name: str) -> bool:
    return True


def _plain(pattern: str) -> Matcher:
    """Only ``*`` and ``?``: the leftmost place for each part between stars is as good as any other, so parts are atomic
    groups and nothing is tried twice."""
    parts = ["".join("." if char == "?" else re.escape(char) for char in part) for part in pattern.split("*")]
    if len(parts) == 1:
        expression = parts[0]
    else:
        middle = "".join(f"(?>.*?{part})" for part in parts[1:-1] if part)
        expression = f"{parts[0]}{middle}.*{parts[-1]}"
    match = re.compile(expression, re.DOTALL).fullmatch
    return lambda name: match(upcase(name)) is not None


def _automaton(pattern: str) -> Matcher:
    """Set of reachable pattern positions, one bit each."""
    size = len(pattern)
    final = 1 << size

    def closure(states: int, at_dot: bool, at_end: bool) -> int:
        """Add what is reachable without consuming a character, given what comes next in the name."""
        for position in range(size):
            if states >> position & 1:
                char = pattern[position]
                if char in "*<" or (char == ">" and (at_dot or at_end)) or (char == '"' and at_end):
                    states |= 1 << (position + 1)
        return states

    def matches(name: str) -> bool:
        name = upcase(name)
        last_dot = name.rfind(".")
        states = 1
        for index, letter in enumerate(name):
            dot = letter == "."
            states = closure(states, dot, False)
            following = 0
            for position in range(size):
                if not states >> position & 1:
                    continue
                char = pattern[position]
                if char == "*" or (char == "<" and index != last_dot):
                    following |= 1 << position
                elif char in (letter, "?") or (char == ">" and not dot) or (char == '"' and dot):
                    following |= 1 << (position + 1)
            if not following:
                return False
            states = following
        return bool(closure(states, False, True) & final)

    return matches
