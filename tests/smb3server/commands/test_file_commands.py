"""CREATE, READ, WRITE, LOCK, oplocks, leases and durable opens over TCP, against the in-memory store."""

from __future__ import annotations

import asyncio
import struct

import pytest

from smb3server.commands.create import registry
from smb3server.commands.create.opening import Opening
from smb3server.wire import create, create_contexts, lock, oplock_break
from smb3server.wire.close import parse_response
from smb3server.wire.create import Access, CreateOptions
from smb3server.wire.flush import FLUSH_REQUEST, FlushRequest
from smb3server.wire.header import Command
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import DecodeError
from tests.lab.file_requests import (
    ALL,
    RWH,
    close,
    lease_context,
    lock_body,
    opened,
    read,
    request,
    run,
    second,
    status_of,
    write,
)
from tests.lab.wire_client import Client, Harness


def test_write_read_close() -> None:
    async def test(harness: Harness, client: Client) -> None:
        answer, file, _ = await opened(client, "a.txt")
        assert answer.create_action == create.CreateAction.CREATED
        assert (await write(client, file, b"hello world")).status == 0
        assert await read(client, file, 5, 6) == (0, b"world")
        assert await read(client, file, 100) == (0, b"hello world")
        assert await read(client, file, 5, 11) == (NtStatus.END_OF_FILE, b"")
        assert await read(client, file, 100, minimum_count=12) == (NtStatus.END_OF_FILE, b"")
        assert await read(client, file, 0, 0) == (0, b"")
        assert (await write(client, file, b"!", 11, flags=1)).status == 0
        assert (await client.call(Command.FLUSH, FLUSH_REQUEST.pack(FlushRequest(24, 0, 0, *file)))).status == 0
        reply = await close(client, file, 1)
        assert parse_response(memoryview(reply.message)).end_of_file == 12
        assert (await close(client, file)).status == NtStatus.FILE_CLOSED

    run(test)


def test_read_and_write_check_their_arguments() -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "a.txt")
        _, reader, _ = await opened(client, "a.txt", desired_access=0x00120089)
        _, directory, _ = await opened(client, "", create_options=1, desired_access=0x00120089)
        invalid = NtStatus.INVALID_PARAMETER
        assert (await read(client, file, 10, 2**64 - 1))[0] == invalid
        assert (await read(client, file, 0x7FFFFFFF))[0] == invalid
        assert (await read(client, file, 10, channel=1, channel_info_offset=112, channel_info_length=16))[0] == invalid
        assert (await read(client, directory, 10))[0] == NtStatus.INVALID_DEVICE_REQUEST
        assert (await read(client, (1, 2), 10))[0] == NtStatus.FILE_CLOSED
        assert (await write(client, reader, b"x")).status == NtStatus.ACCESS_DENIED
        assert (await write(client, file, b"x", 2**63)).status == invalid
        assert (await write(client, file, b"x", data_offset=0x101)).status == invalid
        assert (await write(client, file, b"x", length=2)).status == invalid
        assert (await write(client, file, b"x", channel=2)).status == invalid
        assert (await write(client, file, b"")).status == 0

    run(test)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"impersonation_level": 4}, NtStatus.BAD_IMPERSONATION_LEVEL),
        ({"desired_access": 0}, NtStatus.ACCESS_DENIED),
        ({"desired_access": 0x00000200}, NtStatus.ACCESS_DENIED),
        ({"share_access": 8}, NtStatus.INVALID_PARAMETER),
        ({"create_disposition": 6}, NtStatus.INVALID_PARAMETER),
        ({"file_attributes": 0x8}, NtStatus.INVALID_PARAMETER),
        ({"create_options": CreateOptions.OPEN_BY_FILE_ID}, NtStatus.NOT_SUPPORTED),
        ({"create_options": 0x41}, NtStatus.INVALID_PARAMETER),
        ({"create_options": 1, "create_disposition": 5}, NtStatus.INVALID_PARAMETER),
        ({"create_options": CreateOptions.DELETE_ON_CLOSE}, NtStatus.ACCESS_DENIED),
        ({"create_disposition": 1}, NtStatus.OBJECT_NAME_NOT_FOUND),
        ({"create_disposition": 4}, NtStatus.OBJECT_NAME_NOT_FOUND),
    ],
)
def test_create_refuses(fields: dict[str, int], status: int) -> None:
    async def test(harness: Harness, client: Client) -> None:
        assert await status_of(client, "new", **fields) == status
        assert await status_of(client, "new", create_disposition=1) == NtStatus.OBJECT_NAME_NOT_FOUND

    run(test)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("\\a", NtStatus.INVALID_PARAMETER),
        ("a\\..\\b", NtStatus.INVALID_PARAMETER),
        ("..", NtStatus.OBJECT_PATH_SYNTAX_BAD),
        ("a\\b\\..\\..\\..\\c", NtStatus.OBJECT_PATH_SYNTAX_BAD),
        ("a*", NtStatus.OBJECT_NAME_INVALID),
        ("a:", NtStatus.OBJECT_NAME_INVALID),
        ("x" * 256, NtStatus.OBJECT_NAME_INVALID),
        ("no\\such", NtStatus.OBJECT_PATH_NOT_FOUND),
    ],
)
def test_bad_names(name: str, status: int) -> None:
    async def test(harness: Harness, client: Client) -> None:
        assert await status_of(client, name) == status

    run(test)


