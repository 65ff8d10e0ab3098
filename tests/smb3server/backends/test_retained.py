"""Retained files (``worm`` shares): every operation of a store, in every state of a file."""

from __future__ import annotations

import errno
import inspect
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smb3server.access import decide
from smb3server.backends.base import Backend, Disposition, Handle, OpenRequest, Retained
from smb3server.backends.local import retained_handle
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.retention import Clock, Retention
from smb3server.wire import filetime
from smb3server.wire.create import Access
from smb3server.wire.file_info import EaEntry

SECOND = 10**9
GRACE, KEEP = 100 * SECOND, 1000 * SECOND
KEPT = Retained(False)
DESCRIPTOR = bytes.fromhex("0100048000000000000000000000000000000000")
REPARSE = bytes.fromhex("0d000080040000006162636400")[:12]


class Host:
    """The clocks of a machine. They stand still unless a test moves them."""

    def __init__(self) -> None:
        self.wall = time.time_ns()
        self.steady = 0

    def pass_(self, nanoseconds: int) -> None:
        self.wall += nanoseconds
        self.steady += nanoseconds

    def clock(self) -> Clock:
        return Clock(lambda: self.wall, lambda: self.steady)


class Scene:
    def __init__(self, folder: Path, keep: int | None = KEEP) -> None:
        self.folder = folder
        self.host = Host()
        self.keep = keep
        self.to_close: list[Handle | Backend] = []
        self.backend = self.started()

    def started(self) -> LocalBackend:
        """The store of a server that starts now."""
        options = LocalOptions(retention=Retention(GRACE, self.keep, self.host.clock()))
        self.to_close.append(backend := LocalBackend(self.folder, options))
        return backend

    def open(self, request: OpenRequest, backend: LocalBackend | None = None) -> Handle:
        self.to_close.append(handle := (backend or self.backend).open(request))
        return handle

    def make(self, name: str, stream: str = "") -> Handle:
        return self.open(OpenRequest((name,), stream, Disposition.OPEN_IF, read=True, write=True))

    def close(self) -> None:
        for entry in reversed(self.to_close):
            entry.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    if not made.backend.store.has_attributes(tmp_path):
        pytest.skip("this file system has no extended attributes")
    yield made
    made.close()


class Payload:
    """A message that lies in a pipe."""

    def __init__(self) -> None:
        self.length = 1

    def move_to(self, descriptor: int, offset: int) -> None:
        os.pwrite(descriptor, b"x", offset)


Operation = Callable[[Handle], object]


def drained(steps: Iterator[None] | None) -> None:
    for _ in steps or ():
        pass


def copied(handle: Handle, how: str) -> None:
    source = handle._backend.open(OpenRequest(("source",), read=True))  # type: ignore[attr-defined]
    try:
        getattr(handle, how)(source, 0, 0, 4096)
    finally:
        source.close()


