"""The MessageIds of one connection: which the server has granted, and which the client has used. [MS-SMB2 3.3.1.1]"""

from __future__ import annotations

import enum


class Use(enum.Enum):
    """What a request does by taking its MessageIds."""

    GOOD = 0
    TWICE = 1
    OVERDRAWN = 2


class MessageWindow:
    """CommandSequenceWindow as the wire shows it. A new connection has one credit, for MessageId 0."""

    def __init__(self) -> None:
        self._granted = 1
        """Invariant: every MessageId below has been granted."""
        self._low = 0
        """Invariant: every MessageId below has been used."""
        self._used: set[int] = set()
        """Used MessageIds from ``_low`` on. The window bounds them."""

    @property
    def available(self) -> int:
        """Credits that the client holds."""
        return self._granted - self._low - len(self._used)

    def use(self, message_id: int, count: int) -> Use:
        """Use ``count`` MessageIds from ``message_id`` on. Use none of them if one cannot be used."""
        wanted = range(message_id, message_id + count)
        if wanted.stop > self._granted:
            return Use.OVERDRAWN
        if message_id < self._low or any(number in self._used for number in wanted):
            return Use.TWICE
        self._used.update(wanted)
        while self._low in self._used:
            self._used.discard(self._low)
            self._low += 1
        return Use.GOOD

    def grant(self, count: int) -> None:
        """Grant ``count`` more."""
        self._granted += count
