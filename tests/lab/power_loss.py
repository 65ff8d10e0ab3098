"""Storage that loses power: of what was written since the last flush of a file, any part is there, sectors torn apart.

What is flushed is there. Writes to the same sector keep their order, as in a cache that is written back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from smb3server.backends.base import Handle
from smb3server.backends.forwarding import ForwardingHandle
from smbdirect.codec import Buffer
from tests.lab.disks import Folder


class PowerLost(BaseException):
    """The machine is off."""


@dataclass
class _File:
    stable: bytearray = field(default_factory=bytearray)
    """What a flush has made sure."""
    since: list[tuple[int, bytes]] = field(default_factory=list)
    """The writes since then. Offset -1: the file got a length, which is the number of bytes."""
    is_named: bool = False
    """Whether a loss of power leaves the file's name there."""
    is_removed: bool = False


class Storage:
    """A folder (``disk.Files``) on storage that loses power before one of its changes or flushes."""

    def __init__(self, folder: Folder, last: int) -> None:
        """``last``: the number of the change or flush that does not happen."""
        self._folder, self._last = folder, last
        self.count = 0
        """Number of changes and flushes so far."""
        self._files: dict[str, _File] = {}
        for name in folder.names():
            self._files[name] = _File(bytearray(folder.get(name)), is_named=True)

    def happens(self) -> None:
        """Count a change or a flush. Raises ``PowerLost``."""
        if self.count >= self._last:
            raise PowerLost
        self.count += 1

    def open(self, name: str, write: bool) -> Handle:
        return VolatileHandle(self, self._folder.open(name, write), self._files[name])

    def create(self, name: str) -> Handle:
        self.happens()
        self._files[name] = _File()
        return VolatileHandle(self, self._folder.create(name), self._files[name])

    def remove(self, name: str) -> None:
        self.happens()
        self._folder.remove(name)
        self._files[name].is_removed = True

    def claim(self, handle: Handle, write: bool = True) -> None:
        """Nobody else writes here."""

    def left(self, source: random.Random) -> Folder:
        """Return what may be there when the power is back."""
        folder = Folder()
        for name, file in self._files.items():
            if (file.is_removed or not file.is_named) and source.random() < 0.5:
                continue
            folder.put(name, _left_of(file, source))
        return folder


def _left_of(file: _File, source: random.Random) -> bytes:
    data = bytearray(file.stable)
    chance = source.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    unit = source.choice((512, 4096, 1 << 30))
    for offset, content in file.since:
        if offset < 0:
            if source.random() < chance:
                size = int.from_bytes(content, "little")
                data = data[:size].ljust(size, b"\0")
            continue
        for at in range(0, len(content), unit):
            piece = content[at : at + unit]
            if source.random() < chance:
                data.extend(bytes(max(offset + at + len(piece) - len(data), 0)))
                data[offset + at : offset + at + len(piece)] = piece
    return bytes(data)


class VolatileHandle(ForwardingHandle):
    """A handle of a file on such storage."""

    def __init__(self, storage: Storage, handle: Handle, file: _File) -> None:
        self._storage, self._handle, self._file = storage, handle, file
        self.key, self.kind, self.stream = handle.key, handle.kind, handle.stream
        self.created, self.file_created = handle.created, handle.file_created

    def open(self) -> Handle:
        return self._handle

    def close(self) -> None:
        self._handle.close()

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._storage.happens()
        data = b"".join(map(bytes, buffers))
        self._file.since.append((offset, data))
        return self._handle.write_from([data], offset)

    def truncate(self, size: int) -> None:
        self._storage.happens()
        self._file.since.append((-1, size.to_bytes(8, "little")))
        self._handle.truncate(size)

    def zero_range(self, offset: int, length: int, deallocate: bool = False) -> None:
        self._storage.happens()
        self._file.since.append((offset, bytes(length)))
        self._handle.zero_range(offset, length, deallocate)

    def flush(self) -> None:
        self._storage.happens()
        file = self._file
        for offset, data in file.since:
            if offset < 0:
                size = int.from_bytes(data, "little")
                file.stable = file.stable[:size].ljust(size, b"\0")
            else:
                file.stable.extend(bytes(max(offset + len(data) - len(file.stable), 0)))
                file.stable[offset : offset + len(data)] = data
        file.since.clear()
        file.is_named = True
        self._handle.flush()