CHANGES: dict[str, Operation] = {
    "write_from": lambda handle: handle.write_from([b"x"], 0),
    "take_in": lambda handle: handle.take_in(Payload(), 0),  # type: ignore[arg-type]
    "truncate": lambda handle: handle.truncate(1),
    "allocate": lambda handle: handle.allocate(8192),
    "zero_range": lambda handle: handle.zero_range(0, 1),
    "copy_range": lambda handle: copied(handle, "copy_range"),
    "clone_range": lambda handle: copied(handle, "clone_range"),
    "set_times": lambda handle: handle.set_times(last_write=filetime.EPOCH),
    "set_attributes": lambda handle: handle.set_attributes(1),
    "set_compressed": lambda handle: handle.set_compressed(True),
    "set_ea": lambda handle: handle.set_ea(b"A", b"b"),
    "set_eas": lambda handle: handle.set_eas([EaEntry(b"A", b"b")]),
    "set_security_descriptor": lambda handle: handle.set_security_descriptor(DESCRIPTOR),
    "set_permissions": lambda handle: handle.set_permissions(None, None, 0o600),
    "set_mode": lambda handle: handle.set_mode(0o600),
    "set_reparse_point": lambda handle: handle.set_reparse_point(REPARSE),
    "rename": lambda handle: handle.rename(("other",), False),
    "link": lambda handle: handle.link(("link",), False),
    "note_deletion": lambda handle: handle.note_deletion(),
}
LARGE: dict[str, Operation] = {
    "shrinking": lambda handle: handle.shrinking(0) and pytest.fail("it would cut the file"),
    "allocating": lambda handle: drained(handle.allocating(64 << 20)),
    "zeroing": lambda handle: drained(handle.zeroing(0, 8 << 20)),
    "filling": lambda handle: drained(handle.filling()),
    "removing_streams": lambda handle: drained(handle.removing_streams((), [])),
}
"""Changes that files of some size or with streams need."""
OF_STREAMS: dict[str, Operation] = {"rename_stream": lambda handle: handle.rename_stream("new", False)}
DELETIONS: dict[str, Operation] = {
    "check_unlink": lambda handle: handle.check_unlink(),
    "unlink": lambda handle: handle.unlink(),
}
READING = {
    "path", "fileno", "info", "describe", "data_version", "read_into", "cached", "storage_failed", "flush",
    "allocated_ranges", "eas", "security_descriptor", "streams", "listing_streams", "retained", "reparse_point",
    "search", "scan", "has_vetoed", "close", "lasting_number", "finder_data",
}  # fmt: skip
"""What changes nothing."""


def test_the_table_has_every_operation() -> None:
    """A new method of handles has to say whether it changes a file."""
    members = {
        name for name, member in vars(Handle).items() if inspect.isfunction(member) or isinstance(member, property)
    }
    assert members - {"__init__"} == READING | CHANGES.keys() | LARGE.keys() | OF_STREAMS.keys() | DELETIONS.keys()


def refuses(operation: Operation, handle: Handle) -> bool:
    try:
        operation(handle)
    except PermissionError as error:
        assert error.errno == errno.EACCES
        assert "retained" in str(error)
        return True
    except OSError as error:
        assert error.errno in (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL), error
    return False


def stamp(handle: Handle) -> tuple[object, ...]:
    info = handle.info()._replace(last_access_time=0, change_time=0)
    return (info, handle.eas(), handle.security_descriptor(), handle.reparse_point(), handle.streams(), handle.path)


