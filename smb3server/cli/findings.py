"""The doctor's findings: a verdict on a subject, a sentence, and a remedy if there is one."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

EXIT_RDMA, EXIT_NO_RDMA, EXIT_UNKNOWN = 0, 1, 2
"""Exit statuses of the doctor. The last one means wrong usage, too."""


class Verdict(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of the doctor."""

    verdict: Verdict
    subject: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        """Return the finding as text, with the remedy on a line of its own."""
        remedy = f"\n         -> {self.remedy}" if self.remedy else ""
        return f"{self.verdict.value:8} {self.subject}: {self.text}{remedy}"

    def as_json(self) -> dict[str, str]:
        """Return the finding as JSON types."""
        return dataclasses.asdict(self) | {"verdict": self.verdict.value}
