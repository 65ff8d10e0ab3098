"""A message of many commands lets others have their turn, and ends with its connection."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, open_tcp
from smb3server.dispatch import dispatcher
from smb3server.dispatch.request import HANDLERS, Request, Response
from smb3server.process.turns import Turns
from smb3server.wire.header import HEADER, HEADER_SIZE, Command, Header
from tests.lab.services import configured, port_of, running

LONGEST_TURN = 0.1

COUNT = 400
SECONDS = 0.002
"""That each command takes."""


def _echoes(client: Client, session_id: int) -> bytes:
    body = b"\4\0\0\0"
    step = HEADER_SIZE + 8
    parts = []
    for index in range(COUNT):
        header = Header(
            credit_charge=1,
            command=Command.ECHO,
            credits=1,
            message_id=client._next_message_id,
            session_id=session_id,
            next_command=step if index < COUNT - 1 else 0,
        )
        client._next_message_id += 1
        parts.append((HEADER.pack(header) + body).ljust(step, b"\0"))
    return b"".join(parts)


async def _logged_on(port: int) -> tuple[Client, int]:
    client = await Client.connect(await open_tcp("127.0.0.1", port))
    client.credits_wanted = 1024
    for _ in range(4):
        await client.echo()
    return client, (await client.log_on("u", "pw")).session_id


def test_others_are_answered_while_a_chain_is_worked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            port = port_of(service, "tcp", "0.0.0.0")
            client, session_id = await _logged_on(port)
            other, _ = await _logged_on(port)
            done = 0

            def slow_echo(request: Request) -> Response:
                nonlocal done
                if request.session is not None and request.session.session_id == session_id:
                    done += 1
                    time.sleep(SECONDS)
                return Response([b"\4\0\0\0"])

            monkeypatch.setitem(HANDLERS, Command.ECHO, slow_echo)
            client.transport.send([_echoes(client, session_id)])
            while not done:
                await asyncio.sleep(0)
            assert done < COUNT // 10
            for _ in range(5):
                before = done
                await other.echo()
                # Some turns of the event loop for the way there and back, client and server being one process.
                assert done - before < COUNT // 10
            async with asyncio.timeout(20):
                while done < COUNT:
                    await asyncio.sleep(0.01)
            client.transport.abort("done")
            await other.close()

    asyncio.run(test())


def test_a_chain_ends_with_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport tells of its end in a turn of its own."""

    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            client, session_id = await _logged_on(port_of(service, "tcp", "0.0.0.0"))
            done = 0

            def last_echo(request: Request) -> Response:
                nonlocal done
                done += 1
                request.connection.transport.abort("reset by peer")
                return Response([b"\4\0\0\0"])

            monkeypatch.setitem(HANDLERS, Command.ECHO, last_echo)
            monkeypatch.setattr(dispatcher, "TURN", 0.0)
            client.transport.send([_echoes(client, session_id)])
            async with asyncio.timeout(20):
                while service.server.connection_list:
                    await asyncio.sleep(0.01)
            assert 1 <= done <= 2

    asyncio.run(test())


def test_turns_are_taken_one_at_a_time_and_in_order() -> None:
    async def test() -> None:
        turns, seen = Turns(), []

        def work(name: str, more: int) -> None:
            seen.append(name)
            if more:
                turns.add(lambda: work(name, more - 1))

        for name in "abc":
            turns.add(lambda name=name: work(name, 2))  # type: ignore[misc]
        for count in range(1, 10):
            await asyncio.sleep(0)
            assert len(seen) == count
        assert "".join(seen) == "abcabcabc"
        await asyncio.sleep(0)
        assert len(seen) == 9

    asyncio.run(test())
