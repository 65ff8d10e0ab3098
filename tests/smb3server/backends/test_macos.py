"""The store of shares for Macs: streams by Apple's rules, and what other servers have left."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import cast

import pytest

from smb3server.backends.base import Disposition, Handle, OpenRequest
from smb3server.backends.local import apple_double
from smb3server.backends.local import backups as module
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.backups import Backups
from smb3server.backends.local.macos import MacBackend
from smb3server.wire import apple
from smbdirect.errors import DecodeError
from tools.fuzz.targets.apple_double import make as double

FINDER = b"TEXTttxt".ljust(32, b"\0")
INFO = apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo(finder_info=FINDER))
BLANK = apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo())
BLANK_FORK = (struct.pack(">IIII", 256, 256, 0, 30) + b"This resource fork intentionally left blank   ").ljust(
    286, b"\0"
)
COLON = "\uf022"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MacBackend]:
    (tmp_path / "share").mkdir()
    backend = MacBackend(tmp_path / "share", LocalOptions(xattrs="user"))
    yield backend
    assert backend.open_streams == {}
    backend.close()


@pytest.fixture
def share(tmp_path: Path, store: MacBackend) -> Path:
    return tmp_path / "share"


def opened(
    store: LocalBackend, name: str, stream: str = "", create: bool = True, write: bool = True, mac: bool = True
) -> Handle:
    how = Disposition.OPEN_IF if create else Disposition.OPEN
    return store.open(OpenRequest(tuple(name.split("/")), stream, how, read=True, write=write, by_mac=mac))


def put(store: LocalBackend, name: str, stream: str, data: bytes) -> None:
    handle = opened(store, name, stream)
    handle.write_from([data], 0)
    handle.close()


def content(store: LocalBackend, name: str, stream: str) -> bytes | None:
    """The content of a stream. None: there is none."""
    try:
        handle = opened(store, name, stream, create=False, write=False)
    except FileNotFoundError:
        return None
    try:
        buffer = memoryview(bytearray(4096))
        return bytes(buffer[: handle.read_into([buffer], 0)])
    finally:
        handle.close()


def streams(store: LocalBackend, name: str) -> list[str]:
    handle = opened(store, name, create=False, write=False)
    try:
        return [stream.name for stream in handle.streams() if stream.name]
    finally:
        handle.close()


# Streams


def test_a_stream_without_data_is_none(store: MacBackend, share: Path) -> None:
    first = opened(store, "file", "note")
    assert streams(store, "file") == []
    assert content(store, "file", "note") is None
    second = opened(store, "file", "note")
    assert second.created
    second.write_from([b"data"], 0)
    second.close()
    # The first handle sees it, and its end does not take it away.
    assert first.info().end_of_file == 4
    first.close()
    assert content(store, "file", "note") == b"data"
    cut = opened(store, "file", "note")
    assert not cut.created
    cut.truncate(0)
    assert streams(store, "file") == []
    cut.close()
    assert not list((share / ".smb3server").rglob("s-*"))


def test_for_other_clients_it_is_one(store: MacBackend) -> None:
    handle = opened(store, "file", "note", mac=False)
    seen = opened(store, "file", create=False, mac=False)
    assert [stream.name for stream in seen.streams()] == ["", "note"]
    assert streams(store, "file") == [] and content(store, "file", "note") is None
    handle.close()
    assert not opened_is_new(store)
    handle = opened(store, "file", "note", mac=False)
    handle.unlink()
    handle.close()
    assert [stream.name for stream in seen.streams()] == [""]
    for name in ("AFP_AfpInfo", "AFP_Resource"):
        handle = opened(store, "file", name, mac=False)
        assert [stream.name for stream in seen.streams()] == [""]
        handle.close()
    seen.close()


def opened_is_new(store: MacBackend) -> bool:
    """Return whether another client that is no Mac makes the stream ``note`` by opening it."""
    handle = opened(store, "file", "note", mac=False)
    handle.close()
    return handle.created


def test_a_stream_that_is_cut_and_written_again_stays(store: MacBackend) -> None:
    handle = opened(store, "file", "note")
    handle.write_from([b"one"], 0)
    handle.truncate(0)
    handle.write_from([b"two"], 0)
    handle.close()
    assert content(store, "file", "note") == b"two"


def test_afp_info_always_has_60_bytes(store: MacBackend) -> None:
    handle = opened(store, "file", "AFP_AfpInfo")
    assert handle.info().end_of_file == 60 and handle.fileno() is None
    buffer = memoryview(bytearray(100))
    assert handle.read_into([buffer], 0) == 60 and bytes(buffer[:60]) == BLANK
    assert streams(store, "file") == []
    assert handle.write_from([INFO], 0) == 60
    assert streams(store, "file") == ["AFP_AfpInfo"]
    # Wherever in it a read begins, it gets the start.
    assert handle.read_into([buffer[:4]], 59) == 4 and bytes(buffer[:4]) == b"AFP\0"
    assert handle.read_into([buffer[:4]], 61) == 0
    handle.truncate(0)
    handle.truncate(60)
    with pytest.raises(OSError, match="60") as refused:
        handle.truncate(61)
    assert refused.value.errno == errno.EOVERFLOW
    handle.close()
    assert content(store, "file", "afp_afpinfo") == INFO


@pytest.mark.parametrize(
    ("data", "offset"), [(bytes(60), 0), (b"AF", 0), (INFO[:59], 1), (INFO[:30], 60), (b"XFP" + INFO[3:], 0)]
)
def test_what_is_no_afp_info_is_refused(store: MacBackend, data: bytes, offset: int) -> None:
    handle = opened(store, "file", "AFP_AfpInfo")
    with pytest.raises(OSError) as refused:
        handle.write_from([data], offset)
    assert refused.value.errno == errno.EINVAL
    handle.close()
    assert streams(store, "file") == []


def test_finder_information_of_zeros_is_none(store: MacBackend) -> None:
    put(store, "file", "AFP_AfpInfo", INFO)
    handle = opened(store, "file", "AFP_AfpInfo")
    handle.write_from([BLANK], 0)
    assert streams(store, "file") == []
    handle.close()
    assert content(store, "file", "AFP_AfpInfo") is None


def test_damaged_afp_info_does_not_count(store: MacBackend, share: Path) -> None:
    other = LocalBackend(share, LocalOptions(xattrs="user"))
    put(other, "file", "AFP_AfpInfo", b"foo")
    assert streams(other, "file") == ["AFP_AfpInfo"]
    assert streams(store, "file") == [] and content(store, "file", "AFP_AfpInfo") is None
    put(store, "file", "AFP_AfpInfo", INFO)
    assert content(other, "file", "AFP_AfpInfo") == INFO
    other.close()


def test_a_resource_fork_outlives_its_deletion(store: MacBackend) -> None:
    put(store, "file", "AFP_Resource", b"fork")
    handle = opened(store, "file", "AFP_Resource")
    handle.unlink()
    handle.close()
    assert content(store, "file", "AFP_Resource") == b"fork"
    handle = opened(store, "file", "AFP_Resource")
    handle.truncate(0)
    handle.close()
    assert content(store, "file", "AFP_Resource") is None


def test_other_streams_are_deleted(store: MacBackend) -> None:
    for name, data in (("note", b"data"), ("AFP_AfpInfo", INFO)):
        put(store, "file", name, data)
        handle = opened(store, "file", name)
        handle.unlink()
        handle.close()
        assert content(store, "file", name) is None


def test_finder_data(store: MacBackend) -> None:
    handle = opened(store, "file")
    assert handle.finder_data() == (0, bytes(32))
    put(store, "file", "AFP_AfpInfo", INFO)
    put(store, "file", "AFP_Resource", b"fork")
    assert handle.finder_data() == (4, FINDER)
    handle.close()


# What other servers have left


def netatalk() -> bytes:
    header = struct.pack(">II16sH", 0x00051607, 0x00020000, bytes(16), 1) + struct.pack(">III", 9, 38, 32)
    return header + FINDER


def lay(share: Path, name: str = "file", data: bytes | None = None) -> Path:
    """Make a file, and ``._NAME`` beside it."""
    (share / name).write_bytes(b"data")
    beside = share / f"._{name}"
    if data is not None:
        beside.write_bytes(data)
    return beside


def test_apple_double_beside_a_file_is_moved_into_its_streams(store: MacBackend, share: Path) -> None:
    tags = {"com.apple.metadata:_kMDItemUserTags": b"tags", "foo": b"bar"}
    beside = lay(share, data=double(attributes=tags, fork=b"f" * 70000))
    assert streams(store, "file") == [
        "AFP_AfpInfo",
        "AFP_Resource",
        f"com.apple.metadata{COLON}_kMDItemUserTags",
        "foo",
    ]
    assert not beside.exists()
    assert content(store, "file", "AFP_AfpInfo") == INFO
    assert content(store, "file", f"com.apple.metadata{COLON}_kMDItemUserTags") == b"tags"
    handle = opened(store, "file")
    assert handle.finder_data() == (70000, FINDER)
    handle.close()
    assert (share / "file").read_bytes() == b"data"


@pytest.mark.parametrize("step", ["open", "list", "finder", "rename", "delete"])
def test_each_look_moves_it(store: MacBackend, share: Path, step: str) -> None:
    beside = lay(share, data=double())
    if step == "open":
        assert content(store, "file", "AFP_AfpInfo") == INFO
    else:
        handle = opened(store, "file")
        if step == "list":
            handle.streams()
        elif step == "finder":
            assert handle.finder_data().finder_info == FINDER
        elif step == "rename":
            handle.rename(("new",), False)
        else:
            handle.unlink()
        handle.close()
    assert not beside.exists()
    if step == "rename":
        assert content(store, "new", "AFP_AfpInfo") == INFO
    if step == "delete":
        assert list(share.iterdir()) in ([], [share / ".smb3server"])


def test_a_folder_has_it_too(store: MacBackend, share: Path) -> None:
    (share / "folder").mkdir()
    (share / "._folder").write_bytes(double())
    assert content(store, "folder", "AFP_AfpInfo") == INFO
    assert not (share / "._folder").exists()


def test_a_blank_resource_fork_is_none(store: MacBackend, share: Path) -> None:
    lay(share, data=double(fork=BLANK_FORK))
    assert streams(store, "file") == ["AFP_AfpInfo"]
    lay(share, "other", double(fork=BLANK_FORK[:16] + b"x" + BLANK_FORK[17:]))
    assert streams(store, "other") == ["AFP_AfpInfo", "AFP_Resource"]


def test_attributes_of_netatalk_and_samba(store: MacBackend, share: Path) -> None:
    file = share / "file"
    file.write_bytes(b"data")
    os.setxattr(file, "user.org.netatalk.Metadata", netatalk())
    os.setxattr(file, "user.org.netatalk.ResourceFork", b"fork")
    os.setxattr(file, "user.DosStream.bar:baz:$DATA", b"text\0")
    os.setxattr(file, "user.other", b"stays")
    assert streams(store, "file") == ["AFP_AfpInfo", "AFP_Resource", f"bar{COLON}baz"]
    assert content(store, "file", f"bar{COLON}baz") == b"text"
    assert content(store, "file", "AFP_AfpInfo") == INFO
    assert not [name for name in os.listxattr(file) if "netatalk" in name or "DosStream" in name]
    assert os.getxattr(file, "user.other") == b"stays"


def test_the_younger_one_counts(store: MacBackend, share: Path) -> None:
    put(store, "file", "AFP_AfpInfo", INFO)
    later = b"PICTogle".ljust(32, b"\0")
    beside = share / "._file"
    beside.write_bytes(double(later))
    os.utime(beside, ns=(0, time.time_ns() - 3_600_000_000_000))
    assert content(store, "file", "AFP_AfpInfo") == INFO and not beside.exists()
    beside.write_bytes(double(later))
    os.utime(beside, ns=(0, time.time_ns() + 3_600_000_000_000))
    found = apple.parse_afp_info(content(store, "file", "AFP_AfpInfo") or b"")
    assert found is not None and found.finder_info == later


def test_a_stream_that_somebody_has_open_is_not_replaced(store: MacBackend, share: Path) -> None:
    put(store, "file", "AFP_Resource", b"ours")
    beside = lay(share, data=double(fork=b"theirs"))
    later = time.time_ns() + 3_600_000_000_000
    os.utime(beside, ns=(0, later))
    beside.rename(share / "kept")
    handle = opened(store, "file", "AFP_Resource")
    (share / "kept").rename(beside)
    assert streams(store, "file") == ["AFP_Resource"] and beside.exists()
    handle.write_from([b"more"], 0)
    handle.close()
    os.utime(beside, ns=(0, later))
    assert content(store, "file", "AFP_Resource") == b"theirs" and not beside.exists()


@pytest.mark.parametrize(
    "data", [b"", b"notes of somebody", double()[:40], double(fork=b"fork")[:-1], double(attributes={"a/b": b"x"})]
)
def test_what_cannot_be_read_stays(store: MacBackend, share: Path, data: bytes) -> None:
    beside = lay(share, data=data)
    assert streams(store, "file") == []
    assert beside.read_bytes() == data


def test_the_log_says_once_what_cannot_be_read(
    store: MacBackend, share: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay(share)
    os.setxattr(share / "file", "user.org.netatalk.Metadata", b"no metadata")
    for _ in range(3):
        assert streams(store, "file") == []
    assert caplog.text.count("stays as it is: AppleDouble ends in its header") == 1
    assert os.getxattr(share / "file", "user.org.netatalk.Metadata") == b"no metadata"


def test_what_is_being_written_stays(store: MacBackend, share: Path) -> None:
    beside = lay(share, data=double())
    writer = opened(store, "._file")
    assert streams(store, "file") == [] and beside.exists()
    writer.close()
    assert streams(store, "file") == ["AFP_AfpInfo"]


def test_another_name_of_a_file_stays(store: MacBackend, share: Path, tmp_path: Path) -> None:
    """It may be the name of somebody else's secret."""
    (tmp_path / "secret").write_bytes(double())
    lay(share)
    os.link(tmp_path / "secret", share / "._file")
    assert streams(store, "file") == [] and (share / "._file").exists()
    (share / "._file").unlink()
    (share / "._file").symlink_to(tmp_path / "secret")
    assert streams(store, "file") == []


