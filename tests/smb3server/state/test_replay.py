"""Requests that are sent again: CREATE by CreateGuid (MS-SMB2 3.3.5.9.10), others by channel sequence (3.3.5.2.10)."""

from __future__ import annotations

import asyncio
import struct
import threading

import pytest

from smb3server.backends.memory.backend import MemoryHandle
from smb3server.wire.create_contexts import DURABLE_RECONNECT_V2
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.status import NtStatus
from tests.lab.durable import BATCH, GUID, durable_create, file_id
from tests.lab.wire_client import HEADER_SIZE, Client, Reply, running

REPLAY = int(HeaderFlags.REPLAY_OPERATION)


def write_body(opened: bytes, data: bytes = b"x") -> bytes:
    return struct.pack("<HHIQ16sIIHHI", 49, HEADER_SIZE + 48, len(data), 0, opened, 0, 0, 0, 0, 0) + data


def query_body(opened: bytes) -> bytes:
    return struct.pack("<HBBIHHIII16s", 41, 1, 5, 1024, 0, 0, 0, 0, 0, opened) + b"\0"


async def create(client: Client, flags: int = 0, **options: object) -> Reply:
    return await client.call(Command.CREATE, durable_create("f", **options), flags=flags)  # type: ignore[arg-type]


def test_create_is_replayable_until_the_open_is_used() -> None:
    async def test() -> None:
        async with running() as harness:
            client = await harness.connect()
            await client.login()
            first = file_id(await create(client))
            assert (await create(client)).status == NtStatus.DUPLICATE_OBJECTID
            again = await create(client, REPLAY)
            assert file_id(again) == first
            assert again.body[2] == BATCH
            # Asked for less this time: told less, which takes nothing away.
            assert (await create(client, REPLAY, oplock=0)).body[2] == 0
            assert (await create(client, REPLAY)).body[2] == BATCH
            assert (await client.call(Command.QUERY_INFO, query_body(first))).status == 0
            entry = next(iter(harness.server.opens.by_id.values()))
            assert entry.replayable is None
            await client.call(Command.CLOSE, struct.pack("<HHI16s", 24, 0, 0, first))
            assert file_id(await create(client, REPLAY)) != first

    asyncio.run(test())


def test_replay_while_the_first_waits() -> None:
    async def test() -> None:
        async with running() as harness:
            holder = await harness.connect()
            await holder.login()
            held = file_id(await create(holder, guid=bytes(16)))
            client = await harness.connect()
            await client.login()
            waiting = client.message_id
            await client.post(Command.CREATE, durable_create("f"))
            assert (await client.receive()).status == NtStatus.PENDING
            assert (await create(client, REPLAY)).status == NtStatus.FILE_NOT_AVAILABLE
            assert (await create(client)).status == NtStatus.DUPLICATE_OBJECTID
            await holder.receive()
            await holder.post(Command.CLOSE, struct.pack("<HHI16s", 24, 0, 0, held))
            reply = await client.receive()
            assert reply.header.message_id == waiting
            assert file_id(await create(client, REPLAY)) == file_id(reply)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("sequences", "statuses"),
    [
        ((0, 1, 0), (0, 0, NtStatus.FILE_NOT_AVAILABLE)),
        ((0x7FFF, 0x7FFE), (0, NtStatus.FILE_NOT_AVAILABLE)),
        ((0x8000,), (NtStatus.FILE_NOT_AVAILABLE,)),
        ((0x7FFF, 0xFFFE, 0), (0, 0, 0)),
    ],
)
def test_channel_sequence(sequences: tuple[int, ...], statuses: tuple[int, ...]) -> None:
    """An old channel's WRITE is refused; 16-bit arithmetic tells old from new."""

    async def test() -> None:
        async with running() as harness:
            client = await harness.connect()
            await client.login()
            opened = file_id(await create(client))
            for sequence, status in zip(sequences, statuses, strict=True):
                assert (await client.call(Command.WRITE, write_body(opened), status=sequence)).status == status
                # Queries are answered whatever channel they come from.
                assert (await client.call(Command.QUERY_INFO, query_body(opened), status=sequence)).status == 0

    asyncio.run(test())


