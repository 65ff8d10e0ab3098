"""Searches of directories by the local store: in C where it is built, and in Python. Both find the same."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smb3server.backends.base import (
    DirectoryEntry,
    Disposition,
    FileInfo,
    FileKey,
    FolderNotRead,
    Kind,
    OpenRequest,
    User,
)
from smb3server.backends.local import file_calls, scan, syscalls
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.impersonate import ActAs
from smb3server.backends.local.metadata import Metadata, MetadataStore
from smb3server.backends.local.sidecar import SideCar
from smb3server.wire import attributes as attr
from smb3server.wire.file_info import EaEntry
from smbdirect import native
from tests.lab.examples import examples
from tests.lab.stores import descriptors, every_entry, opened, put, without_native_calls

NATIVE = "smb3server.backends.local._native"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
META = "user.smb3.meta"
LAYOUT = struct.Struct("<BBHHxxIIIqQ")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on tmpfs: it takes attributes of any length, and times of any year."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture(params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the store makes its system calls."""
    if request.param == "python":
        without_native_calls(monkeypatch)
    elif (problem := native.problem(NATIVE)) is not None:
        pytest.skip(f"{NATIVE}: {problem}")
    return str(request.param)


@contextmanager
def searching(path: Path, matches: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[scan.FolderSearch, int]]:
    """A search of a directory of the host, and a descriptor of the directory."""
    with closing(LocalBackend(path, LocalOptions(xattrs="user"))) as store, opened(store, directory=True) as handle:
        here = handle.info()
        descriptor = os.open(path, os.O_RDONLY)
        search = scan.FolderSearch(scan.Folder(descriptor, store.store, store.resolver), here, here, matches)
        try:
            yield search, descriptor
        finally:
            search.close()


def shown(path: Path) -> dict[str, FileInfo]:
    with searching(path) as (search, _):
        return dict(every_entry(search))


def without_c(store: MetadataStore, directory: int, name: str) -> FileInfo:
    """The metadata of an entry as everything but listings makes it."""
    stat = file_calls.statx_at(directory, os.fsencode(name))
    return store.info(stat, store.load_entry(directory, os.fsencode(name), stat))


metadata = st.builds(
    Metadata,
    attributes=st.none() | st.integers(0, 0xFFFFFFFF),
    creation=st.integers(-1, 1) | st.integers(-(1 << 63), (1 << 63) - 1),
    ea_size=st.integers(0, 0xFFFFFFFF),
    reparse_tag=st.integers(0, 0xFFFFFFFF),
    present=st.integers(0, 0xFFFF),
    beside=st.just(0) | st.integers(0, 0xFFFF),
    key=st.just(bytes(16)) | st.binary(min_size=16, max_size=16),
    change=st.integers(0, 1) | st.integers(-(1 << 63), (1 << 63) - 1),
    change_until=st.integers(-(1 << 63), (1 << 63) - 1) | st.just((1 << 63) - 1),
)
times = st.integers(-5_000_000_000, 5_000_000_000) | st.integers(-10_000_000_000 * 10**9, 20_000_000_000 * 10**9)


@given(
    stored=metadata,
    other_inode=st.booleans(),
    damage=st.none() | st.tuples(st.integers(0, 80), st.binary(max_size=3)),
    time=st.tuples(times, times),
    mode=st.integers(0, 0o777),
    size=st.integers(0, 10_000) | st.integers(0, 1 << 40),
    is_directory=st.booleans(),
    block=st.sampled_from([0, 512, 4096]),
)
@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_metadata_is_shown_alike(
    stored: Metadata,
    other_inode: bool,
    damage: tuple[int, bytes] | None,
    time: tuple[int, int],
    mode: int,
    size: int,
    is_directory: bool,
    block: int,
) -> None:
    """Users of the host may have written the attribute, if it is not in the namespace "trusted"."""
    if (problem := native.problem(NATIVE)) is not None:
        pytest.skip(problem)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = Path(name, "entry")
        if is_directory:
            path.mkdir()
        else:
            path.write_bytes(b"x" * (size % 5000))
            os.truncate(path, size)
        value = stored.pack(path.stat().st_ino + other_inode)
        if damage is not None:
            at, inserted = damage
            value = value[:at] + inserted
        os.setxattr(path, META, value)
        path.chmod(mode)
        os.utime(path, ns=time)
        directory = os.open(name, os.O_RDONLY)
        try:
            store = MetadataStore(SideCar(lambda: os.dup(directory), "none"), "user")
            store.attribute_block = block
            (found,) = store.ordinary_entries(directory, ["entry"])
            expected = without_c(store, directory, "entry")
        finally:
            os.close(directory)
    assert found is None or found == expected
    if (
        damage is None
        and not other_inode
        and stored.creation >= 0
        and stored.change >= 0
        and max(map(abs, time)) < 9e18
    ):
        assert found is not None


