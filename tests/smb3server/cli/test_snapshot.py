"""``smb3server snapshot``: making, listing, removing snapshots, and keeping some."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.backends.local.snapshot_making import to_keep
from smb3server.backends.snapshot_names import parse_token
from tests.lab import btrfs
from tests.lab.served import ROOT, command, in_process, open_up

HOUR, DAY = 3600, 86400
MIDNIGHT = 1717200000
"""2024-06-01, a Saturday."""


def test_the_last_snapshot_of_each_period_is_kept() -> None:
    times = [MIDNIGHT + number * HOUR // 2 for number in range(96)]
    kept = sorted(to_keep(times, {"hourly": 3, "daily": 2}))
    assert [(seconds - MIDNIGHT) / HOUR for seconds in kept] == [23.5, 45.5, 46.5, 47.5]


def test_periods_without_a_snapshot_do_not_count() -> None:
    times = [MIDNIGHT - number * 10 * DAY for number in range(10)]
    assert to_keep(times, {"daily": 3}) == set(times[:3])
    assert to_keep(times, {"weekly": 4}) == set(times[:4])
    assert to_keep(times, {"monthly": 2}) == {MIDNIGHT, MIDNIGHT - 10 * DAY}


def test_the_latest_is_always_kept() -> None:
    assert to_keep([1, 2, 3], {"hourly": 0}) == {3}
    assert to_keep([], {"hourly": 24}) == set()


def run(*words: str, code: int = 0, user: int | None = None) -> tuple[str, str]:
    """What the command prints, and its errors."""
    if user is None:
        found = in_process("snapshot", *words)
    else:
        found = subprocess.run(
            command("snapshot", *words),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=ROOT,
            user=user,
            group=user,
            extra_groups=[],
        )
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout, found.stderr


def configured(folder: Path, share: Path, pattern: str) -> str:
    file = folder / "smb.toml"
    file.write_text(f'[[share]]\nname = "data"\npath = "{share}"\nsnapshots = "{pattern}"\n')
    return str(file)


PATTERN = ".snapshots/@GMT-%Y.%m.%d-%H.%M.%S"


def test_folders_that_are_no_subvolumes_are_listed_alone(tmp_path: Path) -> None:
    share = tmp_path / "share"
    (share / ".snapshots" / "@GMT-2024.05.06-07.08.09").mkdir(parents=True)
    config = configured(tmp_path, share, PATTERN)
    assert json.loads(run("list", "data", "--json", "--config", config)[0]) == [
        {"version": "@GMT-2024.05.06-07.08.09", "time": 1714979289, "name": "@GMT-2024.05.06-07.08.09"}
    ]
    assert "is no subvolume of btrfs; remedy" in run("create", "data", "--config", config, code=1)[1]
    said = run("remove", "data", "@GMT-2024.05.06-07.08.09", "--config", config, code=1)[1]
    assert "no read-only snapshot" in said
    assert (share / ".snapshots" / "@GMT-2024.05.06-07.08.09").is_dir()


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("", 'remedy: snapshots = ".snapshots'), ("nothing", "one component needs the time"), ("%Y%m%d%Y", "twice")],
)
def test_shares_without_snapshots(tmp_path: Path, pattern: str, said: str) -> None:
    assert said in run("list", "data", "--config", configured(tmp_path, tmp_path, pattern), code=2)[1]


def test_unknown_shares_are_named(tmp_path: Path) -> None:
    config = configured(tmp_path, tmp_path, PATTERN)
    assert "there is no share other; there are: data" in run("list", "other", "--config", config, code=2)[1]


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("volume")
    open_up(folder)
    with btrfs.mounted(folder) as place:
        yield place


needs_btrfs = pytest.mark.skipif(bool(btrfs.missing()), reason=btrfs.missing())


@pytest.mark.root
@needs_btrfs
def test_snapshots_are_made_and_removed(volume: Path, tmp_path: Path) -> None:
    share = volume / "made"
    btrfs.make_subvolume(share)
    (share / "file").write_text("first")
    config = configured(tmp_path, share, PATTERN)
    name = run("create", "data", "--config", config)[0].strip()
    assert abs((parse_token(name) or 0) - time.time()) < 60
    (share / "file").write_text("second")
    found = share / ".snapshots" / name
    assert (found / "file").read_text() == "first"
    with pytest.raises(OSError, match="Read-only"):
        (found / "file").write_text("changed")
    assert name in run("list", "data", "--config", config)[0]
    # A subvolume that somebody writes to is no snapshot of ours.
    btrfs.make_subvolume(share / ".snapshots" / "@GMT-2024.01.01-00.00.00")
    said = run("remove", "data", "@GMT-2024.01.01-00.00.00", "--config", config, code=1)[1]
    assert "no read-only snapshot" in said
    run("remove", "data", name, "--config", config)
    assert not found.exists()
    assert (share / "file").read_text() == "second"


@pytest.mark.root
@needs_btrfs
def test_a_schedule_keeps_what_it_says(volume: Path, tmp_path: Path) -> None:
    share = volume / "scheduled"
    btrfs.make_subvolume(share)
    (share / ".snapshots").mkdir()
    for hour in range(5):
        btrfs.make_snapshot(share, share / ".snapshots" / f"@GMT-2024.01.01-0{hour}.00.00")
    (share / ".snapshots" / "mine").mkdir()
    config = configured(tmp_path, share, PATTERN)
    said = run("schedule", "data", "--hourly", "3", "--daily", "0", "--weekly", "0", "--config", config)[0]
    assert said.count("removed") == 3
    left = {path.name for path in (share / ".snapshots").iterdir()}
    assert {"mine", "@GMT-2024.01.01-04.00.00", "@GMT-2024.01.01-03.00.00"} < left
    assert len(left) == 4


@pytest.mark.root
@needs_btrfs
def test_a_user_without_rights_is_told(volume: Path, tmp_path: Path) -> None:
    """As the unit's user, or one that --drop-privileges names, would be."""
    open_up(tmp_path)
    share = volume / "others"
    btrfs.make_subvolume(share)
    config = configured(tmp_path, share, PATTERN)
    Path(config).chmod(0o644)
    if not os.access(ROOT, os.X_OK):
        pytest.skip("another user cannot reach the project's files")
    assert "remedy: run it as root" in run("create", "data", "--config", config, code=1, user=54321)[1]
    name = run("create", "data", "--config", config)[0].strip()
    assert "remedy: run it as root" in run("remove", "data", name, "--config", config, code=1, user=54321)[1]
    assert (share / ".snapshots" / name).is_dir()
