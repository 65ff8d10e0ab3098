"""A FUSE file system that passes a folder on, and answers late: a program, run by ``mounted`` in a process of its own.

    python -m tools.support.late_files FOLDER MOUNT_POINT GATE

``GATE`` is the path of a socket. While somebody listens there, each request is held until it was let through. The
kernel is told to keep nothing in memory, as on storage that other machines change, too. A process that is stopped
(SIGSTOP) is storage that hangs.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

GIVE_UP = 20.0
"""Seconds after which a request is done although nobody lets it through."""


class CannotMountError(Exception):
    """FUSE cannot be used here. The text says why."""


class LateFiles:
    """The mounted file system, seen from the test."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, gate: Path) -> None:
        self._process = process
        self.folder = folder
        self._gate = gate
        self.requests = 0
        """How many requests were let through a gate."""

    @asynccontextmanager
    async def letting_through(self, meanwhile: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        """Hold each request during an ``async with`` block, until ``meanwhile`` was done on this event loop.

        A loop that itself waits for the storage lets nothing through. ``late`` tells so."""

        async def let_through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.requests += 1
            await meanwhile()
            writer.write(b"!")
            writer.close()

        server = await asyncio.start_unix_server(let_through, self._gate)
        try:
            yield
        finally:
            self._gate.unlink()
            server.close()

    @property
    def late(self) -> list[str]:
        """The requests that nobody let through for ``GIVE_UP`` seconds, by their names."""
        told = self._gate.with_suffix(".late")
        return told.read_text().split() if told.exists() else []

    def hang(self) -> Hanging:
        """Answer nothing during a ``with`` block."""
        return Hanging(self._process)


class Hanging:
    """A ``with`` block in which the file system answers nothing."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __enter__(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGCONT)


def problem() -> str | None:
    """Return why FUSE cannot be used here."""
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        return f"mfusepy with libfuse: {error}"
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs root and /dev/fuse"
    return None


@contextmanager
def mounted(root: Path) -> Iterator[LateFiles]:
    """Mount the file system at ``root``/late during a ``with`` block. It shows the folder ``root``/below.

    Raises ``CannotMountError``."""
    why = problem()
    if why is not None:
        raise CannotMountError(why)
    below, point, gate = root / "below", root / "late", root / "gate"
    below.mkdir()
    point.mkdir()
    command = [sys.executable, "-m", "tools.support.late_files", str(below), str(point), str(gate)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 30
        while not os.path.ismount(point):
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                raise CannotMountError(f"FUSE: {process.communicate()[1].decode(errors='replace')[-300:]}")
            time.sleep(0.02)
        yield LateFiles(process, point, gate)
    finally:
        process.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "-l", str(point)], check=False, capture_output=True)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        if process.stderr is not None:
            process.stderr.close()


def _wait_at(gate: str, name: str) -> None:
    """Wait until a request is let through, if somebody listens at the gate."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(GIVE_UP)
        try:
            asking.connect(gate)
        except OSError:
            return
        try:
            asking.recv(1)
        except OSError:
            with Path(gate).with_suffix(".late").open("a") as told:
                told.write(f"{name}\n")


def serve(folder: str, point: str, gate: str) -> None:
    """Serve requests until the file system is unmounted."""
    import mfusepy

    class Passed(mfusepy.Operations):  # type: ignore[misc]
        """Passes all requests on to a folder, with names relative to it."""

        use_ns = True

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name.startswith("_") or name in ("init", "destroy") or not callable(found):
                return found

            @functools.wraps(found)
            def late(*arguments: Any) -> Any:
                _wait_at(gate, name)
                return found(*arguments)

            return late

        @staticmethod
        def _at(path: str) -> str:
            return folder + path

        def _give(self, path: str) -> None:
            """Give a new file to the user who has made it."""
            uid, gid, _ = mfusepy.fuse_get_context()
            os.chown(self._at(path), uid, gid)

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            stat = os.lstat(self._at(path))
            found = {
                name: getattr(stat, name)
                for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_ino")
            }
            return {**found, "st_atime": stat.st_atime_ns, "st_mtime": stat.st_mtime_ns, "st_ctime": stat.st_ctime_ns}

        def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
            # Entries without inode numbers are left out by the C library.
            with os.scandir(self._at(path)) as entries:
                found = [(entry.name, {"st_ino": entry.inode()}, 0) for entry in entries]
            return [(".", {"st_ino": 1}, 0), ("..", {"st_ino": 1}, 0), *found]

        def open(self, path: str, flags: int) -> int:
            return os.open(self._at(path), flags & ~os.O_NOFOLLOW)

        def create(self, path: str, mode: int, fi: object = None) -> int:
            descriptor = os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
            self._give(path)
            return descriptor

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            return os.pwrite(fh, data, offset)

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            os.truncate(self._at(path), length)
            return 0

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def flush(self, path: str, fh: int) -> int:
            return 0

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            os.fsync(fh)
            return 0

        def mkdir(self, path: str, mode: int) -> int:
            os.mkdir(self._at(path), mode)
            self._give(path)
            return 0

        def rmdir(self, path: str) -> int:
            os.rmdir(self._at(path))
            return 0

        def unlink(self, path: str) -> int:
            os.unlink(self._at(path))
            return 0

        def rename(self, old: str, new: str) -> int:
            os.rename(self._at(old), self._at(new))
            return 0

        def chmod(self, path: str, mode: int) -> int:
            os.chmod(self._at(path), mode)
            return 0

        def chown(self, path: str, uid: int, gid: int) -> int:
            os.chown(self._at(path), uid, gid)
            return 0

        def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
            os.utime(self._at(path), ns=times or (time.time_ns(),) * 2)
            return 0

        def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
            return os.getxattr(self._at(path), name, follow_symlinks=False)

        def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
            os.setxattr(self._at(path), name, value, options, follow_symlinks=False)
            return 0

        def listxattr(self, path: str) -> list[str]:
            return os.listxattr(self._at(path), follow_symlinks=False)

        def removexattr(self, path: str, name: str) -> int:
            os.removexattr(self._at(path), name, follow_symlinks=False)
            return 0

        def statfs(self, path: str) -> dict[str, int]:
            found = os.statvfs(self._at(path))
            names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_namemax")
            return {name: getattr(found, name) for name in names}

    mfusepy.FUSE(
        Passed(), point, foreground=True, nothreads=False, allow_other=True, entry_timeout=0.0, attr_timeout=0.0,
        default_permissions=True, use_ino=True,
    )  # fmt: skip


if __name__ == "__main__":
    serve(*sys.argv[1:4])
