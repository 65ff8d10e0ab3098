"""What only the local backend has: users, the host's own names and attributes, where metadata lies, cost."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from smb3server.backends import names
from smb3server.backends.base import Disposition, FileInfo, OpenRequest, StreamInfo, User
from smb3server.backends.local import case_cache, release, sidecar, streams, syscalls
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.impersonate import ActAs, LookAs
from smb3server.backends.local.metadata import unpack
from smb3server.wire import attributes as attr
from smb3server.wire import filetime
from smb3server.wire.file_info import EaEntry
from smb3server.wire.upcase import upcase
from tests.lab.stores import descriptors, every_entry, exists, get, listing, mkdir, opened, put, read

Local = tuple[LocalBackend, Path]
CREATE = Disposition.CREATE
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
ALICE, BOB = User(12345, 12345), User(23456, 23456, (12345,))


@pytest.fixture
def open_path(tmp_path: Path) -> None:
    """Let other users reach the temporary directory."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and directory != Path("/") and directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o755)


# -- users


@root_only
@pytest.mark.root
@pytest.mark.usefixtures("open_path")
def test_users_own_what_they_create(local: Local) -> None:
    store, root = local
    root.chmod(0o777)
    with opened(store, "f", disposition=CREATE, write=True, user=ALICE) as handle:
        handle.write_from([b"x"], 0)
        info = handle.info()
        assert (info.uid, info.gid) == (12345, 12345)
    with opened(store, "d", disposition=CREATE, directory=True, user=BOB) as handle:
        assert handle.info().uid == 23456
    put(store, "mine")
    assert store.stat(("mine",)).uid == 0, "back to the server's own"


@root_only
@pytest.mark.root
@pytest.mark.usefixtures("open_path")
def test_users_rights_are_the_kernels(local: Local) -> None:
    store, root = local
    root.chmod(0o755)
    put(store, "f", data=b"x", stream="s")
    mkdir(store, "private")
    put(store, "private", "f")
    os.chmod(root / "f", 0o640)
    os.chown(root / "f", 0, 12345)
    os.chmod(root / "private", 0o700)
    with opened(store, "f", read=True, user=BOB) as handle:
        assert read(handle) == b"" or handle.stream == ""
    refused = (
        OpenRequest(("f",), write=True, user=BOB),
        OpenRequest(("f",), write=True, stream="s", user=BOB),
        OpenRequest(("f",), stream="t", disposition=CREATE, user=BOB),
        OpenRequest(("f",), read=True, user=User(1, 1)),
        OpenRequest(("f",), read=True, stream="s", user=User(1, 1)),
        OpenRequest(("new",), disposition=CREATE, user=ALICE),
        OpenRequest(("new",), disposition=CREATE, directory=True, user=ALICE),
        OpenRequest(("private", "f"), user=ALICE),
        OpenRequest(("private",), read=True, directory=True, user=ALICE),
    )
    for request in refused:
        with pytest.raises(PermissionError):
            store.open(request)
    with opened(store, "f", read=True, user=BOB) as handle:
        for act in (
            handle.unlink,
            lambda: handle.truncate(0),
            lambda: handle.rename(("g",), False, BOB),
            lambda: handle.link(("g",), False, BOB),
        ):
            with pytest.raises(PermissionError):
                act()
    with pytest.raises(PermissionError):
        store.stat(("private", "f"), ALICE)
    assert os.geteuid() == 0
    assert listing(store) == ["f", "private"]


@root_only
@pytest.mark.root
@pytest.mark.parametrize("acting", [ActAs, LookAs])
def test_users_are_of_one_thread(acting: type[ActAs]) -> None:
    groups = os.getgroups()
    seen: list[list[str]] = []

    def look() -> None:
        status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text().splitlines()
        seen.append([line for line in status if line.startswith(("Uid", "Gid", "Groups"))])

    def look_when_told() -> None:
        assert told.wait(10)
        look()

    # Started before: a new thread has what the one that starts it has.
    told = threading.Event()
    other = threading.Thread(target=look_when_told)
    other.start()
    look()
    with acting(BOB):
        look()
        told.set()
        other.join()
    look()
    with pytest.raises(RuntimeError), acting(BOB):
        raise RuntimeError
    look()
    before, inside, beside, after, failed = seen
    assert before == after == failed == beside
    assert inside[0].split()[4] == "23456"
    assert inside[2].split()[1:] == ["12345"]
    assert os.getgroups() == groups


