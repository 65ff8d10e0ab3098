"""A virtual disk that is open: its chain of images, and what all its opens share. [MS-RSVD 3.2.1]"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from smb3server.backends.base import FileKey, Handle
from smb3server.virtual_disks import claims, layout
from smb3server.virtual_disks.layout import BlockState
from smb3server.virtual_disks.reading import BadImage, is_plain_name
from smb3server.virtual_disks.reservations import Reservations
from smb3server.virtual_disks.tracking import Tracking
from smb3server.virtual_disks.vhd_set import VhdSet, is_set_name
from smb3server.virtual_disks.vhdx import Image
from smbdirect.codec import Buffer

MAX_CHAIN = 64
"""The most files that a disk is read from."""
MAX_PROGRESS = 64
_PIECE = 1 << 20


class Files(Protocol):
    """The folder of a disk, with the rights of the user who opens the disk."""

    def open(self, name: str, write: bool) -> Handle:
        """Open a file for reading, or for both. Raises ``OSError`` and ``StatusError``."""
        ...

    def create(self, name: str) -> Handle:
        """Make a file, open for both. Raises ``FileExistsError``, other ``OSError`` and ``StatusError``."""
        ...

    def claim(self, handle: Handle, write: bool = True) -> None:
        """Claim an open image before it is written, or others are read through it, where no cluster sees to that.
        Raises ``OSError``: EBUSY if somebody else writes it, or needs it as it is."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file. Raises ``OSError`` and ``StatusError``."""
        ...


