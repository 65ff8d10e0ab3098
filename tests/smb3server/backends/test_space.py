"""What users write takes their own space and rights: the file system's reserve is not theirs, set-id bits go."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smb3server.backends.base import Disposition, Handle, OpenRequest, User
from smb3server.backends.local import impersonate, syscalls
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.impersonate import OF_FILES, ActAs, SpaceOf
from smb3server.process import capabilities

LONGEST_TURN = 0.1

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
ALICE = User(54321, 54321)
BOB = User(54322, 54322)
MIB = 1 << 20
SIZE, RESERVE = 32, 50
"""MiB of the volume; per cent that only root may use."""


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A small ext4 of which half is kept for root."""
    image, place = tmp_path / "image", tmp_path / "volume"
    place.mkdir()
    for directory in (tmp_path, *tmp_path.parents):
        if directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o755)
    image.touch()
    os.truncate(image, SIZE * MIB)
    if shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        pytest.skip("needs mkfs.ext4")
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", str(RESERVE), image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.strip()}")
    try:
        place.chmod(0o777)
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def free(place: Path) -> int:
    """Bytes that root could still write."""
    found = os.statvfs(place)
    return found.f_bfree * found.f_frsize


def opened(backend: LocalBackend, name: str, disposition: Disposition = Disposition.CREATE) -> Handle:
    return backend.open(OpenRequest((name,), disposition=disposition, read=True, write=True, user=ALICE))


