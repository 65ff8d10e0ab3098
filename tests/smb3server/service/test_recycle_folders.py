"""Recycle folders that empty themselves: what is removed, and what never is."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smb3server.backends.base import Kept
from smb3server.client.protocol.tree import Tree
from smb3server.service import recycle_folders
from smb3server.service.recycle_folders import RecycleFolders, excess
from smb3server.service.service import Service
from smb3server.state.share import Share
from smb3server.wire.create import CreateDisposition, CreateOptions
from tests.lab.serving import READ, WRITE, make, needs_root, serving, tree_of

DELETE = 0x00010000
DAY = 86400 * 10**9
ATTRIBUTE = "trusted.smb3.deleted" if os.geteuid() == 0 else "user.smb3.deleted"
USERS = "".join(f'[[user]]\nname = "{name}"\npassword = "pw"\n' for name in ("alice", "bob"))


@asynccontextmanager
async def emptying(
    tmp_path: Path, *lines: str, more: str = "", by_itself: bool = False
) -> AsyncIterator[tuple[Service, Share, Path]]:
    """``by_itself``: the server empties the folder. Otherwise the test says when."""
    folder = tmp_path / "share"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    text = "\n".join((more, f'[[share]]\nname = "data"\npath = "{folder}"\nrecycle = true', *lines, USERS))
    async with serving(tmp_path, text) as service:
        share = service.shares.find("data")
        assert share is not None
        if not by_itself:
            service._tasks[1].cancel()
        yield service, share, folder / ".recycle"


async def delete(tree: Tree, *names: str, size: int = 7) -> None:
    for name in names:
        await make(tree, name, b"x" * size)
        await tree.close(await tree.create(name, DELETE, CreateDisposition.OPEN, CreateOptions.DELETE_ON_CLOSE))


def age(path: Path, days: float) -> None:
    """As if the file had been deleted so many days ago."""
    os.setxattr(path, ATTRIBUTE, struct.pack("<q", time.time_ns() - int(days * DAY)))


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def test_age_counts_from_the_deletion(tmp_path: Path) -> None:
    """Not from the last change, which is the file's own time, nor from what is done to it in the folder."""

    async def body() -> None:
        async with (
            emptying(tmp_path, "recycle_keep_days = 3") as (service, share, folder),
            tree_of(service, "alice", "data") as alice,
        ):
            await make(alice, "sub", folder=True)
            await delete(alice, "ancient", "old", "sub\\old", "young")
            os.utime(folder / "alice/ancient", (1, 1))
            age(folder / "alice/old", 3.01)
            age(folder / "alice/sub/old", 30)
            age(folder / "alice/young", 2.99)
            os.chmod(folder / "alice/old", 0o600)
            await RecycleFolders(service.server).empty(share)
            assert left(folder) == ["alice/ancient", "alice/young"]
            assert not (folder / "alice/sub").exists(), "an emptied folder goes, too"
            found = share.emptied
            assert found is not None
            assert (found.files, found.removed_files, found.removed_bytes) == (2, 2, 14)

    asyncio.run(body())


def test_users_who_have_most_give_first(tmp_path: Path) -> None:
    """Nobody can drive another user's files out by deleting many."""

    async def body() -> None:
        async with (
            emptying(tmp_path, "recycle_max_total = 20480") as (service, share, folder),
            tree_of(service, "alice", "data") as alice,
            tree_of(service, "bob", "data") as bob,
        ):
            await delete(bob, "dear", size=4096)
            await delete(alice, *(f"file{number}" for number in range(8)), size=4096)
            age(folder / "bob/dear", 100)
            for number in range(8):
                age(folder / f"alice/file{number}", number)
            await RecycleFolders(service.server).empty(share)
            assert left(folder) == ["alice/file0", "alice/file1", "alice/file2", "alice/file3", "bob/dear"]
            found = share.emptied
            assert found is not None
            assert (found.files, found.bytes) == (5, 20480)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ({"a": 10, "b": 5}, 15, {}),
        ({"a": 10, "b": 5}, 12, {"a": 3}),
        ({"a": 10, "b": 5, "c": 1}, 7, {"a": 7, "b": 2}),
        ({"a": 10, "b": 10}, 1, {"a": 10, "b": 10}),
        ({"a": 0}, 0, {}),
    ],
)
def test_what_each_user_has_too_much(sizes: dict[str, int], most: int, expected: dict[str, int]) -> None:
    found = excess(Counter({(name,): size for name, size in sizes.items()}), most)
    assert found == {(name,): size for name, size in expected.items()}


