"""The walk on slow storage runs, and finds the calls of worker threads."""

from __future__ import annotations

import shutil

import pytest

from tools.bench import slow_storage


@pytest.mark.root
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_walk_tells_the_threads_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert slow_storage.main(["--delay", "1"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    calls = {name: (int(on_loop), int(elsewhere)) for name, on_loop, elsewhere, _ in rows}
    assert list(calls) == list(slow_storage.Walk().steps())
    assert calls["FLUSH"] == (0, 1)
    assert calls["CREATE, OPEN"][0] > 0


def test_delay_must_be_positive() -> None:
    with pytest.raises(SystemExit):
        slow_storage.main(["--delay", "0"])
