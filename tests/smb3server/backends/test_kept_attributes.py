"""Extended attributes that are kept in memory: what other programs change is seen, and memory is bounded."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smb3server.backends.base import Backend, Described, OpenRequest
from smb3server.backends.local import kept_attributes, syscalls
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.kept_attributes import KeptAttributes
from smb3server.backends.local.syscalls import Statx
from smb3server.process import change_times
from smb3server.wire import attributes as attr

OLD = 1_600_000_000_000_000_000
STAT = Statx(0o100644, 5, 7, 1, 0, 0, 0, 0, 4096, OLD, OLD, OLD, OLD, False)


@pytest.fixture
def kept() -> KeptAttributes:
    found = KeptAttributes()
    found.device = STAT.dev
    return found


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder on tmpfs, where st_ctime can be relied on."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def store(root: Path) -> Iterator[LocalBackend]:
    backend = LocalBackend(root)
    yield backend
    backend.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of the attributes that are read through /proc."""
    found: list[bytes] = []
    call: Callable[[str, bytes], bytes | None] = syscalls.getxattr

    def reading(path: str, name: bytes) -> bytes | None:
        found.append(name)
        return call(path, name)

    monkeypatch.setattr(syscalls, "getxattr", reading)
    return found


def values_of(kept: KeptAttributes, stat: Statx) -> dict[bytes, bytes | None]:
    found = kept.of(stat)
    assert found is not None
    return found.values


def attributes(store: LocalBackend, name: str = "file") -> int:
    handle, found, _, _ = store.open_described(OpenRequest((name,)))
    handle.close()
    return found.info.attributes


def become_old(path: Path) -> None:
    """Wait until a change of the file cannot have the time of an earlier one."""
    while time.time_ns() - os.stat(path).st_ctime_ns < change_times.TICK_NS:
        time.sleep(0.01)


def test_an_attribute_is_read_once(store: LocalBackend, root: Path, reads: list[bytes]) -> None:
    (root / "file").touch()
    become_old(root / "file")
    assert [attributes(store) for _ in range(3)] == [attr.ARCHIVE] * 3
    assert len(reads) == 1


def test_a_change_by_another_program_is_seen(store: LocalBackend, root: Path, reads: list[bytes]) -> None:
    (root / "file").touch()
    become_old(root / "file")
    assert attributes(store) == attr.ARCHIVE
    other = LocalBackend(root)
    handle = other.open(OpenRequest(("file",)))
    handle.set_attributes(attr.HIDDEN)
    assert attributes(store) == attr.HIDDEN
    # It may change again within the same tick of the clock.
    handle.set_attributes(attr.SYSTEM)
    assert attributes(store) == attr.SYSTEM
    handle.set_security_descriptor(bytes(20))
    seen, found, _, _ = store.open_described(OpenRequest(("file",)))
    assert found.descriptor == bytes(20)
    become_old(root / "file")
    assert seen.describe().descriptor == bytes(20)
    handle.set_security_descriptor(bytes(24))
    assert seen.describe().descriptor == bytes(24)
    os.removexattr(root / "file", next(name for name in os.listxattr(root / "file") if name.endswith("meta")))
    assert attributes(store) == attr.ARCHIVE
    seen.close()
    handle.close()
    other.close()


def test_a_change_that_has_just_been_made_may_come_again(kept: KeptAttributes) -> None:
    """The kernel's clock may give both changes one time."""
    assert kept.of(STAT._replace(ctime=time.time_ns())) is None
    assert kept.of(STAT._replace(ctime=time.time_ns() + 3600 * 10**9)) is None


