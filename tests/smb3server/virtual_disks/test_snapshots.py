"""VHD sets: snapshots, what changed between them, and copies, also while the disk is written."""

from __future__ import annotations

import errno
import json
import uuid
from pathlib import Path

import pytest
from crc32c import crc32c

from smb3server.virtual_disks import making, snapshots, vhd_set
from smb3server.virtual_disks.disk import VirtualDisk
from smb3server.virtual_disks.reading import BadImage
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.svhdx import SnapshotType
from tests.lab.disks import Folder, needs_qemu, new_disk, open_disk, qemu, read

VM = int(SnapshotType.VM)
ONE, TWO = uuid.UUID(int=1).bytes_le, uuid.UUID(int=2).bytes_le
BLOCK = 2 << 20


def _set(folder: Folder) -> VirtualDisk:
    new_disk(folder, "base.avhdx").close()
    handle = folder.create("disk.vhds")
    vhd_set.make(handle, "base.avhdx")
    handle.close()
    return open_disk(folder, "disk.vhds")


def _do(work: snapshots.Work) -> None:
    for _ in work:
        pass


def _progress(done: int, whole: int) -> None:
    assert 0 <= done <= whole


def test_a_snapshot_keeps_what_the_disk_had() -> None:
    folder = Folder()
    disk = _set(folder)
    disk.write(b"a" * 512, 0)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    disk.write(b"b" * 512, 0)
    disk.write(b"c" * 512, BLOCK)
    assert read(disk, 0, 1024) == b"b" * 512 + bytes(512)
    # The set is as it should be for whoever opens it next.
    assert read(open_disk(folder, "disk.vhds"), BLOCK, 512) == b"c" * 512
    _do(snapshots.apply(disk, folder, snapshots.found_in(disk, ONE)))
    assert read(disk, 0, 512) == b"a" * 512
    assert read(disk, BLOCK, 512) == bytes(512)
    assert len(folder.names()) == 3


def test_deleting_the_last_snapshot_leaves_one_image() -> None:
    folder = Folder()
    disk = _set(folder)
    disk.write(b"a" * 512, 0)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    disk.write(b"b" * 512, 512)
    work = snapshots.delete(disk, folder, snapshots.found_in(disk, ONE), _progress)
    for step, _ in enumerate(work):
        # Writes while the images become one.
        disk.write(bytes([step + 1]) * 512, (step + 2) * BLOCK)
    assert folder.names() == ["base.avhdx", "disk.vhds"]
    for again in (disk, open_disk(folder, "disk.vhds")):
        assert read(again, 0, 1024) == b"a" * 512 + b"b" * 512
        assert read(again, 2 * BLOCK, 512) == b"\1" * 512
        assert len(again.chain) == 1


def test_whoever_writes_an_image_refuses_others_and_never_itself(tmp_path: Path) -> None:
    """An image has one writer, also when it was a snapshot and is written again."""
    folder = Folder(tmp_path)
    disk = _set(folder)
    for data in (b"b", b"c"):
        disk.write(data * 512, 0)
        _do(snapshots.create(disk, folder, ONE, VM, True))
        disk.write(data * 512, 512)
        for name in ("disk.vhds", disk.active.name):
            with pytest.raises(OSError, match="another server or program writes to the image") as raised:
                open_disk(folder, name)
            assert raised.value.errno == errno.EBUSY
            reading = open_disk(folder, name, write=False)
            assert read(reading, 0, 1024) == data * 1024
            reading.close()
        _do(snapshots.delete(disk, folder, snapshots.found_in(disk, ONE), _progress))
        assert disk.active.name == "base.avhdx"
    _do(snapshots.create(disk, folder, TWO, VM, True))
    _do(snapshots.apply(disk, folder, snapshots.found_in(disk, TWO)))
    _do(snapshots.delete(disk, folder, snapshots.found_in(disk, TWO), _progress))
    disk.write(b"d" * 512, 0)
    disk.close()
    again = open_disk(folder, "disk.vhds")
    assert read(again, 0, 1024) == b"d" * 512 + b"c" * 512
    again.close()
    folder.backend.close()


