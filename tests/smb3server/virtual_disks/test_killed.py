"""A server that is killed at any write to the files of a disk: what was acknowledged is there, and the images are
consistent. What a test of one process can do: every write may be the last one, whole or torn at a page."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.base import Handle
from smb3server.backends.forwarding import ForwardingHandle
from smb3server.virtual_disks import making, snapshots, vhd_set
from smb3server.virtual_disks.disk import VirtualDisk
from smb3server.wire.svhdx import SnapshotType
from smbdirect.codec import Buffer
from tests.lab.disks import Folder, needs_qemu, new_disk, open_disk, read, replayed

BLOCK = making.BLOCK_SIZE
SIZE = 6 * BLOCK
PAGE = 4096
VM = int(SnapshotType.VM)
IDS = [uuid.UUID(int=number).bytes_le for number in range(8)]


class Killed(BaseException):
    """The server was killed."""


class Mortal:
    """A folder that is written by a server which is killed at one of its writes."""

    def __init__(self, folder: Folder, last: int, torn: bool) -> None:
        """``last``: the number of the write that is not done, or only up to a page within it if ``torn``."""
        self.folder, self._left, self._torn = folder, last, torn
        self.dead = False

    def changes(self, do: Callable[[], Any], partly: Callable[[], None] | None = None) -> Any:
        """Count a change, and do it unless the server is killed by it. A dead server changes nothing."""
        if self.dead:
            raise Killed
        self._left -= 1
        if self._left < 0:
            self.dead = True
            if self._torn and partly is not None:
                partly()
            raise Killed
        return do()

    def open(self, name: str, write: bool) -> Handle:
        return _Mortal(self, self.folder.open(name, write))

    def create(self, name: str) -> Handle:
        return _Mortal(self, self.changes(lambda: self.folder.create(name)))

    def claim(self, handle: Handle, write: bool = True) -> None:
        """Nobody else writes here."""

    def remove(self, name: str) -> None:
        self.changes(lambda: self.folder.remove(name))


class _Mortal(ForwardingHandle):
    def __init__(self, owner: Mortal, handle: Handle) -> None:
        self._owner, self._handle = owner, handle
        self.key, self.kind, self.stream = handle.key, handle.kind, handle.stream
        self.created, self.file_created = handle.created, handle.file_created

    def open(self) -> Handle:
        return self._handle

    def close(self) -> None:
        self._handle.close()

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        cut = (offset + len(data) // 2) // PAGE * PAGE - offset
        partly = (lambda: self._handle.write_from([data[:cut]], offset) and None) if cut > 0 else None
        return int(self._owner.changes(lambda: self._handle.write_from([data], offset), partly))

    def truncate(self, size: int) -> None:
        self._owner.changes(lambda: self._handle.truncate(size))

    def zero_range(self, offset: int, length: int, deallocate: bool = False) -> None:
        def partly() -> None:
            self._handle.zero_range(offset, length // 2 // PAGE * PAGE, deallocate)

        self._owner.changes(lambda: self._handle.zero_range(offset, length, deallocate), partly)


class Model:
    """The bytes that a disk has to have. Those of a request that was not acknowledged may be old or new."""

    def __init__(self) -> None:
        self.sure = bytearray(SIZE)
        self.pending: tuple[int, bytes] | None = None
        self.snapshots: dict[bytes, bytes] = {}
        """What was acknowledged to be in a snapshot."""

    def write(self, disk: VirtualDisk, offset: int, data: bytes) -> None:
        self.pending = offset, data
        disk.write(data, offset)
        self._done()

    def unmap(self, disk: VirtualDisk, offset: int, length: int) -> None:
        self.pending = offset, bytes(length)
        disk.unmap(offset, length)
        self._done()

    def _done(self) -> None:
        if self.pending is not None:
            offset, data = self.pending
            self.sure[offset : offset + len(data)] = data
            self.pending = None

    def check(self, disk: VirtualDisk) -> None:
        found = read(disk, 0, SIZE)
        if self.pending is None:
            assert found == bytes(self.sure)
            return
        offset, new = self.pending
        end = offset + len(new)
        assert found[:offset] == self.sure[:offset]
        assert found[end:] == self.sure[end:]
        for sector in range(offset, end, 512):
            old = bytes(self.sure[sector : sector + 512])
            assert found[sector : sector + 512] in (old, new[sector - offset : sector - offset + 512])


def blank(folder: Folder) -> None:
    """Put a disk and a set into a folder."""
    new_disk(folder, "base.avhdx", making.Shape(SIZE)).close()
    handle = folder.create("disk.vhds")
    vhd_set.make(handle, "base.avhdx")
    handle.close()


def _take(work: snapshots.Work) -> None:
    for _ in work:
        pass


def plain(disk: VirtualDisk, files: Mortal, model: Model) -> None:
    """Write, free and write again."""
    source = random.Random(7)
    for _ in range(3):
        offset = source.randrange(0, SIZE - 3 * BLOCK, 512)
        model.write(disk, offset, source.randbytes(source.choice((512, 65536, BLOCK + 4096))))
    model.write(disk, 4 * BLOCK, source.randbytes(BLOCK))
    model.unmap(disk, 4 * BLOCK + 512, BLOCK)
    model.write(disk, 4 * BLOCK, source.randbytes(8192))


def with_snapshots(disk: VirtualDisk, files: Mortal, model: Model) -> None:
    """Write with snapshots made, applied and deleted in between."""
    source = random.Random(8)
    model.write(disk, 0, source.randbytes(65536))
    model.write(disk, 3 * BLOCK, source.randbytes(4096))
    for number in (0, 1):
        _take(snapshots.create(disk, files, IDS[number], VM, False))
        model.snapshots[IDS[number]] = bytes(model.sure)
        model.write(disk, 0, source.randbytes(BLOCK))
        model.write(disk, 3 * BLOCK + 512, source.randbytes(512))
    model.unmap(disk, 2 * BLOCK, 2 * BLOCK)
    newest = snapshots.found_in(disk, IDS[1])
    del model.snapshots[IDS[1]]
    _take(snapshots.delete(disk, files, newest, lambda done, whole: None))
    model.write(disk, BLOCK, source.randbytes(512))


def resized(disk: VirtualDisk, files: Mortal, model: Model) -> None:
    """Write before and after the disk has grown and shrunk."""
    model.write(disk, SIZE - 512, random.Random(9).randbytes(512))
    disk.resize(SIZE + BLOCK)
    disk.resize(SIZE)
    model.write(disk, 0, bytes(range(256)) * 2)


def lives(act: Callable[[VirtualDisk, Mortal, Model], None], torn: bool) -> Iterator[tuple[Folder, Model]]:
    """Return what is left of each life of a server: the first one is killed at its first write, and so on."""
    last, done = 0, False
    while not done:
        folder, model = Folder(), Model()
        blank(folder)
        files = Mortal(folder, last, torn)
        disk = VirtualDisk(folder.open("disk.vhds", write=False).key, "disk.vhds")
        try:
            disk.open(files, write=True)
            act(disk, files, model)
            done = True
        except Killed:
            pass
        yield folder, model
        last += 1
    assert last >= 10


@pytest.mark.parametrize(
    ("act", "torn"),
    [
        pytest.param(act, torn, marks=[pytest.mark.long] if act is with_snapshots and not torn else [])
        for act in (plain, with_snapshots, resized)
        for torn in (False, True)
    ],
)
def test_what_was_acknowledged_is_there(act: Callable[[VirtualDisk, Mortal, Model], None], torn: bool) -> None:
    for folder, model in lives(act, torn):
        disk = open_disk(folder, "disk.vhds")
        model.check(disk)
        assert disk.is_valid()
        for snapshot_id, data in model.snapshots.items():
            chain = snapshots.open_chain(folder, snapshots.found_in(disk, snapshot_id).image, write=False)
            view = bytearray(SIZE)
            snapshots.read_chain(chain, memoryview(view), 0)
            assert view == data
        # It goes on.
        offset = 5 * BLOCK + 512
        disk.write(b"n" * 512, offset)
        assert read(disk, offset, 512) == b"n" * 512
        disk.close()


@needs_qemu
@pytest.mark.parametrize("act", [plain, pytest.param(with_snapshots, marks=pytest.mark.long), resized])
def test_qemu_finds_no_fault(act: Callable[[VirtualDisk, Mortal, Model], None], tmp_path: Path) -> None:
    for folder, _ in lives(act, torn=True):
        image = tmp_path / "base.vhdx"
        image.write_bytes(folder.get("base.avhdx"))
        replayed(image)
