"""The latest events with a number of Windows, for programs that read event logs. They are in memory only.

Each log is a ring: the oldest event makes room for the newest. Record numbers go on, so a reader sees that events are
missing. [MS-EVEN 3.1.1.2]
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from smb3server.state.audit import Sink

MAX_EVENTS = 1024
"""Events of one log."""
MAX_TEXT = 1024
"""Characters of one string of an event."""
ERROR, WARNING, INFORMATION, AUDIT_SUCCESS, AUDIT_FAILURE = 0x01, 0x02, 0x04, 0x08, 0x10
"""Types of events. [MS-EVEN 2.2.2]"""
SERVER_SOURCE = "Microsoft-Windows-SMBServer"
AUDIT_SOURCE = "Microsoft-Windows-Security-Auditing"


class Recent(NamedTuple):
    """An event."""

    record: int
    time: float
    number: int
    type: int
    source: str
    strings: tuple[str, ...]


class RecentEvents:
    """One log."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[Recent] = deque(maxlen=MAX_EVENTS)
        self._last = 0
        # Invariant: the records of _events are consecutive, and the newest one is _last.

    def __len__(self) -> int:
        return len(self._events)

    @property
    def oldest(self) -> int:
        """The number of the oldest record, or 0 if there is none."""
        return self._events[0].record if self._events else 0

    @property
    def newest(self) -> int:
        """The number of the newest record, or 0 if there is none."""
        return self._last if self._events else 0

    def get(self, record: int) -> Recent | None:
        """Return a record, or None if it is not there."""
        index = record - self.oldest
        return self._events[index] if self._events and 0 <= index < len(self._events) else None

    def add(self, number: int, kind: int, source: str, *strings: str) -> None:
        """Add an event with the number that Windows gives it."""
        self._last += 1
        cut = tuple(text[:MAX_TEXT] for text in strings)
        self._events.append(Recent(self._last, self._clock(), number, kind, source, cut))


class RemembersAudit:
    """A sink that hands records on, and remembers those with a number of Windows."""

    def __init__(self, sink: Sink, recent: RecentEvents) -> None:
        self._sink = sink
        self._recent = recent

    def put(self, record: Mapping[str, object]) -> None:
        """Take a record."""
        self._sink.put(record)
        number = record.get("event_id")
        if isinstance(number, int):
            kind = AUDIT_SUCCESS if record.get("result") == "success" else AUDIT_FAILURE
            told = (f"{name}: {value}" for name, value in record.items() if name not in ("event_id", "event_channel"))
            self._recent.add(number, kind, AUDIT_SOURCE, *told)
