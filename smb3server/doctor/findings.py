"""The doctor's findings: a verdict on a subject, a sentence, and a remedy if there is one."""

from __future__ import annotations

import dataclasses
import enum
import textwrap
from dataclasses import dataclass

EXIT_RDMA, EXIT_NO_RDMA, EXIT_UNKNOWN = 0, 1, 2
"""Exit statuses of the doctor. The last one means wrong usage, too."""


_WIDTH = 100


class Verdict(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


def _wrap(text: str, first: str, others: str) -> list[str]:
    """Return lines that break between words only: addresses and commands stay whole."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )


def verdict_lines(text: str) -> str:
    """Return the verdict as short lines: what it is, then each reason on a line of its own."""
    head, separator, reasons = text.partition(", because ")
    if not separator:
        head, separator, reasons = text.partition(" answers: ")
        separator = separator.rstrip(" ")
    parts = reasons.split("; ") if reasons else []
    lines = _wrap(f"verdict: {head}{separator.rstrip()}", "", "  ")
    for part in parts:
        lines += _wrap(part, "  - ", "    ")
    return "\n".join(lines)


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
