"""System calls about files: in Python by ctypes and, where it is built, in C. Both do the same."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import stat as stat_module
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from smb3server.backends.local import file_calls, syscalls
from smb3server.backends.local.file_calls import Statx
from smbdirect import native

NATIVE = "smb3server.backends.local._native"
ODD_NAMES = (b"plain", b"with space ", "Ünïcödé".encode(), b"not-\xff\xfe-utf8", b"new\nline", b"x" * 255, b"-", b"\\")


@pytest.fixture(params=["python", "native"])
def calls(request: pytest.FixtureRequest) -> ModuleType:
    """The functions in Python, then those in C."""
    if request.param == "python":
        return file_calls
    if (problem := native.problem(NATIVE)) is not None:
        pytest.skip(f"{NATIVE}: {problem}")
    from smb3server.backends.local import _native

    return _native


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def roomy() -> Iterator[Path]:
    """A folder on tmpfs, which keeps attributes of up to 64 KiB."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def refused(call: Callable[[], object]) -> tuple[int | None, str, object]:
    """Return errno, text and file name of the OSError that ``call`` raises."""
    with pytest.raises(OSError) as found:
        call()
    return found.value.errno, str(found.value.strerror), found.value.filename


def test_both_have_the_same_functions() -> None:
    stub = Path(file_calls.__file__).with_name("_native.pyi").read_text()
    names = [line.split("(")[0].removeprefix("def ") for line in stub.splitlines() if line.startswith("def ")]
    assert names
    for name in names:
        assert callable(getattr(file_calls, name))
        assert getattr(syscalls, name).__module__ in (file_calls.__name__, NATIVE)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_stat_of_an_entry(calls: ModuleType, tmp_path: Path, folder: int, name: bytes) -> None:
    path = os.fsencode(tmp_path) + b"/" + name
    with open(path, "wb") as file:
        file.write(bytes(5000))
    os.utime(path, ns=(1_600_000_000_123_456_789, -5_000_000_001))
    found = calls.statx_at(folder, name)
    expected = os.lstat(path)
    assert type(found) is Statx
    assert found.mode == expected.st_mode
    assert (found.ino, found.nlink, found.uid, found.gid) == (expected.st_ino, 1, expected.st_uid, expected.st_gid)
    assert found.dev == os.major(expected.st_dev) << 20 | os.minor(expected.st_dev)
    assert (found.size, found.blocks, found.blksize) == (5000, expected.st_blocks, expected.st_blksize)
    assert (found.atime, found.mtime, found.ctime) == (1_600_000_000_123_456_789, -5_000_000_001, expected.st_ctime_ns)
    assert found == file_calls.statx_at(folder, name)
    descriptor = os.open(path, os.O_PATH)
    assert calls.statx(descriptor) == found
    os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
@pytest.mark.root
def test_ids_of_a_thread(calls: ModuleType) -> None:
    def in_force() -> list[int]:
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        return [int(line.split()[4]) for line in lines if line.startswith(("Uid", "Gid"))]

    assert calls.switch_ids(123, 4_000_000_000) == (0, 0)
    try:
        assert in_force() == [123, 4_000_000_000]
        assert calls.switch_ids(syscalls.KEEP_ID, 456) == (123, 4_000_000_000)
        assert in_force() == [123, 456]
        assert calls.switch_uid(789) == 123
        assert calls.switch_uid(syscalls.KEEP_ID) == 789
        assert in_force() == [789, 456]
        assert calls.switch_uid(123) == 789
    finally:
        assert calls.switch_ids(0, 0) == (123, 456)
    assert in_force() == [0, 0]


def test_stat_of_a_link_is_its_own(calls: ModuleType, tmp_path: Path, folder: int) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert stat_module.S_ISLNK(calls.statx_at(folder, b"link").mode)


def test_stat_that_fails(calls: ModuleType, folder: int) -> None:
    text = os.strerror(errno.ENOENT)
    assert refused(lambda: calls.statx_at(folder, b"gone-\xff")) == (errno.ENOENT, text, "gone-\udcff")
    assert refused(lambda: calls.statx(-1)) == (errno.EBADF, os.strerror(errno.EBADF), None)


