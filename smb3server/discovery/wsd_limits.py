"""Limits of what strangers can make the responder do: answers per second, and each message once."""

from __future__ import annotations

from collections import OrderedDict

PER_SOURCE, SOURCE_RATE = 10.0, 1.0
"""Answers to one address in a burst, and further ones per second. Windows asks a few times a minute."""
IN_ALL, RATE = 100.0, 20.0
"""The same for all addresses together: a source address can be forged."""
MAX_SOURCES = 1024
MAX_REMEMBERED = 256
"""Message ids. Each message is sent two to four times. [SOAP-over-UDP 2]"""


class _Bucket:
    __slots__ = ("_at", "_left", "_most", "_rate")

    def __init__(self, most: float, rate: float, now: float) -> None:
        self._left = self._most = most
        self._rate = rate
        self._at = now

    def take(self, now: float) -> bool:
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class AnswerLimits:
    """Decides whether a message may be answered. Times are seconds of any clock that only grows."""

    def __init__(self, now: float) -> None:
        self._all = _Bucket(IN_ALL, RATE, now)
        # Invariants: at most MAX_SOURCES and MAX_REMEMBERED entries, the oldest first.
        self._sources: OrderedDict[str, _Bucket] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()

    def admits(self, source: str, now: float) -> bool:
        """Count a message from ``source`` and return whether to read it."""
        bucket = self._sources.get(source)
        if bucket is None:
            bucket = self._sources[source] = _Bucket(PER_SOURCE, SOURCE_RATE, now)
            if len(self._sources) > MAX_SOURCES:
                self._sources.popitem(last=False)
        else:
            self._sources.move_to_end(source)
        # One source must not use up what is there for all.
        return bucket.take(now) and self._all.take(now)

    def is_new(self, message_id: str) -> bool:
        """Remember a message and return whether it is the first of its copies. [SOAP-over-UDP 2.3]"""
        if message_id in self._seen:
            return False
        self._seen[message_id] = None
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return True