def test_dispositions() -> None:
    async def test(harness: Harness, client: Client) -> None:
        async def action(disposition: int) -> int:
            answer, file, _ = await opened(client, "f", create_disposition=disposition, desired_access=ALL)
            await close(client, file)
            return answer.create_action

        assert await action(2) == 2
        assert await status_of(client, "f", create_disposition=2) == NtStatus.OBJECT_NAME_COLLISION
        assert [await action(disposition) for disposition in (1, 3, 4, 5, 0)] == [1, 1, 3, 3, 0]
        assert await status_of(client, "f", create_options=1) == NtStatus.NOT_A_DIRECTORY
        _, directory, _ = await opened(client, "d", create_options=1)
        assert await status_of(client, "d", create_options=0x40) == NtStatus.FILE_IS_A_DIRECTORY
        await close(client, directory)

    run(test)


def test_sharing_and_delete_on_close() -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "f", share_access=1)
        assert await status_of(client, "f") == NtStatus.SHARING_VIOLATION
        await close(client, file)
        _, first, _ = await opened(
            client, "f", desired_access=ALL, create_options=CreateOptions.DELETE_ON_CLOSE, share_access=7
        )
        _, other, _ = await opened(client, "f")
        await close(client, first)
        assert await status_of(client, "f") == NtStatus.DELETE_PENDING
        await close(client, other)
        assert await status_of(client, "f", create_disposition=1) == NtStatus.OBJECT_NAME_NOT_FOUND

    run(test)


def test_maximal_access_and_file_id_contexts() -> None:
    async def test(harness: Harness, client: Client) -> None:
        asked = [
            create_contexts.RawContext(create_contexts.MAXIMAL_ACCESS, b""),
            create_contexts.RawContext(create_contexts.QUERY_ON_DISK_ID, b""),
            create_contexts.RawContext(b"What", b"ever"),
        ]
        _, _, found = await opened(client, "f", asked, desired_access=int(Access.MAXIMUM_ALLOWED))
        assert create_contexts.RESPONSES[b"MxAc"](found[b"MxAc"]) == (0, ALL)
        assert create_contexts.RESPONSES[b"QFid"](found[b"QFid"]).disk_file_id
        assert b"What" not in found

    run(test)


def test_a_registered_context_is_served_and_nothing_else_knows_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, object]] = []

    def parse(data: bytes) -> int:
        if len(data) != 1:
            raise DecodeError("bad size")
        return data[0]

    def refuse_nine(opening: Opening, value: int) -> None:
        seen.append(("before", value))
        if value == 9:
            raise StatusError(NtStatus.NOT_SUPPORTED)

    monkeypatch.setitem(registry.KINDS, b"Mine", None)
    monkeypatch.setitem(registry.PARSERS, b"Mine", parse)
    del registry.KINDS[b"Mine"]
    registry.register(
        registry.Kind(
            b"Mine",
            since=0x0300,
            before=refuse_nine,
            after=lambda opening, opened, value: seen.append(("after", opened.path)),
            parse=parse,
            answer=lambda found, value: bytes([value + 1]) * 4 + bytes(found.info.end_of_file != 0),
        )
    )
    with pytest.raises(ValueError, match="served already"):
        registry.register(registry.Kind(b"Mine"))

    async def test(harness: Harness, client: Client) -> None:
        _, _, found = await opened(client, "f", [create_contexts.RawContext(b"Mine", b"\5")])
        assert found[b"Mine"][:4] == b"\6" * 4
        assert seen == [("before", 5), ("after", ("f",))]
        for data, status in ((b"\11", NtStatus.NOT_SUPPORTED), (b"too long", NtStatus.INVALID_PARAMETER)):
            asked = [create_contexts.RawContext(b"Mine", data)]
            assert await status_of(client, "f", contexts=asked) == status

    run(test)