def test_a_look_takes_note_of_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycle_folders, "MOST", 3)

    async def body() -> None:
        async with (
            emptying(tmp_path, "recycle_keep_days = 3", "recycle_max_total = 14") as (service, share, folder),
            tree_of(service, "alice", "data") as alice,
        ):
            await delete(alice, *(f"file{number}" for number in range(20)))
            for number in range(20):
                age(folder / f"alice/file{number}", number / 2)
            await RecycleFolders(service.server).empty(share)
            assert left(folder) == ["alice/file0", "alice/file1"]
            found = share.emptied
            assert found is not None
            assert (found.files, found.removed_files) == (2, 18)

    asyncio.run(body())


def test_what_a_client_has_open_stays(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            emptying(tmp_path, "recycle_keep_days = 3") as (service, share, folder),
            tree_of(service, "alice", "data") as alice,
        ):
            await delete(alice, "file", "streamed", "sub")
            for name in ("file", "streamed", "sub"):
                age(folder / "alice" / name, 9)
            stream = await alice.create(".recycle\\alice\\streamed:s", READ | WRITE, CreateDisposition.CREATE)
            file = await alice.create(".recycle\\alice\\file", READ)
            job = RecycleFolders(service.server)
            await job.empty(share)
            assert left(folder) == ["alice/file", "alice/streamed"]
            await alice.close(file)
            await alice.close(stream)
            await job.empty(share)
            assert left(folder) == []
            sidecar = tmp_path / "share/.smb3server"
            assert not list(sidecar.rglob("s-*")), "streams go with their file"

    asyncio.run(body())


def between(backend: object, act: Callable[[], None]) -> None:
    """Do something on the host after a look has found the files, before they are removed."""
    listing = backend.list_kept  # type: ignore[attr-defined]

    def list_kept(folder: tuple[str, ...], found: Callable[[Kept], None]) -> object:
        yield from listing(folder, found)
        act()

    backend.list_kept = list_kept  # type: ignore[attr-defined]


def replace_by_link(place: Path, target: Path) -> Callable[[], None]:
    def act() -> None:
        place.rename(place.parent / "moved")
        place.symlink_to(target)

    return act


def another_file(place: Path) -> Callable[[], None]:
    def act() -> None:
        other = place.parent / "another"
        other.write_text("new")
        other.rename(place)

    return act


def test_nothing_outside_the_folder_is_removed(tmp_path: Path) -> None:
    """Neither by a symlink that is there, nor by one that comes between the look and the removal."""

    async def body() -> None:
        async with (
            emptying(tmp_path, "recycle_keep_days = 3") as (service, share, folder),
            tree_of(service, "alice", "data") as alice,
        ):
            outside = tmp_path / "share/outside"
            outside.mkdir()
            await make(alice, "sub", folder=True)
            await delete(alice, "sub\\file", "swapped")
            (outside / "file").write_text("dear")
            age(outside / "file", 99)
            for name in ("sub/file", "swapped"):
                age(folder / "alice" / name, 9)
            (folder / "alice/link").symlink_to(outside)
            (folder / "loose").write_text("of no user")
            age(folder / "loose", 99)
            swapped = another_file(folder / "alice/swapped")
            linked = replace_by_link(folder / "alice/sub", outside)
            between(share.backend, lambda: (swapped(), linked()))  # type: ignore[arg-type,func-returns-value]
            await RecycleFolders(service.server).empty(share)
            assert (outside / "file").read_text() == "dear"
            assert left(folder) == ["alice/link", "alice/moved/file", "alice/sub", "alice/swapped", "loose"]
            assert (folder / "alice/swapped").read_text() == "new"

    asyncio.run(body())


