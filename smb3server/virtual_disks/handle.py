"""The handle of an open of a virtual disk: READ and WRITE reach the sectors of the disk, all else the file.

It has no descriptor, so nothing goes around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from smb3server.backends.base import Described, FileInfo, Handle
from smb3server.backends.forwarding import ForwardingHandle
from smb3server.virtual_disks.device import DeviceOpen
from smb3server.virtual_disks.disk import refused
from smbdirect.codec import Buffer
from smbdirect.message_transport import FileRange, Payload


class DiskHandle(ForwardingHandle):
    """A handle of a disk. What it does not define, the handle of the file does."""

    __slots__ = ("_device", "_handle", "_leave", "created", "file_created", "key", "kind", "stream")

    def __init__(self, handle: Handle, device: DeviceOpen, leave: Callable[[], None]) -> None:
        """``handle``: the file that was opened. It is closed with this one. ``leave``: ends the use of the disk."""
        self._handle, self._device = handle, device
        self._leave: Callable[[], None] | None = leave
        self.key, self.kind, self.stream = handle.key, handle.kind, handle.stream
        self.created, self.file_created = handle.created, handle.file_created

    def open(self) -> Handle:
        return self._handle

    def close(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            self._device.close()
            leave()
        self._handle.close()

    def fileno(self) -> int | None:
        return None

    def info(self) -> FileInfo:
        return self._shown(self.open().info())

    def describe(self) -> Described:
        found = self.open().describe()
        return found._replace(info=self._shown(found.info))

    def _shown(self, info: FileInfo) -> FileInfo:
        size = self._device.size
        return info._replace(end_of_file=size, allocation_size=max(info.allocation_size, size))

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        count = 0
        for buffer in buffers:
            self._device.read(buffer, offset + count)
            count += len(buffer)
        return count

    def cached(self, offset: int, length: int) -> FileRange | None:
        return None

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        count = 0
        for buffer in buffers:
            self._device.write(buffer, offset + count)
            count += len(buffer)
        return count

    def take_in(self, payload: Payload, offset: int) -> None:
        raise refused()

    def flush(self) -> None:
        self._device.disk.flush()
        if self._device.disk.vhd_set is not None:
            self.open().flush()

    def shrinking(self, size: int) -> Callable[[], None] | None:
        return None

    def allocating(self, size: int) -> Iterator[None] | None:
        return None

    def zeroing(self, offset: int, length: int, deallocate: bool = False) -> Iterator[None] | None:
        return None

    def filling(self) -> Iterator[None] | None:
        return None

    def truncate(self, size: int) -> NoReturn:
        raise refused()

    def allocate(self, size: int) -> NoReturn:
        raise refused()

    def zero_range(self, offset: int, length: int, deallocate: bool = False) -> NoReturn:
        raise refused()

    def allocated_ranges(self, offset: int, length: int, limit: int = 65536) -> list[tuple[int, int]]:
        return [(offset, length)] if length else []

    def copy_range(self, source: Handle, source_offset: int, offset: int, length: int) -> NoReturn:
        raise refused()

    def clone_range(self, source: Handle, source_offset: int, offset: int, length: int) -> NoReturn:
        raise refused()

    def set_compressed(self, compressed: bool) -> NoReturn:
        raise refused()

    def set_reparse_point(self, data: bytes | None) -> NoReturn:
        raise refused()
