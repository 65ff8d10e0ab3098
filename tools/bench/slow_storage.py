"""Show which commands hold up the other clients while the storage of a share is slow.

    python -m tools.bench.slow_storage [--delay MS]

strace delays every system call of the server on the files and folders of the share by ``--delay``. One client walks the
commands, another one sends an ECHO every few milliseconds. The table has the delayed calls of each command on the
thread of the event loop and on others, and the longest time an ECHO took. The calls are the same on every machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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

_ADDRESS = "127.0.0.47"
_FOLDER, _FILE, _NEW, _MOVED = "walked", "file", "new", "moved"
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


@contextlib.contextmanager
def delayed(target: Target, paths: list[Path], trace: Path, delay: float) -> Iterator[None]:
    """Delay the calls of a server on ``paths`` by ``delay`` seconds during a ``with`` block, and write them to
    ``trace``. Raises ``BenchError`` where strace may not look at the server."""
    command = ["strace", "-f", "-o", str(trace), "-p", str(target.process)]
    for path in paths:
        command += ["-P", str(path)]
    command += ["-e", f"inject=%file,%desc:delay_enter={int(delay * 1e6)}"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        try:
            if "attached" not in (said := tracer.stderr.readline()):
                raise BenchError(f"strace: {said.strip()}")
            yield
        finally:
            tracer.send_signal(signal.SIGINT)


@contextlib.asynccontextmanager
async def _logged_on(target: Target) -> AsyncIterator[tuple[Client, Tree]]:
    client = await Client.connect(await open_tcp(target.host, target.port))
    try:
        session = await client.log_on(USER, PASSWORD)
        yield client, await session.tree_connect(SHARE)
    finally:
        await client.close()


async def _beat(client: Client, times: list[float]) -> None:
    while True:
        began = time.monotonic()
        await client.echo()
        times.append(time.monotonic() - began)
        await asyncio.sleep(_PAUSE)


async def walk(target: Target, trace: Path, delay: float) -> None:
    """Do all commands, and print a line for each."""
    assert target.folder is not None
    paths = [target.folder / _FOLDER]
    paths += [paths[0] / name for name in (_FILE, _NEW, _MOVED, *(str(number) for number in range(_ENTRIES)))]
    async with _logged_on(target) as (_, tree), _logged_on(target) as (other, _):
        await tree.make_directory(_FOLDER)
        for path in (paths[1], *paths[4:]):
            made = await tree.create(f"{_FOLDER}\\{path.name}", _ALL, CreateDisposition.CREATE)
            await tree.write(made, 0, bytes(1 << 20))
            await tree.close(made)
        with delayed(target, paths, trace, delay):
            times: list[float] = []
            beating = asyncio.create_task(_beat(other, times))
            seen = len(trace.read_text())
            for name, step in Walk().steps().items():
                times.clear()
                await step(tree)
                # The ECHO that was under way, and what threads have yet to do.
                await asyncio.sleep(2 * delay)
                while not times:
                    await asyncio.sleep(_PAUSE)
                text = trace.read_text()
                threads = [int(line.split()[0]) for line in text[seen:].splitlines() if "resumed>" not in line]
                seen = len(text)
                on_loop = threads.count(target.process or 0)
                print(f"| {name} | {on_loop} | {len(threads) - on_loop} | {max(times) * 1000:.0f} |", flush=True)
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
    options = parser.parse_args(arguments)
    if options.delay < 1:
        parser.error("--delay must be positive")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        root = Path(made)
        root.chmod(0o755)
        trace = root / "trace"
        trace.touch()
        try:
            with servers.ours(root / "ours", sys.executable, (), 1, address=_ADDRESS) as target:
                print("| command | calls on the event loop | on other threads | longest ECHO, ms |")
                print("| --- | --- | --- | --- |")
                asyncio.run(walk(target, trace, options.delay / 1000))
        except (BenchError, OSError) as error:
            print(f"slow_storage: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
