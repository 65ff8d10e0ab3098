"""The smbtorture runner's own parts: its parser, its plan, its report."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from smb3server.config.reader import read_file
from tools.torture import macos, report, samba_root, subunit
from tools.torture.outcome import Outcome, read_table, write
from tools.torture.plan import Plan, Special, normal, special_needs
from tools.torture.release import DISTRIBUTION, NEWEST, Release
from tools.torture.server import configuration

ROOT = Path(__file__).resolve().parents[2]
RELEASES = pytest.mark.parametrize("release", [DISTRIBUTION, NEWEST], ids=lambda release: release.version)

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


def test_every_test_about_macs_that_only_samba_passes_has_a_reason() -> None:
    rows = macos.expected()
    assert {row.release for row in rows} == {"4.17", "4.25"} and not macos.unexplained(rows)
    behind = {row.test for row in rows if row.is_behind}
    assert macos.reasons().keys() == behind, "a reason for a test that passes, or none for one that does not"
    assert macos.PAGE.read_text(encoding="utf-8") == macos.markdown(rows)
    made_up = macos.Row("4.17", "vfs.fruit.made up", "fail", "pass")
    assert macos.unexplained([*rows, made_up]) == [made_up]


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


@RELEASES
def test_configuration_is_one_the_server_takes(tmp_path: Path, release: Release) -> None:
    """Every share and server that the release's files want."""
    shares, servers, _ = special_needs(release)
    options = {
        name: {key: value for key, value in share.items() if key not in ("volume", "server")}
        for name, share in shares.items()
    }
    for server in ({}, *servers.values()):
        file = tmp_path / "server.toml"
        given = {"state": str(tmp_path / "state"), **server}
        file.write_text(configuration(dict.fromkeys(options, tmp_path / "files"), options, given))
        config = read_file(file)
        assert {share.name for share in config.shares} == set(options)
        assert config.settings.test_fsctls


def test_what_a_release_adds_counts_first() -> None:
    shares, servers, specials = special_needs(NEWEST)
    common, _, _ = special_needs(DISTRIBUTION)
    assert set(common) < set(shares)
    plan = Plan({}, shares, servers, specials)
    delayed = "smb2.timestamps.delayed-2write"
    assert (plan.special(delayed) or Special(())).share is None
    assert plan.special(delayed) is not None
    assert servers["port445"]["listen"] == ["127.0.0.46"], "another address than the distribution's run has"


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


@RELEASES
def test_page_compares_with_samba(release: Release) -> None:
    samba = report.samba_passes(release)
    passes = next(test for test, passed in samba.items() if passed)
    fails = next(test for test, passed in samba.items() if not passed)
    page = report.markdown([Outcome("s", passes, "fail", reason="why"), Outcome("s", fails, "pass")], release)
    assert f"## Pass here, not on Samba (1)\n\n- {fails}" in page
    assert f"- {passes}: fail." in page.split("## Pass on Samba, not here (1)")[1]
    assert f"# smbtorture {release.version}" in page
    assert f"`{release.command}`" in page


@RELEASES
def test_the_page_is_that_of_the_expected_results(release: Release) -> None:
    assert release.page.read_text() == report.markdown(report.merged([], release.expected), release)


@RELEASES
def test_every_reason_is_about_a_test_that_exists(release: Release) -> None:
    tests = set(report.samba_passes(release)) | {row["test"] for row in read_table(release.expected)}
    suites = {test.rsplit(".", 1)[0] for test in tests}
    assert not [name for name in tomllib.loads(release.reasons.read_text()) if name not in tests | suites]


def test_what_samba_alone_passes_needs_a_reason_with_a_section(tmp_path: Path) -> None:
    write(tmp_path / "baseline.tsv", [Outcome("s", f"s.{name}", "pass") for name in "abcd"])
    (tmp_path / "reasons.toml").write_text(
        '"s.a" = "It does otherwise (MS-SMB2 3.3.5.16)."\n"s.b" = "It does otherwise."\n"s.d" = "MS-SMB2 3.3"\n'
    )
    release = dataclasses.replace(NEWEST, folder=tmp_path)
    outcomes = [*(Outcome("s", f"s.{name}", "fail") for name in "abc"), Outcome("s", "s.d", "pass")]
    assert [row.test for row in report.behind(outcomes, release)] == ["s.a", "s.b", "s.c"]
    assert [row.test for row in report.without_section(outcomes, release)] == ["s.b", "s.c"]
    assert report.without_section(outcomes, dataclasses.replace(release, cites=False)) == []


def test_what_the_newest_ones_lost_cases_say() -> None:
    assert report.without_section(report.merged([], NEWEST.expected), NEWEST) == []


# The newest Samba, in a folder of its own


def test_without_its_folder_the_run_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.torture", "--samba-root", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "tools/setup.sh samba-newest" in ended.stderr


def test_it_goes_with_no_variant() -> None:
    command = [sys.executable, "-m", "tools.torture", "--newest", "--signing", "required"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_commands_run_in_the_folder_and_see_the_shares(tmp_path: Path) -> None:
    """In a folder that has one of this machine's programs. Nothing of what is mounted for it is left."""
    root, shares = tmp_path / "root", tmp_path / "shares"
    for name in ("dev", "proc", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    (root / "etc/hosts").touch()
    libraries = subprocess.run(["ldd", "/bin/cat"], capture_output=True, text=True, check=True).stdout
    for path in ("/bin/cat", *re.findall(r"(/\S+) \(", libraries)):
        copy = root / path.removeprefix("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shares.mkdir()
    (shares / "file").write_text("here")
    inside = samba_root.prefix(root, shares)
    ended = subprocess.run([*inside, "cat", str(shares / "file")], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "here"), ended.stderr
    assert not list((root / "tmp").iterdir())
    assert str(root) not in Path("/proc/mounts").read_text()


def test_smb_conf_of_a_server(tmp_path: Path) -> None:
    options = tomllib.loads((NEWEST.folder / "samba.toml").read_text())
    text = samba_root.smb_conf(tmp_path, "127.0.0.47", "1445 445", "signing", {"ca_fo": tmp_path / "ca_fo"}, options)
    assert "interfaces = 127.0.0.47/8\n" in text
    assert "server signing = mandatory\n" in text
    share = text.split("[ca_fo]\n")[1]
    assert f"path = {tmp_path / 'ca_fo'}\n" in share
    assert "continuous availability = yes\n" in share
    assert "continuous availability" not in text.split("[ca_fo]\n")[0]


def test_every_share_of_smb_conf_is_one_of_the_run() -> None:
    options = tomllib.loads((NEWEST.folder / "samba.toml").read_text())
    shares, servers, _ = special_needs(NEWEST)
    assert set(options["share"]) <= set(shares)
    assert set(options["server"]) <= set(servers)
