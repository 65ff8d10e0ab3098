"""The server: prepares files once, and lends them. No line of it runs when a lent file is read or written.

A request is a message: a letter, and a path in the folder. ``r`` lends a file for reading, ``w SIZE`` for writing too,
``f`` writes what has arrived to the disk. The answer is a handle, nothing, or ``!`` and the reason.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import stat
from pathlib import Path

from smbdirect import rdma

_log = logging.getLogger(__name__)
_BENEATH = os.O_CLOEXEC | os.O_NOFOLLOW


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open a file in a folder that is given by its descriptor. No symbolic link and no ``..`` leads out of it."""
    *above, name = path.split("/")
    if not name or name in (".", "..") or any(part in ("", ".", "..") for part in above):
        raise PermissionError(f"{path!r} is not a path in the folder")
    at = os.dup(folder)
    try:
        for part in above:
            at, before = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _BENEATH, dir_fd=at), at
            os.close(before)
        # O_NONBLOCK: a FIFO must not block.
        return os.open(name, flags | _BENEATH | os.O_NONBLOCK, 0o644, dir_fd=at)
    finally:
        os.close(at)


class Lender:
    """Lends the files of a folder to whoever connects: with this process's rights, and without asking who it is."""

    def __init__(self, folder: Path, read_only: bool = False) -> None:
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._read_only = read_only

    async def serve(self, listener: rdma.Listener) -> None:
        """Attend to every client, until the listener is closed."""
        async with asyncio.TaskGroup() as clients:
            async for connection in listener:
                clients.create_task(self._attend(connection))

    async def _attend(self, connection: rdma.Connection) -> None:
        """Answer one client's requests. What it has been lent ends with its connection."""
        lent: dict[str, int] = {}
        with contextlib.ExitStack() as files:
            try:
                while True:
                    request = (await connection.receive()).decode(errors="replace")
                    try:
                        answer = self._answer(connection, request, lent, files)
                    except (OSError, ValueError, KeyError, rdma.ProviderError) as error:
                        answer = b"!" + str(error).encode()[: connection.message_size - 1]
                    await connection.send(answer)
            except rdma.ConnectionLost as error:
                _log.info("%s: %s", connection.peer_address, error)

    def _answer(
        self, connection: rdma.Connection, request: str, lent: dict[str, int], files: contextlib.ExitStack
    ) -> bytes:
        kind, _, rest = request.partition(" ")
        if kind == "f":
            os.fsync(lent[rest])
            return b""
        size, path, writable = 0, rest, kind == "w"
        if writable:
            number, _, path = rest.partition(" ")
            size = int(number)
        elif kind != "r":
            raise ValueError(f"unknown request {kind!r}")
        if writable and self._read_only:
            raise PermissionError("the folder is lent for reading only")
        descriptor = open_beneath(self._folder, path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY)
        files.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PermissionError(f"{path} is not a file")
        # The lease: one writer, or any number of readers. The kernel ends it with the descriptor.
        fcntl.flock(descriptor, (fcntl.LOCK_EX if writable else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        if size:
            os.posix_fallocate(descriptor, 0, size)  # no write needs space later
        region = connection.register_file(descriptor, readable=True, writable=writable)
        files.callback(region.close)
        lent[path] = descriptor
        return region.handle.pack()

    def close(self) -> None:
        """Close the folder."""
        os.close(self._folder)
