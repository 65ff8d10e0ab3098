"""What a connection goes through, from its first byte to its end."""

from __future__ import annotations

import enum


class Life(enum.Enum):
    """Where a connection is in its life."""

    NEW = "nothing negotiated"
    INVITED = "led from SMB1 to SMB2"
    """NEGOTIATE is to come. [MS-SMB2 3.3.5.3]"""
    NEGOTIATED = "negotiated"
    AUTHENTICATED = "authenticated"
    """A session was valid on it once."""
    CLOSING = "closing"
    """This side has ended it; the transport has yet to report its end."""
    CLOSED = "closed"


_ENDS = frozenset((Life.CLOSING, Life.CLOSED))

CHANGES: dict[Life, frozenset[Life]] = {
    Life.NEW: _ENDS | {Life.INVITED, Life.NEGOTIATED},
    Life.INVITED: _ENDS | {Life.NEGOTIATED},
    Life.NEGOTIATED: _ENDS | {Life.AUTHENTICATED},
    Life.AUTHENTICATED: _ENDS,
    Life.CLOSING: frozenset((Life.CLOSED,)),
    Life.CLOSED: frozenset(),
}
"""What may follow. Anything else is a fault of the server's."""


class IllegalChange(Exception):
    """A connection was to change as ``CHANGES`` does not allow."""


def changed(before: Life, after: Life) -> Life:
    """Return ``after``. Raises ``IllegalChange`` if it may not follow ``before``."""
    if after not in CHANGES[before]:
        raise IllegalChange(f"a connection that is {before.value} cannot become {after.value}")
    return after
