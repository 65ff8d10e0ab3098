"""The table in docs/conformance.md has every case, and the verdicts that the tests demand of our server."""

from __future__ import annotations

from pathlib import Path

from smb3server.lab.bench.page import BEGIN, END
from smb3server.lab.conformance.own import FABRICS
from smb3server.lab.conformance.registry import load
from smb3server.lab.conformance.report import Run, markdown
from smb3server.lab.conformance.run import MARKS
from smb3server.lab.conformance.verdict import Result
from tests.lab.conformance import expected

PAGE = Path(__file__).resolve().parents[4] / "docs" / "conformance.md"


def test_table() -> None:
    runs = [
        Run(
            "",
            fabric,
            "",
            0.0,
            [
                Result(case.name, case.suite, case.section, case.rule, fabric, expected(case, fabric))
                for case in load().values()
            ],
        )
        for fabric in FABRICS
    ]
    table = PAGE.read_text().partition(BEGIN.format(MARKS))[2].partition(END.format(MARKS))[0]
    assert table.strip() == markdown(runs).strip(), "make conformance writes it"
