"""The doctor's findings: a verdict on a subject, a sentence, and a remedy if there is one."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    subject: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        remedy = f"\n         -> {self.remedy}" if self.remedy else ""
        return f"{self.verdict.value:8} {self.subject}: {self.text}{remedy}"

    def as_json(self) -> dict[str, str]:
        return dataclasses.asdict(self) | {"verdict": self.verdict.value}