@root_only
@pytest.mark.root
@pytest.mark.parametrize("refused", ["uid", "gid"])
def test_a_user_whom_the_kernel_does_not_accept(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """Code that only looks learns it afterwards, and what it has found is of no use."""
    switch, begun = syscalls.switch_ids, []

    def refusing(uid: int, gid: int) -> tuple[int, int]:
        keep = syscalls.KEEP_ID
        return switch(keep if refused == "uid" and uid else uid, keep if refused == "gid" and gid else gid)

    monkeypatch.setattr(syscalls, "switch_ids", refusing)
    with pytest.raises(PermissionError), ActAs(ALICE):
        begun.append(ActAs)
    with pytest.raises(PermissionError), LookAs(ALICE):
        begun.append(LookAs)
    assert begun == [LookAs]
    assert switch(syscalls.KEEP_ID, syscalls.KEEP_ID) == (0, 0)


# -- the host's names and attributes


def test_names_windows_does_not_allow(local: Local) -> None:
    store, root = local
    for name in ("a:b", "what?", "end.", os.fsdecode(b"caf\xe9"), "tab\t", "back\\slash"):
        (root / name).write_text(name.encode("utf-8", "replace").decode())
    shown = listing(store)
    assert len(shown) == 6
    for name in shown:
        names.check_component(name)
        assert get(store, name)
        assert get(store, name.upper())
        with opened(store, name) as handle:
            assert handle.path == (name,)
            handle.rename((name + "x",), False)
            handle.rename((name,), False)
    assert listing(store) == shown
    assert (root / "a:b").exists()
    assert os.path.exists(os.fsencode(root) + b"/caf\xe9")


def test_exact_case_wins(local: Local) -> None:
    store, root = local
    for name in ("File", "FILE", "file"):
        (root / name).write_text(name)
    for name in ("File", "FILE", "file"):
        assert get(store, name) == name.encode()
    assert get(store, "fILE") == b"FILE", "the same one every time"
    with opened(store, "FILE") as handle:
        handle.unlink()
    assert get(store, "fILE") == b"File"


def test_host_changes_are_seen(local: Local) -> None:
    store, root = local
    (root / "d").mkdir()
    assert not exists(store, ("D", "FILE"))
    os.utime(root / "d", ns=(1, 1))
    (root / "d" / "file").write_text("x")
    assert exists(store, ("D", "FILE"))
    os.rename(root / "d" / "file", root / "d" / "other")
    assert not exists(store, ("D", "FILE"))
    assert exists(store, ("D", "OTHER"))


def test_defaults_of_host_files(local: Local) -> None:
    store, root = local
    (root / "f").write_text("x")
    assert store.stat(("f",)).attributes == attr.ARCHIVE
    (root / "f").chmod(0o444)
    assert store.stat(("f",)).attributes == attr.ARCHIVE | attr.READONLY
    os.utime(root / "f", ns=(1_000_000_100, 2_000_000_200))
    info = store.stat(("f",))
    assert info.last_access_time == filetime.EPOCH + 10_000_001
    assert info.last_write_time == filetime.EPOCH + 20_000_002
    assert filetime.from_ns(time.time_ns()) - info.creation_time < 600 * 10_000_000, "the birth time"


def test_metadata_of_files_their_owner_cannot_write(local: Local) -> None:
    store, root = local
    (root / "f").touch()
    (root / "f").chmod(0o444)
    with opened(store, "f") as handle:
        handle.set_attributes(attr.HIDDEN)
        handle.set_security_descriptor(b"x" * 100)
        assert handle.info().attributes == attr.HIDDEN
    assert (root / "f").stat().st_mode & 0o7777 == 0o444


def test_copy_with_its_attributes_shares_nothing(make_local: Callable[[LocalOptions], Local]) -> None:
    store, root = make_local(LocalOptions(xattrs="user"))
    put(store, "f", stream="s", data=b"original")
    (root / "copy").write_text("")
    try:
        os.setxattr(root / "copy", "user.smb3.meta", os.getxattr(root / "f", "user.smb3.meta"))
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
        pytest.skip("no user.* attributes in the temporary directory")
    with pytest.raises(FileNotFoundError):
        store.open(OpenRequest(("copy",), stream="s"))
    with opened(store, "copy") as handle:
        handle.unlink()
    assert get(store, "f", stream="s") == b"original"


def test_inode_used_again_has_nothing_of_its_past(make_local: Callable[[LocalOptions], Local]) -> None:
    store, root = make_local(LocalOptions())
    for round_ in range(10):
        put(store, "f")
        with pytest.raises(FileNotFoundError):
            store.open(OpenRequest(("f",), stream="s"))
        with opened(store, "f") as handle:
            assert handle.security_descriptor() is None
            handle.set_security_descriptor(b"x" * 20000)
        put(store, "f", stream="s", data=b"%d" % round_)
        os.unlink(root / "f")


def elsewhere(tmp_path: Path, xattrs: str = "none") -> LocalOptions:
    return LocalOptions(sidecar=str(tmp_path / "state"), xattrs=xattrs)


def files_below(folder: Path) -> list[str]:
    return [name for _, _, files in os.walk(folder) for name in files]


@pytest.mark.parametrize("xattrs", ["auto", "none"])
def test_streams_lie_with_their_files(tmp_path: Path, make_local: Callable[[LocalOptions], Local], xattrs: str) -> None:
    """In the share, for whose space they count, whatever other place there is."""
    store, root = make_local(elsewhere(tmp_path, xattrs))
    put(store, "f", stream="s", data=b"x")
    assert not (tmp_path / "state").exists()
    with opened(store, "f") as handle:
        handle.unlink()
    assert files_below(root) == []


@pytest.mark.parametrize("xattrs", ["auto", "none"])
def test_streams_of_an_earlier_place_are_moved(
    tmp_path: Path, make_local: Callable[[LocalOptions], Local], xattrs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their names, holes and large descriptors. Until they are moved they are found where they were."""
    with monkeypatch.context() as earlier:
        earlier.setattr(LocalBackend, "_may_keep", lambda self: False)
        store, root = make_local(elsewhere(tmp_path, xattrs))
        store.streams.refused = ""
        put(store, "f", stream="Name", data=b"x")
        with opened(store, "f", write=True, stream="hole", disposition=CREATE) as handle:
            handle.truncate(1 << 30)
            handle.write_from([b"end"], (1 << 30) - 3)
        with opened(store, "f") as handle:
            handle.set_security_descriptor(b"d" * 60000)
        store.close()
    assert files_below(tmp_path / "state")
    assert not (root / ".smb3server").exists()
    with monkeypatch.context() as full:

        def no_room(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.setattr(sidecar, "_copy", no_room)
        with closing(LocalBackend(root, elsewhere(tmp_path, xattrs))) as again:
            assert get(again, "f", stream="name") == b"x"
            put(again, "f", stream="new", data=b"n")
    assert not [name for name in os.listdir(root / ".smb3server" / "files") if name.startswith("gone-")]
    for _ in range(2):
        with closing(LocalBackend(root, elsewhere(tmp_path, xattrs))) as again:
            assert files_below(tmp_path / "state") == []
            with opened(again, "f") as handle:
                assert [stream.name for stream in handle.streams()] == ["", "hole", "Name", "new"]
                assert handle.security_descriptor() == b"d" * 60000
            with opened(again, "f", stream="hole", read=True) as handle:
                assert handle.info().end_of_file == 1 << 30
                end = bytearray(3)
                assert handle.read_into([memoryview(end)], (1 << 30) - 3) == 3
                assert end == b"end"
    assert sum(path.stat().st_blocks for path in root.rglob("*")) * 512 < 1 << 20


def test_no_streams_where_the_share_has_no_place_for_them(
    tmp_path: Path, make_local: Callable[[LocalOptions], Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would fill the file system of the state. Those that are there can be read and removed."""
    monkeypatch.setattr(LocalBackend, "_may_keep", lambda self: False)
    store, root = make_local(elsewhere(tmp_path))
    assert str(root) in store.streams.refused
    refused, store.streams.refused = store.streams.refused, ""
    put(store, "f", stream="s", data=b"x")
    store.streams.refused = refused
    for name, disposition in (("new", CREATE), ("s", Disposition.OPEN)):
        with pytest.raises(PermissionError):
            store.open(OpenRequest(("f",), name, disposition, read=True, write=True))
    assert get(store, "f", stream="s") == b"x"
    with opened(store, "f", stream="s") as handle:
        handle.unlink()
        with pytest.raises(FileNotFoundError):
            get(store, "f", stream="s")


@pytest.mark.parametrize("xattrs", ["auto", "none"])
def test_a_file_with_many_streams(make_local: Callable[[LocalOptions], Local], xattrs: str) -> None:
    """They are listed in steps, and removed on another thread: out of reach at once, whatever is still open."""
    store, root = make_local(LocalOptions(xattrs=xattrs))
    count = 3 * streams.FEW
    for number in range(count):
        put(store, "f", stream=f"n{number:04}", data=b"x")
    with opened(store, "f") as handle:
        found: list[StreamInfo] = []
        steps = handle.listing_streams(found)
        assert steps is not None
        assert sum(1 for _ in steps) >= 3
        assert found == handle.streams()
        assert [stream.name for stream in found] == ["", *(f"n{number:04}" for number in range(count))]
        with opened(store, "f", stream="n0000", read=True) as kept:
            handle.unlink()
            content = bytearray(1)
            assert kept.read_into([memoryview(content)], 0) == 1
    put(store, "f")
    with opened(store, "f") as handle:
        assert handle.listing_streams([]) is None
        assert [stream.name for stream in handle.streams()] == [""]
    release.wait()
    left = [name for name in files_below(root) if name.startswith(("s-", "n-"))]
    assert left == []


def test_what_was_to_be_removed_goes_at_the_next_start(make_local: Callable[[LocalOptions], Local]) -> None:
    store, root = make_local(LocalOptions())
    put(store, "f", stream="s", data=b"x")
    store.close()
    gone = root / ".smb3server" / "files" / "gone-0123"
    gone.mkdir()
    (gone / "s-1").touch()
    with closing(LocalBackend(root, LocalOptions())) as again:
        assert get(again, "f", stream="s") == b"x"
        release.wait()
    assert not gone.exists()


def test_metadata_nobody_here_wrote() -> None:
    assert unpack(None, 1) == unpack(b"", 1) == unpack(b"\1" * 10, 1) == unpack(bytes(200), 1)
    for length in range(80):
        unpack(b"\1" + b"\xff" * length, 1)


def test_failed_creation_leaves_nothing(local: Local) -> None:
    store, root = local
    for request in (
        OpenRequest(("f",), disposition=CREATE, ea=[EaEntry(b"", b"x")]),
        OpenRequest(("d",), disposition=CREATE, directory=True, security_descriptor=bytes(70000)),
        OpenRequest(("f",), stream="s", disposition=CREATE, ea=[EaEntry(b"a" * 300, b"x")]),
    ):
        with pytest.raises(OSError):
            store.open(request)
    assert os.listdir(root) == []


def test_no_descriptor_outlives_its_handle(local: Local) -> None:
    store, _ = local
    put(store, "warm", stream="up", data=b"x")
    before = descriptors()
    for _ in range(20):
        put(store, "f", stream="s", data=b"x")
        with opened(store, "F", read=True) as handle:
            handle.link(("g",), True)
            handle.rename(("h",), True)
            handle.streams()
            handle.flush()
            handle.truncate(0)
            with pytest.raises(FileNotFoundError):
                handle.rename(("no", "x"), False)
            handle.unlink()
            handle.close()
            handle.close()
        for request in (
            OpenRequest(("warm",), directory=True),
            OpenRequest(("warm",), disposition=CREATE),
            OpenRequest(("warm", "x")),
            OpenRequest(("warm",), stream="none"),
            OpenRequest(("warm",), stream="up", disposition=CREATE),
        ):
            with pytest.raises(OSError):
                store.open(request)
        with opened(store, directory=True, read=True) as handle:
            next(handle.scan())
            list(handle.scan())
    assert len(descriptors()) == len(before)


# -- cost


def test_many_creations_scan_little(local: Local) -> None:
    """New names in a growing directory: the case-insensitive look-up must not read it again for each."""
    store, _ = local
    mkdir(store, "d")
    for number in range(300):
        put(store, "d", f"file{number}")
    assert store.resolver.cache.scans < 20


def test_case_cache_is_bounded(tmp_path: Path) -> None:
    cache = case_cache.CaseCache(max_bytes=2200)
    for number in range(10):
        directory = tmp_path / f"d{number}"
        directory.mkdir()
        for name in range(20 if number < 9 else 60):
            (directory / f"File{name}").touch()
        descriptor = os.open(directory, os.O_PATH)
        try:
            for _ in range(2):
                assert cache.find(descriptor, "fILE7") == "File7"
                assert cache.find(descriptor, "none") is None
        finally:
            os.close(descriptor)
        assert 0 < cache._bytes <= 2200
        sizes = [entry.names.size for entry in cache._directories.values() if entry.names is not None]
        assert sum(sizes) == cache._bytes


@pytest.mark.parametrize("set_back", [False, True])
def test_a_folder_whose_times_are_coarse_or_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_back: bool
) -> None:
    """ext3 and FAT store whole seconds, and programs that copy folders set their times back: names that were added by
    others without a new time are found."""
    whole: Callable[..., syscalls.Statx] = syscalls.statx

    def statx(descriptor: int) -> syscalls.Statx:
        found = whole(descriptor)
        if set_back:
            return found._replace(mtime=10**18 + 1, ctime=now)
        return found._replace(mtime=now // 10**9 * 10**9, ctime=now // 10**9 * 10**9)

    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + (0 if set_back else 10**9))
    monkeypatch.setattr(syscalls, "statx", statx)
    monkeypatch.setattr(case_cache, "RACY_SECONDS", 0.01)
    cache = case_cache.CaseCache()
    descriptor = os.open(tmp_path, os.O_PATH)
    try:
        assert cache.find(descriptor, "fILE") is None
        (tmp_path / "File").touch()
        time.sleep(0.05)
        assert cache.find(descriptor, "fILE") == "File"
    finally:
        os.close(descriptor)


def test_listing_is_lazy_and_opens_nothing(local: Local) -> None:
    store, root = local
    for number in range(2000):
        (root / f"f{number}").touch()
    with opened(store, directory=True, read=True) as handle:
        before = len(descriptors())
        scan = handle.scan()
        for _ in range(100):
            next(scan)
        assert len(descriptors()) <= before + 2, "the directory itself"
        del scan
        assert len(descriptors()) == before


def test_openat2_is_used_where_there_is_one(tmp_path: Path) -> None:
    with closing(LocalBackend(tmp_path)) as store:
        assert store.resolver.openat2 == syscalls.have_openat2()


def test_bad_options() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for options in (LocalOptions(symlinks="yes"), LocalOptions(xattrs="system")):
            with pytest.raises(ValueError):
                LocalBackend(directory, options)
        with pytest.raises(FileNotFoundError):
            LocalBackend(directory + "/none")


def test_short_names_find_their_files(local: Local) -> None:
    store, root = local
    long = "A rather long name.text"
    put(store, long, data=b"data")
    short = names.short_name(long)
    assert get(store, short) == b"data"
    assert get(store, short.lower()) == b"data"
    with opened(store, short) as handle:
        assert handle.path == (long,)
        handle.unlink()
    assert not exists(store, (short,))
    (root / "Another long name").write_text("host")
    assert get(store, names.short_name("Another long name")) == b"host"


def test_long_name_comes_back_with_its_short_name(local: Local) -> None:
    store, root = local
    long = "A rather long name.text"
    put(store, long)
    with opened(store, long) as handle:
        handle.unlink()
    put(store, names.short_name(long).lower(), data=b"new")
    assert [entry.name for entry in root.iterdir() if not names.is_private(entry.name)] == [long]
    assert get(store, long) == b"new"


# -- the root itself


def test_a_root_that_is_gone_does_not_list_as_an_empty_one(local: Local) -> None:
    """A program that mirrors the share would remove its copy."""
    store, root = local
    put(store, "f", data=b"data")
    assert store.is_available()
    root.rename(root.parent / "elsewhere")
    assert not store.is_available()
    with pytest.raises(FileNotFoundError):
        listing(store)
    (root.parent / "elsewhere").rename(root)
    assert store.is_available()
    assert listing(store) == ["f"]


def test_a_root_that_was_made_anew_is_the_one_that_is_served(local: Local) -> None:
    """As after a file system was mounted there; what was open stays open where it was."""
    store, root = local
    put(store, "f", data=b"old")
    put(store, "f", data=b"side", stream="stream")
    serial = store.volume_serial
    with opened(store, "f", read=True, write=True) as handle:
        root.rename(root.parent / "elsewhere")
        root.mkdir()
        (root / "g").write_bytes(b"new")
        assert store.is_available()
        assert listing(store) == ["g"]
        assert not exists(store, ("f",))
        assert store.volume_serial != serial
        handle.write_from([b"OLD"], 0)
    assert (root.parent / "elsewhere" / "f").read_bytes() == b"OLD"
    put(store, "f", data=b"another", stream="stream")
    assert get(store, "f", stream="stream") == b"another"
    assert (root / "f").exists()


# -- large directories


def test_a_large_directory_is_folded_at_once() -> None:
    plain = [f"Some File {number}.txt" for number in range(10)]
    odd = ["Ünder", "trailing ", "trailing.", "a:b", "tab\t", "\udc80", "日本", "ß", "e\u0301"]
    for batch in ([], plain, odd, [*plain, *odd], ["x "], ["."], ["x .y"]):
        assert names.fold_all(batch) == [upcase(names.to_wire(name)) for name in batch]


def test_short_names_are_found_while_the_directory_changes(local: Local) -> None:
    store, root = local
    for number in range(300):
        (root / f"a long name, number {number}.text").touch()
    for number in (0, 150, 299):
        name = f"a long name, number {number}.text"
        (root / f"new{number}").touch()
        short = names.short_name(name)
        assert short
        handle = store.open(OpenRequest((short,)))
        assert handle.path == (name,)
        handle.close()
    assert not exists(store, ("AAAAAA~1.TXT",))


def test_a_search_for_one_name_reads_no_directory(local: Local) -> None:
    """Programs on Windows look whether a file is there by searching for its name."""
    store, root = local
    for number in range(500):
        (root / f"File{number}").write_bytes(bytes(number))
    with opened(store, directory=True, read=True) as handle:

        def found(name: str) -> list[tuple[str, int]]:
            search = handle.search(lambda _: pytest.fail("looked through the directory"), name)
            return [(entry.name, entry.info.end_of_file) for entry in every_entry(search)]

        assert found("fILE400") == [("File400", 400)]
        scans = store.resolver.cache.scans
        assert found("FILE499") == [("File499", 499)]
        assert found("File7") == [("File7", 7)]
        assert found("none") == []
        assert found(".smb3server") == []
        assert found("\ud800") == []
        assert found(names.short_name("a long name.text")) == []
        assert store.resolver.cache.scans == scans


def test_a_search_looks_at_what_matches_only(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    store, root = local
    for number in range(50):
        (root / f"f{number}").touch()
    looked: list[str] = []
    look = syscalls.ordinary_entries

    def counted(directory: int, names: Sequence[str], attribute: bytes, block: int) -> list[FileInfo | None]:
        looked.extend(names)
        return look(directory, names, attribute, block)

    with opened(store, directory=True, read=True) as handle:
        monkeypatch.setattr(syscalls, "ordinary_entries", counted)
        entries = every_entry(handle.search(lambda name: name in ("..", "f7", "f8")))
    assert sorted(entry.name for entry in entries) == ["..", "f7", "f8"]
    assert sorted(looked) == ["f7", "f8"]


# -- large files


@pytest.mark.parametrize("how", ["removed", "replaced", "replaced by a link"])
@pytest.mark.parametrize("large", [True, False])
def test_large_files_are_freed_apart(local: Local, how: str, large: bool) -> None:
    """Freeing a file that lies in many pieces takes seconds; who removes or replaces it does not wait for that."""
    store, root = local
    put(store, "victim")
    put(store, "other", data=b"new")
    os.posix_fallocate((descriptor := os.open(root / "victim", os.O_RDWR)), 0, 2 * release.LARGE if large else 4096)
    os.close(descriptor)
    before = len(descriptors())
    inode = (root / "victim").stat().st_ino

    def held() -> int:
        """Descriptors of the file, which is gone from its directory."""
        return sum(_inode(int(number)) == inode for number in descriptors())

    go_on = threading.Event()
    release._executor.submit(go_on.wait)
    try:
        if how == "removed":
            with opened(store, "victim", write=True) as handle:
                handle.unlink()
            assert not (root / "victim").exists()
        else:
            with opened(store, "other") as handle:
                (handle.rename if how == "replaced" else handle.link)(("victim",), True)
            assert get(store, "victim") == b"new"
        assert held() == large
    finally:
        go_on.set()
        release.wait()
    assert held() == 0
    assert len(descriptors()) <= before


def _inode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return -1


def test_what_does_not_fit_is_not_even_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserving until the disk is full would take everybody's space for a moment."""
    calls: list[int] = []
    monkeypatch.setattr(syscalls, "fallocate", lambda descriptor, mode, offset, length: calls.append(length))
    backend = LocalBackend(tmp_path)
    available = backend.volume().available_bytes
    with opened(backend, "f", disposition=Disposition.CREATE, write=True) as handle:
        for size in (2 * available, 1 << 50):
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                handle.allocate(size)
            steps = handle.allocating(size)
            assert steps is not None
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                next(steps)
        assert calls == []
        handle.allocate(1 << 20)
        assert calls == [1 << 20]
    backend.close()


def test_create_in_goes_by_the_folder_and_not_by_its_name(tmp_path: Path) -> None:
    """Whoever may add to the folder that was asked adds to that one, wherever it is by now."""
    (tmp_path / "asked").mkdir()
    with closing(LocalBackend(tmp_path)) as backend:
        folder = backend.open(OpenRequest(("asked",), directory=True))
        (tmp_path / "asked").rename(tmp_path / "moved")
        (tmp_path / "asked").symlink_to("/")
        backend.create_in(
            folder, OpenRequest(("asked", "new"), disposition=Disposition.CREATE, write=True)
        ).handle.close()
        folder.close()
    assert os.listdir(tmp_path / "moved") == ["new"]


def test_create_in_never_follows_a_link_that_has_the_name(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "link").symlink_to(tmp_path / "outside")
    with closing(LocalBackend(tmp_path)) as backend, closing(backend.open(OpenRequest(("d",)))) as folder:
        for name in ("link", "LINK"):
            with pytest.raises(FileExistsError):
                backend.create_in(folder, OpenRequest(("d", name), disposition=Disposition.CREATE, write=True))
    assert not (tmp_path / "outside").exists()


def test_create_in_keeps_reserved_names(tmp_path: Path) -> None:
    request = OpenRequest((names.PRIVATE_NAME,), disposition=Disposition.CREATE, write=True)
    with closing(LocalBackend(tmp_path)) as backend, closing(backend.open(OpenRequest(()))) as folder:
        with pytest.raises(PermissionError):
            backend.create_in(folder, request)
        assert not (tmp_path / names.PRIVATE_NAME).exists()


@pytest.mark.parametrize("size", [0, 1, 1024, 4096, 4097])
@pytest.mark.parametrize("reserved", [0, 3])
def test_attributes_are_no_allocated_data(tmp_path: Path, size: int, reserved: int) -> None:
    """ext4 counts the block that it needs for a descriptor."""
    backend = LocalBackend(tmp_path)
    with closing(backend), opened(backend, "f", disposition=CREATE, read=True, write=True) as handle:
        handle.write_from([bytes(size)], 0)
        handle.flush()
        handle.allocate((-(-size // 4096) + reserved) * 4096)
        before = handle.info().allocation_size
        handle.set_security_descriptor(bytes(600))
        assert handle.info().allocation_size == before
        handle.set_eas([EaEntry(b"NAME", bytes(900))])
        assert handle.info().allocation_size == before
        with opened(backend, directory=True, read=True) as folder:
            (entry,) = [entry for entry in folder.scan() if entry.name == "f"]
            assert entry.info.allocation_size == before
