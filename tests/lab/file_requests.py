"""File commands over TCP in few words, against the in-memory store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from smb3server.wire import create, create_contexts, lock, read_write
from smb3server.wire.close import CLOSE_REQUEST, CloseRequest
from smb3server.wire.create import CreateRequest
from smb3server.wire.header import Command
from tests.lab.wire_client import Client, Harness, Reply, drive

READ_WRITE = 0x0012019F


ALL = 0x001F01FF


RWH = 7


FileId = tuple[int, int]


def run(test: Callable[[Harness, Client], Awaitable[None]]) -> None:
    async def body(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await test(harness, client)

    drive(body)


async def second(harness: Harness) -> Client:
    client = await harness.connect()
    await client.login()
    return client


def request(name: str, contexts: list[create_contexts.RawContext] | None = None, **fields: Any) -> bytes:
    values: dict[str, Any] = {"desired_access": READ_WRITE, "share_access": 7, "create_disposition": 3}
    return create.pack_request(CreateRequest(**{**values, **fields}), name, contexts or [])


async def status_of(client: Client, name: str, **fields: Any) -> int:
    return (await client.call(Command.CREATE, request(name, **fields))).status


async def opened(client: Client, name: str, contexts: list[create_contexts.RawContext] | None = None, **fields: Any):
    reply = await client.call(Command.CREATE, request(name, contexts, **fields))
    assert reply.status == 0, hex(reply.status)
    answer, found = create.parse_response(memoryview(reply.message))
    return answer, (answer.persistent, answer.volatile), dict(found)


async def write(client: Client, file: FileId, data: bytes, offset: int = 0, **fields: Any) -> Reply:
    record = read_write.WriteRequest(
        data_offset=112, length=len(data), offset=offset, persistent=file[0], volatile=file[1]
    )
    return await client.call(Command.WRITE, read_write.WRITE_REQUEST.pack(record._replace(**fields)) + (data or b"\0"))


async def read(client: Client, file: FileId, length: int, offset: int = 0, **fields: Any) -> tuple[int, bytes]:
    record = read_write.ReadRequest(length=length, offset=offset, persistent=file[0], volatile=file[1])
    reply = await client.call(Command.READ, read_write.READ_REQUEST.pack(record._replace(**fields)) + b"\0")
    if reply.status:
        return reply.status, b""
    return 0, bytes(read_write.parse_read_response(memoryview(reply.message))[1])


async def close(client: Client, file: FileId, flags: int = 0) -> Reply:
    return await client.call(Command.CLOSE, CLOSE_REQUEST.pack(CloseRequest(24, flags, 0, *file)))


def lock_body(file: FileId, *elements: lock.LockElement, sequence: int = 0) -> bytes:
    return lock.pack_request(lock.LockRequest(lock_sequence=sequence, persistent=file[0], volatile=file[1]), elements)


def lease_context(key: bytes, state: int = RWH) -> create_contexts.RawContext:
    data = create_contexts.LEASE_V2_CODEC.pack(create_contexts.LeaseV2(key, state))
    return create_contexts.RawContext(create_contexts.REQUEST_LEASE, data)
