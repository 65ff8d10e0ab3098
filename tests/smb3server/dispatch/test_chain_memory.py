"""A message of many commands whose answers nobody takes: the server stops before they fill its memory."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path

import pytest

from smb3server.backends.local import page_cache
from smb3server.client.protocol import Client, Tree, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.dispatch import dispatcher
from smb3server.wire import read_write
from smb3server.wire.create import CreateDisposition
from smb3server.wire.header import HEADER, HEADER_SIZE, Command, Header
from tests.lab.services import configured, port_of, running

LONGEST_TURN = 0.1

MARK = 4 << 20
"""Bytes of unsent answers that a chain may leave behind, but for its last one."""
SIZE = 1 << 20
COUNT = 40
CHARGE = SIZE >> 16


async def _logged_on(port: int) -> tuple[Client, Tree]:
    client = await Client.connect(await open_tcp("127.0.0.1", port))
    client.credits_wanted = 2048
    for _ in range(8):
        await client.echo()
    return client, await (await client.log_on("u", "pw")).tree_connect("share")


def _chain(client: Client, tree: Tree, file_id: tuple[int, int], count: int, last: int = Command.READ) -> bytes:
    """``count`` READs of the file's beginning; the last command may be another one on it."""
    parts = []
    for index in range(count):
        command = last if index == count - 1 else Command.READ
        if command == Command.READ:
            record = read_write.ReadRequest(padding=80, length=SIZE, persistent=file_id[0], volatile=file_id[1])
            body = read_write.READ_REQUEST.pack(record) + b"\0"
        else:
            body = struct.pack("<HHIQQ", 24, 0, 0, *file_id)
        padding = -(HEADER_SIZE + len(body)) % 8
        header = Header(
            credit_charge=CHARGE,
            command=command,
            credits=CHARGE,
            message_id=client._next_message_id,
            tree_id=tree.tree_id,
            session_id=tree.session.session_id,
            next_command=HEADER_SIZE + len(body) + padding if index < count - 1 else 0,
        )
        client._next_message_id += CHARGE
        parts.append(HEADER.pack(header) + body + (bytes(padding) if index < count - 1 else b""))
    return b"".join(parts)


@pytest.mark.parametrize("end", ["drained", "gone", "gone after short turns"])
def test_a_chain_waits_until_its_answers_are_taken(tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MS-SMB2 3.3.4.1.3: answers may go out in several messages. Order and MessageIds stay right."""
    if end == "gone after short turns":
        # The chain gives way after each command, with answers that it has not sent.
        monkeypatch.setattr(dispatcher, "TURN", 0.0)

    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            content = os.urandom(SIZE)
            (tmp_path / "share" / "f").write_bytes(content)
            port = port_of(service, "tcp", "0.0.0.0")
            client, tree = await _logged_on(port)
            other, _ = await _logged_on(port)
            file = await tree.create("f", READ_WRITE, CreateDisposition.OPEN)
            connection = next(iter(tree_connection(service, tree)))
            received: list[tuple[int, int, bytes]] = []

            def take(message: object) -> None:
                view = bytes(message.view)  # type: ignore[attr-defined]
                start = 0
                while True:
                    header = HEADER.unpack(view, start)
                    stop = start + header.next_command if header.next_command else len(view)
                    received.append((header.message_id, header.status, view[start:stop]))
                    if not header.next_command:
                        break
                    start = stop
                message.release()  # type: ignore[attr-defined]

            client.transport.pause_reading()
            client.transport._receiver.on_message = take  # type: ignore[attr-defined]
            first = client._next_message_id
            lent = service.server.buffers.lent
            client.transport.send([_chain(client, tree, file.file_id, COUNT, Command.CLOSE)])
            async with asyncio.timeout(20):
                while connection.transport.pending_send_bytes < MARK // 2:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            # What the socket's buffers take is not the server's.
            assert connection.transport.pending_send_bytes <= MARK + SIZE + 4096
            assert service.server.buffers.lent - lent <= 2 * (MARK + SIZE)
            await other.echo()
            if end != "drained":
                client.transport.abort("gone")
                async with asyncio.timeout(20):
                    while connection in service.server.connection_list or service.server.buffers.lent != lent:
                        await asyncio.sleep(0.01)
            else:
                client.transport.resume_reading()
                async with asyncio.timeout(20):
                    while len(received) < COUNT:
                        await asyncio.sleep(0.01)
                assert [entry[0] for entry in received] == [first + index * CHARGE for index in range(COUNT)]
                assert {entry[1] for entry in received} == {0}
                assert all(entry[2][80 : 80 + SIZE] == content for entry in received[:-1])
                assert not connection.host.parking.chains
                assert not tree_opens(service)
                client.transport.abort("done")
            await other.close()

    asyncio.run(test())


def tree_connection(service: object, tree: Tree) -> list[object]:
    server = service.server  # type: ignore[attr-defined]
    return list(server.sessions.by_id[tree.session.session_id].channel_list)


def tree_opens(service: object) -> dict[int, object]:
    table: dict[int, object] = service.server.opens.by_id  # type: ignore[attr-defined]
    return table


def test_buffers_of_a_user_are_limited_over_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READs beyond that wait until the client takes answers, or closes a connection that it does not read from."""
    limit = 6
    monkeypatch.setattr(page_cache, "holds", lambda *range: False)  # Data that is not in memory needs buffers.

    async def test() -> None:
        config = configured(tmp_path)
        config.settings.max_lent_per_user = limit * SIZE
        async with running(config) as service:
            content = os.urandom(SIZE)
            (tmp_path / "share" / "f").write_bytes(content)
            port = port_of(service, "tcp", "0.0.0.0")
            usage = service.server.ceilings.of_name("u")
            stuck = []
            for _ in range(4):
                client, tree = await _logged_on(port)
                file = await tree.create("f", READ_WRITE, CreateDisposition.OPEN)
                stuck.append(client)
                client.transport.pause_reading()
                for _ in range(8):
                    client.transport.send([_chain(client, tree, file.file_id, 1)])
            async with asyncio.timeout(20):
                while len(usage.waiting) < 2:
                    await asyncio.sleep(0.01)
            assert usage.lent <= limit * SIZE
            other, tree = await _logged_on(port)
            file = await tree.create("f", READ_WRITE, CreateDisposition.OPEN)
            assert await tree.read(file, 0, 4096) == content[:4096], "small ones need not wait"
            large = asyncio.create_task(tree.read(file, 0, SIZE))
            await asyncio.sleep(0.2)
            assert not large.done()
            for client in stuck:
                client.transport.abort("gone")
            async with asyncio.timeout(20):
                assert await large == content
            await other.close()
            async with asyncio.timeout(20):
                while usage.lent or usage.waiting:
                    await asyncio.sleep(0.01)
            assert service.server.buffers.lent == 0

    asyncio.run(test())
