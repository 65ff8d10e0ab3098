"""The soak: what it counts as left behind, and a short run of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.soak.report import MEMORY_SLACK, Seen, latencies, left_behind, percentile

START = {"descriptors": 20, "tasks": 3, "threads": 3, "sessions": 0, "Rss": 60_000, "Pss": 50_000}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, 0),
        ({"sessions": 1}, 1),
        ({"tasks": 4}, 1),
        ({"descriptors": 22}, 0),
        ({"descriptors": 23}, 1),
        ({"threads": 8}, 0),
        ({"Rss": 60_000 + MEMORY_SLACK}, 0),
        ({"Rss": 80_000 + MEMORY_SLACK}, 1),
        ({"descriptors": 2, "Rss": 1}, 0),
    ],
)
def test_what_is_left_behind(change: dict[str, int], found: int) -> None:
    assert len(left_behind(START, START, {**START, **change})) == found


def test_latencies() -> None:
    times = [number / 1000 for number in range(1, 101)]
    assert (percentile(times, 0.5), percentile(times, 0.99), percentile(times, 1.0)) == (0.051, 0.1, 0.1)
    seen = Seen()
    seen.add({"times": {"small": times}, "done": {"killed": 2}, "errors": {}})
    seen.add({"times": {"small": times}, "done": {"killed": 1}, "errors": {"Wrong: data": 1}})
    assert latencies(seen)[1].split() == ["small", "200", "51.0", "100.0", "100.0"]
    assert (seen.done, seen.errors) == ({"killed": 3}, {"Wrong: data": 1})


@pytest.mark.long
@pytest.mark.timeout(400)
def test_half_a_minute_leaves_nothing_behind() -> None:
    command = [sys.executable, "-m", "tools.soak", "--clients", "40", "--minutes", "0.5", "--think", "0.5"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=390, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert all(kind in ended.stdout for kind in ("small", "lease", "no_credits", "slow_reader"))