def flush_body(opened: bytes) -> bytes:
    return struct.pack("<HHI16s", 24, 0, 0, opened)


def test_an_old_request_that_pends_leaves_no_count_behind() -> None:
    """3.3.5.2.10, 3.3.4.1: what came late on a dead channel is served, and replays of later writes are, too."""

    async def test() -> None:
        async with running() as harness:
            client = await harness.connect()
            await client.login()
            opened = file_id(await create(client))
            assert (await client.call(Command.WRITE, write_body(opened), status=1)).status == 0
            assert (await client.call(Command.FLUSH, flush_body(opened), status=0)).status == 0
            assert (await client.call(Command.WRITE, write_body(opened), status=2)).status == 0
            for sequence in (2, 3):
                replayed = await client.call(Command.WRITE, write_body(opened), status=sequence, flags=REPLAY)
                assert replayed.status == 0

    asyncio.run(test())


def test_a_replay_waits_for_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a request of an older channel is, replays are FILE_NOT_AVAILABLE; once it is answered they are served.
    With a newer sequence, too: the section adds the outstanding requests to the older ones first, and then looks."""
    gate = threading.Event()
    monkeypatch.setattr(MemoryHandle, "flush", lambda handle: gate.wait(20))

    async def test() -> None:
        async with running() as harness:
            client = await harness.connect()
            await client.login()
            opened = file_id(await create(client))
            flushing = client.message_id
            await client.post(Command.FLUSH, flush_body(opened))
            assert (await client.receive()).status == NtStatus.PENDING
            for sequence in (1, 1, 2):
                replayed = await client.call(Command.WRITE, write_body(opened), status=sequence, flags=REPLAY)
                assert replayed.status == NtStatus.FILE_NOT_AVAILABLE
            gate.set()
            flushed = await client.receive()
            assert (flushed.header.message_id, flushed.status) == (flushing, 0)
            assert (await client.call(Command.WRITE, write_body(opened), status=2, flags=REPLAY)).status == 0
            entry = next(iter(harness.server.opens.by_id.values()))
            assert (entry.outstanding_requests, entry.outstanding_pre_requests) == (0, 0)

    try:
        asyncio.run(test())
    finally:
        gate.set()


def durable_reconnect(name: str, opened: bytes) -> bytes:
    body = bytearray(durable_create(name))
    start = struct.unpack_from("<I", body, 48)[0] - HEADER_SIZE
    data = opened + GUID + struct.pack("<I", 0)
    context = struct.pack("<IHHHHI4s4x", 0, 16, 4, 0, 24, len(data), DURABLE_RECONNECT_V2) + data
    struct.pack_into("<I", body, 52, len(context))
    return bytes(body[:start]) + context


def test_an_open_that_is_reconnected_counts_from_its_new_session_on() -> None:
    """3.2.1.3: ChannelSequence belongs to the client's session, and begins at 0 in a new one."""

    async def test() -> None:
        async with running() as harness:
            first = await harness.connect()
            await first.login()
            opened = file_id(await create(first))
            assert (await first.call(Command.WRITE, write_body(opened), status=3)).status == 0
            first.writer.close()
            await harness.settled()
            second = await harness.connect()
            second.guid = first.guid
            await second.login()
            opened = file_id(await second.call(Command.CREATE, durable_reconnect("f", opened)))
            assert (await second.call(Command.WRITE, write_body(opened))).status == 0
            assert (await second.call(Command.WRITE, write_body(opened), flags=REPLAY)).status == 0
            assert (await second.call(Command.WRITE, write_body(opened), status=0xFFFF)).status != 0

    asyncio.run(test())
