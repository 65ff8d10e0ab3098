"""What passed only when it was repeated: recorded by pytest and smbtorture's runner, and listed at the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.flaky.__main__ import main
from tools.flaky.closing import Step, Story, closing, read_steps, stories
from tools.flaky.record import VARIABLE, Entry, Totals, read, record, shorten
from tools.torture.outcome import Outcome, write
from tools.torture.repeat import repeat

ROOT = Path(__file__).resolve().parents[2]
TEMPROOT = "PYTEST_DEBUG_TEMPROOT"
"""Where pytest makes its folders: see tests/conftest.py."""
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""What is installed otherwise has no part in this, and takes a second to load."""
TESTS = """
import os
import pathlib
import pytest

def once(name):
    mark = pathlib.Path(__file__).with_name(name)
    known = mark.exists()
    mark.touch()
    return not known

def test_good(): pass
def test_second_time(): assert not once("call"), "the reason"
def test_skipped_later():
    if not once("skipped"): pytest.skip("not any more")
    assert False
@pytest.fixture
def shaky():
    yield
    assert not once("teardown")
def test_teardown(shaky): pass
def test_never(): assert False
@pytest.mark.xfail
def test_expected(): assert False
def test_skipped(): pytest.skip("never here")
def test_environment(): assert "FLAKY_RECORD" not in os.environ
"""


