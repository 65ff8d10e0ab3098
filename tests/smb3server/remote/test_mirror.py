"""Folders that are copied and mirrored: nothing is lost, nothing outside is touched, errors are told."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from smb3server.remote import Share, connect, errors
from smb3server.remote.mirror import Event, Options, Totals, copy_all, same_time
from smb3server.remote.places import LocalPlace, Place, SharePlace
from smb3server.remote.transfers import Progress
from smb3server.wire import attributes as attr
from tests.lab.remote import PASSWORD, Home, run


class Ears:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def begin(self, path: str, size: int) -> Progress:
        return lambda done, size: None

    def event(self, event: Event) -> None:
        self.events.append(event)

    def said(self, action: str) -> list[str]:
        return [event.path.rpartition("/")[2] for event in self.events if event.action == action]


def mirror(served: Home, local: Path, *, up: bool, base: str = "test", **options: Any) -> tuple[Totals, Ears]:
    """Make the share's folder the copy of ``local``, or the other way round."""
    ears = Ears()

    async def main() -> Totals:
        async with connect(served.url, password=PASSWORD, rdma="off") as share:
            places: list[Place] = [LocalPlace(local), SharePlace(share, base)]
            source, target = places if up else places[::-1]
            root = await source.look("")
            assert root is not None
            how = Options(**({"recursive": True, "only_changed": True} | options))
            return await copy_all([(source, root, target, "")], how, ears)

    return run(main), ears


def tree(root: Path) -> dict[str, object]:
    """What is below a folder: content and time of files, the time of folders."""
    return {
        str(path.relative_to(root)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns // 100)
        for path in root.rglob("*")
        if not path.is_symlink()
    }


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
    totals, _ = mirror(served, local, up=True)
    assert (totals.files, totals.failed) == (3, 0)
    totals, _ = mirror(served, tmp_path / "back", up=False)
    assert totals.files == 3
    assert tree(tmp_path / "back") == tree(local)
    for up, place in ((True, local), (False, tmp_path / "back")):
        totals, ears = mirror(served, place, up=up)
        assert (totals.files, totals.same) == (0, 3), ears.events


def test_changes_and_removals(served: Home, folder: Path, local: Path) -> None:
    mirror(served, local, up=True)
    (local / "a.txt").write_text("changed")
    shutil.rmtree(local / "sub" / "deeper")
    (local / "new").write_text("new")
    (folder / "keep.tmp").write_text("of the server")
    before = tree(folder)
    totals, ears = mirror(served, local, up=True, delete=True, dry_run=True, exclude=("*.tmp",))
    assert tree(folder) == before
    assert sorted(ears.said("copy")) == ["a.txt", "new"] and ears.said("remove") == ["deeper"]
    totals, ears = mirror(served, local, up=True, exclude=("*.tmp",))
    assert (totals.files, totals.removed) == (2, 0) and (folder / "sub" / "deeper").exists()
    totals, ears = mirror(served, local, up=True, delete=True, exclude=("*.tmp",))
    assert (totals.files, totals.removed) == (0, 1)
    assert (folder / "keep.tmp").exists()
    (folder / "keep.tmp").unlink()
    mirror(served, local, up=True)
    assert tree(folder) == tree(local)


def test_nothing_is_removed_if_something_failed(served: Home, folder: Path, local: Path) -> None:
    (folder / "extra").write_text("x")
    (local / "A.TXT").write_text("the same name for a share")
    totals, ears = mirror(served, local, up=True, delete=True)
    assert (totals.failed, totals.removed) == (1, 0)
    assert any("File exists: '" in event.text and "another case" in event.text for event in ears.events)
    assert any("nothing was removed" in event.text for event in ears.events)
    assert (folder / "extra").exists()


def test_content_is_compared_if_asked_for(served: Home, folder: Path, local: Path) -> None:
    mirror(served, local, up=True)
    target = folder / "a.txt"
    status = target.stat()
    target.write_text("b")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert mirror(served, local, up=True)[0].files == 0
    assert mirror(served, local, up=True, checksum=True)[0].files == 1
    assert target.read_text() == "a"
    os.utime(target, ns=(1, 1))
    assert mirror(served, local, up=True, checksum=True)[0].files == 0


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
    totals, ears = mirror(served, target, up=False)
    assert totals.failed == 1 and not (outside / "d" / "new").exists()
    assert any("link has the name of a folder" in event.text for event in ears.events)
    totals, ears = mirror(served, target, up=False, delete=True)
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
        totals, ears = mirror(served, target, up=False, delete=True)
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
    _, ears = mirror(served, local, up=True)
    assert sorted(ears.said("skip")) == ["circle", "folder", "link", "nowhere", "pipe"]
    _, ears = mirror(served, local, up=True, follow_links=True)
    assert sorted(ears.said("skip")) == ["circle", "nowhere", "pipe"]
    assert (folder / "link").read_text() == "a" and (folder / "folder" / "x").read_text() == "x"


def test_attributes_are_kept_if_asked_for(served: Home, folder: Path, local: Path, tmp_path: Path) -> None:
    (local / "a.txt").chmod(0o444)
    mirror(served, local, up=True, attributes=True)

    async def look() -> int:
        async with connect(f"{served.url}/test", password=PASSWORD, rdma="off") as share:
            return (await share.stat("a.txt")).attributes

    assert run(look) & attr.READONLY
    mirror(served, tmp_path / "back", up=False, attributes=True)
    assert not (tmp_path / "back" / "a.txt").stat().st_mode & 0o222


def test_a_folder_where_a_file_is(served: Home, folder: Path, local: Path) -> None:
    (folder / "sub").write_text("a file")
    totals, _ = mirror(served, local, up=True)
    assert totals.failed == 1 and (folder / "sub").read_text() == "a file"
    totals, _ = mirror(served, local, up=True, delete=True)
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
        mirror(served, local, up=True)


def test_times() -> None:
    second = 1_000_000_000
    assert same_time(5 * second, 6 * second + 5) and not same_time(5 * second, 7 * second + 5)
    assert same_time(5 * second + 500, 5 * second + 599) and not same_time(5 * second + 500, 5 * second + 5_000)
