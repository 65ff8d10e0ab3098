"""What is acknowledged through a persistent handle is on stable storage: the reply waits for the flush."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from smb3server.backends.local import file_io
from smb3server.backends.local.handle import LocalHandle
from smb3server.backends.local.share_root import ShareRoot
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.transports import open_tcp
from smb3server.client.protocol.tree import READ_WRITE, RemoteFile, Tree
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.service.service import Service
from smb3server.wire import fsctl as wire
from smb3server.wire.create import CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.offload import READ_INPUT, READ_OUTPUT, WRITE_INPUT, OffloadReadInput, OffloadWriteInput
from smb3server.wire.status import NtStatus
from tests.lab.persistent import PersistentShare
from tools.support import own_user

KEPT = 3 << 20
Action = Callable[[Tree, RemoteFile], Awaitable[object]]


class Disk:
    """Stands between the handles and the file system: flushes wait until they may go on, or fail."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.error: OSError | None = None
        self.flushes = 0
        self.watching = False

    def flush(self) -> None:
        if not self.watching:
            return
        self.flushes += 1
        self.began.set()
        assert self.go_on.wait(20)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()

    def flush(handle: LocalHandle) -> None:
        found.flush()

    monkeypatch.setattr(LocalHandle, "flush", flush)
    # Few file systems share extents; the order of things is the same on all.
    monkeypatch.setattr(ShareRoot, "clones_ranges", lambda root: True)
    monkeypatch.setattr(file_io, "clone_range", lambda *_: None)
    yield found
    found.go_on.set()


async def write(tree: Tree, file: RemoteFile) -> None:
    await tree.write(file, 0, b"x" * 100)


async def end_of_file(tree: Tree, file: RemoteFile) -> None:
    await tree.set_info(file, FileInfoClass.END_OF_FILE, struct.pack("<q", 5000))


async def allocation(tree: Tree, file: RemoteFile) -> None:
    await tree.set_info(file, FileInfoClass.ALLOCATION, struct.pack("<q", 4096))


async def zero_data(tree: Tree, file: RemoteFile) -> None:
    await tree.ioctl(Fsctl.SET_ZERO_DATA, struct.pack("<qq", 0, 4096), file)


async def rename(tree: Tree, file: RemoteFile) -> None:
    await tree.rename(file, "other name")


def copy(size: int) -> Action:
    async def action(tree: Tree, file: RemoteFile) -> None:
        key = (await tree.ioctl(Fsctl.SRV_REQUEST_RESUME_KEY, b"", file))[:24]
        chunks = [(offset, KEPT + offset, 1 << 20) for offset in range(0, size, 1 << 20)]
        data = key + struct.pack("<II", len(chunks), 0)
        data += b"".join(struct.pack("<QQII", source, target, length, 0) for source, target, length in chunks)
        output = await tree.ioctl(Fsctl.SRV_COPYCHUNK, data, file, max_output=12)
        assert wire.COPY_CHUNK_RESPONSE.unpack(memoryview(output)).total_bytes_written == size

    return action


async def duplicate(tree: Tree, file: RemoteFile) -> None:
    record = wire.DuplicateExtents(*file.file_id, 0, 1 << 20, 4096)
    await tree.ioctl(Fsctl.DUPLICATE_EXTENTS_TO_FILE, wire.DUPLICATE_EXTENTS.pack(record), file)


async def offload(tree: Tree, file: RemoteFile) -> None:
    asked = READ_INPUT.pack(OffloadReadInput(copy_length=4096))
    token = READ_OUTPUT.unpack(await tree.ioctl(Fsctl.OFFLOAD_READ, asked, file)).token
    data = WRITE_INPUT.pack(OffloadWriteInput(file_offset=1 << 20, copy_length=4096, token=token))
    await tree.ioctl(Fsctl.OFFLOAD_WRITE, data, file)


ACTIONS = [
    pytest.param(write, id="write"),
    pytest.param(end_of_file, id="end-of-file"),
    pytest.param(allocation, id="allocation"),
    pytest.param(zero_data, id="zero-data"),
    pytest.param(copy(1 << 20), id="copy-chunk"),
    pytest.param(copy(2 << 20), id="copy-chunk-in-steps"),
    pytest.param(duplicate, id="duplicate-extents"),
    pytest.param(offload, id="offload-write"),
]


def run(tmp_path: Path, body: Callable[[Tree, RemoteFile], Awaitable[None]], persistent: bool = True) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (share / "f").write_bytes(b"y" * KEPT)
    text = (
        f'[server]\nname = "T"\nlisten = ["127.0.0.1"]\nport = 0\nrdma = "off"\nstate = "{tmp_path / "state"}"\n'
        f'[[share]]\nname = "ca"\npath = "{share}"\n{own_user.LINE}continuous_availability = true\n'
        '[[user]]\nname = "u"\npassword = "pw"\n'
    )
    (tmp_path / "smb.toml").write_text(text)

    async def main() -> None:
        service = Service(parse_arguments(["--config", str(tmp_path / "smb.toml")]))
        await service.start()
        port = service.listeners[0].address[1]
        client = PersistentShare(lambda: open_tcp("127.0.0.1", port), "ca", "u", "pw")
        try:
            async with asyncio.timeout(30):
                tree = await client.connected()
                if persistent:
                    await body(tree, await (await client.open("f"))._attached(tree))
                else:
                    await body(tree, await tree.create("f", READ_WRITE))
        finally:
            await client.close()
            await service.stop()

    asyncio.run(main())


@pytest.mark.parametrize("action", [*ACTIONS, pytest.param(rename, id="rename")])
def test_reply_waits_for_the_disk(tmp_path: Path, disk: Disk, action: Action) -> None:
    async def body(tree: Tree, file: RemoteFile) -> None:
        disk.watching = True
        task = asyncio.ensure_future(action(tree, file))
        assert await asyncio.to_thread(disk.began.wait, 20)
        # The server is not held up meanwhile, and says nothing of the request.
        await tree.client.echo()
        assert not task.done()
        disk.go_on.set()
        await task
        disk.watching = False

    run(tmp_path, body)


@pytest.mark.parametrize("action", ACTIONS)
def test_failed_flush_fails_the_request(tmp_path: Path, disk: Disk, action: Action) -> None:
    async def body(tree: Tree, file: RemoteFile) -> None:
        disk.watching, disk.error = True, OSError(28, "No space left on device")
        disk.go_on.set()
        with pytest.raises(ServerError) as caught:
            await action(tree, file)
        assert caught.value.status == NtStatus.DISK_FULL
        disk.watching = False
        await tree.client.echo()

    run(tmp_path, body)


@pytest.mark.parametrize("action", ACTIONS)
def test_other_handles_do_not_wait(tmp_path: Path, disk: Disk, action: Action) -> None:
    async def body(tree: Tree, file: RemoteFile) -> None:
        disk.watching = True
        await action(tree, file)
        assert not disk.flushes

    run(tmp_path, body, persistent=False)


@pytest.mark.parametrize("action", ACTIONS[1:])
def test_write_through_handles_wait(tmp_path: Path, disk: Disk, action: Action) -> None:
    """FILE_WRITE_THROUGH. WRITE has tests of its own. [MS-FSA 2.1.5.10.39]"""

    async def body(tree: Tree, file: RemoteFile) -> None:
        await tree.close(file)
        through = await tree.create("f", READ_WRITE, options=int(CreateOptions.WRITE_THROUGH))
        disk.watching = True
        disk.go_on.set()
        await action(tree, through)
        assert disk.flushes

    run(tmp_path, body, persistent=False)
