"""Regressions: the comparison with the record, and a short run."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from smb3server.lab.bench.errors import BenchError
from tools.bench.quick import __main__ as quick
from tools.bench.quick import record
from tools.bench.quick.__main__ import main
from tools.bench.quick.measure import CASES_OF_QUICK, Costs, bench

COSTS = Costs(20.0, 30.0, 4.0, 300.0)


def verdicts(name: str, now: Costs) -> dict[str, str]:
    return {kind: change.verdict for kind, change in record.changes(name, COSTS, now).items() if change.verdict}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (COSTS, {}),
        # A timer ran out meanwhile.
        (COSTS._replace(calls=20.2, system_calls=4.05), {}),
        # One call more each time.
        (COSTS._replace(calls=21.0), {"calls": "regression"}),
        (COSTS._replace(c_calls=31.0), {"c_calls": "regression"}),
        (COSTS._replace(system_calls=5.0), {"system_calls": "regression"}),
        (COSTS._replace(calls=19.0, system_calls=3.0), {"calls": "improvement", "system_calls": "improvement"}),
        # A busy machine, and more than that.
        (COSTS._replace(loops=600.0), {}),
        (COSTS._replace(loops=800.0), {"loops": "regression"}),
        (COSTS._replace(loops=100.0), {"loops": "improvement"}),
        # Without strace.
        (COSTS._replace(system_calls=None), {}),
    ],
)
def test_verdicts(now: Costs, expected: dict[str, str]) -> None:
    assert verdicts("echo q1", now) == expected


def test_long_blocks_arrive_in_pieces() -> None:
    assert verdicts("write 1 MiB q1", COSTS._replace(calls=22.0)) == {}
    assert verdicts("write 1 MiB q1", COSTS._replace(calls=24.0)) == {"calls": "regression"}


def test_record_keeps_each_circumstance_and_each_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    record.save({"a": COSTS, "b": COSTS._replace(system_calls=None)}, path)
    record.save({"a": COSTS._replace(calls=1.0)}, path)
    monkeypatch.setattr(record, "circumstances", lambda: "another Python")
    with pytest.raises(BenchError, match="not another Python; --update adds it"):
        record.read(path)
    record.save({"a": COSTS}, path)
    assert record.read(path) == {"a": COSTS}
    monkeypatch.undo()
    assert record.read(path) == {"a": COSTS._replace(calls=1.0), "b": COSTS._replace(system_calls=None)}


@pytest.mark.parametrize("content", [None, "", '{"X": {}}'])
def test_record_that_is_none_is_told(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "record.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BenchError):
        record.read(path)


def test_the_committed_record_has_the_cases() -> None:
    for costs in json.loads(record.PATH.read_text()).values():
        assert set(costs) == {quick.name for quick in CASES_OF_QUICK}


@pytest.mark.usefixtures("compiler")
def test_regressions_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    options = ["--cases", "echo q1", "--record", str(path)]
    with bench(tmp_path, 64) as running:
        # Three runs use the same two servers.
        monkeypatch.setattr(quick, "bench", lambda root, megabytes: contextlib.nullcontext(running))
        assert main([*options, "--update"]) == 0
        counts = record.read(path)["echo q1"]
        assert 5 < counts.calls < 60
        record.save({"echo q1": counts._replace(loops=counts.loops * 100)}, path)
        assert main(options) == 0
        record.save({"echo q1": counts._replace(calls=counts.calls - 2, loops=counts.loops * 100)}, path)
        capsys.readouterr()
        assert main(options) == 1
        said = capsys.readouterr()
        assert "regression" in said.out
        assert said.err == "bench: regression: echo q1: calls\n"
