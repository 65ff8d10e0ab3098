"""A machine that loses power at any write or flush: what was flushed is there, what was not is there or not, sector by
sector, and the images are consistent. QEMU, which replays the logs itself, judges as well."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smb3server.virtual_disks import making, snapshots, vhd_set
from smb3server.virtual_disks.disk import VirtualDisk
from smb3server.virtual_disks.layout import MIB
from smb3server.wire.svhdx import SnapshotType
from tests.lab.disks import Folder, needs_qemu, new_disk, open_disk, qemu, read, replayed
from tests.lab.power_loss import PowerLost, Storage

BLOCK = MIB
SIZE = 6 * MIB
VM = int(SnapshotType.VM)
IDS = [uuid.UUID(int=number).bytes_le for number in range(8)]


class Model:
    """What each sector of a disk may have: what it had at the last flush, or what was written since."""

    def __init__(self, disk: VirtualDisk) -> None:
        self._disk = disk
        self._sure = bytearray(SIZE)
        self._since: dict[int, list[bytes]] = {}
        self.snapshots: dict[bytes, bytes] = {}
        """What was acknowledged to be in a snapshot."""

    def _may_be(self, offset: int, data: bytes) -> None:
        for at in range(0, len(data), 512):
            self._since.setdefault(offset + at, []).append(data[at : at + 512])

    def write(self, offset: int, data: bytes) -> None:
        self._may_be(offset, data)
        self._disk.write(data, offset)

    def unmap(self, offset: int, length: int) -> None:
        self._may_be(offset, bytes(length))
        self._disk.unmap(offset, length)

    def flush(self) -> None:
        self._disk.flush()
        self.flushed()

    def flushed(self) -> None:
        """Note that all that was written is on stable storage."""
        for sector, values in self._since.items():
            self._sure[sector : sector + 512] = values[-1]
        self._since.clear()

    def snapshot(self, files: Storage, snapshot_id: bytes) -> None:
        _take(snapshots.create(self._disk, files, snapshot_id, VM, False))
        self.flushed()
        self.snapshots[snapshot_id] = bytes(self._sure)

    def check(self, found: bytes) -> None:
        left = bytearray(found[:SIZE])
        for sector, values in self._since.items():
            sure = bytes(self._sure[sector : sector + 512])
            assert found[sector : sector + 512] in (sure, *values)
            left[sector : sector + 512] = sure
        assert left == self._sure


def _take(work: snapshots.Work) -> None:
    for _ in work:
        pass


Act = Callable[[VirtualDisk, Storage, Model], None]


def plain(disk: VirtualDisk, files: Storage, model: Model) -> None:
    """Write, free and write again, with flushes in between."""
    source = random.Random(7)
    for number in range(5):
        offset = source.randrange(0, SIZE - 2 * BLOCK, 512)
        model.write(offset, source.randbytes(source.choice((512, 65536, BLOCK))))
        if number % 2:
            model.flush()
    model.unmap(BLOCK + 512, BLOCK)
    model.write(5 * BLOCK, source.randbytes(8192))
    model.flush()
    model.write(2 * BLOCK, source.randbytes(8192))
    disk.close()
    model.flushed()


def with_snapshots(disk: VirtualDisk, files: Storage, model: Model) -> None:
    """Write with snapshots made and deleted in between."""
    source = random.Random(8)
    model.write(0, source.randbytes(65536))
    model.write(3 * BLOCK, source.randbytes(4096))
    model.write(4 * BLOCK, source.randbytes(4096))
    for number in (0, 1):
        model.snapshot(files, IDS[number])
        model.write(0, source.randbytes(4096))
        model.flush()
        model.write(3 * BLOCK + 512, source.randbytes(512))
        model.write(5 * BLOCK + 512, source.randbytes(512))
    model.unmap(4 * BLOCK, 2 * BLOCK)
    model.flush()
    newest = snapshots.found_in(disk, IDS[1])
    del model.snapshots[IDS[1]]
    _take(snapshots.delete(disk, files, newest, lambda done, whole: None))
    model.write(BLOCK, source.randbytes(512))
    model.flush()


def resized(disk: VirtualDisk, files: Storage, model: Model) -> None:
    """Write before and after the disk has grown and shrunk."""
    model.write(SIZE - 512, random.Random(9).randbytes(512))
    disk.resize(SIZE + BLOCK)
    model.flush()
    disk.resize(SIZE)
    model.write(0, bytes(range(256)) * 2)
    disk.close()
    model.flushed()


def losses(act: Act, states: int) -> Iterator[tuple[Folder, Model]]:
    """Return what may be left when the power is lost at the first change or flush, at the second one, and so on:
    several states for each moment."""
    blank = Folder()
    new_disk(blank, "base.avhdx", making.Shape(SIZE, block_size=BLOCK)).close()
    handle = blank.create("disk.vhds")
    vhd_set.make(handle, "base.avhdx")
    handle.close()
    source = random.Random(31)
    last, done = 0, False
    while not done:
        folder = Folder()
        for name in blank.names():
            folder.put(name, blank.get(name))
        files = Storage(folder, last)
        disk = VirtualDisk(folder.open("disk.vhds", write=False).key, "disk.vhds")
        model = Model(disk)
        try:
            disk.open(files, write=True)
            act(disk, files, model)
            done = True
        except PowerLost:
            pass
        for _ in range(states):
            yield files.left(source), model
        last += 1
    assert last >= 25


@pytest.mark.parametrize(
    ("act", "states"),
    [
        (plain, 2),
        pytest.param(plain, 8, marks=pytest.mark.long),
        pytest.param(with_snapshots, 3, marks=pytest.mark.long),
        (resized, 2),
        pytest.param(resized, 8, marks=pytest.mark.long),
    ],
)
def test_what_was_flushed_is_there(act: Act, states: int) -> None:
    for folder, model in losses(act, states):
        disk = open_disk(folder, "disk.vhds")
        model.check(read(disk, 0, SIZE))
        assert disk.is_valid()
        for snapshot_id, data in model.snapshots.items():
            chain = snapshots.open_chain(folder, snapshots.found_in(disk, snapshot_id).image, write=False)
            view = bytearray(SIZE)
            snapshots.read_chain(chain, memoryview(view), 0)
            assert view == data
        # It goes on.
        before = read(disk, 0, SIZE)
        disk.write(b"n" * 512, 4 * BLOCK + 512)
        disk.close()
        after = read(open_disk(folder, "disk.vhds", write=False), 0, SIZE)
        assert after == before[: 4 * BLOCK + 512] + b"n" * 512 + before[4 * BLOCK + 1024 :]


@needs_qemu
@pytest.mark.parametrize("act", [plain, resized])
def test_qemu_replays_what_is_left(act: Act, tmp_path: Path) -> None:
    image, raw = tmp_path / "base.vhdx", tmp_path / "raw"
    for folder, model in losses(act, 1):
        image.write_bytes(folder.get("base.avhdx"))
        replayed(image)
        qemu("convert", "-f", "vhdx", "-O", "raw", image, raw)
        model.check(raw.read_bytes())
