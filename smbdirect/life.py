"""The states that a transport or an endpoint goes through."""

from __future__ import annotations

import enum


class Life(enum.IntEnum):
    """How far a connection has come. States only move forward, so they can be compared."""

    OPENING = 0
    """The connection is being set up: nothing is delivered yet."""
    OPEN = 1
    CLOSING = 2
    """Queued messages still go out; no new ones are accepted."""
    DEAD = 3
    """Nothing is sent, received or placed any longer; the owner has not been notified of that yet."""
    ENDED = 4
    """The owner has been notified: nothing follows."""


_LEGAL: dict[Life, frozenset[Life]] = {
    Life.OPENING: frozenset((Life.OPEN, Life.CLOSING, Life.DEAD)),
    Life.OPEN: frozenset((Life.CLOSING, Life.DEAD)),
    Life.CLOSING: frozenset((Life.DEAD,)),
    Life.DEAD: frozenset((Life.ENDED,)),
    Life.ENDED: frozenset(),
}
"""The states that may follow each state. Any other change is a defect of ours."""


class IllegalChange(Exception):
    """A connection was about to enter a state that cannot follow its present one."""


def change(present: Life, following: Life) -> Life:
    """Return ``following``. Raise ``IllegalChange`` if it cannot follow ``present``."""
    if following not in _LEGAL[present]:
        raise IllegalChange(f"{present.name} to {following.name}")
    return following