def test_c_looks_at_ordinary_entries(folder: Path) -> None:
    """So the test above compares it with something else."""
    if (problem := native.problem(NATIVE)) is not None:
        pytest.skip(problem)
    (folder / "file").write_bytes(bytes(5000))
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("file")
    descriptor = os.open(folder, os.O_RDONLY)
    found = syscalls.ordinary_entries(descriptor, ["folder", "link", "gone", "file"], META.encode(), 0)
    os.close(descriptor)
    assert [info and info.kind for info in found] == [Kind.DIRECTORY, None, None, Kind.FILE]
    assert isinstance(found[3], FileInfo)
    assert isinstance(found[3].key, FileKey)
    assert found[3].end_of_file == 5000


@pytest.mark.parametrize("length", [35, 36, 84, 85, 86, 4096, 4097, 60_000])
def test_attributes_longer_than_ours_count_as_none(folder: Path, way: str, length: int) -> None:
    """A user of the host may have written them. They must not keep others from listing the folder."""
    path = folder / "file"
    path.touch()
    plain = shown(folder)["file"]
    try:
        os.setxattr(
            path, META, (LAYOUT.pack(3, 1, 0, 0, attr.HIDDEN, 0, 0, 1, path.stat().st_ino) + bytes(length))[:length]
        )
    except OSError as error:
        pytest.skip(f"no room for the attribute: {error}")
    found = shown(folder)["file"]
    if length == LAYOUT.size:
        assert found.attributes == attr.HIDDEN
    else:
        assert found._replace(change_time=0) == plain._replace(change_time=0)


def test_every_kind_of_entry(folder: Path, way: str) -> None:
    (folder / "target").write_bytes(b"12345")
    (folder / "to file").symlink_to("target")
    (folder / "to folder").symlink_to(".")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "outside").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
    found = shown(folder)
    kinds = {name: info.kind for name, info in found.items()}
    assert kinds == {
        ".": Kind.DIRECTORY,
        "..": Kind.DIRECTORY,
        "target": Kind.FILE,
        "to file": Kind.FILE,
        "to folder": Kind.DIRECTORY,
        "dangling": Kind.SYMLINK,
        "outside": Kind.SYMLINK,
        "loop": Kind.SYMLINK,
        "pipe": Kind.OTHER,
        "socket": Kind.OTHER,
    }
    assert found["to file"].end_of_file == 5
    assert found["outside"].reparse_tag == attr.TAG_SYMLINK


def test_odd_names(folder: Path, way: str) -> None:
    raw = [b"not-\xff\xfe-utf8", b"new\nline", b"a:b", b"final.", b"final ", b"x" * 255, "\U0001f600".encode(), b"\x01"]
    for name in (*raw, b".smb3server", b".SMB3Server", b"plain"):
        os.close(os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT))
    assert set(shown(folder)) == {
        ".", "..", "not-\uf7ff\uf7fe-utf8", "new\uf00aline", "a\uf022b", "final\uf029", "final\uf028", "x" * 255,
        "\U0001f600", "\uf001", "plain",
    }  # fmt: skip


