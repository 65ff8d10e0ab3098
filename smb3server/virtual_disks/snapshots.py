"""What is done to VHD sets and images as a whole: snapshots, copies, conversions. [MS-RSVD 3.2.5.5.7, 3.2.5.5.10]

A snapshot is the image that was written until then. From then on a new image is written whose parent it is. All
functions take steps, on a worker thread. Their disk may be written meanwhile.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Generator, Iterable

from smb3server.virtual_disks import claims, making, vhd_set
from smb3server.virtual_disks.disk import Files, VirtualDisk, open_chain, parent_name, read_chain
from smb3server.virtual_disks.layout import BlockState
from smb3server.virtual_disks.reservations import Attention
from smb3server.virtual_disks.vhd_set import MAX_SNAPSHOTS, Snapshot, VhdSet
from smb3server.virtual_disks.vhdx import Image
from smb3server.wire.status import NtStatus, StatusError

Work = Generator[None, None, None]
Progress = Callable[[int, int], None]
_AT_END = 4
"""Blocks that were written during a copy and may be copied while the disk cannot be written."""


def set_of(disk: VirtualDisk) -> VhdSet:
    """Return the VHD set of a disk. Raises INVALID_DEVICE_REQUEST if it is none."""
    if disk.vhd_set is None:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    return disk.vhd_set


def found_in(disk: VirtualDisk, snapshot_id: bytes, kind: int | None = None) -> Snapshot:
    """Return a snapshot of a set. Raises INVALID_PARAMETER if there is none with the id and type."""
    snapshot = set_of(disk).find(snapshot_id, kind)
    if snapshot is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return snapshot


def _new_name(disk: VirtualDisk) -> str:
    base = disk.name.rpartition(".")[0]
    return f"{base}_{uuid.uuid4()}.avhdx"


def _child(disk: VirtualDisk, files: Files, parent: Image) -> Image:
    """Make an image whose parent is another one. Raises ``OSError``, ``StatusError``."""
    name = _new_name(disk)
    metadata = parent.metadata
    shape = making.Shape(
        metadata.virtual_size,
        metadata.sector_size,
        metadata.physical_sector_size,
        metadata.disk_id,
        parent=making.Parent(parent.name, parent.data_write_guid),
    )
    return _made(files, name, shape)


def _made(files: Files, name: str, shape: making.Shape) -> Image:
    handle = files.create(name)
    try:
        files.claim(handle)
        making.make(handle, shape)
        handle.flush()
        return Image(handle, name, writable=True)
    except BaseException:
        handle.close()
        files.remove(name)
        raise


def create(disk: VirtualDisk, files: Files, snapshot_id: bytes, kind: int, tracks: bool) -> Work:
    """Make a snapshot. Raises ``OSError``, ``StatusError``: OBJECT_NAME_COLLISION if there is one with the id."""
    of_set = set_of(disk)
    if of_set.find(snapshot_id) is not None:
        raise StatusError(NtStatus.OBJECT_NAME_COLLISION)
    if len(of_set.snapshots) >= MAX_SNAPSHOTS:
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
    # What the snapshot has is on stable storage before it is acknowledged.
    disk.flush()
    with disk.lock:
        active = disk.active
        active.flush()
        # Nobody writes it from now on, and whoever reads a parent need not replay its log.
        active.empty_log()
        image = _child(disk, files, active)
        snapshot = vhd_set.new_snapshot(snapshot_id, kind, tracks, active.name)
        try:
            of_set.store(image.name, [*of_set.snapshots, snapshot])
        except BaseException:
            image.close()
            files.remove(image.name)
            raise
        disk.replace([image, *disk.chain])
    yield


def apply(disk: VirtualDisk, files: Files, snapshot: Snapshot) -> Work:
    """Let the disk have the data of a snapshot again. What was written since is lost, unless another has it."""
    of_set = set_of(disk)
    chain = open_chain(files, snapshot.image, write=False)
    with disk.lock:
        before = disk.active
        try:
            for opened in chain:
                files.claim(opened.file, write=False)
            image = _child(disk, files, chain[0])
            of_set.store(image.name, of_set.snapshots)
        except BaseException:
            for opened in chain:
                opened.close()
            raise
        disk.replace([image, *chain])
    if image.virtual_size != before.virtual_size:
        disk.reservations.establish(set(disk.initiators), Attention.CAPACITY_CHANGED, b"")
    yield
    if all(kept.image != before.name for kept in of_set.snapshots):
        files.remove(before.name)


def delete(disk: VirtualDisk, files: Files, snapshot: Snapshot, progress: Progress) -> Work:
    """Delete a snapshot. Its image goes if nothing is read from it. If only the image in use is, both become one.

    Otherwise the image stays as the parent of others."""
    of_set = set_of(disk)
    children = _children_of(disk, files, snapshot.image)
    remaining = [other for other in of_set.snapshots if other is not snapshot]
    of_set.store(of_set.active, remaining)
    yield
    if any(other.image == snapshot.image for other in remaining):
        return
    if not children:
        files.remove(snapshot.image)
    elif children == {disk.active.name}:
        yield from _merge_active(disk, files, progress)


def _children_of(disk: VirtualDisk, files: Files, name: str) -> set[str]:
    """Return the names of the images whose parent has a name."""
    found: set[str] = set()
    chains = [(disk.chain, False)]
    chains += [(open_chain(files, other.image, write=False), True) for other in set_of(disk).snapshots]
    for chain, ours in chains:
        found |= {image.name for image in chain if image.has_parent and parent_name(image) == name}
        if ours:
            for image in chain:
                image.close()
    return found


def _merge_active(disk: VirtualDisk, files: Files, progress: Progress) -> Work:
    """Write what the image in use has into its parent, and use that from now on.

    Until the end the image in use hides what is written to the parent, so that a crash loses nothing."""
    active, below = disk.chain[0], disk.chain[1]
    handle = files.open(below.name, write=True)
    claims.give_up(below.file)
    try:
        files.claim(handle)
        target = Image(handle, below.name, writable=True)
        target.data_changes(hidden=True)
        if target.virtual_size != active.virtual_size:
            target.resize(active.virtual_size)
    except BaseException as error:
        handle.close()
        files.claim(below.file, write=False)
        if isinstance(error, OSError) and error.errno == errno.EBUSY:
            # Another disk is read through it, too.
            return
        raise
    writer = VirtualDisk(disk.key, below.name)
    writer.chain = [target, *disk.chain[2:]]

    def finish() -> None:
        target.flush()
        of_set = set_of(disk)
        of_set.store(target.name, of_set.snapshots)
        target.data_changed()
        disk.replace(writer.chain)

    try:
        yield from _copy(disk, [active], writer, progress, finish)
    except BaseException:
        if target not in disk.chain:
            handle.close()
        raise
    files.remove(active.name)


def _present(images: Iterable[Image]) -> set[tuple[int, int]]:
    """Return offset and length of the blocks that the images have. They may overlap."""
    found: set[tuple[int, int]] = set()
    for image in images:
        for block in range(-(-image.virtual_size // image.block_size)):
            if image.entry(block)[0] not in (BlockState.NOT_PRESENT, BlockState.UNDEFINED):
                found.add((block * image.block_size, image.block_size))
    return found


def _copy(
    disk: VirtualDisk, images: list[Image], target: VirtualDisk, progress: Progress, finish: Callable[[], None]
) -> Work:
    """Copy the blocks that the images have to another disk. Then call ``finish``, while nobody writes.

    What is written meanwhile is copied again. Raises ``OSError``."""
    with disk.lock:
        if disk.written is not None:
            raise StatusError(NtStatus.SHARING_VIOLATION)
        disk.written = set()
    try:
        ranges = _present(images)
        done = 0
        while True:
            for offset, length in sorted(ranges):
                _copy_range(disk, target, offset, length)
                done += 1
                progress(done, done + len(ranges))
                yield
            with disk.lock:
                ranges, disk.written = disk.written, set()
                if len(ranges) <= _AT_END:
                    for offset, length in ranges:
                        _copy_range(disk, target, offset, length)
                    finish()
                    return
    finally:
        disk.written = None


def _copy_range(disk: VirtualDisk, target: VirtualDisk, offset: int, length: int) -> None:
    length = min(length, disk.size - offset)
    if length > 0:
        data = bytearray(length)
        disk.read(memoryview(data), offset)
        target.write(data, offset)


def _full_shape(image: Image) -> making.Shape:
    metadata = image.metadata
    return making.Shape(metadata.virtual_size, metadata.sector_size, metadata.physical_sector_size)


def convert(disk: VirtualDisk, files: Files, name: str, progress: Progress) -> Work:
    """Make a VHD set with a copy of the disk. Raises ``FileExistsError``, other ``OSError``, ``StatusError``."""
    set_file = files.create(name)
    image_name = f"{name.rpartition('.')[0]}_{uuid.uuid4()}.avhdx"
    try:
        image = _made(files, image_name, _full_shape(disk.active))
        try:
            target = VirtualDisk(disk.key, image_name)
            target.chain = [image]
            yield from _copy(disk, disk.chain, target, progress, image.flush)
            vhd_set.make(set_file, image_name)
            set_file.flush()
        except BaseException:
            files.remove(image_name)
            raise
        finally:
            image.close()
    except BaseException:
        files.remove(name)
        raise
    finally:
        set_file.close()


def extract(
    disk: VirtualDisk, files: Files, source: Snapshot, limit: Snapshot | None, name: str, progress: Progress
) -> Work:
    """Write a snapshot into a new file: all of it, or what changed since ``limit``. Raises as ``convert``."""
    chain = open_chain(files, source.image, write=False)
    try:
        images, shape = chain, _full_shape(chain[0])
        if limit is not None:
            images = images_between(chain, limit)
            base = chain[len(images)]
            shape = shape._replace(
                parent=making.Parent(base.name, base.data_write_guid), disk_id=chain[0].metadata.disk_id
            )
        image = _made(files, name, shape)
        try:
            target = VirtualDisk(disk.key, name)
            target.chain = [image, *(chain[len(images) :] if limit is not None else [])]
            ranges = sorted(_present(images))
            for done, (offset, length) in enumerate(ranges):
                data = bytearray(min(length, chain[0].virtual_size - offset))
                read_chain(chain, memoryview(data), offset)
                target.write(data, offset)
                progress(done + 1, len(ranges))
                yield
            image.flush()
        except BaseException:
            files.remove(name)
            raise
        finally:
            image.close()
    finally:
        for opened in chain:
            opened.close()


def images_between(chain: list[Image], limit: Snapshot) -> list[Image]:
    """Return the images of a chain that came after a snapshot. Raises INVALID_PARAMETER if it is not in the chain."""
    names = [image.name for image in chain]
    if limit.image not in names:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return chain[: names.index(limit.image)]


def changes(
    files: Files, target: Snapshot, limit: Snapshot, offset: int, length: int, most: int
) -> tuple[int, list[tuple[int, int]]]:
    """Return how many bytes were looked at, and at most ``most`` ranges of them that changed between two snapshots.

    A range begins and ends with a block, or with what was asked for. Raises ``OSError``, ``StatusError``."""
    chain = open_chain(files, target.image, write=False)
    try:
        end = min(offset + length, chain[0].virtual_size)
        found: list[tuple[int, int]] = []
        for start, size in sorted(_present(images_between(chain, limit))):
            begin, stop = max(start, offset), min(start + size, end)
            if begin >= stop:
                continue
            if found and found[-1][0] + found[-1][1] >= begin:
                found[-1] = found[-1][0], max(stop, sum(found[-1])) - found[-1][0]
            elif len(found) >= most:
                return begin - offset, found
            else:
                found.append((begin, stop - begin))
        return length, found
    finally:
        for image in chain:
            image.close()
