"""Names of snapshots, finding them, and the stores of those in use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from smb3server.backends import snapshots as module
from smb3server.backends.base import Backend
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.snapshot_folders import SnapshotFolders
from smb3server.backends.snapshot_names import (
    PatternError,
    filetime_of,
    hiding,
    parse,
    parse_token,
    seconds_in,
    token,
)
from smb3server.backends.snapshots import Snapshots

NEW_YEAR = 1704067200
"""2024-01-01 00:00:00 UTC."""


def test_a_token_is_its_time() -> None:
    assert token(NEW_YEAR + 5) == "@GMT-2024.01.01-00.00.05"
    assert parse_token(token(NEW_YEAR + 5)) == NEW_YEAR + 5
    assert seconds_in(filetime_of(NEW_YEAR)) == NEW_YEAR
    assert seconds_in(filetime_of(NEW_YEAR) + 9_999_999) == NEW_YEAR
    assert filetime_of(0) == 116444736000000000


@pytest.mark.parametrize(
    "name",
    [
        "@GMT-2024.02.30-00.00.00",
        "@GMT-2024.13.01-00.00.00",
        "@GMT-2024.01.01-24.00.00",
        "@GMT-2024.01.01-00.00.60",
        "@GMT-1969.12.31-23.59.59",
        "@GMT-2024.01.01-00.00.0",
        "@GMT-2024.01.01-00.00.000",
        "@gmt-2024.01.01-00.00.00",
        "@GMT-0000.00.00-00.00.00",
        "",
    ],
)
def test_what_is_no_token(name: str) -> None:
    assert parse_token(name) is None


@pytest.mark.parametrize(
    ("pattern", "name", "seconds"),
    [
        (".snapshots/@GMT-%Y.%m.%d-%H.%M.%S", "@GMT-2024.01.01-00.00.00", NEW_YEAR),
        (".snapshots/@GMT-%Y.%m.%d-%H.%M.%S", "@GMT-2024.02.31-00.00.00", None),
        ("/tank/.zfs/snapshot/auto-%Y-%m-%d_%H.%M/data", "auto-2024-01-01_00.30", NEW_YEAR + 1800),
        ("/tank/.zfs/snapshot/autosnap_%Y-%m-%d_%H:%M:%S_*", "autosnap_2024-01-01_00:00:07_daily", NEW_YEAR + 7),
        ("daily/%y%m%d", "240101", NEW_YEAR),
        ("daily/%y%m%d", "240101x", None),
        ("at/%s", str(NEW_YEAR), NEW_YEAR),
        ("100%%-%s", f"100%-{NEW_YEAR}", NEW_YEAR),
        ("at/%s", "0", None),
        ("a.b/%s.c", f"{NEW_YEAR}xc", None),
    ],
)
def test_times_in_names_of_folders(pattern: str, name: str, seconds: int | None) -> None:
    assert parse(pattern, "/share").time_of(name) == seconds


def test_local_times(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        pattern = parse("%Y-%m-%d_%H.%M.%S", "/share", local=True)
        assert pattern.time_of("2024-01-01_01.00.00") == NEW_YEAR
        assert pattern.name_for(NEW_YEAR) == "2024-01-01_01.00.00"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "pattern",
    ["plain", "a/../%s", "./%s", "//%s", "/", "%s/%s", "%Y", "%Y-%m", "%q", "%Y%m%d%Y", "a/%", "a//%s", "*/%s"],
)
def test_patterns_that_name_no_snapshots(pattern: str) -> None:
    with pytest.raises(PatternError):
        parse(pattern, "/share")


@pytest.mark.parametrize(
    ("pattern", "hidden", "seen"),
    [
        (".snapshots/%s", [".snapshots", ".SnapShots"], ["snapshots", "1704067200", ".snapshots2"]),
        ("@GMT-%Y.%m.%d-%H.%M.%S", ["@GMT-2024.01.01-00.00.00"], ["@GMT-x", "other"]),
        ("/srv/share/.zfs/snapshot/%s", [".zfs"], ["snapshot"]),
        ("/srv/elsewhere/%s/share", [], ["elsewhere", "share", ".zfs"]),
    ],
)
def test_folders_of_snapshots_are_hidden(pattern: str, hidden: list[str], seen: list[str]) -> None:
    hides = hiding(parse(pattern, "/srv/share"), lambda name: name == "vetoed") or (lambda name: False)
    assert all(map(hides, hidden))
    assert not any(map(hides, seen))
    assert hides("vetoed")


def test_new_names_can_be_told_apart() -> None:
    assert parse("@GMT-%Y.%m.%d-%H.%M.%S", "/s").name_for(NEW_YEAR) == "@GMT-2024.01.01-00.00.00"
    assert parse("x-%s", "/s").name_for(NEW_YEAR) == f"x-{NEW_YEAR}"
    for pattern in ("*", "%Y-%m-%d", "%s-*"):
        with pytest.raises(PatternError):
            parse(pattern, "/s").name_for(NEW_YEAR)


def test_only_real_folders_are_snapshots(tmp_path: Path) -> None:
    folder = tmp_path / ".snapshots"
    assert SnapshotFolders(parse(".snapshots/%s/data", str(tmp_path))).find() == {}
    folder.mkdir()
    (folder / "100").mkdir()
    (folder / "200").symlink_to("100")
    (folder / "300").write_text("")
    (folder / "other").mkdir()
    found = SnapshotFolders(parse(".snapshots/%s/data", str(tmp_path))).find()
    assert found == {100: str(folder / "100" / "data")}
    # No subvolumes, which alone know their times.
    assert SnapshotFolders(parse(".snapshots/*", str(tmp_path))).find() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a folder of somebody else")
def test_a_stranger_does_not_lead_elsewhere(tmp_path: Path) -> None:
    """Who owns the share's folder could have made the link."""
    (tmp_path / "secret" / "100").mkdir(parents=True)
    share = tmp_path / "share"
    share.mkdir()
    (share / ".snapshots").symlink_to("../secret")
    pattern = parse(".snapshots/%s", str(share))
    assert SnapshotFolders(pattern).find() == {100: str(share / ".snapshots" / "100")}
    os.chown(share, 54321, 54321)
    with pytest.raises(OSError, match="symbolic link"):
        SnapshotFolders(pattern).find()


