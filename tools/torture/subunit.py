"""Parse the subunit text stream that ``smbtorture --format=subunit`` prints."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

_RESULTS = {
    "success": "pass",
    "successful": "pass",
    "uxsuccess": "pass",
    "failure": "fail",
    "knownfail": "fail",
    "xfail": "fail",
    "error": "error",
    "skip": "skip",
}
_RESULT_LINE = re.compile(rf"({'|'.join(_RESULTS)}): (.+?)( \[)?$")
"""Names may contain spaces."""
_REASON_LINES, _REASON_LENGTH = 4, 300


class Verdict(NamedTuple):
    """The result of one test as smbtorture reports it."""

    result: str
    seconds: float
    reason: str


def _time(line: str) -> float | None:
    try:
        return datetime.fromisoformat(line.removeprefix("time: ").strip().rstrip("Z")).timestamp()
    except ValueError:
        return None


def parse(output: str) -> dict[str, Verdict]:
    """Return the verdicts by test name as printed. A test that was started but not finished is missing."""
    verdicts: dict[str, Verdict] = {}
    now = started = 0.0
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("time: "):
            now = _time(line) or now
        elif line.startswith("test: "):
            started = now
        else:
            match = _RESULT_LINE.match(line)
            if match is not None:
                reason = _reason(lines[number + 1 :]) if match[3] else ""
                verdicts[match[2]] = Verdict(_RESULTS[match[1]], max(0.0, now - started), reason)
    return verdicts


def _reason(lines: list[str]) -> str:
    kept: list[str] = []
    for line in lines:
        if line == "]" or len(kept) == _REASON_LINES:
            break
        kept.append(line)
    return " | ".join(kept)[:_REASON_LENGTH]
