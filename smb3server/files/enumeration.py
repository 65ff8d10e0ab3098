"""Searches of open directories. [MS-SMB2 3.3.1.10]"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from smb3server.backends.names import has_wildcards
from smb3server.files.wildcards import compile_expression

if TYPE_CHECKING:
    from smb3server.backends.base import Backend, DirectoryEntry, Handle


class Enumeration:
    """The search of one open directory: Open.EnumerationLocation and Open.EnumerationSearchPattern. It has the store's
    lazy search, and the one entry from it that did not fit the last response."""

    __slots__ = ("_handle", "backend", "closed", "entries", "held", "only", "pattern", "started", "turn", "unfinished")

    def __init__(self, handle: Handle, pattern: str, backend: Backend | None = None) -> None:
        """``backend`` is the store of ``handle``. Give it if a search for one name can wait for the folder to be
        read."""
        self.pattern = pattern
        self.backend = backend
        self._handle = handle
        self.only = None if has_wildcards(pattern) else pattern
        self.entries = self._search()
        self.held: DirectoryEntry | None = None
        """The entry that did not fit the last response."""
        self.started = False
        """True once an entry was returned. From then on the end is NO_MORE_FILES instead of NO_SUCH_FILE."""
        self.turn = asyncio.Lock()
        """Held by a request that lists over several turns of the event loop; others wait for it."""
        self.unfinished = 0
        """Number of requests that list over several turns and are not answered yet."""
        self.closed = False

    def _search(self) -> Iterator[DirectoryEntry | None]:
        return self._handle.search(compile_expression(self.pattern), self.only)

    def begin_again(self) -> None:
        """Restart the search for one name after it ended with ``FolderNotRead``."""
        if not self.closed:
            self.entries = self._search()

    def close(self) -> None:
        """Release the store's resources of the search."""
        self.closed = True
        close = getattr(self.entries, "close", None)
        if close is not None:
            close()