def write(handle: Handle) -> None:
    for number in range(SIZE):
        handle.write_from([bytes(range(256)) * (MIB // 256)], number * MIB)


def allocate(handle: Handle) -> None:
    for number in range(1, SIZE):
        handle.allocate(number * MIB)


def copy(handle: Handle) -> None:
    handle.write_from([bytes(range(256)) * (MIB // 256)], 0)
    for number in range(1, SIZE):
        assert handle.copy_range(handle, 0, number * MIB, MIB) == MIB


@pytest.mark.parametrize("fill", [write, allocate, copy])
def test_the_reserve_is_not_for_users(volume: Path, fill: Callable[[Handle], None]) -> None:
    backend = LocalBackend(volume)
    handle = opened(backend, "big")
    try:
        with pytest.raises(OSError) as caught:
            fill(handle)
        assert caught.value.errno == errno.ENOSPC
        assert free(volume) > SIZE * MIB * RESERVE // 100 - 2 * MIB
    finally:
        handle.close()
        backend.close()


def test_the_reserve_is_not_for_streams(volume: Path, tmp_path: Path) -> None:
    backend = LocalBackend(volume, LocalOptions(sidecar=str(volume / "beside")))
    opened(backend, "base").close()
    handle = backend.open(OpenRequest(("base",), "s", Disposition.CREATE, read=True, write=True, user=ALICE))
    try:
        with pytest.raises(OSError, match="No space left"):
            write(handle)
        assert free(volume) > SIZE * MIB * RESERVE // 100 - 2 * MIB
    finally:
        handle.close()
        backend.close()


def test_a_stream_belongs_to_the_owner_of_its_file(volume: Path, tmp_path: Path) -> None:
    """So the file system counts its blocks for the owner's quota: it knows them by the owner of the inode alone."""
    backend = LocalBackend(volume, LocalOptions(sidecar=str(tmp_path / "state")))
    opened(backend, "base").close()
    for user, name in ((ALICE, "s"), (None, "of the server")):
        request = OpenRequest(("base",), name, Disposition.CREATE, read=True, write=True, user=user)
        with contextlib.closing(backend.open(request)) as handle:
            handle.write_from([b"x" * 10000], 0)
            stat = os.fstat(handle.fileno() or -1)
            assert (stat.st_uid, stat.st_dev) == (ALICE.uid, volume.stat().st_dev)
    # The file gets another owner, whose the stream is when it is written again.
    os.chown(volume / "base", BOB.uid, BOB.gid)
    with contextlib.closing(backend.open(OpenRequest(("base",), "s", read=True, write=True))) as handle:
        assert os.fstat(handle.fileno() or -1).st_uid == BOB.uid
    assert {path.stat().st_uid for path in volume.rglob("s-*")} == {ALICE.uid, BOB.uid}
    assert not list(volume.rglob("n-*"))
    backend.close()


def test_worker_threads_hold_to_it(volume: Path) -> None:
    """Credentials are a thread's: a worker's are not those of the event loop."""
    backend = LocalBackend(volume)
    handle = opened(backend, "big")

    async def body() -> None:
        with pytest.raises(OSError, match="No space left"):
            await asyncio.to_thread(write, handle)

    try:
        asyncio.run(body())
        assert free(volume) > SIZE * MIB * RESERVE // 100 - 2 * MIB
    finally:
        handle.close()
        backend.close()


def test_writing_takes_set_id_bits_away(tmp_path: Path) -> None:
    """As write(2) does for a local process without CAP_FSETID: who may write a set-id program must not become it."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o755)
    file = tmp_path / "program"
    file.write_bytes(b"old")
    backend = LocalBackend(tmp_path)
    changes: tuple[Callable[[Handle], object], ...] = (
        lambda handle: handle.write_from([b"new"], 0),
        lambda handle: handle.truncate(1),
        lambda handle: handle.truncate(0),
    )
    for change in changes:
        file.write_bytes(b"old")
        file.chmod(0o6777)
        handle = opened(backend, "program", Disposition.OPEN)
        change(handle)
        handle.close()
        assert file.stat().st_mode & 0o7777 == 0o777
    backend.close()


def test_acting_as_a_user_no_capability_helps() -> None:
    before = capabilities.get()
    for acting in (ActAs(ALICE), SpaceOf(ALICE)):
        with acting:
            assert not capabilities.get().effective & (OF_FILES | capabilities.Capability.SYS_RESOURCE)
        assert capabilities.get() == before
    with pytest.raises(RuntimeError), SpaceOf(ALICE):
        raise RuntimeError
    assert capabilities.get() == before


# Rows of writes


def present_uid() -> int:
    """The thread's file-system uid."""
    return syscalls.switch_ids(syscalls.KEEP_ID, syscalls.KEEP_ID)[0]


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The file-system uids that were set, in their order; a row of writes that ends with the test."""
    found: list[int] = []
    switch = syscalls.switch_uid

    def noted(uid: int) -> int:
        if uid != syscalls.KEEP_ID:
            found.append(uid)
        return switch(uid)

    monkeypatch.setattr(syscalls, "switch_uid", noted)
    before = capabilities.get()
    try:
        yield found
    finally:
        impersonate.end_row()
        assert present_uid() == 0
        assert capabilities.get() == before


def test_a_row_switches_once_for_each_user_and_back(switches: list[int]) -> None:
    alice, bob = SpaceOf(ALICE), SpaceOf(BOB)
    before = capabilities.get()
    impersonate.begin_row()
    for acting, uid in ((alice, ALICE.uid), (alice, ALICE.uid), (bob, BOB.uid), (bob, BOB.uid), (alice, ALICE.uid)):
        with acting:
            assert present_uid() == uid
            assert not capabilities.get().effective & (OF_FILES | capabilities.Capability.SYS_RESOURCE)
    assert present_uid() == ALICE.uid
    impersonate.end_row()
    assert switches == [ALICE.uid, 0, BOB.uid, 0, ALICE.uid, 0]
    assert capabilities.get() == before
    with alice:
        pass
    assert present_uid() == 0


def test_a_failed_write_does_not_end_a_row(switches: list[int]) -> None:
    alice = SpaceOf(ALICE)
    impersonate.begin_row()
    with pytest.raises(OSError, match="full"), alice:
        raise OSError(errno.ENOSPC, "full")
    with alice:
        assert present_uid() == ALICE.uid
    impersonate.end_row()
    assert switches == [ALICE.uid, 0]


def test_the_server_itself_writes_in_a_row_as_itself(switches: list[int]) -> None:
    impersonate.begin_row()
    with SpaceOf(ALICE):
        pass
    with SpaceOf(None):
        assert present_uid() == 0
    with SpaceOf(ALICE):
        assert present_uid() == ALICE.uid


@pytest.mark.parametrize("user", [BOB, None])
def test_acting_in_a_row_is_not_as_the_last_writer(switches: list[int], user: User | None) -> None:
    impersonate.begin_row()
    with SpaceOf(ALICE):
        pass
    with ActAs(user):
        assert present_uid() == (BOB.uid if user else 0)
    assert present_uid() == 0


def test_a_row_is_of_one_thread(switches: list[int]) -> None:
    impersonate.begin_row()
    with SpaceOf(ALICE):
        pass

    def elsewhere() -> tuple[int, int]:
        with SpaceOf(BOB):
            during = present_uid()
        return during, present_uid()

    assert asyncio.run(in_thread(elsewhere)) == (BOB.uid, 0)
    assert present_uid() == ALICE.uid


async def in_thread(work: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    return await asyncio.to_thread(work)


def test_a_row_begins_only_as_a_user_whom_the_kernel_accepts(
    switches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syscalls, "switch_uid", lambda uid: 0)
    impersonate.begin_row()
    with pytest.raises(PermissionError), SpaceOf(ALICE):
        raise AssertionError("this must not run")
