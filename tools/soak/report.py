"""What a soak has shown: latencies, errors, and what was left behind."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

MEMORY_FACTOR, MEMORY_SLACK = 1.10, 24 << 10
"""Resident memory may grow by this, in KiB, from the end of the first round to the end of the last. Python's allocator
gives back whole arenas only, so some of it depends on chance."""
TOLERATED = {"descriptors": 2, "threads": 8}
"""By how much a number may differ from the start. Worker threads stay. All others have to be as they were."""
MEMORY = ("Rss", "Pss")


@dataclass
class Seen:
    """What all crowds have seen. Times are in seconds."""

    times: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    done: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, told: dict[str, dict[str, list[float]] | dict[str, int]]) -> None:
        """Add the report of one crowd."""
        for kind, times in told["times"].items():
            if isinstance(times, list):
                self.times[kind] += times
        for total, name in ((self.done, "done"), (self.errors, "errors")):
            for key, count in told[name].items():
                if isinstance(count, int):
                    total[key] += count


def percentile(times: list[float], part: float) -> float:
    """Return the time that ``part`` of all do not exceed."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def latencies(seen: Seen) -> list[str]:
    """Return a line for each kind of job."""
    lines = [f"{'job':10} {'count':>8} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}"]
    for kind, times in sorted(seen.times.items()):
        figures = " ".join(f"{percentile(times, part) * 1e3:8.1f}" for part in (0.5, 0.99, 1.0))
        lines.append(f"{kind:10} {len(times):8} {figures}")
    return lines


def left_behind(start: dict[str, int], first: dict[str, int], last: dict[str, int]) -> list[str]:
    """Return what is not as it was: numbers compared with the start, memory with the end of the first round."""
    found = [
        f"{name}: {start[name]} at the start, {value} at the end"
        for name, value in last.items()
        if name not in MEMORY and value - start[name] > TOLERATED.get(name, 0)
    ]
    for name in MEMORY:
        if last[name] > first[name] * MEMORY_FACTOR + MEMORY_SLACK:
            found.append(f"{name}: {first[name]} KiB after the first round, {last[name]} KiB at the end")
    return found