class Source:
    def __init__(self, folders: dict[int, str]) -> None:
        self.folders = folders

    def find(self) -> Mapping[int, str]:
        return dict(self.folders)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _made(tmp_path: Path, count: int) -> tuple[Source, Snapshots]:
    folders = {}
    for number in range(1, count + 1):
        (tmp_path / str(number)).mkdir()
        folders[number] = str(tmp_path / str(number))
    source = Source(folders)
    return source, Snapshots(source, lambda folder: LocalBackend(folder, LocalOptions(read_only=True)))


def test_a_store_is_shared_and_closed_a_while_after_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE", 0.02)
    _, snapshots = _made(tmp_path, 2)

    async def test() -> None:
        before = _descriptors()
        first, again = snapshots.hold(1), snapshots.hold(1)
        assert first is again
        snapshots.release(first)
        await asyncio.sleep(0.05)
        assert len(snapshots) == 1
        snapshots.release(again)
        async with asyncio.timeout(10):
            while len(snapshots):
                await asyncio.sleep(0.01)
        assert _descriptors() == before
        snapshots.close()

    asyncio.run(test())


def test_the_number_of_stores_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STORES", 3)
    _, snapshots = _made(tmp_path, 5)

    async def test() -> None:
        held = [snapshots.hold(number) for number in (1, 2, 3)]
        with pytest.raises(OSError, match="too many"):
            snapshots.hold(4)
        snapshots.release(held.pop())
        # The one that nobody uses gives way.
        held.append(snapshots.hold(4))
        assert len(snapshots) == 3
        snapshots.close()
        assert len(snapshots) == 3
        for store in held:
            snapshots.release(store)
        assert len(snapshots) == 0
        with pytest.raises(FileNotFoundError):
            snapshots.hold(1)

    asyncio.run(test())


def test_snapshots_that_go_and_come(tmp_path: Path) -> None:
    source, snapshots = _made(tmp_path, 2)

    async def test() -> None:
        assert snapshots.times() == [2, 1]
        old = snapshots.hold(1)
        (tmp_path / "1").rename(tmp_path / "gone")
        with pytest.raises(FileNotFoundError):
            snapshots.hold(1)
        (tmp_path / "1").mkdir()
        new = snapshots.hold(1)
        assert new is not old
        snapshots.release(old)
        snapshots.release(new)
        del source.folders[2]
        assert snapshots.times() == [1]
        with pytest.raises(FileNotFoundError):
            snapshots.hold(2)
        (tmp_path / "3").mkdir()
        source.folders[3] = str(tmp_path / "3")
        third: Backend = snapshots.hold(3)
        snapshots.release(third)
        snapshots.close()
        assert len(snapshots) == 0

    asyncio.run(test())
