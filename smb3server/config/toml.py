"""Values as TOML writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def literal(value: object) -> str:
    """Return a text, number, truth value, list or table as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON escapes what TOML wants escaped, except for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key(name)} = {literal(entry)}" for name, entry in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    return str(value)


def key(name: str) -> str:
    """Return a key, in quotes if it needs them."""
    return name if name and set(name) <= _BARE else literal(name)