@pytest.mark.parametrize("store", ["ext3", "ext4"])
def test_times_without_parts_of_a_second(kept: KeptAttributes, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """ext3, and ext4 with inodes of 128 bytes, store whole seconds: a later change in the same second does not show."""
    changed = OLD // 10**9 * 10**9 + (0 if store == "ext3" else 1)
    stat = STAT._replace(ctime=changed)
    monkeypatch.setattr(time, "time_ns", lambda: changed + 900_000_000)
    assert (kept.of(stat) is None) is (store == "ext3")
    monkeypatch.setattr(time, "time_ns", lambda: changed + 2 * 10**9)
    assert (kept.of(stat) is None) is (store == "ext3")
    monkeypatch.setattr(time, "time_ns", lambda: changed + 2 * change_times.WHOLE_SECONDS_NS)
    assert kept.of(stat) is not None


def test_a_new_file_with_the_same_number(kept: KeptAttributes) -> None:
    values_of(kept, STAT)[b"a"] = b"b"
    assert values_of(kept, STAT) == {b"a": b"b"}
    assert values_of(kept, STAT._replace(btime=OLD + 1)) == {}
    assert values_of(kept, STAT._replace(ctime=OLD + 1)) == {}
    assert values_of(kept, STAT) == {}


def test_only_one_file_system(kept: KeptAttributes) -> None:
    """What is mounted below the share may be a file system of the network."""
    assert kept.of(STAT._replace(dev=STAT.dev + 1)) is None
    kept.device = None
    assert kept.of(STAT) is None


def test_a_file_system_with_unreliable_times(root: Path, monkeypatch: pytest.MonkeyPatch, reads: list[bytes]) -> None:
    monkeypatch.setattr(kept_attributes, "RELIABLE", frozenset())
    (root / "file").touch()
    become_old(root / "file")
    backend = LocalBackend(root)
    attributes(backend)
    attributes(backend)
    backend.close()
    assert len(reads) == 2


def test_memory_is_bounded(kept: KeptAttributes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_attributes, "MAX_FILES", 3)
    for number in range(5):
        values_of(kept, STAT._replace(ino=number))[b"a"] = None
    assert [values_of(kept, STAT._replace(ino=number)) for number in (4, 3, 2)] == [{b"a": None}] * 3
    assert values_of(kept, STAT._replace(ino=1)) == {}


def test_long_values_are_not_kept(store: LocalBackend, root: Path, reads: list[bytes]) -> None:
    (root / "file").touch()
    handle = store.open(OpenRequest(("file",)))
    handle.set_security_descriptor(bytes(kept_attributes.MAX_BYTES + 1))
    become_old(root / "file")
    for _ in range(2):
        reads.clear()
        assert handle.describe().descriptor == bytes(kept_attributes.MAX_BYTES + 1)
    handle.close()
    assert [name.rpartition(b".")[2] for name in reads] == [b"sd"]


def test_a_description_is_made_once(store: LocalBackend, root: Path) -> None:
    """Whatever a stat shows makes it anew: sizes and blocks may change without the change time."""
    (root / "file").write_bytes(b"data")
    become_old(root / "file")

    def described() -> Described:
        return store.look(("file",), True, None, None)[0]

    first = described()
    assert described() is first
    os.utime(root / "file", (1, 1))
    become_old(root / "file")
    second = described()
    assert second.info.last_write_time != first.info.last_write_time
    assert described() is second
    (root / "file").write_bytes(b"more data")
    assert described().info.end_of_file == 9
    store.store.attribute_block = 4096 - store.store.attribute_block
    become_old(root / "file")
    third = described()
    assert third is described()
    store.store.attribute_block += 1
    assert described() is not third


def test_what_is_beside_the_file_is_read_each_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The side-car store changes without the file's change time."""
    store = LocalBackend(root, LocalOptions(xattrs="none"))
    (root / "file").touch()
    other = LocalBackend(root, LocalOptions(xattrs="none"))
    handle = other.open(OpenRequest(("file",)))
    handle.set_attributes(attr.HIDDEN)
    become_old(root / "file")
    assert store.look(("file",), True, None, None)[0].info.attributes == attr.HIDDEN
    handle.set_attributes(attr.SYSTEM)
    assert store.look(("file",), True, None, None)[0].info.attributes == attr.SYSTEM
    handle.close()
    other.close()
    store.close()


@pytest.mark.parametrize("descriptor", [None, bytes(20)])
def test_a_look_finds_what_opening_finds(store: LocalBackend, root: Path, descriptor: bytes | None) -> None:
    (root / "folder").mkdir()
    (root / "folder" / "file").write_bytes(b"data")
    (root / "link").symlink_to("folder")
    if descriptor is not None:
        handle = store.open(OpenRequest(("folder", "file")))
        handle.set_security_descriptor(descriptor)
        handle.close()
    become_old(root / "folder" / "file")
    for path in ((), ("folder",), ("folder", "file"), ("FOLDER", "FILE"), ("link", "file"), ("link",), ("no",)):
        for follow, directory in itertools.product((True, False), (None, True, False)):
            request = OpenRequest(path, directory=directory, open_reparse_point=not follow)
            for _ in range(2):
                try:
                    opened, found, _, on_disk = store.open_described(request)
                except OSError as error:
                    with pytest.raises(type(error)):
                        store.look(path, follow, directory, None)
                    continue
                assert on_disk in (opened.path, None)
                for look in (LocalBackend.look, Backend.look):
                    assert look(store, path, follow, directory, None) == (found, opened.path)
                opened.close()
