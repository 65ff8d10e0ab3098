"""The bench: its statistics and verdicts, how it counts processor time, and a short run of our server alone."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from smb3server.cli.main import main
from smb3server.lab.bench import client, interpreter, page, servers
from smb3server.lab.bench.accounting import (
    Process,
    Reading,
    family,
    others_share,
    parse_machine,
    parse_stat,
    processes,
    server_seconds,
    used,
)
from smb3server.lab.bench.cases import CASES
from smb3server.lab.bench.errors import BenchError
from smb3server.lab.bench.figures import BUSY, Sample, ratios, spread, verdict

ROOT = Path(__file__).resolve().parents[2]
ECHO = CASES["echo q1"]
BEGIN, END = page.BEGIN.format(page.TABLE), page.END.format(page.TABLE)


def test_spread() -> None:
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == (1, 2, 3, 4, 5)
    assert spread([7.0]) == (7, 7, 7, 7, 7)


def test_ratios_are_of_the_same_round() -> None:
    """A machine that slows down from round to round changes neither."""
    assert ratios([100, 50, 25], [200, 100, 50]) == (0.5,) * 5
    assert ratios([100, 50], [200, 0]) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([1.5, 1.6, 1.55, 1.52, 1.58], "ahead"),
        ([0.5, 0.52, 0.55, 0.48, 0.51], "behind"),
        ([1.0, 1.01, 0.99, 1.0, 1.005], "even"),
        # One round says the opposite.
        ([1.5, 1.6, 1.55, 0.97, 1.58], "no verdict: spread 0.97–1.60"),
        # All rounds on one side, but they differ from each other by more than the two servers do.
        ([1.05, 1.1, 1.5, 1.9, 2.8], "no verdict: spread 1.05–2.80"),
        # The same upside down.
        ([1 / 1.05, 1 / 1.1, 1 / 1.5, 1 / 1.9, 1 / 2.8], "no verdict: spread 0.36–0.95"),
        # Less than processor time can be counted.
        ([1.01, 1.012, 1.015, 1.03, 1.011], "no verdict: spread 1.01–1.03"),
        ([9.0, 9.0, 9.0, 9.0], "no verdict: 4 of 5 rounds"),
        ([0.0, 0.0, 0.0, 0.0, 0.0], "no verdict: too little processor time to count"),
    ],
)
def test_verdict(found: list[float], expected: str) -> None:
    assert verdict(spread(found), len(found), others=0.0) == expected


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_equal_servers_seldom_get_a_verdict(noise: float) -> None:
    """However noisy the machine is: ``noise`` is the standard deviation of a round, as a share."""
    random = Random(1)
    wrong = 0
    for _ in range(1000):
        ours, theirs = ([math.exp(random.gauss(0, noise)) for _ in range(5)] for _ in range(2))
        wrong += verdict(ratios(ours, theirs), 5, 0.0) in ("ahead", "behind")
    assert wrong < 70


def test_verdict_where_less_is_better() -> None:
    assert verdict(spread([0.5] * 5), 5, 0.0, less_is_better=True) == "ahead"
    assert verdict(spread([2.0] * 5), 5, 0.0, less_is_better=True) == "behind"
    assert verdict(None, 5, 0.0, less_is_better=True) == "no verdict: too little processor time to count"


def test_no_verdict_on_a_busy_machine() -> None:
    clear = spread([3.0] * 5)
    assert verdict(clear, 5, others=BUSY) == "ahead"
    assert verdict(clear, 5, others=BUSY + 0.01) == "no verdict: others took 6%"


def row(rate: float, others: list[float]) -> page.Row:
    return page.Row(ECHO, [Sample(rate, 10, share) for share in others], [Sample(100, 20, share) for share in others])


def test_load_of_a_case_is_that_of_its_middle_round() -> None:
    rate, cost = page.compare(row(200, [0, 0, 0, 0.9, 0.9]))
    assert (rate.verdict, cost.verdict) == ("ahead", "ahead")
    rate, cost = page.compare(row(200, [0, 0, 0.3, 0.9, 0.9]))
    assert rate.verdict == cost.verdict == "no verdict: others took 30%"


def test_document() -> None:
    text = page.document({"Machine": "this one"}, [row(200, [0.0] * 5)])
    assert "- Machine: this one" in text
    assert "| echo q1 | per s | 200 (200–200) | 100 (100–100) | 2.00 (2.00–2.00) | ahead | 10 (10–10) | 20" in text
    assert "- Throughput, of 1 cases: ahead in 1." in text
    assert "- Processor time per operation, of 1 cases: ahead in 1." in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_document_of_ours_alone() -> None:
    text = page.document({}, [page.Row(ECHO, [Sample(200, 10, 0.0)], [])])
    assert "| echo q1 | per s | 200 | 10 |" in text
    assert "ahead" not in text


def test_page_is_rewritten_between_its_markers(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    page.rewrite(file, "new")
    page.rewrite(file, "newer")
    assert file.read_text() == f"before\n{BEGIN}\nnewer\n{END}\nafter\n"


@pytest.mark.parametrize("content", [None, "no markers", f"{END}\n{BEGIN}\n", f"{BEGIN}\n" * 2 + END])
def test_page_without_markers_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "page.md"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BenchError):
        page.rewrite(file, "new")
    assert content is None or file.read_text() == content


def test_the_document_has_the_markers() -> None:
    page.check_page(ROOT / "docs" / "performance.md")


def test_stat_of_a_process_with_any_name() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    content = b"12 (a) b (\xff) S 7 12 9 0 -1 4194560 1 2 3 4 %d %d %d %d 20 0 1" % (ticks, 2 * ticks, 3 * ticks, ticks)
    assert parse_stat(content) == Process(7, 9, pytest.approx(7.0), pytest.approx(4.0))


def test_machine() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    line = " ".join(str(number * ticks) for number in (1, 2, 3, 400, 50, 6, 7, 8, 9, 10))
    assert parse_machine(f"cpu  {line}\ncpu0 {line}\n") == (6.0, 8.0)


def test_family_has_daemons_of_its_sessions_and_their_children() -> None:
    table = {
        1: Process(0, 1, 100.0),
        10: Process(1, 5, 1.0),
        11: Process(10, 11, 2.0),  # A server in a session of its own.
        12: Process(11, 11, 4.0),
        13: Process(1, 11, 8.0),  # Its child's parent has ended.
        14: Process(13, 14, 16.0),
        20: Process(1, 5, 32.0),
    }
    assert family(table, {11}) == {11, 12, 13, 14}
    assert family(table, {10, 11}) == {10, 11, 12, 13, 14}
    assert used(table, family(table, {11})) == 30.0


def test_others_share() -> None:
    before = Reading(at=10, busy=100, stolen=5, run=20, others=50)
    # Two processors for 10 s; the run took 8 s, others 3 s, of which only 1 s by processes that can be seen.
    assert others_share(before, Reading(20, 111, 5, 28, 51), 2) == pytest.approx(3 / 20)
    # Interrupts are charged to the run, but do not count as busy: what can be seen counts.
    assert others_share(before, Reading(20, 107, 5, 28, 51), 2) == pytest.approx(1 / 20)
    # The host of a virtual machine took 2 s.
    assert others_share(before, Reading(20, 108, 7, 28, 50), 2) == pytest.approx(2 / 20)
    assert others_share(before, Reading(20, 107, 5, 28, 49), 2) == 0.0
    assert others_share(before, before, 2) == 0.0


BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_processor_time_of_living_and_ended_children_counts() -> None:
    """As for Samba, whose main process does nothing itself."""
    script = (
        "import subprocess, sys\n"
        f"burn = {BURN!r}\n"
        "subprocess.run([sys.executable, '-c', burn])\n"
        "child = subprocess.Popen([sys.executable, '-c', burn + 'print(1, flush=True); input()'], stdin=-1)\n"
        "child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"1\n"
            assert process.pid in processes()
            assert server_seconds(process.pid) >= 0.55
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("implementation", "prefix", "arguments", "built"),
    [
        ("CPython", "/usr", "'--enable-shared' '--prefix=/usr'", "distribution"),
        ("CPython", "/opt/python", "'--prefix=/opt/python'", "not optimised"),
        ("CPython", "/opt/python", "'--prefix=/opt/python' '--enable-optimizations'", "optimised"),
        ("CPython", "/usr/local", "", "not optimised"),
        ("PyPy", "/opt/pypy", "", "optimised"),
    ],
)
def test_how_python_was_built(implementation: str, prefix: str, arguments: str, built: str) -> None:
    assert interpreter.classify(implementation, prefix, arguments) == built
    found = interpreter.Interpreter("/x/python", "3.11.2", implementation, built)
    assert bool(found.warning) == (built == "not optimised")


def test_python_is_identified() -> None:
    found = interpreter.identify(sys.executable)
    assert found.path == os.path.realpath(sys.executable)
    assert found.version.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    for wrong in ("/bin/false", "/nowhere/python"):
        with pytest.raises(BenchError, match="is not a Python that runs"):
            interpreter.identify(wrong)


def test_python_that_has_the_packages_is_used_as_it_is() -> None:
    assert interpreter.prepare(sys.executable, ROOT) == sys.executable


def test_an_installed_server_makes_no_environments(tmp_path: Path) -> None:
    """Where nothing of ours is, nothing runs, and there is no list of what it takes either."""
    with pytest.raises(BenchError, match=r"No module named 'smb3server'.*only a checkout"):
        interpreter.prepare("/usr/bin/python3", tmp_path)


def test_environments_differ_by_python_and_by_requirements() -> None:
    one = interpreter.Interpreter("/usr/bin/python3.11", "3.11.2", "CPython", "distribution")
    keys = {
        interpreter.environment_key(one, ["a>=1"]),
        interpreter.environment_key(one, ["a>=2"]),
        interpreter.environment_key(one._replace(path="/x/python3.11"), ["a>=1"]),
        interpreter.environment_key(one._replace(version="3.11.3"), ["a>=1"]),
    }
    assert len(keys) == 4


def test_missing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="no C compiler"):
        client.build(tmp_path)


def test_missing_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'labgen.c:19:10: fatal error: openssl/evp.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(BenchError, match="libssl-dev"):
        client.build(tmp_path)


def test_missing_samba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["bench", "--rounds", "1"]) == 2
    assert "no Samba" in capsys.readouterr().err


def test_missing_markers_are_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--no-samba", "--markdown", str(tmp_path / "page.md")]) == 2
    assert "page.md" in capsys.readouterr().err


def test_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["bench", "--no-samba", "--folder", str(tmp_path / "file" / "below")]) == 2
    assert "Not a directory" in capsys.readouterr().err


def cases_of(names: list[str]) -> list[str]:
    return [word for name in names for word in ("--cases", name)]


@pytest.mark.usefixtures("compiler")
def test_short_run_of_ours_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a folder that does not exist before the run, nor after it."""
    names = ["read 1 MiB q1 CMAC", "create + close", "echo q1"]
    folder = tmp_path / "new" / "folder"
    options = ["--no-samba", "--json", "--seconds", "0.2", "--rounds", "1", "--size", "4", "--folder", str(folder)]
    assert main(["bench", *options, *cases_of(names)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["case"] for entry in found["cases"]] == names
    for entry in found["cases"]:
        assert len(entry["ours"]) == 1
        assert entry["ours"][0]["rate"] > 0
        assert 0 <= entry["others"] <= 1
    assert "other programs took" in found["circumstances"]["Load"]
    assert not (tmp_path / "new").exists()


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
def test_fabrics_are_measured_beside_tcp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data that is signed and encrypted moves by RDMA, or the load fails."""
    names = ["read 1 MiB q4 GMAC", "write 1 MiB q4 AES-256-GCM"]
    place = tmp_path / "page.md"
    begin, end = page.BEGIN.format(page.FABRICS), page.END.format(page.FABRICS)
    place.write_text(f"{begin}\n{end}\n")
    options = ["--fabrics", "iwarp", "--json", "--seconds", "0.2", "--rounds", "1", "--size", "4"]
    assert main(["bench", *options, "--folder", str(tmp_path / "new"), "--markdown", str(place), *cases_of(names)]) == 0
    found = json.loads(capsys.readouterr().out)["cases"]
    assert [entry["case"] for entry in found] == names
    for entry in found:
        assert entry["ours"][0]["rate"] > 0
        assert entry["iWARP"][0]["rate"] > 0
    assert "| case | unit | TCP | iWARP | TCP, µs/op | iWARP, µs/op |" in place.read_text()


@pytest.mark.usefixtures("compiler")
def test_a_load_that_would_go_inline_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured as RDMA that is none."""
    monkeypatch.setattr(servers, "_LIMITS", "[server]\nrdma_transforms = []\n")
    options = ["--fabrics", "iwarp", "--seconds", "0.2", "--rounds", "1", "--size", "4", "--folder", str(tmp_path)]
    assert main(["bench", *options, "--cases", "read 1 MiB q4 GMAC"]) == 2
    assert "data does not go by RDMA: messages are signed" in capsys.readouterr().err


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "new"
    command = [sys.executable, "-m", "smb3server", "bench", "--no-samba", "--seconds", "60", "--size", "4"]
    with subprocess.Popen(
        [*command, "--cases", "echo q1", "--folder", str(folder)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "round 1 of" in line:
                    break
            process.send_signal(number)
            assert process.stderr.read().endswith("bench: interrupted\n")
            assert process.wait(30) == 128 + number
        finally:
            process.kill()
    assert not folder.exists()
    ours = str(folder).encode()
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if ours in _content(path)]
    assert not left


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # The process ended meanwhile.
        return b""


def test_cases_are_tests_that_the_client_knows() -> None:
    source = (ROOT / "smb3server" / "lab" / "bench" / "labgen.c").read_text()
    for case in CASES.values():
        assert case.options[0] == "-t"
        assert case.options[1].removeprefix("rand") in source
    assert {"GMAC", "CMAC", "AES-128-GCM"} <= {name.split()[-1] for name in CASES}
