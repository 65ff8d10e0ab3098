"""When a changed setting takes effect on a running server: one table for each part of the configuration.

The declarations of the keys say it (``settings.declaring``). Only what is not one key of one section stands here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from smb3server.config import schema
from smb3server.config.model import Config
from smb3server.config.sections import keys_of
from smb3server.settings.declaring import Effect, Section
from smb3server.settings.limits import Limits
from smb3server.settings.server import Settings


def _table(*sections: type[Section]) -> dict[str, Effect]:
    """Return the effects of the keys of sections, by the names of the settings that they become."""
    return {key.field or key.name: key.effect for section in sections for key in keys_of(section).values()}


_KEYS = _table(schema.Server, Limits)
_OTHERS = {
    **dict.fromkeys(("shares", "namespaces", "accounts", "settings", "groups", "storage_policies"), Effect.AT_ONCE),
    # The log's and the audit's files are opened again by each reload. Their names stay.
    **dict.fromkeys(("log", "metrics", "traces", "cluster", "witness", "homes", "discovery"), Effect.RESTART),
    **dict.fromkeys(("web", "quic", "domain"), Effect.RESTART),
    "part": Effect.AT_ONCE,
    # Not settings: what was found while reading.
    **dict.fromkeys(("notes", "secret_files", "command_line_passwords"), Effect.AT_ONCE),
}

SETTINGS: Mapping[str, Effect] = {
    name: effect for name, effect in (_KEYS | _OTHERS).items() if name in Settings.__struct_fields__
}
"""The fields of ``Settings`` that can be configured. What a user already has beyond a lowered limit stays."""

SERVER: Mapping[str, Effect] = {entry.name: (_KEYS | _OTHERS)[entry.name] for entry in dataclasses.fields(Config)}
"""The fields of ``Config``."""

SHARE: Mapping[str, Effect] = _table(schema.Share)
"""The fields of ``ShareConfig``."""


def changed(old: Any, new: Any, table: Mapping[str, Effect]) -> dict[str, Effect]:
    """Return the fields of ``table`` whose values differ between two objects, and when each takes effect."""
    return {name: effect for name, effect in table.items() if getattr(old, name) != getattr(new, name)}
