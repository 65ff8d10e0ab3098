"""Medians of rounds, and the conclusions that they allow."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

ROUNDS_FOR_VERDICT = 5
"""Rounds that a verdict needs. With fewer, all agree at random too often: one time in four with three rounds."""
BUSY = 0.05
"""Share of the machine's processor time. If other programs used more in half the rounds, there is no verdict."""
SAME = 1.02
"""Ratios nearer to 1 than this count as equal: the kernel counts processor time in steps of 10 ms."""


class Sample(NamedTuple):
    """The measurement of one server, one case and one round."""

    rate: float
    """In the unit of the case."""
    cost: float
    """The server's processor time per operation, in microseconds."""
    others: float
    """Share of the machine's processor time that programs outside the run used."""
    middle: float = 0.0
    """Median of the time from a request to its answer, in microseconds."""
    late: float = 0.0
    """99th percentile of it."""
    fairness: float = 1.0
    """Jain's index of the connections' operations: 1 if all got the same, 1/n if one of n got everything."""
    least: float = 1.0
    """What the slowest connection got, as a share of what the fastest got."""
    size: int = 0
    """Bytes of one request: those of the case's block, or what the server takes at most."""


def fairness(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness. [DEC-TR-301]"""
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else 1.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the ``ordered`` values do not reach; 0 if there are none."""
    return ordered[int(len(ordered) * share)] if ordered else 0.0


class Spread(NamedTuple):
    """The five-number summary of some values."""

    low: float
    lower_quartile: float
    median: float
    upper_quartile: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return the five-number summary of at least one value."""
    if len(values) == 1:
        return Spread(*(values[0],) * 5)
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(min(values), lower, middle, upper, max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Return the spread of the ratios of ours to theirs, round by round: both sides of a round saw the same machine.

    Return None if a figure of theirs is 0, as the processor time of short runs can be.
    """
    if not all(theirs):
        return None
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def verdict(ratio: Spread | None, rounds: int, others: float, *, less_is_better: bool = False) -> str:
    """Return whether ours is ahead or behind, or why the figures do not show it.

    A verdict requires all rounds on the same side of 1, a median that differs from 1 by more than ``SAME``, and
    quartiles whose quotient is smaller than that difference. ``others`` is the median over the rounds.
    """
    if ratio is None or ratio.low <= 0:
        return "no verdict: too little processor time to count"
    if others > BUSY:
        return f"no verdict: others took {others:.0%}"
    if rounds < ROUNDS_FOR_VERDICT:
        return f"no verdict: {rounds} of {ROUNDS_FOR_VERDICT} rounds"
    if ratio.low > 1 / SAME and ratio.high < SAME:
        return "even"
    difference = max(ratio.median, 1 / ratio.median)
    agree = ratio.low > 1 or ratio.high < 1
    if not agree or difference < SAME or ratio.upper_quartile / ratio.lower_quartile >= difference:
        return f"no verdict: spread {ratio.low:.2f}–{ratio.high:.2f}"
    return "ahead" if (ratio.median < 1) == less_is_better else "behind"