def test_an_image_that_others_are_read_through_is_not_written(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    disk = _set(folder)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    for _ in range(2):
        with pytest.raises(OSError, match="reads other images through it") as raised:
            open_disk(folder, "base.avhdx")
        assert raised.value.errno == errno.EBUSY
        open_disk(folder, "base.avhdx", write=False).close()
        # The images of another chain take the place of the first ones.
        _do(snapshots.apply(disk, folder, snapshots.found_in(disk, ONE)))
    disk.close()
    open_disk(folder, "base.avhdx").close()
    folder.backend.close()


def test_a_snapshot_that_another_disk_needs_is_not_written(tmp_path: Path) -> None:
    """Deleting it would write the data of its only image in this set into it."""
    folder = Folder(tmp_path)
    disk = _set(folder)
    disk.write(b"a" * 512, 0)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    disk.write(b"b" * 512, 0)
    base = disk.chain[1]
    shape = making.Shape(base.virtual_size, parent=making.Parent(base.name, base.data_write_guid))
    other = new_disk(folder, "other.avhdx", shape)
    _do(snapshots.delete(disk, folder, snapshots.found_in(disk, ONE), _progress))
    assert (read(disk, 0, 512), read(other, 0, 512)) == (b"b" * 512, b"a" * 512)
    assert len(disk.chain) == 2
    # It is still needed as it is by both.
    other.close()
    with pytest.raises(OSError, match="reads other images through it"):
        open_disk(folder, "base.avhdx")
    disk.close()
    folder.backend.close()


def test_a_parent_that_was_changed_is_refused() -> None:
    """Half of the one disk and half of the other would be neither. [MS-VHDX 2.6.2.6.3]"""
    folder = Folder()
    disk = _set(folder)
    disk.write(b"a" * 512, 0)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    disk.close()
    open_disk(folder, "disk.vhds").close()
    parent = open_disk(folder, "base.avhdx")
    parent.write(b"b" * 512, 512)
    parent.close()
    for write in (True, False):
        with pytest.raises(BadImage, match=r"its parent base\.avhdx was changed after it was made"):
            open_disk(folder, "disk.vhds", write)


@pytest.mark.parametrize("grows", [False, True])
def test_a_crash_while_two_images_become_one(grows: bool) -> None:
    """The image in use goes on hiding what its parent gets, and knows it as its parent."""
    folder = Folder()
    disk = _set(folder)
    disk.write(b"a" * 512, 0)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    if grows:
        disk.active.resize(disk.size + BLOCK)
    size = disk.size
    for block in range(3):
        disk.write(b"b" * 512, block * BLOCK)
    whole = read(disk, 0, 4 * BLOCK)
    work = snapshots.delete(disk, folder, snapshots.found_in(disk, ONE), _progress)
    while True:
        left = Folder()
        for name in folder.names():
            left.put(name, folder.get(name))
        after = open_disk(left, "disk.vhds")
        assert (after.size, read(after, 0, 4 * BLOCK)) == (size, whole)
        if next(work, "done") == "done":
            break
    assert folder.names() == ["base.avhdx", "disk.vhds"]


def test_an_image_with_children_stays() -> None:
    folder = Folder()
    disk = _set(folder)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    disk.write(b"b" * 512, 0)
    _do(snapshots.create(disk, folder, TWO, VM, True))
    disk.write(b"c" * 512, BLOCK)
    _do(snapshots.delete(disk, folder, snapshots.found_in(disk, ONE), _progress))
    assert read(open_disk(folder, "disk.vhds"), 0, 512) == b"b" * 512
    assert len(folder.names()) == 4


def test_changes_between_snapshots() -> None:
    folder = Folder()
    disk = _set(folder)
    disk.write(b"a" * 512, 5 * BLOCK)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    disk.write(b"b" * 512, BLOCK)
    disk.write(b"b" * 512, 2 * BLOCK)
    disk.write(b"b" * 512, 4 * BLOCK)
    _do(snapshots.create(disk, folder, TWO, VM, True))
    one, two = (snapshots.found_in(disk, which) for which in (ONE, TWO))
    whole = 16 * BLOCK
    assert snapshots.changes(folder, two, one, 0, whole, 9) == (whole, [(BLOCK, 2 * BLOCK), (4 * BLOCK, BLOCK)])
    assert snapshots.changes(folder, two, one, 0, whole, 1) == (4 * BLOCK, [(BLOCK, 2 * BLOCK)])
    assert snapshots.changes(folder, two, one, BLOCK + 512, 512, 9) == (512, [(BLOCK + 512, 512)])
    with pytest.raises(StatusError) as raised:
        snapshots.changes(folder, one, two, 0, whole, 9)
    assert raised.value.status == NtStatus.INVALID_PARAMETER


@needs_qemu
def test_extracted_and_converted_disks(tmp_path: Path) -> None:
    folder = Folder()
    disk = _set(folder)
    disk.write(b"a" * 512, 0)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    disk.write(b"b" * 512, 0)
    _do(snapshots.extract(disk, folder, snapshots.found_in(disk, ONE), None, "then.vhdx", _progress))
    _do(snapshots.convert(disk, folder, "copy.vhds", _progress))
    assert read(open_disk(folder, "copy.vhds"), 0, 512) == b"b" * 512
    then = tmp_path / "then.vhdx"
    then.write_bytes(folder.get("then.vhdx"))
    assert "No errors" in qemu("check", "-f", "vhdx", then)
    qemu("convert", "-f", "vhdx", "-O", "raw", then, tmp_path / "raw")
    assert (tmp_path / "raw").read_bytes()[:1024] == b"a" * 512 + bytes(512)


def test_an_extracted_difference_names_its_parent() -> None:
    folder = Folder()
    disk = _set(folder)
    disk.write(b"a" * 512, 0)
    _do(snapshots.create(disk, folder, ONE, VM, True))
    disk.write(b"b" * 512, BLOCK)
    _do(snapshots.create(disk, folder, TWO, VM, True))
    one, two = (snapshots.found_in(disk, which) for which in (ONE, TWO))
    _do(snapshots.extract(disk, folder, two, one, "difference.avhdx", _progress))
    difference = open_disk(folder, "difference.avhdx", write=False)
    assert [image.name for image in difference.chain] == ["difference.avhdx", "base.avhdx"]
    assert read(difference, 0, 512) + read(difference, BLOCK, 512) == b"a" * 512 + b"b" * 512


def test_a_conversion_that_fails_leaves_nothing() -> None:
    folder = Folder()
    disk = new_disk(folder)
    folder.put("there.vhds", b"")
    with pytest.raises(FileExistsError):
        _do(snapshots.convert(disk, folder, "there.vhds", _progress))
    assert folder.names() == ["disk.vhdx", "there.vhds"]


@pytest.mark.parametrize(
    "change", [{"image": "..\\secret"}, {"image": 5}, {"kind": "1"}, {"created": -1}, {"snapshot_id": "x"}, {"more": 1}]
)
def test_a_list_of_snapshots_that_was_made_up_is_refused(change: dict[str, object]) -> None:
    folder = Folder()
    disk = _set(folder)
    good = {
        "snapshot_id": str(uuid.UUID(int=1)),
        "kind": 1,
        "created": 1,
        "change_tracking": True,
        "image": "base.avhdx",
    }
    for entry, is_right in ((good, True), (good | change, False)):
        data = json.dumps([entry]).encode()
        head = b"smb3snap" + len(data).to_bytes(4, "little") + int(crc32c(data)).to_bytes(4, "little")
        vhd_set_of = snapshots.set_of(disk)
        vhd_set_of.handle.write_from([head, data], 260 << 10)
        if is_right:
            assert len(snapshots.set_of(open_disk(folder, "disk.vhds")).snapshots) == 1
        else:
            with pytest.raises(BadImage, match="damaged"):
                open_disk(folder, "disk.vhds")


def test_a_set_that_names_a_file_elsewhere_is_refused() -> None:
    folder = Folder()
    handle = folder.create("bad.vhds")
    vhd_set.make(handle, "..\\secret.vhdx")
    handle.close()
    with pytest.raises(BadImage, match="same folder"):
        open_disk(folder, "bad.vhds")