def test_opening(calls: ModuleType, tmp_path: Path, folder: int) -> None:
    (tmp_path / "file").write_bytes(b"text")
    descriptor = calls.openat2(folder, b"file", os.O_RDONLY, syscalls.RESOLVE_BENEATH)
    assert os.read(descriptor, 10) == b"text"
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    descriptor = calls.openat2(folder, b"new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0, 0o640)
    assert stat_module.S_IMODE(os.fstat(descriptor).st_mode) == 0o640 & ~_umask()
    os.close(descriptor)
    assert refused(lambda: calls.openat2(folder, b"../x", os.O_RDONLY, syscalls.RESOLVE_BENEATH))[0] == errno.EXDEV
    missing = (errno.ENOENT, os.strerror(errno.ENOENT), "nothing")
    assert refused(lambda: calls.openat2(folder, b"nothing", os.O_RDONLY, 0)) == missing
    assert refused(lambda: calls.openat2_stat(folder, b"nothing", os.O_RDONLY, 0)) == missing


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_opening_with_stat(calls: ModuleType, tmp_path: Path, folder: int) -> None:
    (tmp_path / "file").write_bytes(b"text")
    expected = calls.statx_at(folder, b"file")
    descriptor, stat = calls.openat2_stat(folder, b"file", os.O_PATH, 0)
    assert stat == expected == calls.statx(descriptor)
    os.close(descriptor)
    index, descriptor, has_data, stat = calls.find_file(folder, [b"a", b"file"], os.O_PATH, 0, os.O_RDONLY, True, None)
    assert (index, has_data, stat) == (1, False, expected)
    os.close(descriptor)


def test_opening_the_first_that_exists_fails(calls: ModuleType, tmp_path: Path, folder: int) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    strict = syscalls.RESOLVE_NO_SYMLINKS
    missing = refused(lambda: calls.find_file(folder, [b"a", b"b"], os.O_PATH, 0, -1, False, None))
    assert missing[::2] == (errno.ENOENT, "b")
    found = refused(lambda: calls.find_file(folder, [b"link", b"c"], os.O_RDONLY, strict, -1, False, None))
    assert found[::2] == (errno.ELOOP, "link")
    for paths in ([], [b"a", b"b", b"c"]):
        with pytest.raises(ValueError, match="one path or two"):
            calls.find_file(folder, paths, os.O_PATH, 0, -1, False, None)


def test_opening_the_data_of_what_is_found(calls: ModuleType, tmp_path: Path, folder: int) -> None:
    """Of regular files and directories alone: everything else stays O_PATH."""
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    flags = os.O_PATH | os.O_NOFOLLOW
    before = os.listdir("/proc/self/fd")

    def find(name: bytes, data_flags: int = -1, directory: bool = False) -> tuple[bool, int]:
        index, descriptor, has_data, stat = calls.find_file(folder, [name, b"."], flags, 0, data_flags, directory, None)
        assert not os.get_inheritable(descriptor)
        assert index == 0
        assert (os.fstat(descriptor).st_ino, stat) == (stat.ino, calls.statx(descriptor))
        if has_data and data_flags == os.O_RDWR:
            assert os.pread(descriptor, 10, 0) == b"text"
            assert os.pwrite(descriptor, b"t", 0) == 1
        elif has_data and directory:
            assert os.listdir(descriptor) == []
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        os.close(descriptor)
        return has_data, mode & os.O_PATH

    assert find(b"file", os.O_RDWR) == (True, 0)
    assert find(b"file", os.O_RDONLY) == (True, 0)
    assert find(b"file", directory=True) == (False, os.O_PATH)
    assert find(b"below", directory=True) == (True, 0)
    assert find(b"below", os.O_RDWR) == (False, os.O_PATH)
    assert find(b"link", os.O_RDWR, True) == (False, os.O_PATH)
    assert find(b"fifo", os.O_RDWR, True) == (False, os.O_PATH)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
@pytest.mark.root
def test_finding_as_a_user(calls: ModuleType, tmp_path: Path) -> None:
    """The thread is the server again at the end, and nothing stays open that was refused."""
    tmp_path.chmod(0o711)
    for name, mode in (("file", 0o640), ("own", 0o600), ("closed", 0o600)):
        (tmp_path / name).write_bytes(b"text")
        (tmp_path / name).chmod(mode)
    os.chown(tmp_path / "file", 0, 456)
    os.chown(tmp_path / "own", 123, 0)
    folder = os.open(tmp_path, os.O_PATH)
    before = os.listdir("/proc/self/fd")

    def find(name: bytes, data_flags: int, ids: tuple[int, int, int, int] | None = (123, 456, 0, 0)) -> None:
        os.close(calls.find_file(folder, [name], os.O_PATH, 0, data_flags, False, ids)[1])

    for name, flags in ((b"file", os.O_RDONLY), (b"own", os.O_RDWR), (b"closed", -1)):
        find(name, flags)
    for name, flags in ((b"file", os.O_RDWR), (b"closed", os.O_RDONLY)):
        assert refused(functools.partial(find, name, flags))[::2] == (errno.EACCES, os.fsdecode(name))
        find(name, flags, None)
    assert refused(lambda: find(b"gone", -1))[::2] == (errno.ENOENT, "gone")
    tmp_path.chmod(0o700)
    assert refused(lambda: find(b"own", -1))[::2] == (errno.EACCES, "own")
    # No user has this id: the kernel keeps the one before.
    assert refused(lambda: find(b"own", -1, (123, syscalls.KEEP_ID, 0, 0)))[0] == errno.EPERM
    assert calls.switch_ids(syscalls.KEEP_ID, syscalls.KEEP_ID) == (0, 0)
    assert os.listdir("/proc/self/fd") == before
    os.close(folder)


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 4095, 4096, 4097, 20_000])
def test_attributes_of_any_length(calls: ModuleType, roomy: Path, length: int) -> None:
    path = roomy / "file"
    path.touch()
    value = bytes(index % 251 for index in range(length))
    try:
        os.setxattr(path, "user.test", value)
    except OSError as error:
        pytest.skip(f"no room for the attribute: {error}")
    folder = os.open(roomy, os.O_PATH)
    descriptor = os.open(path, os.O_RDONLY)
    reference = os.open(path, os.O_PATH)
    assert calls.fgetxattr(descriptor, b"user.test") == value
    assert calls.getxattr(f"/proc/self/fd/{reference}", b"user.test") == value
    assert calls.getxattr_at(folder, b"file", b"user.test") == value
    assert calls.fgetxattr(descriptor, b"user.other") is None
    assert calls.getxattr(f"/proc/self/fd/{reference}", b"user.other") is None
    assert calls.getxattr_at(folder, b"file", b"user.other") is None
    os.close(folder)
    os.close(descriptor)
    os.close(reference)


