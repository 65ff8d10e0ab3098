"""The benches of several processes and of what releases the interpreter's lock: their arithmetic, and short runs."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import pytest

from tools.bench import many_cores, released_lock
from tools.bench.many_cores import Sample, Setup, possible, table


def test_a_process_uses_one_core_and_all_together_use_all() -> None:
    assert possible(1, server=10, client=2, cores=2) == 1 / 10
    assert possible(2, server=10, client=2, cores=2) == 2 / 12
    assert possible(2, server=10, client=10, cores=64) == 2 / 10


def test_rows_are_compared_with_the_first_of_the_same_server() -> None:
    one = Setup("ours", 1, [], 2), [Sample(100, 10, 5), Sample(50, 10, 5), Sample(100, 10, 5)]
    two = Setup("ours", 2, [], 1), [Sample(150, 12, 4), Sample(75, 12, 4), Sample(100, 12, 4)]
    other = Setup("other", 1, [], 1), [Sample(10, 1, 1)]
    lines = table([one, two, other], cores=2).splitlines()
    assert lines[2] == "| ours | 1 | 100 | 10.0 | 5.0 | 1.00 | 1.00 | 1.00 |"
    # The ratio is that of a round. Bounds: 2 / (12 + 4) against 1 / 10, and 2 / 12 against 1 / 10.
    assert lines[3] == "| ours | 2 | 100 | 12.0 | 4.0 | 1.50 | 1.25 | 1.67 |"
    assert lines[4].endswith("| 1.00 | 1.00 | 1.00 |")


def test_numbers_of_processes_that_cannot_share_the_connections(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["2", "3"], ["0", "1"]):
        with pytest.raises(SystemExit):
            many_cores.parse(["--servers", *wrong])
        assert "--servers: each number must divide the largest" in capsys.readouterr().err


@pytest.mark.usefixtures("compiler")
def test_short_run_of_one_and_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--no-samba", "--rounds", "1", "--seconds", "0.1", "--size", "1", "--folder", str(tmp_path / "new")]
    assert many_cores.main(options) == 0
    rows = [line.split("|")[1:3] for line in capsys.readouterr().out.splitlines() if line.startswith("| smb3server")]
    assert rows == [[" smb3server ", " 1 "], [" smb3server ", " 2 "]]
    assert not (tmp_path / "new").exists()


def test_who_keeps_the_lock_is_seen() -> None:
    """PyDLL calls C functions with the interpreter's lock held."""
    keeping = ctypes.PyDLL(None).usleep
    assert released_lock.watch(lambda: keeping(200_000))[1] > 0.5
    assert released_lock.watch(lambda: time.sleep(0.2))[1] < 0.5


def test_short_run_of_all_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert released_lock.main(["--size", "1", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    parts = [line.split("|")[1].strip() for line in lines[2:] if line.startswith("|")]
    assert {"sendfile", "AES_CMAC, header and data", "AES_128_GCM, decryption"} <= set(parts)
    assert lines[-1].startswith("small reads, two threads to one: ")
