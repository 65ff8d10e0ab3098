"""The backend contract (smb3server/backends/base.py), the same tests over every store."""

from __future__ import annotations

import errno
import random
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from smb3server.backends.base import Backend, Kind, OpenRequest, PathNotFound
from smb3server.wire import attributes as attr
from smb3server.wire import filetime
from smb3server.wire.file_info import NEED_EA, EaEntry
from tests.lab.stores import CREATE, OPEN, OPEN_IF, exists, get, listing, mkdir, opened, put, read


@contextmanager
def fails(code: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:
        yield
    assert caught.value.errno == code, caught.value


# -- opening


def test_dispositions(backend: Backend) -> None:
    with fails(errno.ENOENT):
        backend.open(OpenRequest(("a",)))
    with opened(backend, "a", disposition=CREATE) as handle:
        assert handle.created
        assert handle.kind == Kind.FILE
        assert handle.path == ("a",)
    with pytest.raises(FileExistsError):
        backend.open(OpenRequest(("A",), disposition=CREATE))
    with opened(backend, "A", disposition=OPEN_IF) as handle:
        assert not handle.created
        assert handle.path == ("a",), "case-preserving"
    with opened(backend, "b", disposition=OPEN_IF) as handle:
        assert handle.created


def test_missing_ancestor_is_told_apart(backend: Backend) -> None:
    put(backend, "file")
    for path in (("no", "x"), ("file", "x"), ("no", "such", "x")):
        for disposition in (OPEN, CREATE, OPEN_IF):
            with pytest.raises(PathNotFound):
                backend.open(OpenRequest(path, disposition=disposition))
    mkdir(backend, "d")
    with pytest.raises(FileNotFoundError) as caught:
        backend.open(OpenRequest(("d", "x")))
    assert not isinstance(caught.value, PathNotFound)


def test_directory_or_not(backend: Backend) -> None:
    mkdir(backend, "d")
    put(backend, "f")
    with fails(errno.ENOTDIR):
        backend.open(OpenRequest(("f",), directory=True))
    with fails(errno.EISDIR):
        backend.open(OpenRequest(("d",), directory=False))
    for path, kind in ((("d",), Kind.DIRECTORY), (("f",), Kind.FILE), ((), Kind.DIRECTORY)):
        with opened(backend, *path) as handle:
            assert handle.kind == kind
            assert handle.info().kind == kind
    with pytest.raises(FileExistsError):
        backend.open(OpenRequest(("d",), directory=True, disposition=CREATE))


def test_case_insensitive_at_every_level(backend: Backend) -> None:
    mkdir(backend, "Dir")
    mkdir(backend, "Dir", "SUB")
    put(backend, "dIR", "sub", "Été.TXT", data=b"x")
    assert get(backend, "DIR", "Sub", "éTÉ.txt") == b"x"
    assert listing(backend, "dir", "sub") == ["Été.TXT"]
    with opened(backend, "DIR", "SUB", "été.txt") as handle:
        assert handle.path == ("Dir", "SUB", "Été.TXT")


def test_case_lookup_follows_changes(backend: Backend) -> None:
    """A cached listing must not outlive creations, renames and deletions."""
    mkdir(backend, "d")
    for number in range(50):
        name = f"File{number}"
        assert not exists(backend, ("d", name.lower()))
        put(backend, "d", name)
        assert exists(backend, ("d", name.lower()))
        with opened(backend, "d", name.upper()) as handle:
            handle.rename(("D", f"Other{number}"), False)
            assert not exists(backend, ("d", name.lower()))
            assert exists(backend, ("d", f"OTHER{number}"))
            handle.unlink()
        assert not exists(backend, ("d", f"OTHER{number}"))


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\0b", "/etc", "\uf029\uf029", "../x"])
def test_impossible_names(backend: Backend, name: str) -> None:
    for disposition in (OPEN, CREATE):
        if name == "\uf029\uf029" and disposition == CREATE:
            # Would map to '..': it stays a name of its own.
            put(backend, name, data=b"dots")
            assert get(backend, name) == b"dots"
            continue
        with pytest.raises(OSError) as caught:
            backend.open(OpenRequest((name,), disposition=disposition))
        assert caught.value.errno in (errno.EILSEQ, errno.ENOENT)
        with pytest.raises(OSError):
            backend.open(OpenRequest((name, "x"), disposition=disposition))


def test_private_name_does_not_exist(backend: Backend) -> None:
    put(backend, "a", stream="s", data=b"x")
    for name in (".smb3server", ".SMB3Server"):
        assert not exists(backend, (name,))
        assert not exists(backend, (name, "files"))
        with pytest.raises(OSError):
            backend.open(OpenRequest((name,), disposition=CREATE))
        with opened(backend, "a") as handle, pytest.raises(OSError):
            handle.rename((name,), True)
    assert listing(backend) == ["a"]


def test_names_of_all_sorts(backend: Backend) -> None:
    wanted = [
        "ünïcode",
        "日本語",
        "a b",
        "trailing\uf029",
        "trailing\uf028",
        "CON",
        "\uf022colon",
        "x" * 255,
        "😀",
        ".hidden",
    ]
    for name in wanted:
        put(backend, name, data=name.encode())
    assert listing(backend) == sorted(wanted)
    for name in wanted:
        assert get(backend, name) == name.encode()
    assert get(backend, "trailing.") == "trailing\uf029".encode(), "shown so that Windows can name it"


# -- data


def test_vectored_reads_and_writes(backend: Backend) -> None:
    with opened(backend, "f", disposition=CREATE, read=True, write=True) as handle:
        assert handle.write_from([b"abc", b"", bytearray(b"defg"), memoryview(b"hi")], 2) == 9
        first, second = bytearray(4), bytearray(20)
        assert handle.read_into([memoryview(first), memoryview(second)], 1) == 10
        assert bytes(first) == b"\0abc"
        assert bytes(second[:6]) == b"defghi"
        assert handle.read_into([memoryview(first)], 11) == 0
        assert handle.read_into([memoryview(first)], 1 << 40) == 0
        many = [b"%03d" % (number % 1000) for number in range(3000)]
        assert handle.write_from(many, 0) == 9000
        assert read(handle) == b"".join(many)
        parts = [bytearray(3) for _ in range(3000)]
        assert handle.read_into([memoryview(part) for part in parts], 0) == 9000
        assert parts == many
        handle.flush()


def test_data_needs_the_right_open(backend: Backend) -> None:
    put(backend, "f", data=b"x")
    with opened(backend, "f") as handle:
        with fails(errno.EBADF):
            read(handle)
        with fails(errno.EBADF):
            handle.write_from([b"y"], 0)
    with opened(backend, "f", read=True) as handle, fails(errno.EBADF):
        handle.write_from([b"y"], 0)
    assert get(backend, "f") == b"x"


@pytest.mark.parametrize("offset", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_offsets_no_file_reaches(backend: Backend, offset: int) -> None:
    with opened(backend, "f", disposition=CREATE, read=True, write=True) as handle:
        handle.write_from([b"abc"], 0)
        assert read(handle, 10, offset) == b""
        with fails(errno.EINVAL):
            handle.write_from([b"x"], offset)
        for act in (handle.truncate, handle.allocate):
            try:
                act(offset)
            except OSError as error:
                assert error.errno in (errno.EINVAL, errno.EFBIG, errno.ENOSPC)
            else:
                assert offset < 1 << 63, "a tmpfs has files of this size"
        handle.truncate(3)
        handle.zero_range(offset, 1 << 62)
        handle.zero_range(3, offset)
        assert handle.allocated_ranges(offset, 1 << 63) == []
        assert handle.copy_range(handle, offset, 0, 1) == 0
        with fails(errno.EINVAL):
            handle.copy_range(handle, 0, offset, 3)
        for times in ({"creation": 1 << 63}, {"last_write": -1}, {"last_access": 1 << 64}):
            with fails(errno.EINVAL):
                handle.set_times(**times)
        handle.set_times(creation=(1 << 63) - 1, last_write=(1 << 63) - 1, last_access=0)
        assert handle.info().end_of_file == 3
        assert handle.info().creation_time == (1 << 63) - 1
        assert read(handle) == b"abc"


@pytest.mark.parametrize("size", [0, 100, 200, 1 << 16])
def test_an_allocation_sets_the_change_time(backend: Backend, size: int) -> None:
    """Also one that changes nothing. The last write time stays unless the file is cut."""
    with opened(backend, "f", disposition=CREATE, write=True) as handle:
        handle.write_from([bytes(100)], 0)
        handle.allocate(200)
        before = handle.info()
        time.sleep(0.02)
        handle.allocate(size)
        after = handle.info()
        assert after.change_time > before.change_time
        assert (after.last_write_time > before.last_write_time) is (size == 0)


def test_truncate_and_allocate(backend: Backend) -> None:
    with opened(backend, "f", disposition=CREATE, read=True, write=True) as handle:
        handle.write_from([b"x" * 10000], 0)
        handle.truncate(100)
        assert handle.info().end_of_file == 100
        handle.truncate(200)
        assert read(handle) == b"x" * 100 + bytes(100)
        handle.allocate(1 << 16)
        info = handle.info()
        assert info.end_of_file == 200
        assert info.allocation_size >= 1 << 16
        handle.allocate(200)
        info = handle.info()
        assert info.end_of_file == 200
        assert info.allocation_size < 1 << 16
        handle.allocate(50)
        assert handle.info().end_of_file == 50
    with opened(backend, "f", read=True) as handle:
        handle.truncate(0)
        assert handle.info().end_of_file == 0


def test_zero_and_ranges(backend: Backend) -> None:
    with opened(backend, "f", disposition=CREATE, read=True, write=True) as handle:
        handle.set_attributes(attr.ARCHIVE | attr.SPARSE)
        handle.write_from([b"x" * (1 << 16)], 0)
        handle.zero_range(4096, 8192)
        handle.zero_range(1 << 16, 1 << 20)
        assert handle.info().end_of_file == 1 << 16, "does not extend"
        data = read(handle)
        assert data == b"x" * 4096 + bytes(8192) + b"x" * ((1 << 16) - 12288)
        assert handle.allocated_ranges(0, 1 << 20) == [(0, 4096), (12288, (1 << 16) - 12288)]
        assert handle.allocated_ranges(5000, 100) == []
        assert handle.allocated_ranges(1 << 30, 100) == []
        handle.zero_range(1, 2)
        assert read(handle, 4) == b"x\0\0x"


def test_copy_range(backend: Backend) -> None:
    content = random.Random(1).randbytes(100000)
    put(backend, "source", data=content)
    with (
        opened(backend, "source", read=True) as source,
        opened(backend, "target", disposition=CREATE, read=True, write=True) as target,
    ):
        assert target.copy_range(source, 10, 5, 50000) == 50000
        assert read(target) == bytes(5) + content[10:50010]
        assert target.copy_range(source, 99990, 0, 1000) == 10, "short at the source's end"
        assert target.copy_range(source, 1 << 30, 0, 1000) == 0
        target.truncate(0)
        target.write_from([content], 0)
        assert target.copy_range(target, 0, 1000, 50000) == 50000, "overlapping, upwards"
        assert read(target) == content[:1000] + content[:50000] + content[51000:]


# -- metadata


def test_info_of_new_file(backend: Backend) -> None:
    with opened(backend, "f", disposition=CREATE, write=True, attributes=attr.HIDDEN) as handle:
        handle.write_from([b"x" * 5000], 0)
        info = handle.info()
        assert info.attributes == attr.HIDDEN
        assert info.end_of_file == 5000
        assert info.allocation_size >= 5000
        assert info.link_count == 1
        assert info.key == handle.key == backend.stat(("F",)).key
        assert 0 < filetime.EPOCH < info.creation_time <= info.last_write_time + 10_000_000
    with opened(backend, "d", disposition=CREATE, directory=True) as handle:
        info = handle.info()
        assert info.attributes == attr.DIRECTORY
        assert (info.end_of_file, info.allocation_size) == (0, 0)
    with opened(backend, "g", disposition=CREATE) as handle:
        assert handle.info().attributes == attr.ARCHIVE


def test_attributes_and_times(backend: Backend) -> None:
    mkdir(backend, "d")
    put(backend, "f", data=b"abc")
    for name, kind in (("f", 0), ("d", attr.DIRECTORY)):
        with opened(backend, name) as handle:
            handle.set_attributes(0)
            assert handle.info().attributes == (kind or attr.NORMAL)
            wanted = attr.HIDDEN | attr.SYSTEM | attr.READONLY | attr.ARCHIVE
            handle.set_attributes(wanted | attr.NORMAL | attr.DIRECTORY | attr.REPARSE_POINT)
            assert handle.info().attributes == wanted | kind
            times = [filetime.EPOCH + 10_000_000 * 1_000_000_000 + number for number in (1, 22, 333)]
            handle.set_times(creation=times[0], last_access=times[1], last_write=times[2])
            info = handle.info()
            assert [info.creation_time, info.last_access_time, info.last_write_time] == times
            handle.set_times(last_write=times[0])
            info = handle.info()
            assert [info.creation_time, info.last_access_time, info.last_write_time] == [times[0], times[1], times[0]]
            handle.set_times(creation=times[2])
            assert handle.info().creation_time == times[2]
        assert backend.stat((name,)).attributes == wanted | kind
        assert backend.stat((name,)).creation_time == times[2]


def test_metadata_survives_rename_and_close(backend: Backend) -> None:
    mkdir(backend, "d")
    descriptor = bytes(range(256)) * 40
    eas = [EaEntry(b"One", b"1", NEED_EA), EaEntry(b"Two", bytes(5000))]
    request = OpenRequest(
        ("f",), disposition=CREATE, attributes=attr.SYSTEM, security_descriptor=descriptor, ea=eas, stream="S"
    )
    with closing(backend.open(request)) as handle:
        handle.write_from([b"stream"], 0)
    with opened(backend, "f") as handle:
        handle.rename(("d", "g"), False)
    with opened(backend, "d", "G") as handle:
        assert handle.info().attributes == attr.SYSTEM
        assert handle.security_descriptor() == descriptor
        assert handle.eas() == eas
        assert [stream.name for stream in handle.streams()] == ["", "S"]
    assert get(backend, "d", "g", stream="s") == b"stream"


@pytest.mark.parametrize("size", [1, 100, 3000, 10000, 65536])
def test_security_descriptors_of_any_size(backend: Backend, size: int) -> None:
    put(backend, "f")
    with opened(backend, "f") as handle:
        assert handle.security_descriptor() is None
        for value in (bytes([7]) * size, b"short", bytes([9]) * size):
            handle.set_security_descriptor(value)
            assert handle.security_descriptor() == value
    with opened(backend, "f") as handle:
        assert handle.security_descriptor() == bytes([9]) * size
        with fails(errno.E2BIG):
            handle.set_security_descriptor(bytes(65537))
        assert handle.security_descriptor() == bytes([9]) * size


def test_extended_attributes(backend: Backend) -> None:
    put(backend, "f")
    with opened(backend, "f") as handle:
        assert handle.eas() == []
        assert handle.info().ea_size == 0
        handle.set_ea(b"Name", b"value")
        handle.set_ea(b"Other", b"x" * 100)
        handle.set_ea(b"NAME", b"new")
        assert handle.eas() == [EaEntry(b"Other", b"x" * 100), EaEntry(b"NAME", b"new")]
        assert handle.info().ea_size == 4 + 5 + 5 + 100 + 5 + 4 + 3
        handle.set_ea(b"other", b"")
        handle.set_ea(b"absent", b"")
        assert handle.eas() == [EaEntry(b"NAME", b"new")]
        handle.set_ea(b"big", bytes(60000))
        with fails(errno.E2BIG):
            handle.set_ea(b"more", bytes(6000))
        assert len(handle.eas()) == 2
        handle.set_ea(b"big", b"")
        handle.set_ea(b"name", b"")
        assert handle.eas() == []
        assert handle.info().ea_size == 0
        for bad in (b"", b"n" * 256, b"a\0b"):
            with fails(errno.EINVAL):
                handle.set_ea(bad, b"x")


def test_reparse_points(backend: Backend) -> None:
    put(backend, "f")
    data = struct.pack("<IHH", 0xA000000C, 4, 0) + b"abcd"
    with opened(backend, "f") as handle:
        assert handle.reparse_point() is None
        handle.set_reparse_point(data)
        assert handle.reparse_point() == data
        info = handle.info()
        assert info.attributes & attr.REPARSE_POINT
        assert info.reparse_tag == 0xA000000C
        for bad in (b"", data[:-1], data + b"x", struct.pack("<IHH", 0, 0, 0), bytes(20000)):
            with fails(errno.EINVAL):
                handle.set_reparse_point(bad)
        assert handle.reparse_point() == data
        handle.set_reparse_point(None)
        assert handle.reparse_point() is None
        assert handle.info().reparse_tag == 0


# -- streams


def test_streams(backend: Backend) -> None:
    with fails(errno.ENOENT):
        backend.open(OpenRequest(("f",), stream="s"))
    put(backend, "f", data=b"main")
    with fails(errno.ENOENT):
        backend.open(OpenRequest(("f",), stream="s"))
    with opened(backend, "f", stream="Alpha", disposition=CREATE, read=True, write=True) as handle:
        assert handle.created
        assert handle.stream == "Alpha"
        handle.write_from([b"x" * 200000], 100)
        info = handle.info()
        assert info.end_of_file == 200100
        assert info.key == backend.stat(("f",)).key
        assert handle.path == ("f",)
        handle.truncate(300)
        handle.flush()
    with pytest.raises(FileExistsError):
        backend.open(OpenRequest(("f",), stream="ALPHA", disposition=CREATE))
    with opened(backend, "f", stream="alpha", disposition=OPEN_IF, read=True) as handle:
        assert not handle.created
        assert handle.stream == "Alpha"
        assert read(handle) == bytes(100) + b"x" * 200
    put(backend, "f", stream="beta", data=b"b")
    with opened(backend, "f") as handle:
        assert [(stream.name, stream.size) for stream in handle.streams()] == [("", 4), ("Alpha", 300), ("beta", 1)]
    assert get(backend, "f") == b"main"


def test_streams_of_directories(backend: Backend) -> None:
    mkdir(backend, "d")
    for path in (("d",), ()):
        put(backend, *path, stream="note", data=b"n")
        assert get(backend, *path, stream="NOTE") == b"n"
        with opened(backend, *path, directory=True) as handle:
            assert [stream.name for stream in handle.streams()] == ["note"]
    assert listing(backend) == ["d"]
    assert listing(backend, "d") == []


def test_stream_rename_and_unlink(backend: Backend) -> None:
    put(backend, "f", stream="a", data=b"a")
    put(backend, "f", stream="b", data=b"b")
    with opened(backend, "f", stream="a", read=True) as handle:
        with pytest.raises(FileExistsError):
            handle.rename_stream("B", False)
        handle.rename_stream("C", False)
        assert get(backend, "f", stream="c") == b"a"
        handle.rename_stream("c", False)
        handle.rename_stream("B", True)
        assert handle.stream == "B"
        assert [stream.name for stream in handle.streams()] == ["", "B"]
        handle.unlink()
        assert read(handle) == b"a", "usable until closed"
        assert [stream.name for stream in handle.streams()] == [""]
    assert exists(backend, ("f",))
    with fails(errno.ENOENT):
        backend.open(OpenRequest(("f",), stream="B"))


def test_stream_renamed_by_another_handle(backend: Backend) -> None:
    put(backend, "f", stream="a", data=b"a")
    with opened(backend, "f", stream="a", read=True) as handle:
        with opened(backend, "f", stream="A") as other:
            other.rename_stream("B", False)
        put(backend, "f", stream="a", data=b"new")
        handle.rename_stream("c", False)
        assert get(backend, "f", stream="a") == b"new"
        handle.truncate(0)
        handle.unlink()
        with pytest.raises(FileNotFoundError):
            handle.unlink()
        with pytest.raises(FileNotFoundError):
            handle.rename_stream("d", False)
        assert [stream.name for stream in handle.streams()] == ["", "a"]


def test_streams_go_with_the_file(backend: Backend) -> None:
    put(backend, "f", stream="s", data=b"old")
    with opened(backend, "f", stream="s", read=True) as stream:
        with opened(backend, "f") as handle:
            handle.unlink()
        assert read(stream) == b"old"
    put(backend, "f")
    with fails(errno.ENOENT):
        backend.open(OpenRequest(("f",), stream="s"))
    put(backend, "f", stream="s", data=b"one")
    put(backend, "g", stream="s", data=b"two")
    with opened(backend, "g") as handle:
        handle.rename(("F",), True)
        assert handle.path == ("F",)
    assert get(backend, "f", stream="s") == b"two"
    assert listing(backend) == ["F"]


# -- names


def test_rename(backend: Backend) -> None:
    mkdir(backend, "d")
    put(backend, "a", data=b"a")
    put(backend, "b", data=b"b")
    with opened(backend, "a", read=True) as handle:
        with pytest.raises(FileExistsError):
            handle.rename(("B",), False)
        with pytest.raises(FileExistsError):
            handle.rename(("D",), False)
        with fails(errno.EISDIR):
            handle.rename(("D",), True)
        with pytest.raises(PathNotFound):
            handle.rename(("no", "x"), False)
        handle.rename(("a",), False)
        handle.rename(("A",), False)
        assert listing(backend) == ["A", "b", "d"]
        handle.rename(("D", "x"), False)
        assert handle.path == ("d", "x")
        handle.rename(("b",), True)
        assert listing(backend) == ["b", "d"]
        assert read(handle) == b"a"
    assert get(backend, "B") == b"a"


def test_rename_of_directories(backend: Backend) -> None:
    mkdir(backend, "d")
    mkdir(backend, "d", "e")
    put(backend, "d", "e", "f", data=b"x")
    put(backend, "g")
    with opened(backend, "d", "e", "f", read=True) as inner, opened(backend, "d") as handle:
        with fails(errno.ENOTDIR):
            handle.rename(("g",), True)
        with fails(errno.EINVAL):
            handle.rename(("d", "e", "d"), False)
        handle.rename(("Moved",), False)
        assert inner.path == ("Moved", "e", "f")
        inner.rename(("MOVED", "up"), False)
        assert inner.path == ("Moved", "up")
        handle.rename(("moved",), False)
        assert inner.path == ("moved", "up")
    assert listing(backend) == ["g", "moved"]
    with opened(backend) as root, pytest.raises(PermissionError):
        root.rename(("x",), False)


def test_hard_links(backend: Backend) -> None:
    put(backend, "a", data=b"a", stream="s")
    put(backend, "other", data=b"o")
    with opened(backend, "a", read=True) as handle:
        handle.link(("b",), False)
        assert handle.info().link_count == 2
        assert backend.stat(("b",)).key == handle.key
        with pytest.raises(FileExistsError):
            handle.link(("OTHER",), False)
        handle.link(("Other",), True)
        assert handle.info().link_count == 3
        handle.link(("b",), True)
        with opened(backend, "b") as second:
            assert second.path == ("b",)
            second.unlink()
            with pytest.raises(FileNotFoundError):
                _ = second.path
        assert handle.path == ("a",)
        assert handle.info().link_count == 2
        handle.unlink()
        assert handle.info().link_count == 1
    assert len(listing(backend)) == 1
    assert get(backend, "other", stream="s") == b"a"
    mkdir(backend, "d")
    with opened(backend, "d") as directory, pytest.raises(PermissionError):
        directory.link(("e",), False)


def test_rename_over_own_link(backend: Backend) -> None:
    put(backend, "a", data=b"a")
    with opened(backend, "a") as handle:
        handle.link(("b",), False)
        handle.rename(("B",), True)
        assert handle.path[0] in ("b", "B")
        assert handle.info().link_count == 1
    assert get(backend, "b") == b"a"
    assert not exists(backend, ("a",))


def test_unlink(backend: Backend) -> None:
    mkdir(backend, "d")
    put(backend, "d", "f", data=b"x")
    with opened(backend, "d") as directory:
        with fails(errno.ENOTEMPTY):
            directory.unlink()
        with opened(backend, "d", "f", read=True, write=True) as handle:
            handle.unlink()
            with pytest.raises(FileNotFoundError):
                _ = handle.path
            with pytest.raises(FileNotFoundError):
                handle.unlink()
            with pytest.raises(FileNotFoundError):
                handle.rename(("z",), False)
            assert read(handle) == b"x"
            handle.write_from([b"y"], 0)
            assert handle.info().link_count == 0
            put(backend, "d", "f", data=b"new")
            with pytest.raises(FileNotFoundError):
                handle.unlink()
        assert get(backend, "d", "f") == b"new"
        with opened(backend, "d", "f") as handle:
            handle.unlink()
        directory.unlink()
        with opened(backend) as root, pytest.raises(PermissionError):
            root.unlink()
    assert listing(backend) == []


def test_name_that_looks_deleted(backend: Backend) -> None:
    put(backend, "x (deleted)", data=b"x")
    with opened(backend, "x (deleted)") as handle:
        assert handle.path == ("x (deleted)",)
        handle.rename(("y (deleted)",), False)
        handle.unlink()
    assert listing(backend) == []


# -- listing


def test_scan(backend: Backend) -> None:
    mkdir(backend, "d")
    for number in range(30):
        put(backend, "d", f"f{number}", data=bytes(number))
    with opened(backend, "d", "f7") as handle:
        handle.set_attributes(attr.HIDDEN)
    with opened(backend, "d", directory=True, read=True) as handle:
        entries = {entry.name: entry.info for entry in handle.scan()}
        again = [entry.name for entry in handle.scan()]
        cut = handle.scan()
        assert next(cut).name == "."
        del cut
    assert set(entries) == set(again)
    assert entries.pop(".").key == backend.stat(("d",)).key
    assert entries.pop("..").key == backend.stat(()).key
    assert len(entries) == 30
    for name, info in entries.items():
        assert info == backend.stat(("d", name))
    assert entries["f7"].attributes == attr.HIDDEN
    with opened(backend) as root:
        first, second = list(root.scan())[:2]
        assert first.info.key == second.info.key == root.key, "nothing above the root is told"
    put(backend, "f")
    with opened(backend, "f") as handle, pytest.raises(NotADirectoryError):
        handle.scan()


def test_closed_handles(backend: Backend) -> None:
    put(backend, "f")
    with opened(backend, "f", read=True, write=True) as handle:
        handle.close()
        with fails(errno.EBADF):
            handle.info()
        with fails(errno.EBADF):
            handle.write_from([b"x"], 0)
        with fails(errno.EBADF):
            _ = handle.path


def test_volume(backend: Backend) -> None:
    volume = backend.volume()
    assert volume.total_bytes >= volume.free_bytes >= volume.available_bytes > 0
    assert volume.block_size % volume.sector_size == 0
    assert 0 < backend.volume_serial < 1 << 32


def test_clone_range(backend: Backend) -> None:
    put(backend, "source", data=b"x" * 65536)
    with (
        opened(backend, "source", read=True) as source,
        opened(backend, "target", disposition=CREATE, read=True, write=True) as target,
    ):
        if backend.supports_reflink:
            target.clone_range(source, 0, 4096, 8192)
            assert read(target) == bytes(4096) + b"x" * 8192
            with fails(errno.EINVAL):
                target.clone_range(source, 1, 0, 100)
        else:
            with fails(errno.EOPNOTSUPP):
                target.clone_range(source, 0, 0, 4096)


# -- creating in an open folder


def test_create_in_makes_files_and_directories(backend: Backend) -> None:
    mkdir(backend, "d")
    with opened(backend, "d") as folder:
        for directory in (False, True):
            name = f"new-{directory}"
            request = OpenRequest(("d", name), disposition=CREATE, write=not directory, directory=directory)
            with closing(backend.create_in(folder, request).handle) as handle:
                assert handle.created
                assert handle.file_created
                assert handle.path == ("d", name)
                assert (handle.kind == Kind.DIRECTORY) is directory
    assert sorted(listing(backend, "d")) == ["new-False", "new-True"]


def test_create_in_refuses_a_name_that_is_there_in_any_case(backend: Backend) -> None:
    mkdir(backend, "d")
    put(backend, "d", "File", data=b"x")
    with opened(backend, "d") as folder:
        for name in ("File", "fILE"):
            with pytest.raises(FileExistsError):
                backend.create_in(folder, OpenRequest(("d", name), disposition=CREATE, write=True))
    assert listing(backend, "d") == ["File"]
    assert get(backend, "d", "FILE") == b"x"


def test_describe_is_info_and_descriptor(backend: Backend) -> None:
    with opened(backend, "a", disposition=CREATE, write=True) as handle:
        assert handle.describe() == (handle.info(), None)
        stored = struct.pack("<BBHIIII", 1, 0, 0x8000, 0, 0, 0, 0)
        handle.set_security_descriptor(stored)
        assert handle.describe() == (handle.info(), stored)


def test_a_new_file_has_what_its_request_gives_it(backend: Backend) -> None:
    stored = struct.pack("<BBHIIII", 1, 0, 0x8000, 0, 0, 0, 0)
    request = OpenRequest(
        ("a",),
        disposition=CREATE,
        attributes=attr.HIDDEN | attr.ARCHIVE,
        security_descriptor=stored,
        ea=(EaEntry(b"NAME", b"value"),),
    )
    with closing(backend.open(request)) as handle:
        found = handle.describe()
        assert found.descriptor == stored
        assert found.info.attributes & (attr.HIDDEN | attr.ARCHIVE) == attr.HIDDEN | attr.ARCHIVE
        assert handle.eas() == [EaEntry(b"NAME", b"value")]


def test_describing_at_once_is_describing_afterwards(backend: Backend) -> None:
    put(backend, "d", data=b"x")
    mkdir(backend, "folder")
    requests = [
        OpenRequest(("d",), read=True),
        OpenRequest(("folder",), directory=True),
        OpenRequest(("d",), "stream", CREATE, write=True),
        OpenRequest(("new",), disposition=CREATE, write=True, attributes=attr.HIDDEN, ea=(EaEntry(b"NAME", b"value"),)),
        OpenRequest((), directory=True),
    ]
    for request in requests:
        seen = backend.open_described(request)
        with closing(seen.handle) as handle:
            assert seen.found == handle.describe()
            assert not seen.is_folder
    with fails(errno.ENOENT):
        backend.open_described(OpenRequest(("none",)))


def test_a_created_file_is_described_as_it_is_afterwards(backend: Backend) -> None:
    stored = struct.pack("<BBHIIII", 1, 0, 0x8000, 0, 0, 0, 0)
    with closing(backend.open(OpenRequest((), directory=True))) as root:
        for name, attributes, descriptor in (("a", 0, None), ("b", attr.HIDDEN, None), ("c", attr.HIDDEN, stored)):
            for directory in (False, True):
                request = OpenRequest(
                    (f"{name}{directory}",),
                    disposition=CREATE,
                    write=not directory,
                    directory=directory,
                    attributes=attributes,
                    security_descriptor=descriptor,
                )
                seen = backend.create_in(root, request)
                with closing(seen.handle) as handle:
                    assert seen.found == handle.describe()
                    assert seen.found.descriptor == descriptor


def test_a_missing_file_opens_its_folder_instead(backend: Backend) -> None:
    mkdir(backend, "d")
    put(backend, "d", "File", data=b"x")
    for number, folder in enumerate(((), ("d",), ("D",))):
        seen = backend.open_described(OpenRequest((*folder, "none"), read=True, write=True, or_folder=True))
        with closing(seen.handle) as handle:
            assert seen.is_folder
            assert seen.found == handle.describe()
            assert handle.path == (("d",) if folder else ())
            request = OpenRequest((*folder, f"new-{number}"), disposition=CREATE, write=True)
            backend.create_in(handle, request).handle.close()
    assert sorted(listing(backend, "d")) == ["File", "new-1", "new-2"]


def test_a_file_that_is_there_is_opened_and_not_its_folder(backend: Backend) -> None:
    mkdir(backend, "d")
    put(backend, "d", "File", data=b"x")
    with closing(backend.open_described(OpenRequest(("d", "File"), read=True, or_folder=True)).handle) as handle:
        assert handle.path == ("d", "File")
    # In another case it may be missed: then this is the folder.
    seen = backend.open_described(OpenRequest(("d", "fILE"), read=True, or_folder=True))
    with closing(seen.handle):
        assert seen.is_folder or seen.found.info.end_of_file == 1
    for path in (("none", "file"), ("d", "File", "file")):
        with pytest.raises(PathNotFound):
            backend.open_described(OpenRequest(path, or_folder=True))
    with fails(errno.EISDIR):
        backend.open_described(OpenRequest(("d",), directory=False, or_folder=True))