def test_locks_block_io_and_each_other() -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, first, _ = await opened(client, "f")
        _, other, _ = await opened(client, "f")
        await write(client, first, b"0123456789")
        exclusive = lock.LockElement(2, 4, 0x12)
        assert (await client.call(Command.LOCK, lock_body(first, exclusive))).status == 0
        assert (await client.call(Command.LOCK, lock_body(other, exclusive))).status == NtStatus.LOCK_NOT_GRANTED
        assert (await read(client, other, 4))[0] == NtStatus.FILE_LOCK_CONFLICT
        assert (await write(client, other, b"x", 5)).status == NtStatus.FILE_LOCK_CONFLICT
        assert await read(client, other, 2) == (0, b"01")
        beyond = lock.LockElement(2**64 - 1, 2, 0x12)
        assert (await client.call(Command.LOCK, lock_body(first, beyond))).status == NtStatus.INVALID_LOCK_RANGE
        two = [lock.LockElement(20, 1, 2), lock.LockElement(30, 1, 2)]
        assert (await client.call(Command.LOCK, lock_body(first, *two))).status == NtStatus.INVALID_PARAMETER
        unlock = lock.LockElement(2, 4, 4)
        assert (await client.call(Command.LOCK, lock_body(other, unlock))).status == NtStatus.RANGE_NOT_LOCKED
        waiting = client.message_id
        await client.post(Command.LOCK, lock_body(other, lock.LockElement(2, 4, 2)))
        assert (await client.receive()).status == NtStatus.PENDING
        await client.post(Command.LOCK, lock_body(first, unlock))
        replies = {reply.header.message_id: reply.status for reply in (await client.receive(), await client.receive())}
        assert replies == {waiting: 0, waiting + 1: 0}

    run(test)


def test_lock_sequence_makes_a_replay_harmless() -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "f")
        body = lock_body(file, lock.LockElement(0, 1, 0x12), sequence=1 << 4 | 3)
        assert (await client.call(Command.LOCK, body)).status == 0
        assert (await client.call(Command.LOCK, body)).status == 0
        other = lock_body(file, lock.LockElement(0, 1, 0x12), sequence=1 << 4 | 4)
        assert (await client.call(Command.LOCK, other)).status == NtStatus.LOCK_NOT_GRANTED

    run(test)


def test_batch_oplock_is_broken_and_acknowledged() -> None:
    async def test(harness: Harness, client: Client) -> None:
        answer, file, _ = await opened(client, "f", requested_oplock_level=OplockLevel.BATCH)
        assert answer.oplock_level == OplockLevel.BATCH
        other = await second(harness)
        await other.post(Command.CREATE, request("f"))
        assert (await other.receive()).status == NtStatus.PENDING
        notification = await client.receive()
        assert notification.header.message_id == 2**64 - 1
        told = oplock_break.parse_notification(memoryview(notification.message))
        assert (told.oplock_level, told.persistent, told.volatile) == (OplockLevel.II, *file)
        wrong = oplock_break.OPLOCK_BREAK.pack(oplock_break.OplockBreak(24, 1, 0, 0, 1, 2))
        assert (await client.call(Command.OPLOCK_BREAK, wrong)).status == NtStatus.FILE_CLOSED
        reply = await client.call(Command.OPLOCK_BREAK, oplock_break.OPLOCK_BREAK.pack(told))
        assert reply.status == 0
        assert (await other.receive()).status == 0
        again = await client.call(Command.OPLOCK_BREAK, oplock_break.OPLOCK_BREAK.pack(told))
        # 3.3.5.22.1: Open.OplockState is not Breaking.
        assert again.status == NtStatus.INVALID_DEVICE_STATE

    run(test)


def test_lease_is_shared_by_its_key_and_broken_for_others() -> None:
    async def test(harness: Harness, client: Client) -> None:
        key = b"k" * 16
        level = int(OplockLevel.LEASE)
        _, _, found = await opened(client, "f", [lease_context(key)], requested_oplock_level=level)
        assert create_contexts.RESPONSES[b"RqLs"](found[b"RqLs"])[:2] == (key, RWH)
        _, _, found = await opened(client, "f", [lease_context(key)], requested_oplock_level=level)
        assert create_contexts.RESPONSES[b"RqLs"](found[b"RqLs"]).lease_state == RWH
        bad = await client.call(Command.CREATE, request("g", [lease_context(key)], requested_oplock_level=level))
        assert bad.status == NtStatus.INVALID_PARAMETER
        assert await status_of(client, "g", create_disposition=1) == NtStatus.OBJECT_NAME_NOT_FOUND
        other = await second(harness)
        await other.post(Command.CREATE, request("f"))
        assert (await other.receive()).status == NtStatus.PENDING
        told = oplock_break.parse_notification(memoryview((await client.receive()).message))
        assert (told.lease_key, told.current_lease_state, told.new_lease_state) == (key, RWH, 3)
        ack = oplock_break.LEASE_BREAK.pack(oplock_break.LeaseBreak(lease_key=key, lease_state=RWH))
        assert (await client.call(Command.OPLOCK_BREAK, ack)).status == NtStatus.REQUEST_NOT_ACCEPTED
        ack = oplock_break.LEASE_BREAK.pack(oplock_break.LeaseBreak(lease_key=key, lease_state=3))
        assert (await client.call(Command.OPLOCK_BREAK, ack)).status == 0
        assert (await other.receive()).status == 0

    run(test)


