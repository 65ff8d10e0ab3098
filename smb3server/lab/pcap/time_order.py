"""Frames in the order of their times: captures of several queues of a network card have neighbours swapped."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from smb3server.lab.pcap.capture import Frame

_WINDOW = 32
"""Frames that may be between two that are swapped."""
_CLOCK_STEP = 1.0
"""Seconds back that are no swap: the clock was set."""


class TimeOrder:
    """Puts frames that are swapped in their order. ``add`` and ``rest`` return the frames whose turn has come."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Frame]] = []
        self._latest = 0.0

    def add(self, frame: Frame) -> Iterator[Frame]:
        """Take the next frame of the file."""
        if frame.time < self._latest - _CLOCK_STEP:
            yield from self.rest()
            self._latest = frame.time
        self._latest = max(self._latest, frame.time)
        heapq.heappush(self._waiting, (frame.time, frame.number, frame))
        if len(self._waiting) > _WINDOW:
            yield heapq.heappop(self._waiting)[2]

    def rest(self) -> Iterator[Frame]:
        """Return what is left."""
        while self._waiting:
            yield heapq.heappop(self._waiting)[2]
