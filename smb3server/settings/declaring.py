"""What a setting is declared with: its type, default and text, and when a changed value takes effect.

The sections of the configuration file, and the settings that hold its values, are structures of such declarations.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(gt=0)]
NotNegative = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0)]

Duration = Annotated[
    str,
    Meta(pattern="^[1-9][0-9]{0,8}[smhd]$", title='a duration in seconds, minutes, hours or days, as "90s" or "30d"'),
]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(duration: str) -> int:
    """Return how many seconds a ``Duration`` is."""
    return int(duration[:-1]) * _SECONDS[duration[-1]]


class Effect(enum.Enum):
    """The moment from which a changed setting counts on a running server."""

    AT_ONCE = "at once"
    NEW_OPENS = "for files opened from now on"
    NEW_TREES = "for shares connected to from now on"
    NEW_LOGONS = "for logons from now on"
    NEW_CONNECTIONS = "for connections from now on"
    REPLACED = "at once: the share is removed and added again"
    RESTART = "after a restart"


def about(
    description: str,
    effect: Effect = Effect.RESTART,
    *,
    example: object = None,
    unset: str = "",
    is_path: bool = False,
    secret: bool = False,
    other_name: str = "",
    field: str = "",
) -> Meta:
    """Describe a key.

    ``effect``: when a changed value counts. ``example``: its value in the full example; None means its default.
    ``unset``: what it means not to give it, if the default does not say it. ``is_path``: it counts from the file's
    folder, and ``~`` is a home. ``secret``: its value is never shown. ``other_name`` is a name that the key may be
    given by, too. ``field``: the name of the setting that it becomes, if it is not the key's own.
    """
    extra = {
        "effect": effect,
        "unset": unset,
        "is_path": is_path,
        "secret": secret,
        "other_name": other_name,
        "field": field,
    }
    return Meta(description=description, examples=None if example is None else [example], extra=extra)


class Section(msgspec.Struct, forbid_unknown_fields=True):
    """A section of the file, or settings that are its keys."""
