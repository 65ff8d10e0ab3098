"""The states that everything with a connection behind it goes through: transports and endpoints."""

from __future__ import annotations

import enum


class Life(enum.IntEnum):
    """How far a connection has come. States only move forward, so they can be compared."""

    OPENING = 0
    """It is being set up: nothing is delivered yet."""
    OPEN = 1
    CLOSING = 2
    """What was queued still goes out; nothing new is taken."""
    DEAD = 3
    """Nothing is sent, received or placed any more; the owner has not been notified of that yet."""
    ENDED = 4
    """The owner was notified: nothing follows."""


_LEGAL: dict[Life, frozenset[Life]] = {
    Life.OPENING: frozenset((Life.OPEN, Life.CLOSING, Life.DEAD)),
    Life.OPEN: frozenset((Life.CLOSING, Life.DEAD)),
    Life.CLOSING: frozenset((Life.DEAD,)),
    Life.DEAD: frozenset((Life.ENDED,)),
    Life.ENDED: frozenset(),
}
"""Anything not in this table is a defect of ours."""


class IllegalChange(Exception):
    """A connection was to go to a state that cannot follow its present one."""


def change(present: Life, following: Life) -> Life:
    """Return ``following``. Raises ``IllegalChange`` if it cannot follow ``present``."""
    if following not in _LEGAL[present]:
        raise IllegalChange(f"{present.name} to {following.name}")
    return following
