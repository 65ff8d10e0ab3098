"""Searches of open directories. [MS-SMB2 3.3.1.10]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from smb3server.backends.name_rules import WINDOWS
from smb3server.backends.names import has_wildcards
from smb3server.files.wildcards import entry_matcher

if TYPE_CHECKING:
    from smb3server.backends.base import Backend, DirectoryEntry, Handle


class Enumeration:
    """The search of one open directory: Open.EnumerationLocation and Open.EnumerationSearchPattern."""

    __slots__ = ("_search", "backend", "closed", "only", "pattern", "started", "turn", "unfinished")

    def __init__(self, handle: Handle, pattern: str, backend: Backend | None = None) -> None:
        """``backend`` is the store of ``handle``. Give it if a search for one name can wait for the folder to be
        read."""
        self.pattern = pattern
        self.backend = backend
        self.only = None if has_wildcards(pattern) else pattern
        self._search = handle.search(
            entry_matcher(pattern, (backend.name_rules if backend else WINDOWS).key), self.only
        )
        self.started = False
        """True once an entry was returned. From then on the end is NO_MORE_FILES instead of NO_SUCH_FILE."""
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
