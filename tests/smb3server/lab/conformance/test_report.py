"""What people and programs read of a run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

from smb3server.lab.conformance import report
from smb3server.lab.conformance.report import Run
from smb3server.lab.conformance.verdict import Result, Verdict

RESULTS = [
    Result("Good", "Suite", "MS-SMBD 1", "It works.", "iwarp", Verdict.PASS, "", ["0.000 connected"], 0.5),
    Result("Bad", "Suite", "MS-SMBD 2", "No <b>.", "iwarp", Verdict.FAIL, "sent <b> & \x1b[31m|", ["0.1 -> \x00"], 1.0),
    Result("Other", "Next", "MS-SMBD 3", "It may.", "iwarp", Verdict.NOT_APPLICABLE, "needs an account"),
    Result("Slow", "Next", "MS-SMBD 4", "In time.", "iwarp", Verdict.INCONCLUSIVE, "too busy"),
]
RUN = Run("host over iwarp", "iwarp", "2026-01-01 00:00", 2.0, RESULTS)
GOOD = Run("host over roce", "roce", "2026-01-01 00:00", 2.0, [RESULTS[0], RESULTS[2]])


class Text(HTMLParser):
    """Collects the text, and checks that what was opened is known."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_a_run_passes_without_failures_and_doubts() -> None:
    assert report.passed([GOOD])
    assert not report.passed([GOOD, RUN])
    assert not report.passed([Run("", "iwarp", "", 0.0, [RESULTS[3]])])


def test_text_explains_what_did_not_pass() -> None:
    text = report.text([RUN])
    assert "1 pass, 1 fail, 1 not applicable, 1 inconclusive in 2.0 s" in text
    assert "rule: No <b>." in text and "0.1 -> " in text
    assert "connected" not in text and "connected" in report.text([RUN], evidence=True)


def test_what_servers_sent_does_not_reach_the_terminal_as_control_characters() -> None:
    for made in (report.text([RUN]), report.page([RUN]), report.junit([RUN]), report.markdown([RUN])):
        assert not set(made) & {"\x1b", "\0"}


def test_junit_counts_and_explains() -> None:
    (suite,) = ET.fromstring(report.junit([RUN]))
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"]
    cases = {case.get("name"): case for case in suite}
    failure = cases["Bad"].find("failure")
    assert failure is not None and (failure.get("message") or "").startswith("sent <b> &")
    assert cases["Other"].find("skipped") is not None and cases["Slow"].find("error") is not None
    assert "connected" in (cases["Good"].findtext("system-out") or "")


def test_page_shows_every_rule_and_marks_nothing_up_that_a_server_sent() -> None:
    page = Text(report.page([RUN]))
    assert page.tags.count("tr") == 1 + len(RESULTS)
    assert "b" not in page.tags
    assert "sent <b> &" in page.text and "Good" in page.text and "MS-SMBD 4" in page.text


def test_json_has_everything() -> None:
    (run,) = json.loads(json.dumps(report.as_json([RUN])))
    assert run["counts"] == {"pass": 1, "fail": 1, "not applicable": 1, "inconclusive": 1}
    assert run["cases"][0]["evidence"] == ["0.000 connected"]


def test_table_has_a_part_for_each_suite_and_a_column_for_each_run() -> None:
    both = report.markdown([GOOD, GOOD])
    assert both.count("### ") == 2 and "| roce | roce |" in both and "needs an account" not in both
    assert "needs an account" in report.markdown([GOOD])
    assert "\\|" in report.markdown([RUN])
