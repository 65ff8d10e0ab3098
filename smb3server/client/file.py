"""A file of a share as an asynchronous file object."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncGenerator
from types import TracebackType

from smb3server.client import errors
from smb3server.client.handle import Handle
from smb3server.client.link import PIECE
from smb3server.wire.create import Access, CreateDisposition
from smbdirect.codec import Buffer

_READ = int(Access.GENERIC_READ)
_WRITE = int(Access.GENERIC_WRITE | Access.READ_ATTRIBUTES)
MODES: dict[str, tuple[int, int]] = {
    "rb": (_READ, CreateDisposition.OPEN),
    "r+b": (_READ | _WRITE, CreateDisposition.OPEN),
    "wb": (_WRITE, CreateDisposition.OVERWRITE_IF),
    "w+b": (_READ | _WRITE, CreateDisposition.OVERWRITE_IF),
    "xb": (_WRITE, CreateDisposition.CREATE),
    "x+b": (_READ | _WRITE, CreateDisposition.CREATE),
    "ab": (_WRITE, CreateDisposition.OPEN_IF),
    "a+b": (_READ | _WRITE, CreateDisposition.OPEN_IF),
}
"""Access and disposition of each mode, as of ``open``."""


def normal_mode(mode: str) -> str:
    """Return the spelling of ``mode`` that is in ``MODES``. Raises ``ValueError`` for any other mode."""
    if "b" not in mode:
        raise ValueError(f"mode {mode!r}: only binary files are asynchronous; add b, or use read_text and write_text")
    kind = mode.replace("b", "").replace("+", "")
    found = f"{kind}{'+' if '+' in mode else ''}b"
    if found not in MODES or len(found) != len(mode):
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    return found


class File:
    """An open file with a position. ``read_at`` and ``write_at`` leave the position alone, and may overlap.

    Long reads and writes have several requests in flight, by RDMA where the share has it.
    """

    def __init__(self, handle: Handle, mode: str) -> None:
        self.mode = mode
        self.name = handle.path
        self._handle = handle
        self._at = 0
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<File {self.name!r} mode={self.mode!r} on {self._handle.link.address}{' closed' if self._closed else ''}>"
        )

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def readable(self) -> bool:
        """Return whether the mode allows reading."""
        return "r" in self.mode or "+" in self.mode

    def writable(self) -> bool:
        """Return whether the mode allows writing."""
        return "r" not in self.mode or "+" in self.mode

    def _check(self, allowed: bool, what: str) -> None:
        if self._closed:
            raise ValueError(f"{self.name}: the file is closed")
        if not allowed:
            raise io.UnsupportedOperation(f"{self.name}: mode {self.mode} does not allow {what}")

    async def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes; to the end of the file without a size."""
        if size < 0:
            size = max(0, await self.size() - self._at)
        data = await self.read_at(self._at, size)
        self._at += len(data)
        return data

    async def read_at(self, offset: int, size: int) -> bytes:
        """Read up to ``size`` bytes from ``offset``; fewer at the end of the file."""
        self._check(self.readable(), "reading")
        with errors.named(self.name):
            if size <= PIECE:
                return await self._handle.read_piece(offset, size) if size else b""
            found = [data async for _, data in self._handle.pieces(offset, offset + size, whole=False)]
        return b"".join(found)

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        """Read into ``buffer`` and return the number of bytes."""
        view = memoryview(buffer).cast("B")
        data = await self.read(len(view))
        view[: len(data)] = data
        return len(data)

    async def write(self, data: Buffer) -> int:
        """Write all of ``data`` and return the number of bytes. In mode ``a`` it goes to the end of the file."""
        if self.mode.startswith("a"):
            self._at = await self.size()
        count = await self.write_at(self._at, data)
        self._at += count
        return count

    async def write_at(self, offset: int, data: Buffer) -> int:
        """Write all of ``data`` at ``offset`` and return the number of bytes."""
        self._check(self.writable(), "writing")
        view = memoryview(data).cast("B")

        async def cut() -> AsyncGenerator[tuple[int, memoryview], None]:
            for at in range(0, len(view), PIECE):
                yield offset + at, view[at : at + PIECE]

        with errors.named(self.name):
            await self._handle.write_pieces(cut(), lambda piece: None)
        return len(view)

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position and return it."""
        if whence == os.SEEK_CUR:
            offset += self._at
        elif whence == os.SEEK_END:
            offset += await self.size()
        if offset < 0:
            raise ValueError(f"{self.name}: the position cannot be {offset}")
        self._at = offset
        return offset

    def tell(self) -> int:
        """Return the position."""
        return self._at

    async def size(self) -> int:
        """Return the file's size in bytes as it is now."""
        self._check(True, "")
        with errors.named(self.name):
            return await self._handle.size()

    async def truncate(self, size: int | None = None) -> int:
        """Cut or extend the file to ``size`` bytes; to the position without a size."""
        self._check(self.writable(), "writing")
        size = self._at if size is None else size
        with errors.named(self.name):
            await self._handle.set_size(size)
        return size

    async def flush(self) -> None:
        """Let the server write to its disk what it has cached of the file."""
        self._check(True, "")
        if self.writable():
            with errors.named(self.name):
                await self._handle.flush()

    async def close(self) -> None:
        """Close the file. Idempotent."""
        if not self._closed:
            self._closed = True
            with errors.named(self.name):
                await self._handle.close()

    async def __aenter__(self) -> File:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
