"""A handle that opens its file on first use, for opens whose client is disconnected and may never come back."""

from __future__ import annotations

from collections.abc import Callable

from smb3server.backends.base import Handle, Path, Remembered
from smb3server.backends.forwarding import ForwardingHandle


class DeferredHandle(ForwardingHandle):
    """The handle of a file whose identity is known. It opens the file, and so takes a descriptor, when it has to.

    ``key``, ``kind``, ``stream``, ``gone`` and ``close`` never open the file. ``path`` opens it if it was renamed.
    Every other method opens it. Methods that open it also raise the ``OSError`` of opening: ``FileNotFoundError`` if
    the file is gone.
    """

    __slots__ = ("_handle", "_open", "_remembered", "created", "file_created", "key", "kind", "stream")
    dormant = True

    def __init__(self, remembered: Remembered, open_now: Callable[[Remembered], Handle]) -> None:
        """Create a handle for ``remembered``. ``open_now`` opens that file; it is called again only if it raised."""
        self._remembered = remembered
        self._open = open_now
        self._handle: Handle | None = None
        self.key = remembered.key
        self.kind = remembered.kind
        self.stream = ""
        self.created = self.file_created = False

    def open(self) -> Handle:
        """Return the open file behind this handle. Open it first if it is not open. Raises ``OSError``."""
        handle = self._handle
        if handle is None:
            handle = self._handle = self._open(self._remembered)
        return handle

    @property
    def gone(self) -> bool:
        """Whether the file no longer exists. Another file may have its key now."""
        return self._handle is None and not self._remembered.exists()

    @property
    def path(self) -> Path:
        if self._handle is None and self._remembered.is_there():
            return self._remembered.path
        return self.open().path

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