@pytest.mark.root
def test_what_belongs_to_somebody_else_stays(store: MacBackend, share: Path) -> None:
    """A user could write into the files of others otherwise."""
    beside = lay(share, data=double())
    os.chown(share / "file", 60, 60)
    assert streams(store, "file") == [] and beside.exists()


def test_a_share_that_is_only_read_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    beside = lay(tmp_path / "share", data=double())
    store = MacBackend(tmp_path / "share", LocalOptions(xattrs="user", read_only=True))
    assert streams(store, "file") == [] and beside.exists()
    store.close()


def test_an_interrupted_move_is_done_again(store: MacBackend, share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = lay(share, data=double(fork=b"f" * 100))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert streams(store, "file") == [] and beside.exists()
    assert streams(store, "file") == ["AFP_AfpInfo", "AFP_Resource"]
    assert not beside.exists()


@pytest.mark.parametrize("size", range(0, 120, 7))
def test_cut_apple_double_is_refused(size: int) -> None:
    whole = double(attributes={"name": b"value"}, fork=b"fork")
    with pytest.raises(DecodeError):
        apple_double.parse(whole[:size], size)


# Backups


def bundle(share: Path, name: str, bands: int, size: int = 8192) -> Path:
    folder = share / name
    (folder / "bands").mkdir(parents=True)
    (folder / "Info.plist").write_text(f"<dict><key>band-size</key>\n <integer>{size}</integer></dict>")
    for number in range(bands):
        (folder / "bands" / f"{number:x}").touch()
    return folder


def test_backups_are_counted_by_their_bands(tmp_path: Path) -> None:
    bundle(tmp_path, "one.sparsebundle", 2)
    bundle(tmp_path, "Two.backupbundle", 3, 100)
    bundle(tmp_path, "other", 9)
    (tmp_path / "half.sparsebundle").mkdir()
    (tmp_path / "file.sparsebundle").touch()
    (tmp_path / "link.sparsebundle").symlink_to(tmp_path / "one.sparsebundle")
    (bundle(tmp_path, "pipe.sparsebundle", 1) / "Info.plist").unlink()
    os.mkfifo(tmp_path / "pipe.sparsebundle/Info.plist")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    backups = Backups()
    assert backups.size(root) == 2 * 8192 + 300
    (tmp_path / "one.sparsebundle/bands/2").touch()
    os.utime(tmp_path / "one.sparsebundle/bands")
    assert backups.size(root) == 3 * 8192 + 300
    os.close(root)


def test_an_unchanged_backup_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle(tmp_path, "one.sparsebundle", 2)
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    backups = Backups()
    lists: list[int] = []
    plain = os.listdir

    def listed(folder: int) -> list[str]:
        lists.append(folder)
        return plain(folder)

    monkeypatch.setattr(os, "listdir", listed)
    assert backups.size(root) == 16384 and len(lists) == 2
    assert backups.size(root) == 16384 and len(lists) == 3
    os.close(root)


def test_many_bands_are_counted_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing them all would take the event loop as long as the disk needs for it."""
    monkeypatch.setattr(module, "_MANY", 4)
    monkeypatch.setattr(module, "_MANY_BYTES", 0)
    monkeypatch.setattr(module, "_STEP", 4)
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    folder = bundle(tmp_path, "one.sparsebundle", 10) / "bands"
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    before = len(os.listdir("/proc/self/fd"))
    backups = Backups()
    steps = backups.counting(root)
    assert steps is not None and len(list(steps)) == 3
    assert backups.counting(root) is None
    monkeypatch.setattr(os, "listdir", lambda folder: pytest.fail("it is known") if folder != root else [])
    monkeypatch.setattr(module, "_bundles", lambda root: ["one.sparsebundle"])
    assert backups.size(root) == 10 * 8192
    (folder / "new").touch()
    os.utime(folder)
    assert backups.size(root) == 10 * 8192, "what is known of many is good enough"
    steps = backups.counting(root)
    assert steps is not None
    next(steps)
    cast(Generator[None], steps).close()
    assert backups.size(root) == 10 * 8192, "a count that was given up changes nothing"
    assert len(list(backups.counting(root) or ())) == 3
    assert backups.size(root) == 11 * 8192
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(root)
