"""RSort (examples/rsort): sorted files are those of GNU sort, and what is left when processes die in the middle."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from rsort.records import NOTHING, SIZE, generate, in_order, judge, judge_file, records_of  # noqa: E402
from rsort.sort import _passes  # noqa: E402

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
PROGRAM = [sys.executable, str(ROOT / "examples" / "rsort")]


def rsort(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, words)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def gnu_sorted(data: bytes) -> bytes:
    command = ["sort", "-s", "-k1.1,1.10"]
    return subprocess.run(command, input=data, env={"LC_ALL": "C"}, capture_output=True, check=True).stdout


def test_any_part_of_a_file_can_be_made_by_itself() -> None:
    whole = generate(0, 40_000, 7)
    assert len(whole) == 40_000 * SIZE and whole.count(b"\r\n") == 40_000
    for first, count in ((0, 1), (16_383, 3), (30_000, 10_000)):
        assert generate(first, count, 7) == whole[first * SIZE : (first + count) * SIZE]
    assert generate(0, 10, 8) != whole[: 10 * SIZE]


def test_the_judge_finds_what_is_wrong() -> None:
    data = np.ascontiguousarray(in_order(records_of(generate(0, 5000, 1)))).tobytes()
    right = judge(data)
    assert (right.records, right.unordered) == (5000, 0)
    assert right.checksum == judge(generate(0, 5000, 1)).checksum
    split = sum((judge(data[at : at + 700 * SIZE]) for at in range(0, len(data), 700 * SIZE)), NOTHING)
    assert split == right
    swapped = data[SIZE : 2 * SIZE] + data[:SIZE] + data[2 * SIZE :]
    assert judge(swapped).unordered == 1 and judge(swapped).checksum == right.checksum
    halves = judge(data[2500 * SIZE :]) + judge(data[: 2500 * SIZE])
    assert halves.unordered == 1, "between two parts"
    assert judge(data[:50] + b"!" + data[51:]).checksum != right.checksum
    with pytest.raises(ValueError, match="not whole records"):
        judge(data[:-1])


def test_buckets_are_done_in_passes_where_memory_is_short() -> None:
    assert list(_passes([5, 5, 5, 5], 10)) == [[0, 1], [2, 3]]
    assert list(_passes([5, 20, 5], 10)) == [[0], [1], [2]]
    assert list(_passes([], 10)) == [[]]


def test_it_sorts_as_gnu_sort_does(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    rsort("gen", source, 50_000, "--seed", 3)
    assert rsort("check", source, check=False).returncode == 1
    found = rsort("sort", source, target, "--workers", 2, "--piece", 700_000)
    assert "50000 records in" in found.stdout
    assert target.read_bytes() == gnu_sorted(source.read_bytes())
    assert "SUCCESS" in rsort("check", target).stdout
    assert [entry.name for entry in tmp_path.iterdir()].count("out") == 1 and len(list(tmp_path.iterdir())) == 2


def test_few_different_keys_and_little_memory(tmp_path: Path) -> None:
    """Two passes: the store has room for a part of the input."""
    source, target = tmp_path / "in", tmp_path / "out"
    records = [records_of(generate(0, 100_000, 5))[row].tobytes() for row in range(100_000)]
    few = random.Random(1)
    source.write_bytes(b"".join(b"%010d" % few.randrange(50) + record[10:] for record in records))
    found = rsort("sort", source, target, "--workers", 1, "--memory", 8 << 20, "--buckets", 12)
    assert found.stdout.count("shuffle") > 1
    assert target.read_bytes() == gnu_sorted(source.read_bytes())


def test_nothing_and_what_are_no_records(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"")
    rsort("sort", source, target, "--workers", 1)
    assert target.read_bytes() == b""
    source.write_bytes(bytes(150))
    found = rsort("sort", source, tmp_path / "none", "--workers", 1, check=False)
    assert found.returncode == 1 and "not whole records" in found.stderr
    assert not (tmp_path / "none").exists()


def victims(process: subprocess.Popen[str], word: str) -> list[int]:
    """The processes below ``process`` with ``word`` in their command lines, once there are any."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if word.encode() in words and f"MARK={process.args[-1]}".encode() in environment:  # type: ignore[index]
                    found.append(int(entry.name))
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no process with {word}")


@pytest.mark.parametrize("copies", [1, 2])
def test_a_memory_server_dies_in_the_middle(tmp_path: Path, copies: int) -> None:
    """The sort ends right, or says that it cannot. It never leaves half a file."""
    source, target = tmp_path / "in", tmp_path / "out"
    rsort("gen", source, 400_000)
    words = ["sort", source, target, "--workers", 2, "--copies", copies, "--piece", 500_000, "--buckets", 32]
    mark = str(tmp_path)
    process = subprocess.Popen(
        [*PROGRAM, *map(str, words), "--mark", mark],
        env=ENVIRONMENT | {"MARK": mark}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("allocate"):
            break
    os.kill(victims(process, "serve")[0], 9)
    output, errors = process.communicate(timeout=100)
    if process.returncode:
        assert "rsort: region" in errors or "rsort: " in errors, output + errors
        assert not target.exists() and len(list(tmp_path.iterdir())) == 1
        assert copies == 1
    else:
        verdict = judge_file(target)
        assert (verdict.records, verdict.unordered, verdict.checksum) == (400_000, 0, judge_file(source).checksum)
