"""Compressed messages on their way through a server: in both directions, protected or not, in order. [MS-SMB2 3.1.4.4,
3.3.5.2.1.2, 3.3.5.12]"""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable

import pytest

from smb3server.compression.transform import Agreement
from smb3server.settings.server import Settings
from smb3server.state import ceilings
from smb3server.state.ceilings import Usage
from smb3server.wire.compression import COMPRESSION_PROTOCOL_ID, CompressionAlgorithm, pack_compression
from smb3server.wire.header import Command
from smb3server.wire.read_write import READ_REQUEST, ReadRequest
from tests.lab.wire_client import ECHO, Client, Harness, Reply, compound, context, contexts_for, drive, server_signature

CHAINED = Agreement((CompressionAlgorithm.LZ77, CompressionAlgorithm.PATTERN_V1), chained=True)
PLAIN = Agreement((CompressionAlgorithm.LZ4,))
PROTECTIONS = ["none", "sign", "encrypt"]
MIB = 1 << 20
REQUEST_COMPRESSED = 2


def data_of(size: int) -> bytes:
    """Return data that shrinks: no long repetition, and no byte by chance."""
    return (b"".join(struct.pack("<I", number) for number in range(997)) * (size // 3988 + 1))[:size]


async def connected(harness: Harness, agreed: Agreement, protection: str) -> Client:
    client = await harness.connect()
    offered = pack_compression(agreed.algorithms, agreed.chained)
    assert not (await client.negotiate(contexts=[*contexts_for(), context(3, offered)])).status
    assert not (await client.session_setup()).status
    assert not (await client.tree_connect()).status
    client.sign, client.encrypt = protection == "sign", protection == "encrypt"
    (connection,) = harness.server.connection_list
    assert connection.compression is not None and connection.compression.chained is agreed.chained
    return client


def packed(client: Client, agreed: Agreement, command: int, body: bytes, lead: int = 64) -> bytes:
    """Return a message whose end, behind ``lead`` bytes, is compressed; then encrypted."""
    whole = client.build(command, body, credit_charge=max(1, -(-len(body) // 65536)))
    whole = client.signed(whole) if client.sign else whole
    end = agreed.pack(whole[lead:])
    assert end is not None
    message = b"".join(end.message([whole[:lead]]))
    return client.sealed(message) if client.encrypt else message


async def received(client: Client, agreed: Agreement) -> tuple[Reply, bool]:
    """Return a reply, and whether it came compressed."""
    message = await client.receive_frame()
    if client.encrypt:
        assert client.cipher is not None
        plain = client.cipher.decrypt(memoryview(bytearray(message)))
        assert plain is not None
        message = bytes(plain)
    if message[:4] != COMPRESSION_PROTOCOL_ID:
        return Reply(message), False
    return Reply(bytes(agreed.unpack(memoryview(bytearray(message)), 16 * MIB))), True


async def opened(client: Client, name: str) -> bytes:
    reply = await client.open(name)
    assert not reply.status
    return bytes(reply.body[64:80])


def write_body(file_id: bytes, data: bytes) -> bytes:
    return struct.pack("<HHIQ16sIIHHI", 49, 112, len(data), 0, file_id, 0, 0, 0, 0, 0) + data


async def read(client: Client, agreed: Agreement, file_id: bytes, length: int) -> tuple[bytes, bool]:
    persistent, volatile = struct.unpack("<QQ", file_id)
    record = ReadRequest(flags=REQUEST_COMPRESSED, length=length, persistent=persistent, volatile=volatile)
    body = READ_REQUEST.pack(record) + b"\0"
    await client.post(Command.READ, body, credit_charge=max(1, -(-length // 65536)))
    while True:
        reply, compressed = await received(client, agreed)
        if reply.status != 0x103:
            break
    assert not reply.status
    return bytes(reply.message[reply.message[66] :][:length]), compressed


def played(test: Callable[[Harness], Awaitable[None]]) -> None:
    drive(test, Settings(min_dialect=0x0202, interim_delay=5.0))


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("agreed", [CHAINED, PLAIN], ids=["chained", "one"])
@pytest.mark.parametrize("size", [5000, MIB], ids=["at once", "on a thread"])
def test_writes_and_reads(protection: str, agreed: Agreement, size: int) -> None:
    async def body(harness: Harness) -> None:
        client = await connected(harness, agreed, protection)
        file_id = await opened(client, "a")
        for _ in range(12):
            # Credits for a megabyte.
            await client.call(Command.ECHO, ECHO, credits=32)
        data = data_of(size)
        await client.frame(packed(client, agreed, Command.WRITE, write_body(file_id, data), 112))
        # What follows waits for it.
        await client.post(Command.ECHO, ECHO)
        first, _ = await received(client, agreed)
        second, _ = await received(client, agreed)
        assert (first.header.command, first.status) == (Command.WRITE, 0)
        assert (second.header.command, second.status) == (Command.ECHO, 0)
        found, compressed = await read(client, agreed, file_id, size)
        assert found == data and compressed
        (connection,) = harness.server.connection_list
        assert connection.compressed.received >= size and connection.compressed.sent >= size

    played(body)


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("agreed", [CHAINED, PLAIN], ids=["chained", "one"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_answers_of_a_compound(protection: str, agreed: Agreement, place: str) -> None:
    size = 5003

    async def body(harness: Harness) -> None:
        client = await connected(harness, agreed, protection)
        file_id = await opened(client, "a")
        data = data_of(size)
        assert not (await client.call(Command.WRITE, write_body(file_id, data))).status
        wanted = (
            READ_REQUEST.pack(
                ReadRequest(flags=REQUEST_COMPRESSED, length=size)._replace(
                    persistent=int.from_bytes(file_id[:8], "little"), volatile=int.from_bytes(file_id[8:], "little")
                )
            )
            + b"\0"
        )
        flush = struct.pack("<HHI", 24, 0, 0) + file_id
        order = {"first": (0,), "middle": (1, 0, 1), "last": (1, 0)}[place]
        if place == "first":
            order = (0, 1)
        parts = [
            client.build(Command.READ, wanted) if not kind else client.build(Command.FLUSH, flush) for kind in order
        ]
        message = compound(client, *parts)
        await client.frame(client.sealed(message) if client.encrypt else message)
        sent = await client.receive_frame()
        if client.encrypt:
            assert client.cipher is not None
            sent = bytes(client.cipher.decrypt(memoryview(bytearray(sent))) or b"")
        assert sent[:4] == COMPRESSION_PROTOCOL_ID and len(sent) < size
        plain = bytes(agreed.unpack(memoryview(bytearray(sent)), MIB))
        found, start = [], 0
        while True:
            step = int.from_bytes(plain[start + 20 : start + 24], "little")
            part = plain[start : start + step] if step else plain[start:]
            assert not len(part) % 8
            found.append(Reply(part))
            if client.sign:
                assert client.signer is not None
                assert part[48:64] == server_signature(client.signer, found[-1])
            start += step
            if not step:
                break
        assert [reply.header.command for reply in found] == [Command.FLUSH if kind else Command.READ for kind in order]
        assert not any(reply.status for reply in found)
        (reply,) = (reply for reply in found if reply.header.command == Command.READ)
        assert reply.message[reply.message[66] :][:size] == data
        (connection,) = harness.server.connection_list
        assert connection.compressed.sent >= size

    played(body)


def test_a_compound_that_is_long_or_does_not_shrink_goes_as_it_is() -> None:
    async def body(harness: Harness) -> None:
        client = await connected(harness, CHAINED, "none")
        file_id = await opened(client, "a")
        for _ in range(12):
            await client.call(Command.ECHO, ECHO, credits=32)
        for data in (os.urandom(60000), data_of(200000)):
            charge = -(-len(data) // 65536)
            await client.call(Command.WRITE, write_body(file_id, data), credit_charge=charge)
            persistent, volatile = struct.unpack("<QQ", file_id)
            record = ReadRequest(flags=REQUEST_COMPRESSED, length=len(data), persistent=persistent, volatile=volatile)
            read_part = client.build(Command.READ, READ_REQUEST.pack(record) + b"\0", credit_charge=charge)
            await client.frame(compound(client, read_part, client.build(Command.ECHO, ECHO)))
            first, second = await client.receive_compound()
            assert first.message[first.message[66] :][: len(data)] == data
            assert second.header.command == Command.ECHO

    played(body)


def test_data_that_does_not_shrink_goes_as_it_is() -> None:
    async def body(harness: Harness) -> None:
        client = await connected(harness, CHAINED, "none")
        file_id = await opened(client, "a")
        data = os.urandom(60000)
        assert not (await client.call(Command.WRITE, write_body(file_id, data))).status
        assert await read(client, CHAINED, file_id, len(data)) == (data, False)

    played(body)


@pytest.mark.parametrize(
    "message",
    [
        COMPRESSION_PROTOCOL_ID + struct.pack("<IHHI", 0xFFFFFFFF, 2, 0, 0) + bytes(100),
        COMPRESSION_PROTOCOL_ID + struct.pack("<IHHI", 1 << 23, 2, 0, 0) + bytes(100),
        COMPRESSION_PROTOCOL_ID + struct.pack("<IHHI", 100, 1, 0, 0) + bytes(100),
        COMPRESSION_PROTOCOL_ID + struct.pack("<IHHIBBHI", 1 << 30, 4, 1, 8, 65, 0, 0, 1 << 30),
        COMPRESSION_PROTOCOL_ID + bytes(3),
        COMPRESSION_PROTOCOL_ID + bytes(60),
    ],
    ids=["huge", "on a thread", "another algorithm", "a repeated byte", "short", "zeros"],
)
def test_bombs_and_nonsense_end_the_connection(message: bytes) -> None:
    async def body(harness: Harness) -> None:
        client = await connected(harness, CHAINED, "none")
        await client.frame(message)
        assert await client.closed()

    played(body)


def test_a_compressed_message_that_nobody_agreed_to() -> None:
    async def body(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        await client.frame(packed(client, CHAINED, Command.ECHO, ECHO + bytes(5000)))
        assert await client.closed()

    played(body)


def test_a_client_that_is_gone_while_a_thread_works() -> None:
    async def body(harness: Harness) -> None:
        client = await connected(harness, CHAINED, "none")
        file_id = await opened(client, "a")
        for _ in range(12):
            await client.call(Command.ECHO, ECHO, credits=32)
        await client.frame(packed(client, CHAINED, Command.WRITE, write_body(file_id, data_of(MIB)), 112))
        client.writer.transport.abort()
        await harness.settled()

    played(body)


def test_one_message_of_a_connection_and_some_of_a_user_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    expand = Usage.expand

    def watched(usage: Usage, size: int) -> None:
        expand(usage, size)
        most.append(usage.expanded)

    monkeypatch.setattr(Usage, "expand", watched)
    monkeypatch.setattr(ceilings, "MOST_EXPANDED", 5 * MIB // 2)

    async def body(harness: Harness) -> None:
        clients = [await connected_again(harness) for _ in range(4)]
        data = data_of(MIB)
        for client in clients:
            file_id = await opened(client, "a")
            for _ in range(40):
                await client.call(Command.ECHO, ECHO, credits=32)
            # All of them in one piece: they are there before the first is decompressed.
            messages = [packed(client, CHAINED, Command.WRITE, write_body(file_id, data), 112) for _ in range(4)]
            client.writer.write(b"".join(len(one).to_bytes(4, "big") + one for one in messages))
        for client in clients:
            for _ in range(4):
                reply, _ = await received(client, CHAINED)
                assert (reply.header.command, reply.status) == (Command.WRITE, 0)
        assert MIB < max(most) <= 5 * MIB // 2
        # The last answer is sent before its message is forgotten.
        await client.call(Command.ECHO, ECHO)
        assert most[-1] == 0

    played(body)


async def connected_again(harness: Harness) -> Client:
    client = await harness.connect()
    offered = pack_compression(CHAINED.algorithms, CHAINED.chained)
    assert not (await client.negotiate(contexts=[*contexts_for(), context(3, offered)])).status
    assert not (await client.session_setup()).status
    assert not (await client.tree_connect()).status
    return client
