"""The report of a server as its readers get it: JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from smb3server.server.server import Server
from smb3server.status import report


def collect(server: Server, *more: Any, **options: Any) -> dict[str, Any]:
    """Return what ``smb3server status --json`` prints of ``server``."""
    found: dict[str, Any] = msgspec.to_builtins(report.collect(server, *more, **options))
    return found
