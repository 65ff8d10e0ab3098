"""Message sequence window and credits of a connection. [MS-SMB2 3.3.1.1, 3.3.1.2, 3.3.5.2.3]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class CommandSequenceWindow:
    """The MessageIds that a client may use: all of ``low`` <= id < ``high`` that are not in ``used``."""

    low: int = 0
    high: int = 1
    # Invariant: low < id < high for every id in ``used``.
    used: set[int] = field(default_factory=set)
    """Identifiers that came out of order."""
    beyond_one: int = 0
    """Identifiers that requests took beyond their first one."""

    @property
    def available(self) -> int:
        """Number of credits that the client holds."""
        return self.high - self.low - len(self.used)

    @property
    def requests(self) -> int:
        """Number of requests that have taken identifiers."""
        return self.low + len(self.used) - self.beyond_one

    def allows(self, message_id: int, charge: int) -> bool:
        """Return whether ``consume`` would take these identifiers. Take none."""
        end = message_id + charge
        if message_id < self.low or end > self.high:
            return False
        return not self.used or self.used.isdisjoint(range(message_id, end))

    def consume(self, message_id: int, charge: int) -> bool:
        """Take ``charge`` consecutive identifiers. Return False, and take none, if the client may not use them all."""
        end = message_id + charge
        if message_id < self.low or end > self.high:
            return False
        used = self.used
        if message_id == self.low and not used:
            self.low = end
            if charge > 1:
                self.beyond_one += charge - 1
            return True
        if used and not used.isdisjoint(range(message_id, end)):
            return False
        used.update(range(message_id, end))
        self.beyond_one += charge - 1
        while self.low in used:
            used.remove(self.low)
            self.low += 1
        return True

    def grant(self, requested: int, limit: int, message_id: int = 0, charge: int = 0) -> int:
        """Widen the window by up to ``requested`` credits, of at most 16 bits. Return how many the client was granted.

        The client then holds at most ``limit`` credits and at least one. A client that leaves gaps cannot widen the
        window beyond twice the limit. ``message_id``, ``charge``: identifiers to ``consume`` before, which the window
        ``allows``."""
        used = self.used
        if charge:
            if used or message_id != self.low:
                self.consume(message_id, charge)
            else:
                self.low = message_id + charge
                if charge > 1:
                    self.beyond_one += charge - 1
        span = self.high - self.low
        room = limit - span
        if used:
            room = min(room + len(used), limit + room)
        count = requested or 1
        if count > room:
            count = room
            if count <= 0:
                if span > len(used):
                    return 0
                count = 1
        self.high += count
        return count

    def grant_each(self, wishes: Iterable[tuple[int, int]], limit: int, message_id: int) -> list[int]:
        """Do ``grant`` for the requests of one message, whose identifiers follow each other from ``message_id`` on.

        ``wishes``: how many credits each asks for, and its charge."""
        granted: list[int] = []
        if message_id != self.low or self.used:
            for requested, charge in wishes:
                granted.append(self.grant(requested, limit, message_id, charge))
                message_id += charge
            return granted
        low, high = self.low, self.high
        for requested, charge in wishes:
            low += charge
            count = requested or 1
            if count > limit - high + low:
                count = limit - high + low
                if count <= 0:
                    count = 0 if high > low else 1
            high += count
            granted.append(count)
        self.beyond_one += low - self.low - len(granted)
        self.low, self.high = low, high
        return granted
