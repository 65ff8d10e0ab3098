"""The bench of compression: what it computes, and a short run against the server."""

from __future__ import annotations

import shutil
import sys

import pytest

from smb3server.wire.compression import CompressionAlgorithm
from tools.bench import compression
from tools.bench.compression import Cost, table, verdict

PLAIN = Cost(server=0.5, client=0.4, left=1.0)
HALF = Cost(server=5.0, client=2.0, left=0.5)


def test_the_slowest_part_decides() -> None:
    link = 12.5
    assert HALF.speed(link) == 25
    # 5 ms for a MiB.
    assert HALF.speed(1250) == pytest.approx(209.7, abs=0.1)
    assert Cost(1.0, 5.0, 0.5).speed(1250) == HALF.speed(1250)


def test_when_it_pays() -> None:
    assert verdict(PLAIN, HALF) == "1,678 Mbit/s"
    assert verdict(PLAIN, HALF._replace(left=1.0)) == "never"
    assert verdict(PLAIN, Cost(0.3, 0.3, 0.01)) == "always"


def test_a_short_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed (e2fsprogs)")
    monkeypatch.setattr(sys, "argv", ["compression", "--size", "4", "--rounds", "1"])
    assert compression.main() == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 20
    assert [row[2] for row in rows if row[1] == "none"] == ["100%"] * 4
    assert [row[2] for row in rows[6:10]] == ["below 1 %"] * 4
    assert [row[-1].strip("| ") for row in rows[16:]] == ["never"] * 4


def test_the_table_names_what_was_measured() -> None:
    lines = table({("text", 0): PLAIN, ("text", int(CompressionAlgorithm.LZ4)): HALF}).splitlines()
    assert lines[2].startswith("| text | none | 100% | 0.50 | 0.40 | 12 | 125 | 1,250 |")
    assert lines[3] == "|  | LZ4 | 50% | 5.00 | 2.00 | 25 | 210 | 210 | 1,678 Mbit/s |"
