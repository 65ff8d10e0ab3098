"""The walk on slow storage runs, and counts what the storage is asked."""

from __future__ import annotations

import pytest

from tools.bench import slow_storage
from tools.support import late_files


@pytest.mark.root
@pytest.mark.skipif(late_files.problem() is not None, reason=f"no FUSE: {late_files.problem()}")
@pytest.mark.parametrize("options", [[], ["--held-up"]])
def test_walk_counts_the_requests_of_each_command(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    assert slow_storage.main(["--delay", "1", *options]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    requests = {name: int(count) for name, count, _ in rows}
    assert list(requests) == list(slow_storage.Walk().steps())
    assert requests["FLUSH"] > 0
    assert requests["CREATE, OPEN"] > 0


def test_delay_must_be_positive() -> None:
    with pytest.raises(SystemExit):
        slow_storage.main(["--delay", "0"])
