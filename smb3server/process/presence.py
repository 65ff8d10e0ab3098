"""Whether a file is there, for those who would go on without it.

``Path.exists`` and ``Path.is_dir`` of CPython 3.14 also say no when the kernel could not look. With a disk that fails,
or below a folder that this user may not enter, a new file would then take the place of one that is there.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def exists(path: Path) -> bool:
    """Return whether there is such a file. Raises ``OSError`` if this cannot be known."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no file has a NUL in its name
        return False
    return True


def is_folder(path: Path) -> bool:
    """Return whether there is such a folder. Raises ``OSError`` if this cannot be known."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
