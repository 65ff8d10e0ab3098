"""Nothing outside the share's root is reached, whatever lies in the share and whoever changes it meanwhile."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smb3server.backends.base import Disposition, Kind, OpenRequest
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from tests.lab.examples import examples
from tests.lab.stores import get, listing, mkdir, opened, put, read

Local = tuple[LocalBackend, Path]
RACE_SECONDS = 1.0


def is_refused(store: LocalBackend, *path: str) -> None:
    for disposition in Disposition:
        for directory in (None, True):
            with pytest.raises(OSError) as caught:
                store.open(OpenRequest(path, disposition=disposition, directory=directory, read=True, write=True))
            assert caught.value.errno in (errno.ELOOP, errno.ENOENT, errno.EEXIST), caught.value


@pytest.mark.parametrize(
    "target",
    ["../secret", "/etc/passwd", "..", "/", "../outside", "d/../../secret", "/proc/self/root/etc/passwd", "{root}"],
)
def test_symlinks_that_lead_outside(local: Local, target: str) -> None:
    store, root = local
    (root / "d").mkdir()
    os.symlink(target.format(root=root), root / "link")
    (root / "d" / "plain").write_text("x")
    for path in (("link",), ("LINK",), ("link", "secret"), ("link", "d", "plain"), ("Link", "new")):
        is_refused(store, *path)
    with opened(store, directory=True, read=True) as handle:
        shown = {entry.name: entry.info for entry in handle.scan()}
    assert shown["link"].kind == Kind.SYMLINK
    with opened(store, "link", open_reparse_point=True) as handle:
        assert handle.kind == Kind.SYMLINK
        assert handle.path == ("link",)
        assert (handle.reparse_point() or b"")[:4] == (0xA000000C).to_bytes(4, "little")
        handle.unlink()
    assert not (root / "link").is_symlink()
    assert (root.parent / "secret").read_text() == "secret"


def test_symlinks_that_stay_beneath(local: Local) -> None:
    store, root = local
    (root / "d" / "e").mkdir(parents=True)
    (root / "file").write_text("content")
    os.symlink("../../file", root / "d" / "e" / "up")
    os.symlink("d/e", root / "short")
    os.symlink("up", root / "d" / "e" / "chain")
    os.symlink("loop", root / "loop")
    os.symlink("gone", root / "dangling")
    assert get(store, "d", "e", "up") == b"content"
    assert get(store, "SHORT", "UP") == b"content"
    assert get(store, "short", "chain") == b"content"
    put(store, "short", "new", data=b"n")
    assert (root / "d" / "e" / "new").read_bytes() == b"n"
    with opened(store, "short", "new") as handle:
        assert handle.path == ("d", "e", "new")
    is_refused(store, "loop")
    with pytest.raises(FileNotFoundError):
        store.open(OpenRequest(("dangling",)))
    with pytest.raises(OSError):
        store.open(OpenRequest(("dangling",), disposition=Disposition.OPEN_IF))
    assert not (root / "gone").exists()
    with opened(store, directory=True, read=True) as handle:
        shown = {entry.name: entry.info.kind for entry in handle.scan()}
    assert shown["short"] == Kind.DIRECTORY
    assert shown["loop"] == shown["dangling"] == Kind.SYMLINK


def test_no_symlinks_at_all(make_local: Callable[[LocalOptions], Local]) -> None:
    store, root = make_local(LocalOptions(symlinks="never"))
    (root / "file").write_text("content")
    (root / "d").mkdir()
    os.symlink("file", root / "link")
    os.symlink("d", root / "dlink")
    is_refused(store, "link")
    is_refused(store, "dlink", "x")
    assert get(store, "file") == b"content"


def test_sidecar_is_out_of_reach(local: Local) -> None:
    store, root = local
    put(store, "f", stream="s", data=b"secret")
    assert (root / ".smb3server").is_dir()
    os.symlink(".smb3server", root / "link")
    os.symlink(".smb3server/files", root / "deep")
    is_refused(store, "link")
    is_refused(store, "link", "files")
    is_refused(store, "deep")
    for path in ((".smb3server",), (".smb3server", "files"), (".SMB3SERVER",), ("x", "..", ".smb3server")):
        with pytest.raises(OSError):
            store.stat(path)
    assert listing(store) == ["deep", "f", "link"]


def test_sidecar_planted_by_somebody_else(local: Local) -> None:
    store, root = local
    outside = root.parent / "outside"
    os.symlink(outside, root / ".smb3server")
    with pytest.raises(OSError):
        put(store, "f", stream="s", data=b"x")
    assert os.listdir(outside) == ["secret"]


def test_devices_fifos_and_sockets(local: Local) -> None:
    """None of them blocks, none is opened for data."""
    store, root = local
    os.mkfifo(root / "fifo")
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(root / "socket"))
    made = ["fifo", "socket"]
    if os.geteuid() == 0:
        with suppress(PermissionError):
            os.mknod(root / "zero", 0o20666, os.makedev(1, 5))
            made.append("zero")
    for name in made:
        started = time.monotonic()
        for options in ({"read": True}, {"write": True}, {"stream": "s", "read": True}):
            with pytest.raises(PermissionError):
                store.open(OpenRequest((name,), **options))  # type: ignore[arg-type]
        with pytest.raises(PermissionError):
            store.open(OpenRequest((name,), read=True, disposition=Disposition.OPEN_IF))
        assert time.monotonic() - started < 1
        with opened(store, name) as handle:
            assert handle.kind == Kind.OTHER
            with pytest.raises(OSError):
                handle.truncate(0)
    assert listing(store) == sorted(made)
    for name in made:
        with opened(store, name) as handle:
            handle.unlink()


def test_handles_moved_out_of_the_share(local: Local) -> None:
    store, root = local
    mkdir(store, "d")
    put(store, "d", "f", data=b"x")
    with opened(store, "d", "f", read=True) as handle:
        os.rename(root / "d", root.parent / "moved")
        for act in (lambda: handle.path, handle.unlink, lambda: handle.rename(("g",), True)):
            with pytest.raises(FileNotFoundError):
                act()
        assert read(handle) == b"x"
    assert (root.parent / "moved" / "f").exists()


def test_unlink_of_a_name_given_to_another(local: Local) -> None:
    store, root = local
    put(store, "f", data=b"x")
    with opened(store, "f") as handle:
        os.rename(root / "f", root / "g")
        (root / "f").write_text("new")
        handle.unlink()
    assert listing(store) == ["f"]
    assert (root / "f").read_text() == "new"


def test_deep_and_long_paths(local: Local) -> None:
    store, _ = local
    name = "n" * 200
    path: tuple[str, ...] = ()
    for _ in range(25):
        path = (*path, name)
        mkdir(store, *path)
    put(store, *path, "f", data=b"deep")
    assert get(store, *(part.upper() for part in path), "F") == b"deep"
    with pytest.raises(OSError) as caught:
        store.open(OpenRequest(("n" * 256,), disposition=Disposition.CREATE))
    assert caught.value.errno == errno.ENAMETOOLONG
    with pytest.raises(OSError):
        store.open(OpenRequest(("n" * 100000, "x")))
    with pytest.raises(FileNotFoundError):
        store.open(OpenRequest(("x",) * 20000))


def test_read_only(make_local: Callable[[LocalOptions], Local]) -> None:
    store, root = make_local(LocalOptions(read_only=True))
    (root / "f").write_text("x")
    before = os.stat(root).st_mtime_ns, sorted(os.listdir(root))
    requests = (
        OpenRequest(("f",), write=True),
        OpenRequest(("g",), disposition=Disposition.CREATE),
        OpenRequest(("g",), disposition=Disposition.OPEN_IF, directory=True),
        OpenRequest(("f",), stream="s", disposition=Disposition.OPEN_IF),
    )
    for request in requests:
        with pytest.raises(OSError) as caught:
            store.open(request)
        assert caught.value.errno == errno.EROFS
    with opened(store, "f", read=True) as handle:
        acts: tuple[Callable[[], None], ...] = (
            handle.unlink,
            lambda: handle.rename(("g",), True),
            lambda: handle.link(("g",), True),
            lambda: handle.truncate(0),
            lambda: handle.allocate(0),
            lambda: handle.zero_range(0, 1),
            lambda: handle.set_attributes(2),
            lambda: handle.set_times(creation=1),
            lambda: handle.set_times(last_write=1),
            lambda: handle.set_ea(b"a", b"b"),
            lambda: handle.set_security_descriptor(b"x"),
            lambda: handle.set_reparse_point(None),
        )
        for act in acts:
            with pytest.raises(OSError) as caught:
                act()
            assert caught.value.errno == errno.EROFS
        assert read(handle) == b"x"
        assert [stream.name for stream in handle.streams()] == [""]
    assert before == (os.stat(root).st_mtime_ns, sorted(os.listdir(root)))


# -- races


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """``act`` over and over in another thread."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set():
                act()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures


