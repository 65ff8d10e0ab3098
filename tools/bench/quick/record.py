"""The committed record of what operations cost, and the comparison with it."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.bench.errors import BenchError
from smbdirect import native
from tools.bench.quick.measure import Costs

PATH = Path(__file__).with_name("record.json")
COUNTS_BOUND = 1.02
"""By how much counts may grow: they are exact but for messages that arrive in pieces."""
PIECES_BOUND = 1.15
"""The same of blocks of 1 MiB, which arrive in pieces on every machine, and not always the same ones."""
SLACK = {"calls": 0.3, "c_calls": 0.3, "system_calls": 0.1}
"""Counts may differ by so much in any case: a timer that runs out meanwhile."""
LOOPS_BOUND = 2.5
"""By how much processor time may grow: on a busy machine, caches change it that much."""


class Change(NamedTuple):
    """A cost before and now."""

    before: float | None
    now: float | None
    bound: float
    slack: float = 0.0

    @property
    def verdict(self) -> str:
        """``regression``, ``improvement``, or nothing."""
        if self.before is None or self.now is None:
            return ""
        if self.now > self.before * self.bound + self.slack:
            return "regression"
        return "improvement" if self.now * self.bound + self.slack < self.before else ""


def circumstances() -> str:
    """Return what counts depend on; the record has costs for each of these."""
    python = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.python_implementation()} {python}, {'without' if native.problems() else 'with'} modules in C"


def changes(name: str, before: Costs, now: Costs) -> dict[str, Change]:
    """Compare two measurements of a case."""
    bound = PIECES_BOUND if "MiB" in name else COUNTS_BOUND
    found = {kind: Change(getattr(before, kind), getattr(now, kind), bound, slack) for kind, slack in SLACK.items()}
    return {**found, "loops": Change(before.loops, now.loops, LOOPS_BOUND)}


def _read(path: Path) -> dict[str, dict[str, dict[str, float]]]:
    try:
        found: dict[str, dict[str, dict[str, float]]] = json.loads(path.read_text())
        return found
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; --update makes one") from None
    except ValueError as error:
        raise BenchError(f"{path} is no record: {error}") from None


def save(costs: dict[str, Costs], path: Path = PATH) -> None:
    """Put ``costs`` into the record, in place of what it has of these cases. Raises ``BenchError``."""
    content = _read(path) if path.exists() else {}
    record = content.setdefault(circumstances(), {})
    for name, found in costs.items():
        record[name] = {kind: round(value, 2) for kind, value in found._asdict().items() if value is not None}
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path = PATH) -> dict[str, Costs]:
    """Read the costs by case that apply here. Raises ``BenchError`` if there are none."""
    content = _read(path)
    if circumstances() not in content:
        raise BenchError(f"{path} has {' and '.join(content)}, not {circumstances()}; --update adds it")
    try:
        return {
            name: Costs(found["calls"], found["c_calls"], found.get("system_calls"), found["loops"])
            for name, found in content[circumstances()].items()
        }
    except KeyError as error:
        raise BenchError(f"{path} is no record: it lacks {error}") from None
