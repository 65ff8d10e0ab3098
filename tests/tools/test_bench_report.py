"""The bench's report: its plan, its saved results, what it draws and writes, and runs that are short or interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from smb3server.lab.bench import page
from smb3server.lab.bench.cases import CASES, CROWDS, bulk, small
from smb3server.lab.bench.errors import BenchError
from smb3server.lab.bench.figures import Sample, fairness, percentile
from smb3server.lab.bench.idle import Idle
from tools.bench.report import plots, run, store, text
from tools.bench.report.__main__ import chosen, main, parse
from tools.bench.report.plan import EVERYONE, SAMBA, SIZES, TCP, Point, sections

ROOT = Path(__file__).resolve().parents[2]


def test_fairness() -> None:
    assert fairness([3, 3, 3]) == 1
    assert fairness([1, 0, 0, 0]) == 0.25
    assert fairness([0, 0]) == 1


def test_percentile() -> None:
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile([5], 0.99) == 5
    assert percentile([], 0.5) == 0


def test_plan_has_what_the_page_promises() -> None:
    assert SIZES[0] == 1024
    assert SIZES[-1] == 16 << 20
    found = sections()
    assert {point.case.name for point in found["table"].points} == set(CASES)
    assert {point.target for point in found["sizes, read"].points} == set(EVERYONE)
    assert {point.x for point in found["depth"].points} == {1, 2, 4, 8, 16, 32, 64}
    names = " ".join(point.case.name for point in found["protection"].points)
    assert all(name in names for name in ("GMAC", "AES-128-GCM"))
    assert {point.case.name for point in found["connections"].points} == set(CROWDS)
    assert [point.case.options[-1] for point in found["touched"].points][:2] == ["4", "-R"]


def test_servers_of_a_case_follow_each_other_and_take_turns_to_be_first() -> None:
    plan = [sections()["depth"]]
    steps = list(run.steps(plan, 5, 0.5))
    assert len(steps) == 3 * len(plan[0].points)
    count = len(EVERYONE)
    for start in range(0, len(steps), count):
        together = [point for _, point, _ in steps[start : start + count]]
        assert {point.target for point in together} == set(EVERYONE)
        assert len({point.case for point in together}) == 1
    assert {steps[start][1].target for start in range(0, len(steps), count)} == set(EVERYONE[:3])


def test_a_whole_run_is_planned_for_less_than_a_quarter_of_an_hour() -> None:
    options = parse([])
    planned = sum(length for *_, length in run.steps(chosen(options), options.rounds, options.seconds))
    assert planned < 14 * 60


def test_cases_and_servers_can_be_chosen() -> None:
    plan = chosen(parse(["--cases", "echo", "connections", "--without", "samba"]))
    assert [section.name for section in plan] == ["table", "connections"]
    assert {point.target for section in plan for point in section.points} == {TCP}
    with pytest.raises(BenchError, match="no case"):
        chosen(parse(["--cases", "nothing of that kind"]))


def results() -> store.Results:
    """Make results of everything, with figures that grow."""
    found = store.Results()
    found.circumstances = {"Machine": "this one"}
    for section in sections().values():
        for number, point in enumerate(section.points):
            # Loopback's processor time is not known.
            cost = 0.0 if point.target == "loopback" else 10.0 + number
            samples = [Sample(100.0 + number + round_, cost, 0.01, 50.0, 90.0, 0.9, 0.5, 4096) for round_ in range(5)]
            found.samples[point] = samples
    sample = Sample(1000.0, 10.0, 0.0)
    found.idle[TCP] = Idle(5000, 25.25, [sample], [sample])
    found.lab = "| wire | case |"
    found.failures["impacket: does not do that"] = None
    found.done = found.planned = 1000
    return found


def test_saved_results_are_read_as_they_were(tmp_path: Path) -> None:
    before = results()
    store.save(before, tmp_path / "new" / "results.json")
    after = store.read(tmp_path / "new" / "results.json")
    assert after.samples == before.samples
    assert after.idle == before.idle
    assert after.lab == before.lab
    assert (after.circumstances, after.failures) == (before.circumstances, before.failures)
    assert (after.done, after.planned) == (before.done, before.planned)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"circumstances": {}, "done": 0, "planned": 0}'])
def test_what_is_no_results_is_told(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BenchError):
        store.read(path)


def test_page_and_plots_are_made_of_saved_results(tmp_path: Path) -> None:
    store.save(results(), tmp_path / "results.json")
    document = tmp_path / "page.md"
    markers = [mark.format(part) for part in (page.TABLE, page.REPORT) for mark in (page.BEGIN, page.END)]
    document.write_text("\n".join(markers))
    assert main(["--from", str(tmp_path / "results.json"), "--page", str(document)]) == 0
    written = document.read_text()
    assert "- Machine: this one" in written
    assert "| echo q1 | per s |" in written
    assert "| smb3server | 5,000 | 25.2 |" in written
    assert "- impacket: does not do that" in written
    assert "\n| wire | case |\n" in written
    assert "interrupted" not in written
    for name in plots.PICTURES:
        assert f"](pictures/{name})" in written
        content = (tmp_path / "pictures" / name).read_text()
        assert ElementTree.fromstring(content).tag.endswith("svg")
        assert TCP in content
        assert len(content) < 200_000
    # Drawn again, they are the same bytes: no date, no random names.
    before = {name: (tmp_path / "pictures" / name).read_bytes() for name in plots.PICTURES}
    plots.draw(results(), tmp_path / "pictures")
    assert before == {name: (tmp_path / "pictures" / name).read_bytes() for name in plots.PICTURES}


def test_page_without_the_reports_markers_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"{page.BEGIN.format(page.TABLE)}\n{page.END.format(page.TABLE)}\n")
    assert main(["--page", str(document)]) == 2
    assert "report: begin" in capsys.readouterr().err


def test_the_document_has_the_markers() -> None:
    page.check_page(ROOT / "docs" / "performance.md", page.REPORT)


def test_rows_of_an_interrupted_run_have_as_many_rounds_on_both_sides() -> None:
    found = store.Results()
    sample = Sample(1.0, 1.0, 0.0)
    for name, ours, theirs in (("echo q1", 2, 1), ("echo q32", 1, 0)):
        case = CASES[name]
        found.samples[Point("table", TCP, 0, TCP, case)] = [sample] * ours
        if theirs:
            found.samples[Point("table", SAMBA, 0, SAMBA, case)] = [sample] * theirs
    assert [(row.case.name, len(row.ours), len(row.theirs)) for row in text.rows(found)] == [("echo q1", 1, 1)]
    found.done, found.planned = 4, 10
    assert "interrupted after 4 of 10" in text.document(found, [])


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert plots.draw(store.Results(), tmp_path) == []


@pytest.mark.usefixtures("compiler")
def test_short_run_over_tcp_and_smb_direct(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    options = ["--quick", "--size", "16", "--folder", str(tmp_path / "data"), "--results", str(path)]
    options += ["--without", "Samba", "RoCEv2", "--cases", "read 16 MiB q4"]
    assert main(options) == 0
    found = store.read(path)
    assert not found.failures
    assert found.done == found.planned
    targets = {point.target for point in found.samples}
    assert targets == {"smb3server", "iWARP", "loopback", "impacket"}
    for point, (sample,) in found.samples.items():
        assert sample.rate > 0
        assert (sample.cost > 0) == (point.target != "loopback")
        assert sample.middle > 0
        # No server takes 16 MiB at once.
        assert (64 << 10 if point.target == "impacket" else 1 << 20) <= sample.size < 16 << 20
    assert not (tmp_path / "data").exists()


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
def test_interrupted_run_keeps_what_was_measured(tmp_path: Path) -> None:
    path, folder = tmp_path / "results.json", tmp_path / "data"
    command = [sys.executable, "-m", "tools.bench.report", "--size", "16", "--folder", str(folder), "--seconds", "0.5"]
    command += ["--without", "Samba", "--cases", "echo q1", "--results", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "round 2:" in line:
                    break
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGINT
    found = json.loads(path.read_text())
    assert 0 < found["done"] < found["planned"]
    assert len(found["points"][0]["samples"]) >= 1
    assert "interrupted after" in said
    assert not folder.exists()


@pytest.mark.usefixtures("compiler")
def test_refusals_are_noted_and_the_rest_goes_on(tmp_path: Path) -> None:
    found = store.Results()
    case = bulk("read", 4096, 1)
    wrong = case._replace(name="wrong", options=("-t", "no such test"))
    plan = [sections()["depth"]._replace(points=(Point("a", TCP, 0, TCP, wrong), Point("b", TCP, 0, TCP, small(1))))]
    with run.targets(tmp_path, sys.executable, (), 4, {TCP}) as targets:
        run.measure(run.make_client(tmp_path, 4, (), targets), targets, plan, 2, 0.2, found, tmp_path / "results.json")
    assert [point.section for point in found.samples] == ["b"]
    assert len(found.failures) == 1
    assert "unknown test" in next(iter(found.failures))