def race(attempt: Callable[[], object]) -> int:
    """How often ``attempt`` worked; OSErrors are fair."""
    worked = 0
    deadline = time.monotonic() + RACE_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            attempt()
            worked += 1
    return worked


def test_directory_swapped_for_a_symlink(local: Local) -> None:
    store, root = local
    (root / "d").mkdir()
    (root / "d" / "secret").write_text("public")
    (root / "link").symlink_to(root.parent / "outside")
    (root / "up").symlink_to("../outside")

    def swap() -> None:
        for link in ("link", "up"):
            os.rename(root / "d", root / "aside")
            os.rename(root / link, root / "d")
            os.rename(root / "d", root / link)
            os.rename(root / "aside", root / "d")

    def attempt() -> None:
        assert get(store, "D", "secret") == b"public"
        with opened(store, "d", "new", disposition=Disposition.OPEN_IF, write=True) as handle:
            handle.unlink()

    with meanwhile(swap):
        assert race(attempt) > 0
    assert os.listdir(root.parent / "outside") == ["secret"]


def test_file_swapped_for_a_symlink_or_fifo(local: Local) -> None:
    store, root = local
    (root / "f").write_text("public")
    (root / "link").symlink_to("../secret")
    os.mkfifo(root / "fifo")

    def swap() -> None:
        for other in ("link", "fifo"):
            os.rename(root / "f", root / "aside")
            os.rename(root / other, root / "f")
            os.rename(root / "f", root / other)
            os.rename(root / "aside", root / "f")

    def attempt() -> None:
        with opened(store, "F", read=True, write=True) as handle:
            assert read(handle) == b"public"
            handle.write_from([b"public"], 0)

    with meanwhile(swap):
        assert race(attempt) > 0
    assert (root.parent / "secret").read_text() == "secret"


