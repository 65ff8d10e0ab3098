"""How the names of a store compare. Whoever compares names of files asks these rules. [MS-FSA 2.1.5.1]"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from smb3server.wire.upcase import upcase

Key = tuple[str, ...]
"""The key of a path: equal for paths that the rules take for one."""


def _exact(name: str) -> str:
    return name


class NameRules(NamedTuple):
    """The rules of one store."""

    key: Callable[[str], str]
    """Returns the form of a name that is the same for all names that it may be called by."""

    def path_key(self, path: tuple[str, ...]) -> Key:
        """Return the key of a path."""
        return tuple(map(self.key, path))

    def same(self, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
        """Return whether two paths name one entry."""
        return len(one) == len(other) and self.path_key(one) == self.path_key(other)


WINDOWS = NameRules(upcase)
"""Names that differ in case only are one name."""
POSIX = NameRules(_exact)
"""Every difference counts. Names of streams compare as on Windows nevertheless: no host has them."""


stream_key = upcase
"""Returns the key of a stream's name, equal for names that are one. [MS-FSCC 2.1.5.3]"""


def same_stream(one: str, other: str) -> bool:
    """Return whether two names of streams are one."""
    return stream_key(one) == stream_key(other)
