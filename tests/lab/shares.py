"""Shares with the keys of the configuration, without one."""

from __future__ import annotations

from typing import Any

from smb3server.backends.base import Backend
from smb3server.settings.share import ShareRules
from smb3server.state.share import Share


def share_of(name: str, backend: Backend, **options: Any) -> Share:
    """Make a share. ``options``: keys of ``ShareRules``, and fields of ``Share``, which win."""
    fields = Share.__dataclass_fields__.keys()
    rules = {key: value for key, value in options.items() if key not in fields}
    return Share(
        name, backend=backend, rules=ShareRules(**rules), **{k: v for k, v in options.items() if k not in rules}
    )