def test_ancestor_moved_while_following_dotdot(local: Local) -> None:
    """A symlink's '..' while its directory moves up: it must not climb above the root."""
    store, root = local
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "up").symlink_to("../../secret")
    (root / "secret").write_text("public")

    def swap() -> None:
        os.rename(root / "a" / "b", root / "b")
        os.rename(root / "b", root / "a" / "b")

    def attempt() -> None:
        for path in (("a", "b", "up"), ("b", "up")):
            with suppress(OSError):
                assert get(store, *path) == b"public"

    with meanwhile(swap):
        race(attempt)


def test_rename_and_unlink_in_moving_directories(local: Local) -> None:
    store, root = local
    outside = root.parent / "outside"
    (root / "d").mkdir()
    (root / "link").symlink_to(outside)

    def swap() -> None:
        os.rename(root / "d", root / "aside")
        os.rename(root / "link", root / "d")
        os.rename(root / "d", root / "link")
        os.rename(root / "aside", root / "d")

    def attempt() -> None:
        with opened(store, "mine", disposition=Disposition.OPEN_IF, write=True) as handle:
            try:
                handle.rename(("d", "secret"), True)
            finally:
                handle.unlink()

    with meanwhile(swap):
        race(attempt)
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_text() == "secret"


# -- whatever names


components = st.text(max_size=12) | st.sampled_from(["..", ".", "", "d", "D", "up", "abs", "f", ".smb3server", "/"])


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(components, max_size=5), st.sampled_from(Disposition), st.booleans())
def test_any_path(local: Local, path: list[str], disposition: Disposition, reparse: bool) -> None:
    store, root = local
    if not (root / "d").exists():
        (root / "d").mkdir()
        (root / "f").write_text("f")
        (root / "up").symlink_to("..")
        (root / "abs").symlink_to("/")
    outside = sorted(os.listdir(root.parent))
    try:
        handle = store.open(OpenRequest(tuple(path), disposition=disposition, open_reparse_point=reparse, read=True))
    except OSError:
        return
    with closing(handle):
        real = os.readlink(f"/proc/self/fd/{handle._descriptor()}")  # type: ignore[attr-defined]
        assert (real + "/").startswith(f"{root}/")
        assert "/.smb3server" not in real.casefold()
        assert handle.kind == Kind.SYMLINK or store.stat(handle.path).key == handle.key
    assert sorted(os.listdir(root.parent)) == outside