@pytest.mark.parametrize("name", sorted(CHANGES | DELETIONS))
@pytest.mark.parametrize("when", ["free", "retained", "over"])
def test_a_file_that_was_opened_before(scene: Scene, name: str, when: str) -> None:
    scene.make("source").write_from([bytes(8192)], 0)
    handle = scene.make("file")
    handle.write_from([b"content"], 0)
    scene.host.pass_({"free": GRACE // 2, "retained": GRACE + SECOND, "over": KEEP + SECOND}[when])
    before = stamp(handle)
    refused = refuses((CHANGES | DELETIONS)[name], handle)
    assert refused == (when != "free" and not (when == "over" and name in DELETIONS))
    if refused:
        assert stamp(handle) == before


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - {"rename", "link"} | OF_STREAMS.keys() | DELETIONS.keys()))
@pytest.mark.parametrize("when", ["free", "retained", "over"])
def test_a_stream_that_was_opened_before(scene: Scene, name: str, when: str) -> None:
    """A stream is a part of its file. It cannot be deleted alone, not even when the file's time is over."""
    scene.make("source").write_from([bytes(8192)], 0)
    handle = scene.make("file", "stream")
    handle.write_from([b"content"], 0)
    scene.host.pass_({"free": GRACE // 2, "retained": GRACE + SECOND, "over": KEEP + SECOND}[when])
    assert refuses((CHANGES | OF_STREAMS | DELETIONS)[name], handle) == (when != "free")


@pytest.mark.parametrize("name", sorted(LARGE))
def test_long_work_is_not_begun(scene: Scene, name: str) -> None:
    scene.make("file", "stream").close()
    handle = scene.make("file")
    handle.truncate(16 << 20)
    handle.write_from([bytes(9 << 20)], 0)
    scene.host.pass_(GRACE + SECOND)
    assert refuses(LARGE[name], handle)


def test_a_retained_file_gets_no_new_stream(scene: Scene) -> None:
    scene.make("file")
    scene.make("file", "old")
    scene.host.pass_(GRACE + SECOND)
    with pytest.raises(PermissionError, match="retained"):
        scene.make("file", "new")
    assert [stream.name for stream in scene.make("file", "old").streams()] == ["", "old"]


def test_a_file_over_which_another_is_renamed(scene: Scene) -> None:
    scene.make("file").close()
    scene.host.pass_(GRACE + SECOND)
    assert scene.make("file").retained()
    scene.host.wall -= GRACE + SECOND
    scene.host.steady -= GRACE + SECOND
    free = scene.make("free")
    assert free.retained() is None
    for change in ("rename", "link"):
        with pytest.raises(PermissionError, match="retained"):
            getattr(free, change)(("file",), True)
        with pytest.raises(PermissionError, match="retained"):
            getattr(free, change)(("FILE",), True)


def test_which_rights_nobody_gets(scene: Scene) -> None:
    handle = scene.make("file")
    assert decide.refused_on(handle.retained()) == 0
    scene.host.pass_(GRACE + SECOND)
    changes = (
        Access.WRITE_DATA | Access.APPEND_DATA | Access.WRITE_EA | Access.WRITE_ATTRIBUTES
        | Access.WRITE_DAC | Access.WRITE_OWNER
    )  # fmt: skip
    assert decide.refused_on(handle.retained()) == changes | Access.DELETE
    scene.host.pass_(KEEP)
    assert decide.refused_on(handle.retained()) == changes


def test_each_change_gives_new_grace(scene: Scene) -> None:
    """Of data, of attributes, and of a stream. A time that a client sets gives none and takes none."""
    handle, stream = scene.make("file"), scene.make("file", "stream")
    for change in (
        lambda: handle.write_from([b"x"], 0),
        lambda: handle.set_attributes(2),
        lambda: stream.write_from([b"x"], 0),
    ):
        os.utime(scene.folder / "file")
        changed = os.stat(scene.folder / "file").st_ctime_ns
        scene.host.wall = changed + GRACE - 1
        change()
        assert os.stat(scene.folder / "file").st_ctime_ns > changed
    for forged in (filetime.from_ns(1), filetime.from_ns(time.time_ns() + 10**18)):
        handle.set_times(forged, forged, forged, forged)
        scene.host.wall = os.stat(scene.folder / "file").st_ctime_ns + GRACE + 1
        assert scene.make("file").retained()
        os.removexattr(scene.folder / "file", f"{scene.backend.store.namespace}.smb3.retained")
        scene.host.wall = time.time_ns()
        handle.close()
        handle = scene.make("file")


# Time


def test_once_retained_always_retained(scene: Scene) -> None:
    """Whatever becomes of the clock, and of the change time, over a restart as well."""
    scene.make("file").close()
    now = scene.host.wall
    scene.host.pass_(GRACE + SECOND)
    assert scene.make("file").retained()
    os.chmod(scene.folder / "file", 0o600)
    for wall in (now, now - 10**18, now + GRACE * 2):
        scene.host.wall = wall
        assert scene.open(OpenRequest(("file",)), scene.started()).retained()


def test_a_clock_that_is_set_forward_ends_no_retention_early(scene: Scene) -> None:
    """Not before the next start, as the manual says."""
    scene.make("file")
    scene.host.wall += KEEP * 2
    handle = scene.make("file")
    assert handle.retained() == KEPT
    assert scene.open(OpenRequest(("file",)), scene.started()).retained() == Retained(True)
    scene.host.wall -= KEEP * 2
    scene.host.pass_(KEEP + SECOND)
    assert handle.retained() == Retained(True)


def test_a_clock_that_is_set_back_frees_nothing(scene: Scene) -> None:
    scene.make("file").close()
    scene.host.pass_(GRACE + SECOND)
    scene.host.wall -= 10**18
    assert scene.open(OpenRequest(("file",))).retained(), "the clock that only runs forward says it"


def test_a_file_from_the_future_is_retained_for_so_long(scene: Scene) -> None:
    """The server started with a clock that was set back. Nothing is stored: it may be put right."""
    scene.make("file").close()
    now = scene.host.wall
    scene.host.wall = now - 10 * GRACE
    backend = scene.started()
    handle = scene.open(OpenRequest(("file",)), backend)
    assert handle.retained() == KEPT
    scene.host.wall = now
    assert handle.retained() is None


def test_without_a_retention_time_nothing_is_ever_deleted(tmp_path: Path) -> None:
    scene = Scene(tmp_path, None)
    handle = scene.make("file")
    scene.host.pass_(10**18)
    assert refuses(DELETIONS["unlink"], handle)
    scene.close()


@pytest.mark.parametrize("damage", [b"", b"x", bytes(16), b"\xff" * 16])
def test_a_damaged_attribute_frees_nothing(scene: Scene, damage: bytes) -> None:
    handle = scene.make("file")
    os.setxattr(scene.folder / "file", f"{scene.backend.store.namespace}.smb3.retained", damage)
    assert handle.retained() == KEPT


def test_no_room_for_the_attribute_frees_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    handle = scene.make("file")
    monkeypatch.setattr(scene.backend.store, "_set", full)
    scene.host.pass_(GRACE + SECOND)
    assert refuses(CHANGES["write_from"], handle)


# Folders


def test_folders_stay_free_but_retained_files_do_not_move_with_them(scene: Scene) -> None:
    folder = scene.open(OpenRequest(("folder",), disposition=Disposition.CREATE, directory=True))
    inner = scene.open(OpenRequest(("folder", "inner"), disposition=Disposition.CREATE, directory=True))
    file = scene.open(OpenRequest(("folder", "inner", "file"), disposition=Disposition.CREATE))
    scene.host.pass_(GRACE // 2)
    folder.rename(("renamed",), False)
    scene.host.pass_(GRACE)
    for handle in (folder, inner):
        with pytest.raises(PermissionError, match="retained"):
            handle.rename(("elsewhere",), False)
        assert handle.retained() is None
        handle.set_attributes(2)
        handle.set_times(last_write=filetime.EPOCH)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        inner.unlink()
    scene.host.pass_(KEEP)
    file.unlink()
    inner.rename(("elsewhere",), False)
    inner.unlink()


def test_a_folder_with_too_many_entries_is_not_renamed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_handle, "MOST", 3)
    folder = scene.open(OpenRequest(("folder",), disposition=Disposition.CREATE, directory=True))
    for number in range(3):
        (scene.folder / "folder" / str(number)).touch()
    scene.host.wall = time.time_ns()
    folder.rename(("renamed",), False)
    (scene.folder / "renamed" / "more").touch()
    with pytest.raises(PermissionError, match="more than 3 entries"):
        folder.rename(("again",), False)


def test_a_symlink_is_retained_by_its_change_time(scene: Scene) -> None:
    (scene.folder / "link").symlink_to("target")
    scene.host.wall = time.time_ns()
    link = scene.open(OpenRequest(("link",), open_reparse_point=True))
    assert link.retained() is None
    scene.host.pass_(GRACE + SECOND)
    assert link.retained()
    assert refuses(DELETIONS["unlink"], link)


def test_other_shares_do_not_ask(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    handle = backend.open(OpenRequest(("file",), disposition=Disposition.CREATE))
    assert (type(handle).__name__, backend.retains, handle.retained()) == ("LocalHandle", False, None)
    handle.close()
    backend.close()
    assert not Backend.retains
