"""Latencies by command, in little memory: values are counted in classes that are 5 % wide."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

_WIDTH = math.log(1.05)
_SMALLEST = 1e-7


@dataclass
class Latencies:
    """The latencies of one command."""

    count: int = 0
    bytes: int = 0
    errors: int = 0
    largest: float = 0.0
    _classes: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float) -> None:
        """Count one latency."""
        self.count += 1
        self.largest = max(self.largest, seconds)
        self._classes[round(math.log(max(seconds, _SMALLEST)) / _WIDTH)] += 1

    def percentile(self, percent: float) -> float:
        """Return the latency that ``percent`` of the commands did not exceed, in seconds; 0 if there are none."""
        wanted = self.count * percent / 100
        seen = 0
        for number in sorted(self._classes):
            seen += self._classes[number]
            if seen >= wanted:
                return min(math.exp(number * _WIDTH), self.largest)
        return 0.0
