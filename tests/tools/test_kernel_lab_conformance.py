"""What the kernel lab makes of the conformance cases against ksmbd, on made-up results. Booting is not done here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smb3server.lab.bench.page import BEGIN, END
from smb3server.lab.conformance.registry import load
from tools.kernel_lab import conformance
from tools.kernel_lab.cases import select
from tools.kernel_lab.conformance import DOCUMENT, FOUND, PART, Difference, differences, judge, table


def entry(name: str, verdict: str, reason: str = "") -> dict[str, Any]:
    return {"name": name, "section": "MS-SMB2 1", "verdict": verdict, "reason": reason}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one known difference."""
    monkeypatch.setattr(conformance, "differences", lambda: [Difference("Known", "it does so in `f`")])


def judged(folder: Path, *cases: dict[str, Any]) -> list[str]:
    (folder / FOUND).write_text(json.dumps({"kernel": "6.12", "cases": list(cases)}))
    return judge(folder)


def test_known_difference(tmp_path: Path, known: None) -> None:
    assert judged(tmp_path, entry("Known", "fail"), entry("Good", "pass"), entry("Other", "not applicable")) == []


def test_unknown_difference(tmp_path: Path, known: None) -> None:
    assert judged(tmp_path, entry("Known", "fail"), entry("New", "fail", "it is 3")) == ["New: it is 3"]


def test_known_difference_is_gone(tmp_path: Path, known: None) -> None:
    assert judged(tmp_path, entry("Known", "pass")) == ["Known: a known difference that is gone"]


def test_difference_that_is_there_sometimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "differences", lambda: [Difference("Known", "", sometimes=True)])
    assert judged(tmp_path, entry("Known", "pass")) == []


def test_inconclusive(tmp_path: Path, known: None) -> None:
    cases = entry("Known", "inconclusive"), entry("Other", "inconclusive", "no connection")
    assert judged(tmp_path, *cases) == ["Other: no connection"]


def test_no_results(tmp_path: Path, known: None) -> None:
    assert len(judge(tmp_path)) == 1


def test_table_has_what_was_found(known: None) -> None:
    siw = {"kernel": "6.12.9", "cases": [entry("Known", "fail", "a|b"), entry("Good", "pass")]}
    rxe = {"kernel": "6.12.9", "cases": [entry("Known", "pass"), entry("Good", "pass")]}
    text = table([("siw", siw), ("rxe", rxe)])
    assert "Linux 6.12.9" in text
    assert "- siw: 1 pass, 1 fail" in text
    assert "| `Known` | MS-SMB2 1 | siw | a\\|b | it does so in `f` |" in text


def test_both_cases_can_be_chosen() -> None:
    chosen = select(["conformance-ksmbd-siw", "conformance-ksmbd-rxe"])
    assert len({case.boot for case in chosen}) == 2


def test_each_difference_is_a_case_and_in_the_document() -> None:
    part = DOCUMENT.read_text().partition(BEGIN.format(PART))[2].partition(END.format(PART))[0]
    rows = {line.split("`")[1]: line for line in part.splitlines() if line.startswith("| `")}
    steady = {each.name for each in differences() if not each.sometimes}
    assert steady <= set(rows) <= {each.name for each in differences()} <= set(load())
    assert all(rows[each.name].endswith(f"| {each.why} |") for each in differences() if each.name in rows)
