"""Resilient opens and opens that an application takes over, over TCP, against the in-memory store."""

from __future__ import annotations

import asyncio
import struct

from smb3server.wire import create, create_contexts
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.lock import LockElement
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import FileId, close, lock_body, opened, read, request, run, second, status_of, write
from tests.lab.wire_client import Client, Harness, ioctl_body

EXCLUSIVE = 0x12


async def make_resilient(client: Client, file: FileId, data: bytes) -> int:
    body = ioctl_body(Fsctl.LMR_REQUEST_RESILIENCY, data, struct.pack("<QQ", *file))
    return (await client.call(Command.IOCTL, body)).status


def test_resilient_open_is_not_given_up() -> None:
    """3.3.5.15.9, 3.3.5.9.7."""

    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "f", share_access=0)
        await write(client, file, b"data")
        assert (await client.call(Command.LOCK, lock_body(file, LockElement(0, 1, EXCLUSIVE)))).status == 0
        assert await make_resilient(client, file, struct.pack("<II", 5000, 0)) == 0
        client.writer.close()
        await harness.settled()
        other = await second(harness)
        assert await status_of(other, "f") == NtStatus.SHARING_VIOLATION
        context = RawContext(create_contexts.DURABLE_RECONNECT, struct.pack("<QQ", *file))
        reply = await other.call(Command.CREATE, request("f", [context]))
        assert reply.status == 0
        answer, _ = create.parse_response(memoryview(reply.message))
        again = (answer.persistent, answer.volatile)
        assert again[0] == file[0]
        assert await read(other, again, 10) == (0, b"data")
        await close(other, again)

    run(test)


def test_resilient_open_times_out() -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "f", share_access=0)
        assert await make_resilient(client, file, struct.pack("<II", 1, 0)) == 0
        client.writer.close()
        await harness.settled()
        async with asyncio.timeout(5):
            while harness.server.opens.by_id:
                await asyncio.sleep(0.001)

    run(test)


def test_resiliency_request_checks_its_arguments() -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "f")
        for data, status in (
            (b"", NtStatus.INVALID_PARAMETER),
            (bytes(7), NtStatus.INVALID_PARAMETER),
            (struct.pack("<II", 301_000, 0), NtStatus.INVALID_PARAMETER),
            # 3.3.5.15.9: no more than MaxResiliencyTimeout.
            (struct.pack("<II", 300_001, 0), NtStatus.INVALID_PARAMETER),
            (struct.pack("<II", 300_000, 0), 0),
            (struct.pack("<II", 0, 0), 0),
        ):
            assert await make_resilient(client, file, data) == status
        assert await make_resilient(client, (1, 2), bytes(8)) == NtStatus.FILE_CLOSED
        await close(client, file)
        old = await harness.connect()
        await old.login(0x0202)
        _, file, _ = await opened(old, "f")
        assert await make_resilient(old, file, bytes(8)) == NtStatus.INVALID_DEVICE_REQUEST
        await close(old, file)

    run(test)


def app_contexts(version: tuple[int, int] | None, guid: bytes) -> list[RawContext]:
    wanted = create_contexts.DURABLE_REQUEST_V2_CODEC.pack(create_contexts.DurableRequestV2(0, 0, 0, guid))
    found = [
        RawContext(create_contexts.DURABLE_REQUEST_V2, wanted),
        RawContext(create_contexts.APP_INSTANCE_ID, struct.pack("<HH16s", 20, 0, b"app instance id.")),
    ]
    if version is not None:
        found.append(RawContext(create_contexts.APP_INSTANCE_VERSION, struct.pack("<HHIQQ", 24, 0, 0, *version)))
    return found


def test_application_takes_its_opens_along() -> None:
    """3.3.5.9.13: only from another client, of the same file, and with a greater version."""

    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "f", app_contexts((1, 5), b"1" * 16), share_access=0)
        other = await second(harness)
        forced = NtStatus.FILE_FORCED_CLOSED
        for version, status in (((1, 4), forced), ((1, 5), forced), ((0, 9), forced), (None, forced)):
            reply = await other.call(Command.CREATE, request("f", app_contexts(version, b"2" * 16)))
            assert reply.status == status
        assert (await write(client, file, b"still there")).status == 0
        _, elsewhere, _ = await opened(other, "g", app_contexts((1, 6), b"3" * 16))
        assert (await write(client, file, b"still there")).status == 0
        _, taken, _ = await opened(other, "f", app_contexts((1, 6), b"4" * 16), share_access=0)
        assert (await write(client, file, b"gone")).status == NtStatus.FILE_CLOSED
        for entry in (elsewhere, taken):
            await close(other, entry)

    run(test)
