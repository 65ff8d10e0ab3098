"""Our client against our server, over direct TCP and SMB Direct, in every dialect."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, ServerError
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.tree import READ, READ_WRITE
from smb3server.wire.change_notify import Action, NotifyFilter
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.file_info import BASIC, STANDARD, FileInfoClass
from smb3server.wire.negotiate import Dialect
from smb3server.wire.oplock_break import OplockBreak, OplockLevel
from smb3server.wire.status import NtStatus
from tests.lab.harness import DIALECTS, lab


@pytest.mark.parametrize("rdma", [False, True], ids=["tcp", "smbdirect"])
@pytest.mark.parametrize("protection", ["plain", "sign", "encrypt"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_files_come_back_as_written(tmp_path: Path, dialect: Dialect, protection: str, rdma: bool) -> None:
    if protection == "encrypt" and dialect < Dialect.SMB_3_0:
        protection = "sign"

    async def run() -> None:
        sign, encrypt = protection == "sign", protection == "encrypt"
        async with lab(tmp_path) as made, made.session([dialect], rdma=rdma, sign=sign, encrypt=encrypt) as session:
            assert session.client.dialect == dialect
            await session.client.echo()
            tree = await session.tree_connect("share")
            file = await tree.create("a.bin", READ_WRITE, CreateDisposition.CREATE)
            size = min(tree.max_write, tree.max_read, 1 << 20)
            data = os.urandom(size)
            assert await tree.write(file, 0, data) == size
            assert await tree.read(file, 0, size) == data
            assert await tree.read(file, size, 10) == b""
            await tree.rename(file, "b.bin")
            await tree.close(file)
            directory = await tree.create("", READ, options=CreateOptions.DIRECTORY_FILE)
            assert [entry.name async for entry in tree.entries(directory)] == [".", "..", "b.bin"]
            await tree.close(directory)
            await tree.delete("b.bin")
            with pytest.raises(ServerError) as missing:
                await tree.create("b.bin")
            assert missing.value.status == NtStatus.OBJECT_NAME_NOT_FOUND
            await tree.disconnect()
            await session.log_off()

    asyncio.run(run())


@pytest.mark.parametrize("cipher", [1, 2, 3, 4])
@pytest.mark.parametrize("signing", [0, 1, 2])
def test_every_cipher_and_signing_algorithm(tmp_path: Path, cipher: int, signing: int) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made:
            offer = Offer(ciphers=(cipher,), signing_algorithms=(signing,))
            for encrypt in (False, True):
                client = await Client.connect(await made.transport(), offer=offer)
                session = await client.log_on("u", "pw", sign=True, encrypt=encrypt)
                assert client.negotiated.cipher == cipher
                assert client.negotiated.signing_algorithm == signing
                tree = await session.tree_connect("share")
                await tree.make_directory(f"d{encrypt}")
                await client.close()

    asyncio.run(run())


def test_wrong_password(tmp_path: Path) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made:
            client = await Client.connect(await made.transport())
            with pytest.raises(ServerError) as refused:
                await client.log_on("u", "wrong")
            assert refused.value.status == NtStatus.LOGON_FAILURE
            await client.close()

    asyncio.run(run())


@pytest.mark.parametrize("invalidate", [False, True])
def test_rdma_reads_and_writes(tmp_path: Path, invalidate: bool) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made, made.tree(rdma=True) as tree:
            rdma = tree.client.transport.rdma
            assert rdma is not None
            data = os.urandom(1 << 20)
            source = rdma.register(memoryview(bytearray(data)), readable=True)
            file = await tree.create("a.bin", READ_WRITE, CreateDisposition.CREATE)
            length = len(data)
            assert await tree.write_from(file, 0, source.descriptors, length, invalidate=invalidate) == length
            source.deregister()
            assert (tmp_path / "share" / "a.bin").read_bytes() == data
            target = rdma.register(memoryview(bytearray(length)), writable=True)
            assert await tree.read_into(file, 0, target.descriptors, length, invalidate=invalidate) == length
            assert target.view == data
            assert target.invalidated is invalidate
            target.deregister()
            await tree.close(file)

    asyncio.run(run())


def test_many_requests_at_once_stay_within_credits(tmp_path: Path) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made, made.tree() as tree:
            file = await tree.create("a.bin", READ_WRITE, CreateDisposition.CREATE)
            await tree.write(file, 0, b"x" * 65536)
            parts = await asyncio.gather(*(tree.read(file, index % 256 * 256, 256) for index in range(3000)))
            assert all(part == b"x" * 256 for part in parts)
            assert tree.client.credits > 0
            await tree.close(file)

    asyncio.run(run())


def test_lost_connection_fails_what_waits(tmp_path: Path) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made, made.tree() as tree:
            directory = await tree.create("", READ, options=CreateOptions.DIRECTORY_FILE)
            watching = await tree.watch(directory, NotifyFilter.FILE_NAME)
            tree.client.transport.abort("test")
            with pytest.raises(Exception, match="test"):
                await tree.changes(watching)

    asyncio.run(run())


def test_oplock_break_is_delivered_and_acknowledged(tmp_path: Path) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made, made.tree() as holder, made.tree() as other:
            breaks: asyncio.Queue[object] = asyncio.Queue()
            holder.client.on_break = breaks.put_nowait
            file = await holder.create("a.txt", READ_WRITE, CreateDisposition.CREATE, oplock=int(OplockLevel.BATCH))
            assert file.response.oplock_level == OplockLevel.BATCH
            opening = asyncio.ensure_future(other.create("a.txt", READ))
            notification = await asyncio.wait_for(breaks.get(), 5)
            assert isinstance(notification, OplockBreak)
            assert (notification.persistent, notification.volatile) == file.file_id
            assert not opening.done()
            await holder.acknowledge_oplock_break(notification)
            await other.close(await opening)
            await holder.close(file)

    asyncio.run(run())


def test_change_notify_tells_create_rename_delete_and_cancels(tmp_path: Path) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made, made.tree() as watcher, made.tree() as worker:
            directory = await watcher.create("", READ, options=CreateOptions.DIRECTORY_FILE)
            names = NotifyFilter.FILE_NAME | NotifyFilter.DIR_NAME
            watching = await watcher.watch(directory, names, recursive=True)
            await watcher.client.echo()
            await worker.make_directory("d")
            assert await watcher.changes(watching) == [(Action.ADDED, "d")]
            file = await worker.create("d\\a", READ_WRITE, CreateDisposition.CREATE)
            await worker.rename(file, "d\\b")
            await worker.close(file)
            await worker.delete("d\\b")
            told = await watcher.changes(await watcher.watch(directory, names))
            assert told == [
                (Action.ADDED, "d\\a"),
                (Action.RENAMED_OLD_NAME, "d\\a"),
                (Action.RENAMED_NEW_NAME, "d\\b"),
                (Action.REMOVED, "d\\b"),
            ]
            watching = await watcher.watch(directory, names)
            await watcher.client.echo()
            watcher.client.cancel(watching)
            with pytest.raises(ServerError) as cancelled:
                await watcher.changes(watching)
            assert cancelled.value.status == NtStatus.CANCELLED
            watching = await watcher.watch(directory, names)
            await watcher.close(directory)
            with pytest.raises(ServerError) as cleaned:
                await watcher.changes(watching)
            assert cleaned.value.status == NtStatus.NOTIFY_CLEANUP
            assert not len(made.server.share_list["share"].notify)

    asyncio.run(run())


def test_change_notify_overflow(tmp_path: Path) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made, made.tree() as tree:
            directory = await tree.create("", READ, options=CreateOptions.DIRECTORY_FILE)
            watching = await tree.watch(directory, NotifyFilter.FILE_NAME)
            await tree.client.echo()
            await tree.close(await tree.create("first", READ_WRITE, CreateDisposition.CREATE))
            assert await tree.changes(watching) == [(Action.ADDED, "first")]
            for index in range(700):
                await tree.close(await tree.create(f"{index:0100}", READ_WRITE, CreateDisposition.CREATE))
            assert await tree.changes(await tree.watch(directory, NotifyFilter.FILE_NAME)) is None

    asyncio.run(run())


def test_directory_listing_resumes_and_matches(tmp_path: Path) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made, made.tree() as tree:
            for index in range(3000):
                (tmp_path / "share" / f"file{index:05}.{'txt' if index % 3 else 'dat'}").touch()
            directory = await tree.create("", READ, options=CreateOptions.DIRECTORY_FILE)
            names = {entry.name async for entry in tree.entries(directory)}
            assert len(names) == 3002
            assert len([entry async for entry in tree.entries(directory, "*.DAT")]) == 1000
            assert [entry.name async for entry in tree.entries(directory, "file00007.txt")] == ["file00007.txt"]
            assert [entry async for entry in tree.entries(directory, "nothing*")] == []

    asyncio.run(run())


def test_information_is_the_same_at_every_level(tmp_path: Path) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made, made.tree() as tree:
            file = await tree.create("a.txt", READ_WRITE, CreateDisposition.CREATE)
            await tree.write(file, 0, b"hello")
            basic = BASIC.unpack(await tree.query_info(file, FileInfoClass.BASIC))
            changed = basic._replace(creation_time=130000000000000000, last_write_time=0, attributes=0x22)
            await tree.set_info(file, FileInfoClass.BASIC, BASIC.pack(changed))
            again = BASIC.unpack(await tree.query_info(file, FileInfoClass.BASIC))
            assert (again.creation_time, again.attributes) == (130000000000000000, 0x22)
            assert STANDARD.unpack(await tree.query_info(file, FileInfoClass.STANDARD)).end_of_file == 5
            for level, status in (
                (FileInfoClass.RENAME, NtStatus.NOT_SUPPORTED),
                (200, NtStatus.INVALID_INFO_CLASS),
            ):
                with pytest.raises(ServerError) as refused:
                    await tree.query_info(file, level)
                assert refused.value.status == status
            with pytest.raises(ServerError) as short:
                await tree.query_info(file, FileInfoClass.BASIC, size=39)
            assert short.value.status == NtStatus.INFO_LENGTH_MISMATCH
            await tree.close(file)
            blind = await tree.create("a.txt", int(Access.READ_DATA))
            with pytest.raises(ServerError) as denied:
                await tree.query_info(blind, FileInfoClass.BASIC)
            assert denied.value.status == NtStatus.ACCESS_DENIED

    asyncio.run(run())