class VirtualDisk:
    """A disk and the state that its opens share. Writes come from the event loop and from worker threads."""

    def __init__(self, key: FileKey, name: str) -> None:
        self.key, self.name = key, name
        self.chain: list[Image] = []
        """The file that is written first, then its parent, and so on."""
        self.vhd_set: VhdSet | None = None
        self.reservations = Reservations()
        self.users = 0
        """Number of opens."""
        self.initiators: dict[bytes, int] = {}
        """Number of opens by initiator."""
        self.lock = threading.RLock()
        """Held while a block is looked up and allocated, and while the chain changes."""
        self.written: set[tuple[int, int]] | None = None
        """Offset and length of the blocks written since a copy began. None: nobody copies."""
        self.tracking: Tracking | None = None
        self.progress: dict[bytes, tuple[int, int]] = {}
        """How far meta-operations are, by TransactionId. At most ``MAX_PROGRESS``."""
        self._retired: list[Image] = []
        """Images that left the chain. A thread may still be reading from them."""

    @property
    def active(self) -> Image:
        """The image that is written."""
        return self.chain[0]

    @property
    def size(self) -> int:
        """Bytes of the disk."""
        return self.active.virtual_size

    # Opening and closing

    def open(self, files: Files, write: bool) -> None:
        """Open the files of the disk, if they are not open in the same way yet. Raises ``OSError``, ``StatusError``.

        Each open calls it, so that nobody gets around the rights on one of the files."""
        if self.chain and (self.active.writable or not write):
            # They are open already: it remains to be shown that this user may open them.
            names = [image.name for image in self.chain]
            if self.vhd_set is not None:
                files.open(self.name, write).close()
            for name in names:
                files.open(name, write and name == names[0]).close()
            return
        vhd_set = None
        name = self.name
        if is_set_name(name):
            vhd_set = VhdSet(files.open(name, write))
            name = vhd_set.active
        try:
            chain = open_chain(files, name, write)
        except BaseException:
            if vhd_set is not None:
                vhd_set.close()
            raise
        self.replace(chain)
        if self.vhd_set is not None:
            self.vhd_set.close()
        self.vhd_set = vhd_set

    def replace(self, chain: list[Image]) -> None:
        """Use other images from now on. Those that leave stay open until the disk is closed."""
        with self.lock:
            self._retired += [image for image in self.chain if image not in chain]
            self.chain = chain
            for image in chain[1:]:
                claims.only_read(image.file)
            for image in self._retired:
                claims.give_up(image.file)

    def empty_logs(self) -> None:
        """Have nothing in the logs of the images, so that closing them is quick. It may take long. Errors are logged
        when they are closed."""
        with contextlib.suppress(OSError):
            for image in (*self.chain, *self._retired):
                image.empty_log()

    @property
    def closes_slowly(self) -> bool:
        """Whether the end of the open that is left closes the disk, and has to wait for stable storage."""
        return self.users == 1 and any(image.has_log for image in (*self.chain, *self._retired))

    def close(self, leave: bool = False) -> None:
        """Close all files. ``leave``: without another change, as another node may have them by now."""
        for image in (*self.chain, *self._retired):
            image.close(leave)
        self.chain, self._retired = [], []
        if self.tracking is not None:
            self.tracking.close()
            self.tracking = None
        if self.vhd_set is not None:
            self.vhd_set.close()
            self.vhd_set = None

    # Data

    def read(self, view: memoryview, offset: int) -> None:
        """Fill ``view`` with the disk's bytes from ``offset`` on. They must lie in the disk. Raises ``OSError``."""
        read_chain(self.chain, view, offset)

    def is_quick(self, offset: int, length: int) -> bool:
        """Return whether a write need not wait for stable storage, nor for another thread."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self.active.is_quick(offset, length)
        finally:
            self.lock.release()

    def write(self, data: Buffer, offset: int) -> None:
        """Write to the disk. The range must lie in it. Raises ``OSError``."""
        view = memoryview(data).cast("B")
        if self.tracking is not None:
            self.tracking.note(offset, len(view))
        while len(view):
            with self.lock:
                image = self.active
                within = offset % image.block_size
                part = view[: image.block_size - within]
                image.data_changes()
                block = offset // image.block_size
                if not self._is_zero_already(image, block, part):
                    self._write_block(image, block, within, part)
                if self.written is not None:
                    self.written.add((offset - within, image.block_size))
            view = view[len(part) :]
            offset += len(part)

    def _is_zero_already(self, image: Image, block: int, part: memoryview) -> bool:
        """Return whether zeros are written to a block that has none of its own, and is zeros as a whole."""
        if image.has_parent or part[0] or image.entry(block)[0] in (
            BlockState.FULLY_PRESENT, BlockState.PARTIALLY_PRESENT
        ):  # fmt: skip
            return False
        return bytes(part).count(0) == len(part)

    def _write_block(self, image: Image, block: int, within: int, data: memoryview) -> None:
        """Write to a block, which gets a place in the file first if it has none."""
        place = image.place_of(block)
        if place is not None:
            image.handle.write_from([data], place + within)
            return
        content = None
        if image.has_parent and len(data) < image.block_size:
            # A block is copied whole, so that no bitmap of its sectors is needed.
            content = self._content(block * image.block_size, image.block_size)
        image.allocate(block, within, data, content)

    def unmap(self, offset: int, length: int) -> None:
        """Free what a range of the disk takes. It reads as zeros then, but for parts of blocks that only a parent has:
        these stay. The range must lie in the disk. Raises ``OSError``. [SBC-3 4.7.3]"""
        if self.tracking is not None:
            self.tracking.note(offset, length)
        while length:
            with self.lock:
                image = self.active
                block, within = divmod(offset, image.block_size)
                part = min(length, image.block_size - within)
                image.data_changes()
                place = image.place_of(block)
                if place is not None:
                    image.handle.zero_range(place + within, part, deallocate=True)
                elif image.has_parent and part == image.block_size:
                    image.set_entry(block, BlockState.ZERO, 0)
                if self.written is not None:
                    self.written.add((offset - within, image.block_size))
            offset, length = offset + part, length - part

    def _content(self, offset: int, length: int) -> Iterator[Buffer]:
        end = min(offset + length, self.size)
        while offset < end:
            piece = memoryview(bytearray(min(_PIECE, end - offset)))
            self.read(piece, offset)
            yield piece
            offset += len(piece)

    def flush(self) -> None:
        """Write the disk's data to stable storage. It may take long. Raises ``OSError``."""
        for image in self.chain[:1]:
            image.flush()

    def continue_with(self, stored: Reservations) -> None:
        """Take over reservations that were stored with an open, unless those that the disk has are newer."""
        if stored.changes > self.reservations.changes:
            self.reservations = stored

    def settle(self) -> None:
        """End the reservations if no initiator that is registered has the disk open."""
        found = self.reservations
        if found.keys and not self.initiators.keys() & found.keys.keys():
            self.reservations = Reservations(found.changes + 1)

    def note_progress(self, transaction: bytes, done: int, whole: int) -> None:
        """Note how far a meta-operation is."""
        if transaction not in self.progress and len(self.progress) >= MAX_PROGRESS:
            del self.progress[next(iter(self.progress))]
        self.progress[transaction] = done, whole

    def resize(self, size: int) -> None:
        """Set the size of the disk in bytes. Raises ``OSError``."""
        with self.lock:
            self.active.resize(size)

    def allocated(self) -> int:
        """Return the bytes that the disk takes in its files."""
        return sum(image.handle.info().end_of_file for image in self.chain)

    def is_valid(self) -> bool:
        """Return whether all blocks of the disk lie in their files, each at a place of its own."""
        for image in self.chain:
            end = image.handle.info().end_of_file
            seen: set[int] = set()
            for block in range(-(-image.virtual_size // image.block_size)):
                state, where = image.entry(block)
                if state in (BlockState.FULLY_PRESENT, BlockState.PARTIALLY_PRESENT):
                    if where in seen or where + min(image.block_size, layout.MIB) > end:
                        return False
                    seen.add(where)
        return True


def open_chain(files: Files, name: str, write: bool) -> list[Image]:
    """Open a file and all its parents. Raises ``OSError``, ``StatusError``."""
    chain: list[Image] = []
    names: set[str] = set()
    try:
        while True:
            if name.casefold() in names or len(chain) >= MAX_CHAIN:
                raise BadImage("it has too many parents, or is its own")
            names.add(name.casefold())
            handle = files.open(name, write and not chain)
            try:
                if write:
                    files.claim(handle, write=not chain)
                image = Image(handle, name, write and not chain)
                if chain and not chain[-1].is_child_of(image):
                    raise BadImage(f"its parent {name} was changed after it was made")
            except BaseException:
                handle.close()
                raise
            chain.append(image)
            if not image.has_parent:
                return chain
            name = parent_name(image)
    except BaseException:
        for image in chain:
            image.close()
        raise


def parent_name(image: Image) -> str:
    """Return the name of an image's parent, which lies in the same folder. Raises ``BadImage``."""
    path = (image.metadata.parent or {}).get("relative_path", "")
    name = path.removeprefix(".\\")
    if not is_plain_name(name):
        raise BadImage("its parent is not in the same folder")
    return name


def read_chain(chain: list[Image], view: memoryview, offset: int) -> None:
    """Fill ``view`` from the first image that has the bytes. Raises ``OSError``."""
    image, parents = chain[0], chain[1:]
    inside = max(min(len(view), image.virtual_size - offset), 0)
    view[inside:] = bytes(len(view) - inside)
    for run in image.runs(offset, inside):
        part = view[run.offset - offset : run.offset - offset + run.length]
        if run.where is not None:
            count = image.handle.read_into([part], run.where)
            part[count:] = bytes(len(part) - count)
        elif run.in_parent and parents:
            read_chain(parents, part, run.offset)
        else:
            part[:] = bytes(len(part))


class VirtualDisks:
    """The disks of a server that are open, by their file."""

    def __init__(self) -> None:
        self.by_key: dict[FileKey, VirtualDisk] = {}

    def enter(self, key: FileKey, name: str, files: Files, write: bool, initiator: bytes) -> VirtualDisk:
        """Return the disk of a file for a new open of it. Raises ``OSError``, ``StatusError``."""
        disk = self.by_key.get(key)
        if disk is None:
            disk = VirtualDisk(key, name)
        disk.open(files, write)
        self.by_key[key] = disk
        disk.users += 1
        if initiator:
            disk.initiators[initiator] = disk.initiators.get(initiator, 0) + 1
        return disk

    def leave(self, disk: VirtualDisk, initiator: bytes, is_lost: Callable[[], bool]) -> None:
        """Note that an open of the disk has ended. The last one closes it. ``is_lost``: whether another node may have
        its files by now."""
        disk.users -= 1
        if initiator:
            disk.initiators[initiator] -= 1
            if not disk.initiators[initiator]:
                del disk.initiators[initiator]
                disk.reservations.forget(initiator)
                disk.settle()
        if not disk.users:
            if self.by_key.get(disk.key) is disk:
                del self.by_key[disk.key]
            disk.close(is_lost())


def too_large(offset: int, length: int, size: int) -> bool:
    """Return whether a range does not lie in a disk."""
    return offset < 0 or length < 0 or offset + length > size


def refused() -> OSError:
    """Return the error for what a virtual disk cannot do."""
    return OSError(errno.EOPNOTSUPP, "a virtual disk has no such operation")
