"""Folders that are copied and mirrored: nothing is lost, nothing outside is touched, errors are told."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from smb3server.client import Share, connect, copying, entries, errors, names, transfers
from smb3server.client.mirror import Copier
from smb3server.client.protocol.tree import Tree
from smb3server.client.sameness import same_time
from smb3server.wire import attributes as attr
from tests.lab.mirrors import mirror, tree
from tests.lab.remote import PASSWORD, Home, run


@pytest.fixture
def local(tmp_path: Path) -> Path:
    found = tmp_path / "local"
    (found / "sub" / "deeper").mkdir(parents=True)
    (found / "empty").mkdir()
    (found / "a.txt").write_text("a")
    (found / "sub" / "b:?.txt").write_text("b")
    (found / "sub" / "deeper" / "日本").write_bytes(os.urandom(2 << 20))
    return found


def test_there_and_back(served: Home, folder: Path, local: Path, tmp_path: Path) -> None:
    totals, _ = mirror(served.url, local, up=True)
    assert (totals.files, totals.failed) == (3, 0)
    totals, _ = mirror(served.url, tmp_path / "back", up=False)
    assert totals.files == 3
    assert tree(tmp_path / "back") == tree(local)
    for up, place in ((True, local), (False, tmp_path / "back")):
        totals, ears = mirror(served.url, place, up=up)
        assert (totals.files, totals.same) == (0, 3), ears.events


def test_changes_and_removals(served: Home, folder: Path, local: Path) -> None:
    mirror(served.url, local, up=True)
    (local / "a.txt").write_text("changed")
    shutil.rmtree(local / "sub" / "deeper")
    (local / "new").write_text("new")
    (folder / "keep.tmp").write_text("of the server")
    before = tree(folder)
    totals, ears = mirror(served.url, local, up=True, delete=True, dry_run=True, exclude=("*.tmp",))
    assert tree(folder) == before
    assert sorted(ears.said("copy")) == ["a.txt", "new"] and ears.said("remove") == ["deeper"]
    totals, ears = mirror(served.url, local, up=True, exclude=("*.tmp",))
    assert (totals.files, totals.removed) == (2, 0) and (folder / "sub" / "deeper").exists()
    totals, ears = mirror(served.url, local, up=True, delete=True, exclude=("*.tmp",))
    assert (totals.files, totals.removed) == (0, 1)
    assert (folder / "keep.tmp").exists()
    (folder / "keep.tmp").unlink()
    mirror(served.url, local, up=True)
    assert tree(folder) == tree(local)


def test_nothing_is_removed_if_something_failed(served: Home, folder: Path, local: Path) -> None:
    (folder / "extra").write_text("x")
    (local / "A.TXT").write_text("the same name for a share")
    totals, ears = mirror(served.url, local, up=True, delete=True)
    assert (totals.failed, totals.removed) == (1, 0)
    assert any("File exists: '" in event.text and "another case" in event.text for event in ears.events)
    assert any("nothing was removed" in event.text for event in ears.events)
    assert (folder / "extra").exists()


def test_content_is_compared_if_asked_for(served: Home, folder: Path, local: Path) -> None:
    mirror(served.url, local, up=True)
    target = folder / "a.txt"
    status = target.stat()
    target.write_text("b")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert mirror(served.url, local, up=True)[0].files == 0
    assert mirror(served.url, local, up=True, checksum=True)[0].files == 1
    assert target.read_text() == "a"
    os.utime(target, ns=(1, 1))
    assert mirror(served.url, local, up=True, checksum=True)[0].files == 0


def test_removals_stay_within_the_target(served: Home, folder: Path, tmp_path: Path) -> None:
    """Symbolic links of the target, to a folder outside, where the source has a folder or nothing."""
    outside = tmp_path / "outside"
    (outside / "d").mkdir(parents=True)
    (outside / "d" / "precious").write_text("p")
    target = tmp_path / "target"
    target.mkdir()
    (target / "sub").symlink_to(outside / "d")
    (target / "extra").symlink_to(outside)
    (folder / "sub").mkdir()
    (folder / "sub" / "new").write_text("n")
    totals, ears = mirror(served.url, target, up=False)
    assert totals.failed == 1 and not (outside / "d" / "new").exists()
    assert any("link has the name of a folder" in event.text for event in ears.events)
    totals, ears = mirror(served.url, target, up=False, delete=True)
    assert (totals.failed, totals.removed) == (0, 2), ears.events
    assert (target / "sub" / "new").read_text() == "n" and not (target / "sub").is_symlink()
    assert not (target / "extra").is_symlink()
    assert (outside / "d" / "precious").read_text() == "p"


def test_a_server_that_lists_names_of_elsewhere_writes_nothing(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "evil").write_text("e")
    target = tmp_path / "deep" / "target"
    original = Share._from_share
    for lie in ("../evil", "/../../evil", str(tmp_path / "evil"), "x/../../evil"):
        monkeypatch.setattr(
            Share, "_from_share", lambda self, name, lie=lie: lie if name == "evil" else original(self, name)
        )
        totals, ears = mirror(served.url, target, up=False, delete=True)
        assert totals.failed == 1 and "cannot be the name" in ears.events[-1].text + ears.events[0].text
        assert [path.name for path in tmp_path.rglob("*") if "evil" in path.name] == []


def test_links(served: Home, folder: Path, local: Path, tmp_path: Path) -> None:
    (local / "link").symlink_to("a.txt")
    (local / "circle").symlink_to(local)
    (local / "nowhere").symlink_to("none")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("x")
    (local / "folder").symlink_to(tmp_path / "other")
    os.mkfifo(local / "pipe")
    _, ears = mirror(served.url, local, up=True)
    assert sorted(ears.said("skip")) == ["circle", "folder", "link", "nowhere", "pipe"]
    _, ears = mirror(served.url, local, up=True, follow_links=True)
    assert sorted(ears.said("skip")) == ["circle", "nowhere", "pipe"]
    assert (folder / "link").read_text() == "a" and (folder / "folder" / "x").read_text() == "x"


def test_attributes_are_kept_if_asked_for(served: Home, folder: Path, local: Path, tmp_path: Path) -> None:
    (local / "a.txt").chmod(0o444)
    mirror(served.url, local, up=True, attributes=True)

    async def look() -> int:
        async with connect(f"{served.url}/test", password=PASSWORD, rdma="off") as share:
            return (await share.stat("a.txt")).attributes

    assert run(look) & attr.READONLY
    mirror(served.url, tmp_path / "back", up=False, attributes=True)
    assert not (tmp_path / "back" / "a.txt").stat().st_mode & 0o222


def test_a_folder_where_a_file_is(served: Home, folder: Path, local: Path) -> None:
    (folder / "sub").write_text("a file")
    totals, _ = mirror(served.url, local, up=True)
    assert totals.failed == 1 and (folder / "sub").read_text() == "a file"
    totals, _ = mirror(served.url, local, up=True, delete=True)
    assert totals.failed == 0 and (folder / "sub" / "deeper").is_dir()


def test_a_server_that_goes_away_ends_the_copy(
    served: Home, folder: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        (local / f"f{number}").touch()

    async def gone(self: Share, *words: object, **options: object) -> None:
        raise errors.make(errno.ECONNRESET, "x")

    monkeypatch.setattr(Share, "upload", gone)
    with pytest.raises(ConnectionError):
        mirror(served.url, local, up=True)


def test_times() -> None:
    second = 1_000_000_000
    assert not same_time(5 * second, 6 * second) and not same_time(5 * second, 5 * second + 100)
    assert same_time(5 * second + 199, 5 * second + 100), "a share counts in 100 ns"
    assert same_time(5 * second, 4 * second, granularity=2 * second) and not same_time(0, 3 * second, 2 * second)
    assert same_time(5 * second, 7 * second, window=2 * second)
    assert same_time(-11644473600 * second, -(2**31) * second), "ext4 begins in 1901"
    assert not same_time(-11644473600 * second, -(2**31) * second + 1)
    assert same_time(2**40 * second, 15_032_385_535 * second)


def test_a_second_later_is_another_time(served: Home, folder: Path, local: Path) -> None:
    os.utime(local / "a.txt", (1_600_000_000, 1_600_000_000))
    mirror(served.url, local, up=True)
    (local / "a.txt").write_text("b")
    os.utime(local / "a.txt", (1_600_000_001, 1_600_000_001))
    assert mirror(served.url, local, up=True, window_ns=1_000_000_000)[0].files == 0
    assert mirror(served.url, local, up=True)[0].files == 1
    assert (folder / "a.txt").read_text() == "b"


@pytest.mark.parametrize("seconds", [-11644473600, -11644473601, -11644473700, -(2**31) - 5, -1, 0, 2**34])
def test_times_far_away_are_not_copied_again(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    # A file system in memory has all times, the share's begins in 1901.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        (Path(name) / "up").write_text("x")
        os.utime(Path(name) / "up", ns=(0, seconds * 1_000_000_000))
        mirror(served.url, Path(name), up=True)
        totals, ears = mirror(served.url, Path(name), up=True)
        assert (totals.files, totals.failed) == (0, 0), ears.events
    # A server may tell any time.
    real = entries.to_ns
    monkeypatch.setattr(entries, "to_ns", lambda time: seconds * 1_000_000_000)
    monkeypatch.setattr(transfers, "to_ns", lambda time: seconds * 1_000_000_000)
    mirror(served.url, tmp_path / "back", up=False)
    totals, ears = mirror(served.url, tmp_path / "back", up=False)
    assert (totals.files, totals.failed) == (0, 0), ears.events
    monkeypatch.setattr(entries, "to_ns", real)


def test_what_is_in_the_way_of_nothing_stays(served: Home, folder: Path, local: Path) -> None:
    """Something that is not copied, or cannot be, removes nothing of its name."""
    for name in ("pipe", "link"):
        (folder / name).mkdir()
        (folder / name / "precious").write_text("p")
    os.mkfifo(local / "pipe")
    (local / "link").symlink_to("a.txt")
    (folder / "a.txt").mkdir()
    (folder / "a.txt" / "precious").write_text("p")
    totals, ears = mirror(served.url, local, up=True, delete=True, exclude=("a.txt",))
    assert (totals.failed, totals.removed, totals.skipped) == (0, 0, 2), ears.events
    (local / "A.TXT").write_text("the same name for a share")
    totals, ears = mirror(served.url, local, up=True, delete=True)
    assert (totals.failed, totals.removed) == (1, 0), ears.events
    kept = [path for path in folder.rglob("precious") if path.read_text() == "p"]
    assert len(kept) == 3
    aside = [path.parent.name for path in kept if path.parent.name.endswith(".aside")]
    assert len(aside) == 1 and any(aside[0] in event.text for event in ears.events if event.action == "stay")


def test_what_made_way_comes_back_if_its_copy_fails(
    served: Home, folder: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.txt").mkdir()
    (folder / "a.txt" / "precious").write_text("p")

    async def fail(self: Share, source: Path, *words: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "denied", str(source))

    monkeypatch.setattr(Share, "upload", fail)
    totals, _ = mirror(served.url, local, up=True, delete=True)
    assert totals.failed == 3
    assert (folder / "a.txt" / "precious").read_text() == "p"


@pytest.mark.parametrize("up", [True, False])
def test_a_removal_leaves_what_is_excluded_and_its_folders(
    served: Home, folder: Path, tmp_path: Path, up: bool
) -> None:
    local = tmp_path / "place"
    local.mkdir()
    place = folder if up else local
    (place / "extra" / "sub").mkdir(parents=True)
    (place / "extra" / "sub" / "keep.tmp").write_text("k")
    (place / "extra" / "gone").write_text("g")
    totals, ears = mirror(served.url, local, up=up, delete=True, exclude=("*.tmp",))
    assert [path.name for path in (place / "extra").rglob("*")] == ["sub", "keep.tmp"], ears.events
    assert (totals.removed, totals.failed) == (1, 0) and "--exclude" in ears.texts
    assert (ears.said("remove"), ears.said("stay")) == (["gone"], ["extra", "sub"])


@pytest.mark.parametrize("up", [True, False])
def test_a_file_that_was_replaced_since_it_was_listed_stays(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, up: bool
) -> None:
    """A file and a folder that something else replaced by its name, and a file that was changed."""
    local = tmp_path / "place"
    local.mkdir()
    place = folder if up else local
    (place / "folder").mkdir()
    for name in ("file", "changed", "gone", "folder/inner"):
        (place / name).write_text("old")
    real = Copier._remove_extras

    async def replaced(self: Copier) -> None:
        for name in ("file", "folder"):
            (place / name).rename(tmp_path / f"away-{name}")
        (place / "file").write_text("old")
        os.utime(place / "file", ns=(0, (tmp_path / "away-file").stat().st_mtime_ns))
        (place / "folder").mkdir()
        (place / "folder" / "precious").write_text("p")
        (place / "changed").write_text("new")
        await real(self)

    monkeypatch.setattr(Copier, "_remove_extras", replaced)
    totals, ears = mirror(served.url, local, up=up, delete=True)
    assert (totals.failed, totals.removed) == (3, 1), ears.events
    assert (place / "file").exists() and (place / "changed").read_text() == "new"
    assert (place / "folder" / "precious").read_text() == "p" and not (place / "gone").exists()


@pytest.mark.parametrize("tells", [True, False])
def test_a_server_that_lists_other_names_loses_nothing(
    served: Home, folder: Path, local: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    """Names are stored as they are given, and listed otherwise; both open the file. Samba does so with device names.

    It tells the true name if it is asked. If a server does not, such files are an error, and nothing is lost.
    """
    (local / "CON").mkdir()
    (local / "CON" / "inner").write_text("i")
    (local / "aux.txt").write_text("x")
    (folder / "extra").write_text("e")
    substitutes = {"CON": "CX1234~F", "aux.txt": "AX1234~9.TXT"}
    listed, create = Tree.entries, Tree.create

    async def other_names(self: Tree, *words: Any) -> Any:
        async for entry in listed(self, *words):
            yield entry._replace(name=substitutes.get(entry.name, entry.name))

    async def both_names(self: Tree, name: str, *words: Any, **options: Any) -> Any:
        for true, other in substitutes.items():
            name = name.replace(other, true)
        return await create(self, name, *words, **options)

    monkeypatch.setattr(Tree, "entries", other_names)
    monkeypatch.setattr(Tree, "create", both_names)
    if not tells:
        monkeypatch.setattr(names, "may_be_substitute", lambda name: False)
    totals, ears = mirror(served.url, local, up=True, delete=True)
    assert (totals.failed, totals.removed) == (0, 1), ears.events
    for _ in range(3):
        totals, ears = mirror(served.url, local, up=True, delete=True)
        assert (totals.failed, totals.removed, totals.files) == ((0, 0, 0) if tells else (1, 0, 0)), ears.events
        assert (folder / "CON" / "inner").read_text() == "i" and (folder / "aux.txt").read_text() == "x"
    (local / "aux.txt").unlink()
    mirror(served.url, local, up=True, delete=True)
    assert (folder / "CON" / "inner").read_text() == "i" and not (folder / "aux.txt").exists()


def test_read_only_files_are_replaced_and_removed(served: Home, folder: Path, local: Path) -> None:
    mirror(served.url, local, up=True)
    (local / "ro").write_text("old")
    (local / "ro").chmod(0o444)
    (local / "sub" / "b:?.txt").chmod(0o444)
    mirror(served.url, local, up=True, attributes=True)
    os.utime(local / "sub" / "b:?.txt", ns=(0, 5))
    totals, ears = mirror(served.url, local, up=True, attributes=True)
    assert (totals.files, totals.failed) == (1, 0), ears.events
    shutil.rmtree(local / "sub")
    (local / "ro").unlink()
    totals, ears = mirror(served.url, local, up=True, delete=True)
    assert (totals.removed, totals.failed) == (2, 0), ears.events


def test_a_copy_of_a_read_only_file_broken_off_at_its_last_step_is_completed(
    served: Home, folder: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (local / "ro").write_text("text")
    (local / "ro").chmod(0o444)

    async def rename_part(*_: object) -> None:
        raise OSError(errno.EIO, "broken off")

    with monkeypatch.context() as broken:
        broken.setattr("smb3server.client.share._Target.rename_part", rename_part)
        totals, ears = mirror(served.url, local, up=True, attributes=True)
        assert totals.failed, ears.events
    totals, ears = mirror(served.url, local, up=True, attributes=True)
    assert totals.failed == 0, ears.events

    async def look() -> int:
        async with connect(f"{served.url}/test", password=PASSWORD, rdma="off") as share:
            return (await share.stat("ro")).attributes

    assert run(look) & attr.READONLY
    assert (folder / "ro").read_text() == "text" and not list(folder.glob("*.part"))


def test_local_modes_are_kept_and_parts_are_private(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    for name, mode in (("secret", 0o600), ("run.sh", 0o755), ("group", 0o660)):
        (folder / name).write_text("a new one")
        (target / name).write_text("old")
        (target / name).chmod(mode)
    os.chown(target / "group", 1234, 5678)
    (folder / "new").write_text("new")
    seen: set[int] = set()
    real = transfers._write_all

    def write_all(descriptor: int, data: bytes, offset: int) -> None:
        seen.add(os.fstat(descriptor).st_mode & 0o777)
        real(descriptor, data, offset)

    monkeypatch.setattr(transfers, "_write_all", write_all)
    before = os.umask(0o027)
    try:
        totals, ears = mirror(served.url, target, up=False)
    finally:
        os.umask(before)
    assert totals.failed == 0, ears.events
    assert {path.name: path.stat().st_mode & 0o777 for path in target.iterdir()} == {
        "secret": 0o600,
        "run.sh": 0o755,
        "group": 0o660,
        "new": 0o640,
    }
    found = (target / "group").stat()
    assert (found.st_uid, found.st_gid) == (1234, 5678)
    assert seen == {0o600}


def test_a_copy_notices_that_its_source_changes(served: Home, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the server, and through this machine; with the same size, and with nothing left of the copy."""
    real = copying._copy_data

    async def changed(*words: Any, **options: Any) -> Any:
        result = await real(*words, **options)
        with (folder / "big").open("r+b") as file:
            file.write(b"changed")
        return result

    (folder / "big").write_bytes(bytes(5 << 20))
    monkeypatch.setattr(copying, "_copy_data", changed)

    async def main() -> None:
        async with (
            connect(f"{served.url}/test", password=PASSWORD, rdma="off") as share,
            connect(f"{served.url}/test", password=PASSWORD, rdma="off") as other,
        ):
            for to in (share, other):
                with pytest.raises(OSError, match="changed while it was copied") as caught:
                    await share.copy("big", "copy", to=to)
                assert caught.value.errno == errno.ESTALE

    run(main)
    assert os.listdir(folder) == ["big"]


def test_holes_stay_holes_in_copies_between_shares(served: Home, folder: Path, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(40 << 20)
        file.write(b"far")

    async def main() -> None:
        async with (
            connect(f"{served.url}/test", password=PASSWORD, rdma="off") as share,
            connect(f"{served.url}/test", password=PASSWORD, rdma="off") as other,
        ):
            await share.upload(tmp_path / "sparse")
            assert (await share.copy("sparse", "by-server")).by_server
            assert not (await share.copy("sparse", "through-here", to=other, verify=True)).by_server

    run(main)
    for name in ("by-server", "through-here"):
        copy = folder / name
        assert copy.read_bytes() == (folder / "sparse").read_bytes()
        assert copy.stat().st_blocks * 512 < 4 << 20, name
