"""The states of a client's connection, from its first byte to its end."""

from __future__ import annotations

import enum

from smbdirect.life import IllegalChange


class ConnectionLife(enum.Enum):
    """How far a connection has come, as SMB2 sees it. It only moves forward."""

    NEW = "nothing negotiated"
    INVITED = "led from SMB1 to SMB2"
    """NEGOTIATE is to come. [MS-SMB2 3.3.5.3]"""
    NEGOTIATED = "negotiated"
    AUTHENTICATED = "authenticated"
    """A session was valid on it once."""
    CLOSING = "closing"
    """This side has ended it; the transport has yet to report its end."""
    CLOSED = "closed"


_ENDS = frozenset((ConnectionLife.CLOSING, ConnectionLife.CLOSED))

LEGAL: dict[ConnectionLife, frozenset[ConnectionLife]] = {
    ConnectionLife.NEW: _ENDS | {ConnectionLife.INVITED, ConnectionLife.NEGOTIATED},
    ConnectionLife.INVITED: _ENDS | {ConnectionLife.NEGOTIATED},
    ConnectionLife.NEGOTIATED: _ENDS | {ConnectionLife.AUTHENTICATED},
    ConnectionLife.AUTHENTICATED: _ENDS,
    ConnectionLife.CLOSING: frozenset((ConnectionLife.CLOSED,)),
    ConnectionLife.CLOSED: frozenset(),
}
"""The states that may follow each state. Any other change is a defect of the server."""


def change(present: ConnectionLife, following: ConnectionLife) -> ConnectionLife:
    """Return ``following``. Raises ``IllegalChange`` if it cannot follow ``present``."""
    if following not in LEGAL[present]:
        raise IllegalChange(f"{present.name} to {following.name}")
    return following
