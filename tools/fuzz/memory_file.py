"""A file that is not on any disk, for subjects that take a path."""

from __future__ import annotations

import os
from pathlib import Path


class MemoryFile:
    """One file whose content each input replaces."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("fuzz")
        self.path = Path(f"/proc/self/fd/{self._descriptor}")

    def write(self, data: bytes) -> Path:
        """Replace the content, and return the path."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)
        return self.path