@root_only
@pytest.mark.root
def test_mount_points_show_what_is_mounted(way: str) -> None:
    """And a file system without extended attributes is listed, too."""
    found = shown(Path("/"))
    for name in ("proc", "sys", "dev"):
        expected = os.lstat(f"/{name}")
        assert found[name].key == (
            os.major(expected.st_dev) << 20 | os.minor(expected.st_dev),
            expected.st_ino,
        )
    assert "self" in shown(Path("/proc"))


@root_only
@pytest.mark.root
def test_entries_that_one_may_not_look_at_are_left_out(folder: Path, way: str) -> None:
    (folder / "file").touch()
    folder.chmod(0o744)
    with searching(folder) as (search, _):
        assert [entry.name for entry in search.read(10) or ()] == [".", ".."]
        with ActAs(User(12345, 12345)):
            assert search.read(10) == []
            assert search.read(10) is None


def test_entries_that_vanish_are_left_out(folder: Path, way: str) -> None:
    for number in range(100):
        (folder / f"f{number}").touch()
    with searching(folder) as (search, _):
        search.read(2)
        first = search.read(10)
        assert first is not None and len(first) == 10
        seen = {entry.name for entry in first}
        for number in range(0, 100, 2):
            (folder / f"f{number}").unlink()
        rest = [entry.name for entry in every_entry(search)]
    left = {f"f{number}" for number in range(1, 100, 2)}
    assert len(rest) == len(set(rest))
    assert set(rest) == left - seen


def test_what_changes_meanwhile_is_shown_as_it_is(folder: Path, way: str) -> None:
    """Each entry is looked at when it is its turn, not when the names are read."""
    for number in range(50):
        (folder / f"f{number}").touch()
    with searching(folder) as (search, _):
        search.read(2)
        first = search.read(5) or ()
        for number in range(50):
            (folder / f"f{number}").write_bytes(bytes(number + 1))
        rest = every_entry(search)
    assert [entry.info.end_of_file for entry in first] == [0] * 5
    assert all(entry.info.end_of_file == int(entry.name[1:]) + 1 for entry in rest)
    assert len(rest) == 45


