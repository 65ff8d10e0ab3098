"""Show how long the other clients wait while the storage of a share is slow.

    python -m tools.bench.slow_storage [--delay MS] [--held-up]

A FUSE file system that keeps nothing in the kernel's memory takes ``--delay`` for each request. One client walks the
commands on a share there, another one sends an ECHO every few milliseconds. The table has the requests to the storage
for each command, and the longest time an ECHO took. ``--held-up`` serves the share as if its storage were not slow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from smb3server.client.protocol.session import Client
from smb3server.client.protocol.transports import open_tcp
from smb3server.client.protocol.tree import RemoteFile, Tree
from smb3server.lab.bench import servers
from smb3server.lab.bench.client import PASSWORD, SHARE, USER, Target
from smb3server.lab.bench.errors import BenchError
from smb3server.process import output
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.fs_info import FsInfoClass
from smb3server.wire.query_info import InfoType
from tools.support import late_files
from tools.support.late_files import LateFiles

_ADDRESS = "127.0.0.47"
_FOLDER, _FILE, _NEW, _MOVED = "walked", "file", "new", "moved"
_LATE = "late"
_ENTRIES = 3
_PAUSE = 0.005
"""Seconds between two ECHOs."""
_ALL = int(Access.GENERIC_ALL)
_BASIC = bytes(32) + b"\x80\0\0\0" + bytes(4)
Step = Callable[[Tree], Awaitable[object]]


class Walk:
    """The commands, in an order in which each finds what it needs."""

    def __init__(self) -> None:
        self._file: RemoteFile | None = None

    @property
    def file(self) -> RemoteFile:
        """The open of the last CREATE."""
        if self._file is None:
            raise BenchError("no file is open")
        return self._file

    async def create(self, tree: Tree, name: str, disposition: int, options: int = 0) -> None:
        """Open or create a file, and keep it."""
        self._file = await tree.create(name, _ALL, disposition, options)

    async def entries(self, tree: Tree) -> None:
        """List the folder."""
        async for _ in tree.entries(self.file):
            pass

    def steps(self) -> dict[str, Step]:
        """Return the commands by name."""
        folder, file = _FOLDER, f"{_FOLDER}\\{_FILE}"
        new, moved = f"{_FOLDER}\\{_NEW}", f"{_FOLDER}\\{_MOVED}"
        queries = (FileInfoClass.BASIC, FileInfoClass.ALL, FileInfoClass.STREAM, FileInfoClass.EA)
        return {
            "CREATE, OPEN of a folder": lambda tree: self.create(
                tree, folder, CreateDisposition.OPEN, int(CreateOptions.DIRECTORY_FILE)
            ),
            "QUERY_DIRECTORY": self.entries,
            "CLOSE of a folder": lambda tree: tree.close(self.file),
            "CREATE, OPEN": lambda tree: self.create(tree, file, CreateDisposition.OPEN),
            **{
                f"QUERY_INFO, {level.name}": lambda tree, level=level: tree.query_info(self.file, level)  # type: ignore[misc]
                for level in queries
            },
            "QUERY_INFO, security": lambda tree: tree.query_info(self.file, 0, InfoType.SECURITY, additional=7),
            "QUERY_INFO, FULL_SIZE of the volume": lambda tree: tree.query_info(
                self.file, FsInfoClass.FULL_SIZE, InfoType.FILESYSTEM
            ),
            "READ of 1 MiB": lambda tree: tree.read(self.file, 0, 1 << 20),
            "WRITE of 4 KiB": lambda tree: tree.write(self.file, 0, bytes(4096)),
            "FLUSH": lambda tree: tree.flush(self.file),
            "SET_INFO, BASIC": lambda tree: tree.set_info(self.file, FileInfoClass.BASIC, _BASIC),
            "SET_INFO, END_OF_FILE": lambda tree: tree.set_info(
                self.file, FileInfoClass.END_OF_FILE, (1 << 19).to_bytes(8, "little")
            ),
            "CLOSE of a file that was written": lambda tree: tree.close(self.file),
            "CREATE, OVERWRITE": lambda tree: self.create(tree, file, CreateDisposition.OVERWRITE),
            "CLOSE": lambda tree: tree.close(self.file),
            "CREATE, CREATE": lambda tree: self.create(tree, new, CreateDisposition.CREATE),
            "SET_INFO, RENAME": lambda tree: tree.rename(self.file, moved),
            "SET_INFO, DISPOSITION": lambda tree: tree.set_info(self.file, FileInfoClass.DISPOSITION, b"\1"),
            "CLOSE that deletes": lambda tree: tree.close(self.file),
        }


@contextlib.asynccontextmanager
async def _logged_on(target: Target, share: str) -> AsyncIterator[tuple[Client, Tree]]:
    client = await Client.connect(await open_tcp(target.host, target.port))
    try:
        session = await client.log_on(USER, PASSWORD)
        yield client, await session.tree_connect(share)
    finally:
        await client.close()


async def _beat(client: Client, times: list[float]) -> None:
    while True:
        began = time.monotonic()
        await client.echo()
        times.append(time.monotonic() - began)
        await asyncio.sleep(_PAUSE)


async def walk(target: Target, late: LateFiles, delay: float) -> None:
    """Do all commands, and print a line for each."""
    async with _logged_on(target, _LATE) as (_, tree), _logged_on(target, SHARE) as (other, _):
        await tree.make_directory(_FOLDER)
        for name in (_FILE, *(str(number) for number in range(_ENTRIES))):
            made = await tree.create(f"{_FOLDER}\\{name}", _ALL, CreateDisposition.CREATE)
            await tree.write(made, 0, bytes(1 << 20))
            await tree.close(made)
        async with late.letting_through(partial(asyncio.sleep, delay)):
            times: list[float] = []
            beating = asyncio.create_task(_beat(other, times))
            for name, step in Walk().steps().items():
                times.clear()
                seen = late.requests
                await step(tree)
                # The ECHO that was under way, and what threads have yet to do.
                await asyncio.sleep(2 * delay)
                while not times:
                    await asyncio.sleep(_PAUSE)
                print(f"| {name} | {late.requests - seen} | {max(times) * 1000:.0f} |", flush=True)
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.slow_storage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--delay", type=int, default=100, metavar="MS", help="default: %(default)s")
    parser.add_argument("--held-up", action="store_true", help="serve the share as if its storage were not slow")
    options = parser.parse_args(arguments)
    if options.delay < 1:
        parser.error("--delay must be positive")
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        root.chmod(0o755)
        try:
            with late_files.mounted(root) as late:
                shutil.chown(root / "below", USER, USER)
                (root / "more.toml").write_text(
                    f'[[share]]\nname = "{_LATE}"\npath = "{late.folder}"\n'
                    + ("slow_storage = false\n" if options.held_up else "")
                )
                more = ("--config", str(root / "more.toml"))
                with servers.ours(root / "ours", sys.executable, (), 1, address=_ADDRESS, more=more) as target:
                    print("| command | requests to the storage | longest ECHO, ms |")
                    print("| --- | --- | --- |")
                    asyncio.run(walk(target, late, options.delay / 1000))
        except (BenchError, OSError, late_files.CannotMountError) as error:
            print(f"slow_storage: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