def test_attributes_without_getxattrat(monkeypatch: pytest.MonkeyPatch, roomy: Path) -> None:
    """Older kernels read them through /proc."""
    monkeypatch.setattr(file_calls, "_have_getxattrat", False)
    (roomy / "file").touch()
    (roomy / "link").symlink_to("file")
    os.setxattr(roomy / "file", "user.test", b"value")
    folder = os.open(roomy, os.O_PATH)
    assert file_calls.getxattr_at(folder, b"file", b"user.test") == b"value"
    assert refused(lambda: file_calls.getxattr_at(folder, b"gone", b"user.test"))[0] == errno.ENOENT
    os.setxattr(roomy / "file", "user.test", bytes(5000))
    assert file_calls.getxattr_at(folder, b"file", b"user.test") == bytes(5000)
    os.close(folder)


def test_attributes_that_cannot_be_read(calls: ModuleType, folder: int) -> None:
    assert refused(lambda: calls.fgetxattr(-1, b"user.test"))[0] == errno.EBADF
    assert refused(lambda: calls.getxattr("/proc/self/fd/99999", b"user.test"))[0] == errno.ENOENT
    assert refused(lambda: calls.getxattr_at(folder, b"gone", b"user.test"))[0] == errno.ENOENT


@pytest.mark.parametrize(
    "wrong",
    [
        lambda calls: calls.statx("1"),
        lambda calls: calls.statx_at(3),
        lambda calls: calls.statx_at(3, "text"),
        lambda calls: calls.openat2(3, b"a"),
        lambda calls: calls.openat2(3, b"a", "1", 0),
        lambda calls: calls.find_file(3, 7, 0, 0, -1, False, None),
        lambda calls: calls.find_file(3, [b"a"], 0, 0, -1, False, 7),
        lambda calls: calls.getxattr_at(3, b"a", 5),
    ],
)
def test_arguments_of_wrong_types_are_refused(calls: ModuleType, wrong: Callable[[ModuleType], object]) -> None:
    """None of them reaches the kernel, or ends the process."""
    with pytest.raises((TypeError, ctypes.ArgumentError)):
        wrong(calls)


def test_results_do_not_leak(calls: ModuleType, tmp_path: Path, folder: int) -> None:
    """Objects that a failing or succeeding call makes are freed again."""
    (tmp_path / "file").touch()
    tracemalloc = pytest.importorskip("tracemalloc")

    def work() -> None:
        for _ in range(2000):
            calls.statx_at(folder, b"file")
            calls.getxattr_at(folder, b"file", b"user.test")
            try:
                calls.statx_at(folder, b"gone")
            except FileNotFoundError:
                continue

    work()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