def test_an_error_of_the_disk_is_reported_and_hides_nothing(
    folder: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (folder / f"f{number}").touch()
    statx_at = syscalls.statx_at
    broken = True

    def failing(directory: int, name: bytes) -> syscalls.Statx:
        if name == b"f7" and broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return statx_at(directory, name)

    def none_ordinary(_: int, names: Sequence[str], __: bytes, block: int) -> list[FileInfo | None]:
        return [None] * len(names)

    monkeypatch.setattr(syscalls, "statx_at", failing)
    monkeypatch.setattr(syscalls, "ordinary_entries", none_ordinary)
    with searching(folder) as (search, _):
        search.read(2)
        for _ in range(2):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                search.read(20)
        broken = False
        assert {entry.name for entry in every_entry(search)} == {f"f{number}" for number in range(20)}


def test_a_large_folder_is_read_in_pieces(folder: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is, one call looks at few names: those who wait get their turn, and memory is bounded."""
    for number in range(3000):
        (folder / f"f{number}").touch()
    looked: list[int] = []
    ordinary_entries = MetadataStore.ordinary_entries

    def counted(store: MetadataStore, directory: int, names: Sequence[str]) -> list[FileInfo | None]:
        looked.append(len(names))
        return ordinary_entries(store, directory, names)

    monkeypatch.setattr(MetadataStore, "ordinary_entries", counted)
    with searching(folder) as (search, _):
        assert len(every_entry(search, 100)) == 3002
    assert max(looked) <= 100
    calls = 0
    asked: list[str] = []
    with searching(folder, lambda name: bool(asked.append(name))) as (search, _):
        del asked[:]
        while (found := search.read(100)) is not None:
            assert not found
            calls += 1
            assert len(asked) <= calls * 256
    assert len(asked) == 3000


def test_sizes_of_batches_do_not_matter(folder: Path, way: str) -> None:
    for number in range(700):
        (folder / f"f{number}").touch()
    sizes = random.Random(5)
    with searching(folder) as (search, _):
        found: list[DirectoryEntry] = []
        while (some := search.read(most := sizes.choice((1, 2, 3, 50, 255, 256, 257, 1000)))) is not None:
            assert len(some) <= most
            found += some
    # Reading the folder changes its own times.
    assert sorted(found[2:]) == sorted(list(shown(folder).items())[2:])
    assert len(found) == 702


@pytest.mark.parametrize("most", [1, 2, 3, 100, 1000])
def test_entries_taken_back_are_looked_at_again(folder: Path, way: str, most: int) -> None:
    for number in range(300):
        (folder / f"f{number}").touch()
    (folder / "gone").touch()
    chosen = random.Random(most)
    found: list[str] = []
    with searching(folder) as (search, _):
        search.unread(1)
        (folder / "gone").unlink()
        while (some := search.read(most)) is not None:
            back = chosen.randint(0, len(some))
            if back:
                search.unread(back)
            found += [entry.name for entry in some[: len(some) - back]]
            changed = folder / some[-1].name if back and len(some[-1].name) > 2 else None
            if changed is not None:
                changed.write_bytes(b"new")
                sizes = {entry.name: entry.info.end_of_file for entry in search.read(back) or ()}
                assert sizes[changed.name] == 3
                search.unread(len(sizes))
    assert found[:2] == [".", ".."]
    assert sorted(found[2:]) == sorted(f"f{number}" for number in range(300))


def test_searches_leave_nothing_open(folder: Path, way: str) -> None:
    for number in range(600):
        (folder / f"f{number}").touch()
    with closing(LocalBackend(folder)) as store, opened(store, directory=True, read=True) as handle:
        before = len(descriptors())
        every_entry(handle.search(lambda _: True))
        handle.search(lambda _: True).close()
        handle.search(lambda _: True)
        handle.search(lambda _: True, "f7")
        begun = handle.search(lambda _: True)
        begun.read(10)
        begun.read(10)
        begun.close()
        begun.close()
        assert begun.read(10) is None
        begun = handle.search(lambda _: True)
        begun.read(10)
        begun.read(10)
        del begun
        handle.scan()
        next(handle.scan())
        assert len(descriptors()) == before


def test_a_search_for_one_name_goes_on_when_the_folder_is_read(folder: Path, way: str) -> None:
    for number in range(6000):
        (folder / f"File{number}").touch()
    with closing(LocalBackend(folder)) as store, opened(store, directory=True, read=True) as handle:
        search = handle.search(lambda _: True, "fILE5999")
        store.defer_reading = True
        with pytest.raises(FolderNotRead) as unread:
            search.read(1)
        store.defer_reading = False
        for _ in unread.value.reading.steps:
            pass
        for _ in range(2):
            assert [entry.name for entry in search.read(1) or ()] == ["File5999"]
            assert search.read(1) is None
            search.unread(1)
        search.close()
        assert search.read(1) is None


def test_metadata_of_clients_is_shown(folder: Path, way: str) -> None:
    """What clients store lies in extended attributes, and is shown as an open file shows it."""
    with closing(LocalBackend(folder)) as store:
        put(store, "plain", data=b"1234")
        with closing(
            store.open(
                OpenRequest(
                    ("full",),
                    disposition=Disposition.CREATE,
                    write=True,
                    attributes=attr.HIDDEN | attr.SPARSE,
                    ea=[EaEntry(b"NAME", b"value")],
                )
            )
        ) as handle:
            handle.set_times(creation=130_000_000_000_000_000, change=131_000_000_000_000_000)
            handle.set_reparse_point(struct.pack("<IHH", 0x80000014, 0, 0))
            expected = handle.info()
        put(store, "streamed", stream="s", data=b"1")
        with opened(store, directory=True, read=True) as handle:
            found = dict(every_entry(handle.search(lambda _: True)))
        assert found["full"] == expected == store.stat(("full",))
        assert expected.attributes == attr.HIDDEN | attr.SPARSE | attr.REPARSE_POINT
        assert expected.ea_size > 0
        assert expected.change_time == 131_000_000_000_000_000
        for name in ("plain", "streamed"):
            assert found[name] == store.stat((name,))
