"""A handle that is not open yet: of an open whose client is away, and may stay away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smb3server.backends.base import FileKey, Handle, Kind, Path, Remembered


class DeferredHandle:
    """Stands for a ``Handle`` and becomes one at the first use of more than its identity; then, too, it takes a
    descriptor. Whatever is asked of it may raise ``OSError`` for that reason, ``FileNotFoundError`` if the file is
    gone."""

    __slots__ = ("_handle", "_open", "_remembered", "created", "file_created", "key", "kind", "stream")

    def __init__(self, remembered: Remembered, open_now: Callable[[Remembered], Handle]) -> None:
        self._remembered = remembered
        self._open = open_now
        self._handle: Handle | None = None
        self.key: FileKey = remembered.key
        self.kind: Kind = remembered.kind
        self.stream = ""
        self.created = self.file_created = False

    def open(self) -> Handle:
        """The real one."""
        handle = self._handle
        if handle is None:
            handle = self._handle = self._open(self._remembered)
        return handle

    @property
    def gone(self) -> bool:
        """The file does not exist any more; another may have its key."""
        return self._handle is None and not self._remembered.exists()

    @property
    def path(self) -> Path:
        """As long as the file has the name that it was found by, it stays closed."""
        if self._handle is None and self._remembered.is_there():
            return self._remembered.path
        return self.open().path

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.open(), name)
