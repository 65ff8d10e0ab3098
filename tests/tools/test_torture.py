"""The smbtorture runner's own parts: its parser, its plan, its report."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from smb3server.config.reader import read_file
from tools.torture import report, subunit
from tools.torture.outcome import Outcome, read_table, write
from tools.torture.plan import Plan, Special, normal
from tools.torture.server import configuration

STREAM = """\
smbtorture 4.17.12-Debian
time: 2026-11-20 23:00:00.000000
test: smb2.a.one
time: 2026-11-20 23:00:01.500000
success: smb2.a.one
test: smb2.a.two words (and brackets)
time: 2026-11-20 23:00:02.000000
failure: smb2.a.two words (and brackets) [
../x.c:1: wrong
second line
]
test: smb2.a.three
skip: smb2.a.three [
not here
]
test: smb2.a.four
"""


def test_subunit() -> None:
    verdicts = subunit.parse(STREAM)
    assert verdicts["smb2.a.one"] == ("pass", 1.5, "")
    assert verdicts["smb2.a.two words (and brackets)"] == ("fail", 0.5, "../x.c:1: wrong | second line")
    assert verdicts["smb2.a.three"].result == "skip"
    assert "smb2.a.four" not in verdicts


@pytest.mark.parametrize(
    ("listed", "reported"),
    [("smb2.rw.rw", "smb2.rw"), ("smb2.rw.rw1", "smb2.rw.rw1"), ("smb2.lock.lock.lock", "smb2.lock.lock")],
)
def test_names(listed: str, reported: str) -> None:
    assert normal(listed) == reported


def test_specials_are_found_by_pattern() -> None:
    special = Special(("smb2.ioctl.dup_*",), "reflink")
    plan = Plan({}, {}, {}, [special])
    assert plan.special("smb2.ioctl.dup_extents_simple") is special
    assert plan.special("smb2.ioctl.trim_simple") is None


def test_configuration_is_one_the_server_takes(tmp_path: Path) -> None:
    """Every share and server that special.toml wants."""
    document = tomllib.loads((report.HERE / "special.toml").read_text())
    options = {
        name: {key: value for key, value in share.items() if key not in ("volume", "server")}
        for name, share in document["share"].items()
    }
    for server in ({}, *document["server"].values()):
        file = tmp_path / "server.toml"
        file.write_text(configuration(dict.fromkeys(options, tmp_path), options, server))
        config = read_file(file)
        assert {share.name for share in config.shares} == set(options)
        assert config.settings.test_fsctls


def test_regressions_and_merge(tmp_path: Path) -> None:
    expected = tmp_path / "expected.tsv"
    write(expected, [Outcome("s", "s.a", "pass"), Outcome("s", "s.b", "fail"), Outcome("s", "s.c", "pass")])
    now = [Outcome("s", "s.a", "fail", reason="tab\there"), Outcome("s", "s.b", "fail")]
    assert [row.test for row in report.regressions(now, expected)] == ["s.a"]
    assert {(row.test, row.result) for row in report.merged(now, expected)} == {
        ("s.a", "fail"),
        ("s.b", "fail"),
        ("s.c", "pass"),
    }
    write(expected, now)
    assert read_table(expected)[0]["reason"] == "tab here"


def test_page_compares_with_samba() -> None:
    samba = report.samba_passes()
    passes = next(test for test, passed in samba.items() if passed)
    fails = next(test for test, passed in samba.items() if not passed)
    page = report.markdown([Outcome("s", passes, "fail", reason="why"), Outcome("s", fails, "pass")])
    assert f"## Pass here, not on Samba (1)\n\n- {fails}" in page
    assert f"- {passes}: fail." in page.split("## Pass on Samba, not here (1)")[1]


def test_every_reason_is_about_a_test_that_exists() -> None:
    tests = set(report.samba_passes())
    suites = {test.rsplit(".", 1)[0] for test in tests}
    assert not [name for name in report.reasons() if name not in tests | suites]
