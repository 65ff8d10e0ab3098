"""Searches of open directories (MS-SMB2 3.3.1.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from smb3server.backends.names import has_wildcards
from smb3server.files.wildcards import compile_expression

if TYPE_CHECKING:
    from smb3server.backends.base import Backend, DirectoryEntry, Handle


class Enumeration:
    """Open.EnumerationLocation and Open.EnumerationSearchPattern: the store's lazy search, and the one entry taken from
    it that did not fit the last response."""

    __slots__ = ("_handle", "backend", "closed", "entries", "held", "only", "pattern", "started", "turn", "unfinished")

    def __init__(self, handle: Handle, pattern: str, backend: Backend | None = None) -> None:
        """``backend``: the handle's, where a search for one name can wait for its folder to be read."""
        self.pattern = pattern
        self.backend = backend
        self._handle = handle
        self.only = None if has_wildcards(pattern) else pattern
        self.entries = self._search()
        self.held: DirectoryEntry | None = None
        self.started = False
        """True once something was returned: then the end is NO_MORE_FILES, not NO_SUCH_FILE."""
        self.turn = asyncio.Lock()
        """Held by the request that lists over several turns; others wait."""
        self.unfinished = 0
        """Such requests."""
        self.closed = False

    def _search(self) -> Iterator[DirectoryEntry | None]:
        return self._handle.search(compile_expression(self.pattern), self.only)

    def begin_again(self) -> None:
        """The search for one name ended with ``FolderNotRead``."""
        if not self.closed:
            self.entries = self._search()

    def close(self) -> None:
        """Release what the scan holds open."""
        self.closed = True
        close = getattr(self.entries, "close", None)
        if close is not None:
            close()
