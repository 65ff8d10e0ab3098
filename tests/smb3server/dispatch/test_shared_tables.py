"""Requests that have to do with what others have open, and calls that look up names: nobody waits for them."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from smb3server.access.descriptor import Sid
from smb3server.auth.accounts import Accounts
from smb3server.auth.directory import Known
from smb3server.client.protocol import Client, ServerError, Tree, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.commands.info import rename
from smb3server.rpc import lsarpc, pipes, samr, srvsvc
from smb3server.wire.create import CreateDisposition
from smb3server.wire.create_contexts import APP_INSTANCE_ID, RawContext
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from tests.lab.services import configured, port_of, running

LONGEST_TURN = 0.1

FOLDER_TO_RENAME = 0x110080
LOADED = (lsarpc, samr, srvsvc)
"""The first use of a pipe in a process imports them, which takes more than a request may."""


async def _connected(service: Any, share: str = "share") -> tuple[Client, Tree]:
    client = await Client.connect(await open_tcp("127.0.0.1", port_of(service, "tcp", "0.0.0.0")))
    return client, await (await client.log_on("u", "pw")).tree_connect(share)


def test_a_folder_is_renamed_in_turns_where_much_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MS-FSA 2.1.5.15.11. What is opened below it meanwhile counts, too."""
    looked = 0
    is_below = rename.Rename._is_below

    def counted(*arguments: Any) -> bool:
        nonlocal looked
        looked += 1
        return is_below(*arguments)

    monkeypatch.setattr(rename.Rename, "_is_below", counted)

    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            client, tree = await _connected(service)
            await tree.make_directory("d")
            (tmp_path / "share" / "d" / "inside").touch()
            for _ in range(6 * rename.OPENS_AT_ONCE):
                await tree.create("f", 0x80, CreateDisposition.OPEN_IF)
            folder = await tree.create("d", FOLDER_TO_RENAME, CreateDisposition.OPEN, 1)
            renaming = asyncio.create_task(tree.rename(folder, "e"))
            most = 0
            while not renaming.done():
                before = looked
                await asyncio.sleep(0)
                most = max(most, looked - before)
            await renaming
            assert looked >= 6 * rename.OPENS_AT_ONCE
            assert most <= rename.OPENS_AT_ONCE
            assert (tmp_path / "share" / "e").is_dir()
            inside = await tree.create("e\\inside", READ_WRITE, CreateDisposition.OPEN)
            with pytest.raises(ServerError) as caught:
                await tree.rename(folder, "g")
            assert caught.value.status == NtStatus.ACCESS_DENIED
            await tree.close(inside)
            await tree.rename(folder, "g")
            await client.close()

    asyncio.run(test())


def test_opens_are_found_by_their_application(tmp_path: Path) -> None:
    """MS-SMB2 3.3.5.9.13: without a look at those of others."""

    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            client, tree = await _connected(service)
            table = service.server.opens.by_application
            for _ in range(5):
                await tree.create("f", 0x80, CreateDisposition.OPEN_IF)
            ids = [os.urandom(16) for _ in range(2)]
            made = []
            for known in (ids[0], ids[0], ids[1]):
                context = [RawContext(APP_INSTANCE_ID, struct.pack("<HH", 20, 0) + known)]
                made.append(await tree.create("f", 0x80, CreateDisposition.OPEN_IF, contexts=context))
            assert {known: len(entries) for known, entries in table.items()} == {ids[0]: 2, ids[1]: 1}
            await tree.close(made[0])
            await tree.close(made[2])
            assert {known: len(entries) for known, entries in table.items()} == {ids[0]: 1}
            await client.close()
            async with asyncio.timeout(20):
                while service.server.opens.by_id:
                    await asyncio.sleep(0.01)
            assert not table

    asyncio.run(test())


LSARPC = uuid.UUID("12345778-1234-ABCD-EF00-0123456789AB").bytes_le + struct.pack("<I", 0)
SRVSVC = uuid.UUID("4B324FC8-1670-01D3-1278-5A47BF6EE188").bytes_le + struct.pack("<I", 3)
NDR = uuid.UUID("8a885d04-1ceb-11c9-9fe8-08002b104860").bytes_le + struct.pack("<I", 2)


def _fragment(kind: int, body: bytes, flags: int = 3) -> bytes:
    return struct.pack("<BBBB4sHHI", 5, 0, kind, flags, b"\x10\0\0\0", 16 + len(body), 0, 1) + body


def _bind(interface: bytes) -> bytes:
    head = struct.pack("<HHI", 4280, 4280, 0) + b"\1\0\0\0" + struct.pack("<HBB", 0, 1, 0)
    return _fragment(11, head + interface + NDR)


def _lookup(count: int) -> bytes:
    """LsarLookupSids3 (MS-LSAT 3.1.4.9) of ``count`` SIDs."""
    stub = struct.pack("<III", count, 0x20000, count)
    stub += b"".join(struct.pack("<I", 0x20004 + 4 * index) for index in range(count))
    stub += b"".join(struct.pack("<IBB6sII", 2, 1, 2, b"\0\0\0\0\0\x16", 1, 4000 + index) for index in range(count))
    stub += struct.pack("<II", 0, 0) + struct.pack("<HHIII", 1, 0, 0, 0, 2)
    parts = [stub[start : start + 4000] for start in range(0, len(stub), 4000)]
    return b"".join(
        _fragment(0, struct.pack("<IHH", len(stub), 0, 76) + part, (not index) | (index == len(parts) - 1) << 1)
        for index, part in enumerate(parts)
    )


@pytest.mark.parametrize("closed", [False, True])
def test_names_are_looked_up_on_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    """The host's user database may be far away, and decoding takes its time, too."""
    begun, may_go_on = threading.Event(), threading.Event()
    by_sid = Accounts.by_sid

    def held(self: Accounts, sid: Sid) -> Known | None:
        assert threading.current_thread() is not threading.main_thread()
        begun.set()
        assert may_go_on.wait(30)
        return by_sid(self, sid)

    monkeypatch.setattr(Accounts, "by_sid", held)

    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            client, tree = await _connected(service, "IPC$")
            other, _ = await _connected(service)
            pipe = await tree.create("lsarpc", 0x12019F)
            await tree.ioctl(Fsctl.PIPE_TRANSCEIVE, _bind(LSARPC), pipe)
            both = (NtStatus.SUCCESS, NtStatus.BUFFER_OVERFLOW)
            asked = asyncio.create_task(tree.ioctl(Fsctl.PIPE_TRANSCEIVE, _lookup(300), pipe, accept=both))
            assert await asyncio.to_thread(begun.wait, 30)
            await other.echo()
            assert not asked.done()
            if closed:
                await tree.close(pipe)
                may_go_on.set()
                with pytest.raises(ServerError):
                    await asked
            else:
                may_go_on.set()
                assert (await asked)[2] == 2, "a response"
            for entry in (client, other):
                await entry.close()

    try:
        asyncio.run(test())
    finally:
        may_go_on.set()


def test_calls_that_stay_on_the_event_loop_are_short(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            client, tree = await _connected(service, "IPC$")
            pipe = await tree.create("srvsvc", 0x12019F)
            await tree.ioctl(Fsctl.PIPE_TRANSCEIVE, _bind(SRVSVC), pipe)
            stub = bytes(pipes.MAX_SHORT_STUB + 1)
            call = _fragment(0, struct.pack("<IHH", len(stub), 0, 15) + stub)
            answer = await tree.ioctl(Fsctl.PIPE_TRANSCEIVE, call, pipe)
            assert answer[2] == 3, "a fault"
            await client.close()

    asyncio.run(test())
