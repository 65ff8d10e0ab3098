"""``smb3server --version``."""

from __future__ import annotations

import platform

from smb3server import __version__
from smbdirect import native


def version_line() -> str:
    """Return the version and what it runs on."""
    return f"smb3server {__version__} on Python {platform.python_version()}; {native.report()}"