@needs_root
def test_no_other_file_system_is_entered(tmp_path: Path) -> None:
    """Not even one that is mounted from the same device (a bind mount)."""

    async def body() -> None:
        async with (
            emptying(tmp_path, "recycle_keep_days = 3") as (service, share, folder),
            tree_of(service, "alice", "data") as alice,
        ):
            await delete(alice, "file")
            dear = tmp_path / "elsewhere"
            dear.mkdir()
            (dear / "file").write_text("dear")
            age(dear / "file", 99)
            (folder / "alice/mounted").mkdir()
            subprocess.run(["mount", "--bind", dear, folder / "alice/mounted"], check=True)
            try:
                await RecycleFolders(service.server).empty(share)
                assert left(dear) == ["file"]
            finally:
                subprocess.run(["umount", folder / "alice/mounted"], check=True)

    asyncio.run(body())


def test_a_folder_that_others_may_write_to_is_left_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            emptying(tmp_path, "recycle_keep_days = 3") as (service, share, folder),
            tree_of(service, "alice", "data") as alice,
        ):
            await delete(alice, "file")
            age(folder / "alice/file", 9)
            folder.chmod(0o777)
            with pytest.raises(PermissionError, match="others may write to it"):
                await RecycleFolders(service.server).empty(share)
            assert left(folder) == ["alice/file"]

    asyncio.run(body())


class OfAnotherNode:
    arriving = None
    owned = False

    def check(self, share: Share, address: str, dialect: int, flags: int) -> None:
        raise AssertionError


async def by_another_node(service: Service, share: Share) -> None:
    share.placement = OfAnotherNode()


async def lost(service: Service, share: Share) -> None:
    share.lost = True


async def removed(service: Service, share: Share) -> None:
    service.shares.remove(share)


async def not_configured(service: Service, share: Share) -> None:
    share.recycling = None


@pytest.mark.parametrize("change", [by_another_node, lost, removed, not_configured])
def test_only_who_serves_the_share_empties_its_folder(
    tmp_path: Path, change: Callable[[Service, Share], Awaitable[None]]
) -> None:
    """Also if that changes while the folder is being looked at."""

    async def body() -> None:
        async with emptying(tmp_path, "recycle_keep_days = 3") as (service, share, folder):
            async with tree_of(service, "alice", "data") as alice:
                await delete(alice, *(f"file{number}" for number in range(3)))
            for number in range(3):
                age(folder / f"alice/file{number}", 9)
            loop, changed = asyncio.get_running_loop(), []

            def act() -> None:
                changed.append(asyncio.run_coroutine_threadsafe(change(service, share), loop).result(5))

            between(share.backend, act)
            job = RecycleFolders(service.server)
            await job.empty(share)
            await job.empty(share)
            assert len(changed) == 1
            assert len(left(folder)) == 3

    asyncio.run(body())


def test_the_audit_says_what_was_removed(tmp_path: Path) -> None:
    log = f'[server]\naudit_file = "{tmp_path}/audit.log"\n'

    async def body() -> None:
        lines = ("recycle_keep_days = 3", "audit = true", 'audit_events = ["delete"]')
        async with emptying(tmp_path, *lines, more=log) as (service, share, folder):
            async with tree_of(service, "alice", "data") as alice:
                await delete(alice, "file")
            age(folder / "alice/file", 9)
            await RecycleFolders(service.server).empty(share)

    asyncio.run(body())
    records = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    record = next(record for record in records if "recycled" in record)
    assert (record["event"], record["path"], record["recycled"]) == ("delete", ".recycle/alice/file", "age")
    assert (record["share"], record["size"], record["result"]) == ("data", 7, "success")
    assert len(records) == 2


def test_it_begins_with_the_server_and_shows_in_the_report(tmp_path: Path) -> None:
    async def body() -> None:
        async with emptying(tmp_path) as (service, _, folder), tree_of(service, "alice", "data") as alice:
            await delete(alice, "file", "other")
            age(folder / "alice/file", 9)
        async with emptying(tmp_path, "recycle_keep_days = 3", by_itself=True) as (service, share, folder):
            while share.emptied is None or not share.emptied.removed_files:
                await asyncio.sleep(0.01)
            assert left(folder) == ["alice/other"]
            while share.emptied.files != 1:
                await asyncio.sleep(0.01)
            record = next(entry for entry in service._report({}).shares if entry.share == "data")
            assert record.recycle.removed_files == 1  # type: ignore[union-attr]
            assert b'smb3server_recycle_folder_removed_files_total{share="data"} 1.0' in service.observing._metrics()

    asyncio.run(body())
