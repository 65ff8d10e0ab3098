"""FlashNet: the example program (examples/flashnet), and what is left of completed writes when a server or a machine
dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from smb3server import client as smb
from smbdirect import rdma
from tests.lab import power_cut
from tests.lab.power_cut import Disk

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import flashnet  # noqa: E402

PROGRAM = [sys.executable, str(ROOT / "examples" / "flashnet")]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
Write = Callable[[int, bytes], Awaitable[object]]
Flush = Callable[[], Awaitable[None]]
BLOCK = 4096
SIZE = 256 * BLOCK


class Server:
    """A process that lends the files of a folder: the example, or the SMB server with a share."""

    def __init__(self, kind: str, folder: Path, *options: str) -> None:
        words = ["bench", "--serve", "smb", str(folder)] if kind == "share" else ["serve", str(folder), *options]
        self.process = subprocess.Popen(
            [*PROGRAM, "--address", "127.0.0.1:0", *words],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.ports = [int(port) for port in self.process.stdout.readline().replace(":", " ").split() if port.isdigit()]
        assert self.ports

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def run(self, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        program = [*PROGRAM, "--address", f"127.0.0.1:{self.ports[-1]}", *words]
        return subprocess.run(program, check=False, env=ENVIRONMENT, input=data, capture_output=True, timeout=60)


@contextlib.contextmanager
def serving(kind: str, folder: Path, *options: str) -> Iterator[Server]:
    server = Server(kind, folder, *options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            assert server.end() == 0


@contextlib.asynccontextmanager
async def opened(kind: str, server: Server) -> AsyncIterator[tuple[Write, Flush]]:
    """Yield how to write to the file "file", and how to flush it. All writes are one-sided."""
    async with contextlib.AsyncExitStack() as stack:
        if kind == "folder":
            lender = await stack.enter_async_context(flashnet.connect("iwarp", "127.0.0.1", server.ports[-1]))
            lent = await lender.open("file", writable=True)
            yield lent.write, lent.flush
            return
        url = f"smb://u@127.0.0.1:{server.ports[0]}/data"
        share = await smb.connect(
            url, password="pw", rdma="iwarp", rdma_port=server.ports[-1], one_sided="auto", patience=0.0
        )
        file = await share.open("file", "r+b")
        yield file.write_at, file.flush
        assert set(share.moved) == {"one-sided"}
        with contextlib.suppress(OSError):
            await file.close()
        with contextlib.suppress(OSError):
            await share.close()


def test_the_program(tmp_path: Path) -> None:
    data = os.urandom((3 << 20) + 5)
    (tmp_path / "below").mkdir()
    with serving("folder", tmp_path) as server:
        assert server.run("write", "below/file", data=data).returncode == 0
        assert (tmp_path / "below" / "file").read_bytes() == data
        found = server.run("read", "below/file")
        assert (found.returncode, found.stdout) == (0, data), found.stderr
        missing = server.run("read", "nothing")
        assert missing.returncode == 1 and b"No such file" in missing.stderr
        shorter = server.run("write", "below/file", data=b"x")
        assert shorter.returncode == 1 and b"longer" in shorter.stderr


def test_names_lead_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "lent"
    (folder / "below").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link").symlink_to("../secret")
    (folder / "way").symlink_to("..")
    os.mkfifo(folder / "fifo")
    (folder / "file").write_bytes(b"lent")

    async def main(server: Server) -> None:
        async with asyncio.timeout(30), flashnet.connect("iwarp", "127.0.0.1", server.ports[-1]) as client:
            for path in ("../secret", "link", "way/secret", "/etc/passwd", "", "below", "fifo", ".", "below/../file"):
                with pytest.raises(OSError):
                    await client.open(path)
            for request in ("", "x file", "w file", "w -1 file", "f file", "w 10 file", "r \xff"):
                with pytest.raises(OSError):
                    await client.ask(request)
            file = await client.open("file")
            assert await file.read(0, 4) == b"lent"

    with serving("folder", folder, "--read-only") as server:
        asyncio.run(main(server))
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_writer_is_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))

    async def main(server: Server) -> None:
        address = ("iwarp", "127.0.0.1", server.ports[-1])
        async with asyncio.timeout(30), flashnet.connect(*address) as first, flashnet.connect(*address) as second:
            await first.open("file")
            reader = await second.open("file")
            with pytest.raises(OSError, match="unavailable"):
                await second.open("file", writable=True)
            assert await reader.read(0, 100) == bytes(100)
            writer = await first.open("another", writable=True, size=10)
            with pytest.raises(OSError, match="unavailable"):
                await second.open("another")
            await writer.write(3, b"here")
        async with asyncio.timeout(30), flashnet.connect(*address) as third:
            while True:
                with contextlib.suppress(OSError):
                    file = await third.open("another", writable=True)
                    break
                await asyncio.sleep(0.01)
            assert await file.read(0, 10) == b"\0\0\0here\0\0\0"

    with serving("folder", tmp_path) as server:
        asyncio.run(main(server))


def test_a_hostile_client_touches_nothing(tmp_path: Path) -> None:
    """It writes behind its region, with a right that it does not have, and with a handle of a former connection."""
    before = os.urandom(SIZE)
    (tmp_path / "file").write_bytes(before)
    everything = rdma.Rights.READ | rdma.Rights.WRITE

    async def main(server: Server) -> None:
        address = ("iwarp", "127.0.0.1", server.ports[-1])

        async def attack(connection: rdma.Connection, handle: rdma.Handle, offset: int) -> None:
            with pytest.raises(rdma.ConnectionLost):
                await connection.write(handle, b"evil", offset)
                await connection.fence()

        kept: list[rdma.Handle] = []
        for kind, forged in (("w 0", SIZE), ("r", 0)):
            async with rdma.connect(*address) as connection:
                await connection.send(f"{kind} file".encode())
                handle = rdma.Handle.unpack(await connection.receive())
                kept.append(handle)
                # What is behind the end would make the file longer.
                await attack(connection, rdma.Handle(handle.address, handle.token, 2 * SIZE, everything), forged)
        async with rdma.connect(*address) as connection:
            await attack(connection, rdma.Handle(kept[0].address, kept[0].token, SIZE, everything), 0)
        async with flashnet.connect(*address) as client:
            assert await (await client.open("file")).read(0, SIZE) == before

    with serving("folder", tmp_path) as server:
        asyncio.run(asyncio.wait_for(main(server), 30))
    assert (tmp_path / "file").read_bytes() == before


@pytest.mark.parametrize("kind", ["folder", "share"])
def test_completed_writes_survive_the_death_of_the_server(tmp_path: Path, kind: str) -> None:
    """kill -9 right behind a completed write: all of them are in the file."""
    (tmp_path / "file").write_bytes(bytes(SIZE))
    expected = bytearray(SIZE)

    async def main(server: Server) -> None:
        async with asyncio.timeout(30), opened(kind, server) as (write, _):
            for number in range(SIZE // BLOCK):
                data = os.urandom(BLOCK)
                await write(number * BLOCK, data)
                expected[number * BLOCK : (number + 1) * BLOCK] = data
            server.end(signal.SIGKILL)
            assert (tmp_path / "file").read_bytes() == expected

    with serving(kind, tmp_path) as server:
        asyncio.run(main(server))


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
def test_smbclient_uses_a_file_that_is_lent(tmp_path: Path) -> None:
    """It gets what was written without requests, and its own data is seen at once: the loan ends when it comes."""
    folder, work = tmp_path / "lent", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    (folder / "file").write_bytes(bytes(SIZE))
    (work / "new").write_bytes(b"by smbclient")

    async def smbclient(server: Server, commands: str) -> None:
        program = ["smbclient", "//127.0.0.1/data", "-p", str(server.ports[0]), "-U", "u%pw", "-c", commands]
        ended = await asyncio.create_subprocess_exec(*program, cwd=work, stdout=asyncio.subprocess.PIPE)
        output, _ = await ended.communicate()
        assert ended.returncode == 0, output

    async def main(server: Server) -> None:
        url = f"smb://u@127.0.0.1:{server.ports[0]}/data"
        async with (
            asyncio.timeout(60),
            smb.connect(url, password="pw", rdma="iwarp", rdma_port=server.ports[-1], one_sided="auto") as share,
            await share.open("file", "r+b") as file,
        ):
            data = os.urandom(SIZE)
            await file.write_at(0, data)
            assert share.moved == {"one-sided": (SIZE, 0)}
            await smbclient(server, "get file")
            assert (work / "file").read_bytes() == data
            await smbclient(server, "put new file")
            assert await file.read_at(0, 100) == b"by smbclient"
            assert share.moved["one-sided"] == (SIZE, 0)

    with serving("share", folder) as server:
        asyncio.run(main(server))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    if reason := power_cut.missing("ext4"):
        pytest.skip(reason)
    return Disk("ext4", tmp_path)


@pytest.mark.parametrize("kind", ["folder", "share"])
def test_flushed_writes_survive_a_power_cut(disk: Disk, tmp_path: Path, kind: str) -> None:
    """What was flushed is there. What was only completed is missing, unless the kernel happens to write it: so power is
    cut until that shows."""
    flushed, completed = os.urandom(BLOCK), os.urandom(BLOCK)

    async def cut(server: Server, file: Path, photograph: Path) -> None:
        async with asyncio.timeout(30), opened(kind, server) as (write, flush):
            await write(0, flushed)
            await flush()
            await write(BLOCK, completed)
            disk.photograph(photograph)
        assert file.read_bytes()[: 2 * BLOCK] == flushed + completed

    photographs = [tmp_path / f"photograph{number}" for number in range(5)]
    with disk.mounted() as folder:
        file = folder / "file"
        with serving(kind, folder) as server:
            for photograph in photographs:
                file.write_bytes(bytes(SIZE))
                os.sync()
                asyncio.run(cut(server, file, photograph))
    for photograph in photographs:
        with disk.after_loss(photograph) as folder:
            left = (folder / "file").read_bytes()
        assert left[:BLOCK] == flushed
        if left[BLOCK:] == bytes(SIZE - BLOCK):
            break
        assert left[BLOCK : 2 * BLOCK] == completed
    else:
        pytest.fail("the kernel wrote at once what nobody flushed: the photographs are no power cuts")
