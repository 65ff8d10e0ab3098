"""The tables of Microsoft's suites: what a run may not hide."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.wpts import page, table
from tools.wpts.__main__ import PAGE, TABLES
from tools.wpts.table import Case, Reasons, TableError, judge, parse

REASONS = """
[[smb2]]
case = "Lease_.*"
why = "Decided: leases."
[[smb2]]
case = "Old"
platforms = ["NonWindows"]
why = "The suite's own error."
[[fsa]]
case = ".*"
why = "Of another suite."
"""
RUN = [Case("A", "passed"), Case("Lease_1", "failed", "timed out"), Case("Old", "failed"), Case("Q", "not applicable")]
EXPECTED = {"A": "passed", "Lease_1": "failed", "Old": "failed", "Q": "not applicable"}


def why(platform: str = "NonWindows") -> Reasons:
    return Reasons("smb2", platform, REASONS)


def test_rows_of_the_runner() -> None:
    text = "B\tFailed\t0.1\tAssert failed.\nA\tPassed\t0.2\t\nC\tNotExecuted\t0.0\tNo NIC\nD\tTimeout\t9\t\n"
    assert parse(text) == [
        Case("A", "passed"),
        Case("B", "failed", "Assert failed."),
        Case("C", "not applicable", "No NIC"),
        Case("D", "timeout"),
    ]


@pytest.mark.parametrize("text", ["", "A\n", "A\tPassed\n"])
def test_a_damaged_table_is_no_result(text: str) -> None:
    with pytest.raises(TableError):
        parse(text)


def test_a_run_as_expected() -> None:
    assert judge(RUN, EXPECTED, why(), whole=True) == []


@pytest.mark.parametrize("outcome", ["failed", "not applicable", "timeout"])
def test_a_case_that_passed_before(outcome: str) -> None:
    (line,) = judge([Case("A", outcome, "why not"), *RUN[1:]], EXPECTED, why(), whole=True)
    assert line.startswith("A: ")


def test_a_failure_without_a_reason() -> None:
    (line,) = judge([*RUN, Case("New", "failed", "no")], EXPECTED, why(), whole=True)
    assert line == "New: failed, and reasons.toml does not say why: no"
    assert judge([Case("Leases_1", "failed")], {}, why(), whole=False), "a pattern is for whole names"


def test_a_case_that_was_not_run() -> None:
    assert judge(RUN[1:], EXPECTED, why(), whole=True) == ["A: was not run"]
    assert judge(RUN[1:], EXPECTED, why(), whole=False) == []


def test_a_reason_that_explains_nothing() -> None:
    run = [Case("Lease_1", "passed") if case.name == "Lease_1" else case for case in RUN]
    assert judge(run, EXPECTED, why(), whole=True) == ["Lease_.*: the reason explains no failed case"]
    as_windows = [case for case in RUN if case.name != "Old"]
    assert judge(as_windows, {}, why("WindowsServer2022"), whole=True) == []


def test_a_reason_that_says_nothing() -> None:
    with pytest.raises(TableError, match="X: no reason"):
        Reasons("smb2", "NonWindows", '[[smb2]]\ncase = "X"\nwhy = " "')


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    table.write(path, RUN, {"A": "failed"}, why())
    assert table.read(path) == EXPECTED
    assert page.rows_of(path)[1] == {"case": "Lease_1", "here": "failed", "samba": "", "why": "Decided: leases."}


COMMITTED = [
    (suite, platform)
    for suite in table.SUITES
    for platform in table.PLATFORMS
    if (TABLES / f"wpts-{suite}-{platform.lower()}.tsv").exists()
]


def test_every_suite_has_a_table_for_each_platform() -> None:
    assert len(COMMITTED) == len(table.SUITES) * len(table.PLATFORMS)


@pytest.mark.parametrize(("suite", "platform"), COMMITTED)
def test_the_committed_tables_are_explained(suite: str, platform: str) -> None:
    path = TABLES / f"wpts-{suite}-{platform.lower()}.tsv"
    rows = page.rows_of(path)
    cases = [Case(row["case"], row["here"], row["why"]) for row in rows]
    assert judge(cases, table.read(path), Reasons(suite, platform), whole=True) == []
    assert [row["case"] for row in rows if row["here"] != "passed" and not row["why"]] == []
    assert len(rows) > {"dfsc": 40, "rsvd": 28, "sqos": 12}.get(suite, 200)


def test_the_page_is_made_of_the_tables() -> None:
    tables = {
        (suite, platform): page.rows_of(TABLES / f"wpts-{suite}-{platform.lower()}.tsv")
        for suite, platform in COMMITTED
    }
    decisions = (table.HERE / "decisions.md").read_text(encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page.markdown(tables, decisions)


def test_without_the_suites_the_command_says_so(tmp_path: Path) -> None:
    for arguments in ([], ["--folder", str(tmp_path)]):
        done = subprocess.run(
            [sys.executable, "-m", "tools.wpts", *arguments], check=False, capture_output=True, text=True, env={}
        )
        assert done.returncode == 0
        assert done.stdout.startswith("skipped: Microsoft's suites are not here (")
