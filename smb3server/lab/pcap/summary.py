"""What is said at the end of a capture: each connection, the latencies of each command, and a verdict per rule."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from smb3server.lab.pcap.filters import Filter
from smb3server.lab.pcap.judge import Judge
from smb3server.lab.pcap.records import CommandRecord
from smb3server.lab.pcap.rules import RULES, Rule
from smb3server.lab.pcap.verdicts import Breach

FRAMES_SHOWN = 20
_WIDTH = math.log(1.05)
_SMALLEST = 1e-7


@dataclass
class Latencies:
    """The latencies of one command, in little memory: values are counted in classes that are 5 % wide."""

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


class RuleVerdict(NamedTuple):
    """The verdict on one rule over the whole capture."""

    rule: Rule
    verdict: str
    """kept, broken, or not seen."""
    checked: int
    broken: int
    by: tuple[str, ...]
    frames: tuple[int, ...]
    """The first frames that broke it."""


@dataclass
class Summary:
    """Sums over a capture, as far as the filter shows it."""

    filter: Filter
    latencies: dict[str, Latencies] = field(default_factory=lambda: defaultdict(Latencies))
    broken: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _frames: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _by: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def command(self, record: CommandRecord) -> None:
        """Count a command."""
        sums = self.latencies[record.name]
        sums.bytes += record.bytes
        sums.errors += record.failed and record.latency is not None
        if record.latency is not None:
            sums.add(record.latency)

    def breach(self, breach: Breach) -> None:
        """Count a broken rule."""
        identifier = breach.rule.id
        self.broken[identifier] += 1
        self._by[identifier].add(breach.by)
        if len(self._frames[identifier]) < FRAMES_SHOWN:
            self._frames[identifier].append(breach.number)

    def verdicts(self, judge: Judge) -> Iterator[RuleVerdict]:
        """Yield a verdict for each rule that the filter wants."""
        checked = judge.checked
        for identifier, rule in RULES.items():
            if not self.filter.wants_rule(identifier):
                continue
            broken = self.broken.get(identifier, 0)
            verdict = "broken" if broken else "kept" if checked[identifier] else "not seen"
            by = tuple(sorted(self._by.get(identifier, ())))
            frames = tuple(self._frames.get(identifier, ()))
            yield RuleVerdict(rule, verdict, checked[identifier], broken, by, frames)