def run_pytest(folder: Path, *options: str) -> str:
    """Run the tests in ``folder`` as .ci/run does, recording."""
    command = [sys.executable, "-m", "pytest", "-p", "tools.flaky.plugin", "-c", "/dev/null", "--rootdir", str(folder)]
    ended = subprocess.run(
        [*command, "-o", f"cache_dir={folder}/cache", *options, str(folder)],
        cwd=ROOT,
        env=os.environ | ALONE | {VARIABLE: str(folder / "results"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "INTERNALERROR" not in ended.stdout + ended.stderr
    return ended.stdout


def results(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in read(folder / "results")[0]:
        found.setdefault(entry.name.rpartition("::")[2], []).append(entry.result)
    return found


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")])
def test_pytest_records_what_fails_and_what_becomes_of_it(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    run_pytest(tmp_path, *workers)
    failing = ("test_second_time", "test_skipped_later", "test_teardown", "test_never")
    assert results(tmp_path) == {name: ["failed"] for name in failing}
    run_pytest(tmp_path, *workers, "--last-failed", "--last-failed-no-failures", "none")
    assert results(tmp_path) == {
        "test_second_time": ["failed", "passed"],
        "test_skipped_later": ["failed", "skipped"],
        "test_teardown": ["failed", "passed"],
        "test_never": ["failed", "failed"],
    }
    entries, totals = read(tmp_path / "results")
    assert "AssertionError: the reason" in next(entry.text for entry in entries if "second" in entry.name)
    assert [(run.passed, run.failed, run.skipped) for run in totals] == [(4, 4, 1), (2, 1, 1)]


def test_pytest_records_modules_that_cannot_be_imported(tmp_path: Path) -> None:
    module = tmp_path / "test_it.py"
    module.write_text("import nowhere_to_be_found\n")
    run_pytest(tmp_path)
    module.write_text("def test_good(): pass\n")
    run_pytest(tmp_path)
    assert results(tmp_path) == {"test_it.py": ["failed", "passed"]}
    assert "nowhere_to_be_found" in read(tmp_path / "results")[0][0].text


def test_nothing_is_recorded_unless_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    record("pytest", "x", "failed", "text")
    assert not list(tmp_path.iterdir())


def test_only_the_end_of_a_text_is_kept() -> None:
    text = "\n\n".join(f"line {number} " + "x" * 500 for number in range(30))
    lines = shorten(text).splitlines()
    assert len(lines) == 12
    assert lines[-1].startswith("line 29 ")
    assert max(map(len, lines)) == 240


class Runner:
    """Stands for smbtorture: each repetition gives the next outcomes."""

    def __init__(self, *rounds: list[Outcome]) -> None:
        self.rounds = list(rounds)
        self.asked: list[set[str]] = []

    def repeat(self, outcomes: list[Outcome], tests: set[str]) -> list[Outcome]:
        self.asked.append(tests)
        return self.rounds.pop(0)


def outcomes(*results: str) -> list[Outcome]:
    return [Outcome("s", f"s.{name}", result, reason=result) for name, result in zip("abcd", results, strict=True)]


def test_smbtorture_records_what_passes_only_when_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tmp_path / "expected.tsv"
    write(expected, outcomes("pass", "pass", "pass", "fail"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "results"))
    last = outcomes("pass", "fail", "fail", "fail")
    runner = Runner(outcomes("fail", "fail", "fail", "fail"), last)
    found = repeat(runner, outcomes("fail", "timeout", "fail", "fail"), 2, expected, "smbtorture signing", {"s.c"})
    assert found == last
    assert runner.asked == [{"s.a", "s.b", "s.c"}, {"s.a", "s.b", "s.c"}], "what is explained is repeated, too"
    entries, _ = read(tmp_path / "results")
    assert {entry.source for entry in entries} == {"smbtorture signing"}
    assert [entry.result for entry in entries if entry.name == "s.a"] == ["failed", "failed", "passed"]
    assert [entry.result for entry in entries if entry.name == "s.b"] == ["failed"] * 3
    assert next(entry.text for entry in entries if entry.name == "s.b") == "timeout: timeout"
    assert {entry.name for entry in entries} == {"s.a", "s.b"}


def test_smbtorture_repeats_nothing_that_passed(tmp_path: Path) -> None:
    expected = tmp_path / "expected.tsv"
    write(expected, outcomes("pass", "pass", "pass", "fail"))
    good = outcomes("pass", "pass", "pass", "fail")
    assert repeat(Runner(), good, 2, expected, "smbtorture", ()) == good
    bad = outcomes("pass", "pass", "fail", "fail")
    assert repeat(Runner(), bad, 0, expected, "smbtorture", ()) == bad


ENTRIES = [
    Entry("pytest", "tests/x.py::test_a", "failed", "first\nreason"),
    Entry("kernel lab", "siw", "failed", "dmesg: BUG"),
    Entry("pytest", "tests/x.py::test_a", "failed", "second reason"),
    Entry("pytest", "tests/x.py::test_a", "passed"),
    Entry("kernel lab", "siw", "failed", "dmesg: BUG"),
    Entry("kernel lab", "rxe", "failed", "defect"),
    Entry("kernel lab", "rxe", "skipped"),
    Entry("pytest", "tests/x.py::test_b", "failed", "for good"),
    Entry("pytest", "tests/x.py", "passed"),
]


def test_stories() -> None:
    assert stories(ENTRIES) == [
        Story("pytest", "tests/x.py::test_a", 2, "passed", "first\nreason"),
        Story("kernel lab", "siw", 2, "failed", "dmesg: BUG"),
        Story("kernel lab", "rxe", 1, "skipped", "defect"),
        Story("pytest", "tests/x.py::test_b", 1, "failed", "for good"),
    ]


def test_closing() -> None:
    steps = [Step(65, 0, "make lint"), Step(3600, 2, "make test")]
    text = closing(ENTRIES, [Totals(10, 2, 3, 60.0), Totals(1, 1, 0, 5.5)], steps)
    assert text.splitlines() == [
        "=== steps (minutes)",
        "  1:05  make lint",
        " 60:00  make test  exit status 2",
        " 61:05  together; some ran beside others",
        "=== passed only when repeated: 1",
        "pytest: tests/x.py::test_a (failed 2 times)",
        "    | first",
        "    | reason",
        "=== failed, and skipped when repeated: 1",
        "kernel lab: rxe (failed once)",
        "    | defect",
        "=== failed to the end: 2",
        "kernel lab: siw (failed 2 times)",
        "    | dmesg: BUG",
        "pytest: tests/x.py::test_b (failed once)",
        "    | for good",
        "===== 1 failed, 11 passed, 3 skipped in 65.50s =====",
    ]


def test_closing_of_a_good_run() -> None:
    text = closing([], [Totals(10, 0, 3, 60.0)], [])
    assert "passed only when repeated: none" in text
    assert text.endswith("===== 10 passed, 3 skipped in 60.00s =====")


def test_closing_of_a_run_that_did_not_get_far(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "steps").write_text("3\t2\tmake lint\twith a tab\n")
    assert read_steps(tmp_path / "steps") == [Step(3, 2, "make lint\twith a tab")]
    main([str(tmp_path / "nothing"), str(tmp_path / "steps")])
    assert "exit status 2" in capsys.readouterr().out


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tree with .ci/run, this tool, and a Makefile whose tests pass the second time."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text((ROOT / ".ci" / "run").read_text())
    (tmp_path / ".ci" / "run").chmod(0o755)
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import pathlib\nimport pytest\nMARK = pathlib.Path('mark')\n"
        "def test_shaky():\n    known = MARK.exists()\n    MARK.touch()\n    assert known, 'the first time'\n"
        "@pytest.mark.long\ndef test_long(): pass\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = \"-m 'not long'\"\nmarkers = ['long: x']\n"
    )
    (tmp_path / "Makefile").write_text(
        f"test:\n\t{sys.executable} -m pytest -p xdist -n 1 $(PYTEST_ARGS)\n"
        "lint docs fuzz torture-variants:\n\t@true\nkernel-test:\n\t@exit $(LAB)\n"
        "torture:\n\t@echo a word of smbtorture; exit $(TORTURE)\n"
    )
    return tmp_path


def run_ci(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    strange = ("PYTEST_", "MAKE", "MFLAGS")
    clean = {name: value for name, value in os.environ.items() if name == TEMPROOT or not name.startswith(strange)}
    return subprocess.run(
        [str(checkout / ".ci" / "run")],
        env=clean | ALONE | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_ci_lists_what_passed_only_the_second_time(checkout: Path) -> None:
    ended = run_ci(checkout, LAB="0", TORTURE="0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    end = ended.stdout[ended.stdout.index("=== steps") :]
    assert re.search(r"^ +\d+:\d\d  make test .*exit status", end, re.M)
    assert "=== passed only when repeated: 1\npytest: tests/test_it.py::test_shaky (failed once)" in end
    assert "AssertionError: the first time" in end
    assert re.search(r"^===== 2 passed, 0 skipped in .*=====\n=== all passed \(at [\d:]+\)\n\Z", end, re.M)
    again = run_ci(checkout, LAB="0", TORTURE="0")
    assert again.returncode == 0
    assert "=== passed only when repeated: none" in again.stdout, "another run begins anew"


@pytest.mark.parametrize(("lab", "torture"), [("3", "0"), ("0", "3")])
def test_ci_ends_with_the_status_of_what_failed(checkout: Path, lab: str, torture: str) -> None:
    ended = run_ci(checkout, LAB=lab, TORTURE=torture)
    assert ("\na word of smbtorture\n" in ended.stdout) is (lab == "0")
    assert ended.returncode == 2
    assert "=== passed only when repeated: 1" in ended.stdout
    assert "all passed" not in ended.stdout
    assert ended.stdout.rstrip().endswith("=== FAILED, exit status 2")
