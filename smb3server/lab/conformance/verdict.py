"""What a case can say about a server."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Verdict(enum.Enum):
    """The outcome of one case."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    INCONCLUSIVE = "inconclusive"


class Finding(Exception):
    """Ends a case with a verdict; the text is the reason."""

    verdict = Verdict.INCONCLUSIVE


class Violation(Finding):
    """The server broke the rule."""

    verdict = Verdict.FAIL


class NotApplicable(Finding):
    """The rule does not apply to this server or fabric."""

    verdict = Verdict.NOT_APPLICABLE


class Inconclusive(Finding):
    """The case could not be carried out: something that it needs failed."""


class Busy(Inconclusive):
    """This machine was too slow to judge times. The runner tries the case again."""


@dataclass(slots=True)
class Result:
    """One case on one fabric."""

    name: str
    suite: str
    section: str
    rule: str
    fabric: str
    verdict: Verdict
    reason: str = ""
    evidence: list[str] = field(default_factory=list)
    """What was sent and what came, one line each, with the seconds since the case began."""
    seconds: float = 0.0