def test_waiting_create_can_be_cancelled() -> None:
    async def test(harness: Harness, client: Client) -> None:
        await opened(client, "f", requested_oplock_level=OplockLevel.BATCH)
        other = await second(harness)
        message_id = other.message_id
        await other.post(Command.CREATE, request("f"))
        interim = await other.receive()
        await other.post(
            Command.CANCEL,
            struct.pack("<HH", 4, 0),
            message_id=message_id,
            flags=2,
            reserved=interim.header.reserved,
            tree_id=interim.header.tree_id,
            credit_charge=0,
        )
        assert (await other.receive()).status == NtStatus.CANCELLED

    run(test)


def test_opens_per_session_are_limited() -> None:
    async def test(harness: Harness, client: Client) -> None:
        harness.server.settings.max_opens = 3
        files = [(await opened(client, f"f{i}"))[1] for i in range(3)]
        assert await status_of(client, "f3") == NtStatus.INSUFFICIENT_RESOURCES
        await close(client, files[0])
        assert await status_of(client, "f3") == 0

    run(test)


def test_file_with_open_streams_is_deleted_with_the_last() -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, stream, _ = await opened(client, "f:s")
        _, file, _ = await opened(client, "f", desired_access=ALL, create_options=CreateOptions.DELETE_ON_CLOSE)
        await close(client, file)
        assert await status_of(client, "f") == NtStatus.DELETE_PENDING
        assert await status_of(client, "f:s") == NtStatus.DELETE_PENDING
        await close(client, stream)
        assert await status_of(client, "f", create_disposition=1) == NtStatus.OBJECT_NAME_NOT_FOUND

    run(test)


def test_durable_open_survives_its_connection() -> None:
    async def test(harness: Harness, client: Client) -> None:
        guid = b"g" * 16
        wanted = create_contexts.DURABLE_REQUEST_V2_CODEC.pack(create_contexts.DurableRequestV2(0, 0, 0, guid))
        asked = [create_contexts.RawContext(create_contexts.DURABLE_REQUEST_V2, wanted)]
        _, file, found = await opened(client, "f", asked, requested_oplock_level=OplockLevel.BATCH, share_access=0)
        assert create_contexts.RESPONSES[b"DH2Q"](found[b"DH2Q"]).timeout == 60000
        await write(client, file, b"data")
        client.writer.close()
        await harness.settled()
        assert len(harness.server.opens.by_id) == 1
        again = await second(harness)

        def reconnect(create_guid: bytes) -> bytes:
            data = create_contexts.DURABLE_RECONNECT_V2_CODEC.pack(
                create_contexts.DurableReconnectV2(*file, create_guid)
            )
            context = create_contexts.RawContext(create_contexts.DURABLE_RECONNECT_V2, data)
            return request("f", [context], requested_oplock_level=OplockLevel.BATCH)

        refused = await again.call(Command.CREATE, reconnect(b"x" * 16))
        assert refused.status == NtStatus.OBJECT_NAME_NOT_FOUND
        reply = await again.call(Command.CREATE, reconnect(guid))
        assert reply.status == 0
        answer, _ = create.parse_response(memoryview(reply.message))
        assert (answer.persistent, answer.oplock_level) == (file[0], OplockLevel.BATCH)
        assert await read(again, (answer.persistent, answer.volatile), 10) == (0, b"data")
        await close(again, (answer.persistent, answer.volatile))

    run(test)


def test_disconnected_durable_open_gives_way() -> None:
    async def test(harness: Harness, client: Client) -> None:
        asked = [create_contexts.RawContext(create_contexts.DURABLE_REQUEST, bytes(16))]
        await opened(client, "f", asked, requested_oplock_level=OplockLevel.BATCH, share_access=0)
        client.writer.close()
        await harness.settled()
        other = await second(harness)
        async with asyncio.timeout(5):
            _, file, _ = await opened(other, "f", desired_access=ALL)
        assert len(harness.server.opens.by_id) == 1
        await close(other, file)

    run(test)
