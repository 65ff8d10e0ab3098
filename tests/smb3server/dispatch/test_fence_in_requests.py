"""The fence of a cluster's node is asked before each command, and again whenever a request goes on after a wait.

A node that was stopped goes on in the middle of whatever it did. Another node may be serving the share by then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from smb3server.cluster.lease_keeper import Fence, boottime
from smb3server.dispatch import dispatcher, parking
from smb3server.dispatch.checks import STRUCTURE_SIZE
from smb3server.dispatch.parking import Parking
from smb3server.dispatch.request import HANDLERS, SMB1_NEGOTIATE, Request, Response
from smb3server.process.long_work import LongWork, Steps
from smb3server.state.share import Share
from smb3server.wire.header import Command
from tests.lab.wire_client import Client, Harness, compound, drive

ECHO = b"\4\0\0\0"
BEGUN = sorted(set(HANDLERS) - {int(Command.NEGOTIATE), SMB1_NEGOTIATE})


def body_of(command: int) -> bytes:
    """Return a body that the checks of all commands let pass."""
    return STRUCTURE_SIZE.get(command, 0).to_bytes(2, "little").ljust(64, b"\0")


class Somewhere:
    """The place of a share that a service of the cluster has."""

    arriving: asyncio.Future[None] | None = None

    def check(self, share: Share, address: str, dialect: int, flags: int) -> None:
        return


def guard(harness: Harness) -> Fence:
    """Make the harness's share one of a service of this node."""
    fence = Fence()
    fence.deadline = boottime() + 60
    harness.server.fence = fence
    harness.server.share_list["share"].placement = Somewhere()
    return fence


async def logged_on(harness: Harness) -> Client:
    client = await harness.connect()
    await client.login()
    return client


def stops(monkeypatch: pytest.MonkeyPatch, command: int, stop: Callable[[], None]) -> list[int]:
    """Let ECHO be the command in which the machine stands still, and note each call of ``command``."""
    called: list[int] = []

    def echo(request: Request) -> Response:
        stop()
        return Response([ECHO])

    def note(request: Request) -> Response:
        called.append(request.header.command)
        return Response([ECHO])

    monkeypatch.setitem(HANDLERS, command, note)
    monkeypatch.setitem(HANDLERS, int(Command.ECHO), echo)
    return called


@pytest.mark.parametrize("command", [number for number in BEGUN if number != Command.ECHO])
@pytest.mark.parametrize("stopped", [False, True], ids=["goes on", "stopped"])
def test_each_command_of_a_message_asks(command: int, stopped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(harness: Harness) -> None:
        fence = guard(harness)
        client = await logged_on(harness)

        def stop() -> None:
            if stopped:
                fence.deadline = 0.0

        called = stops(monkeypatch, command, stop)
        first, second = client.build(Command.ECHO, ECHO), client.build(command, body_of(command))
        await client.frame(compound(client, first, second))
        if stopped:
            assert await client.closed()
        elif command != Command.CANCEL:
            await client.receive_compound()
        assert called == ([] if stopped or command == Command.CANCEL else [command])

    drive(test)


@pytest.mark.parametrize("place", ["before the first command", "after a turn", "until replies have drained"])
@pytest.mark.parametrize("stopped", [False, True], ids=["goes on", "stopped"])
def test_parked_messages_ask(place: str, stopped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(harness: Harness) -> None:
        fence = guard(harness)
        client = await logged_on(harness)
        called = stops(monkeypatch, int(Command.FLUSH), lambda: None)
        name = "give_way" if place == "after a turn" else "park"
        wait = getattr(Parking, name)
        waits: list[object] = []

        def stop(self: Parking, chain: object) -> None:
            waits.append(chain)
            monkeypatch.setattr(dispatcher, "CHAIN_MARK", parking.CHAIN_MARK)
            if stopped:
                fence.deadline = 0.0
            wait(self, chain)

        monkeypatch.setattr(Parking, name, stop)
        echoes = 2
        if place == "before the first command":
            monkeypatch.setattr(dispatcher, "MESSAGE_MARK", -1)
            echoes = 0
        elif place == "after a turn":
            monkeypatch.setattr(dispatcher, "TURN", -1.0)
        else:
            monkeypatch.setattr(dispatcher, "CHAIN_MARK", -1)
        parts = [client.build(Command.ECHO, ECHO) for _ in range(echoes)]
        await client.frame(compound(client, *parts, client.build(Command.FLUSH, body_of(Command.FLUSH))))
        with pytest.raises(asyncio.IncompleteReadError) if stopped else contextlib.nullcontext():
            while not called:
                await client.receive_frame()
        assert waits
        assert bool(called) is not stopped

    drive(test)


@pytest.mark.parametrize("lost_after", [0, 1, 3])
def test_work_on_threads_ends_before_the_next_step(lost_after: int) -> None:
    taken: list[int] = []

    def steps() -> Steps:
        for number in range(3):
            taken.append(number)
            yield

    async def body() -> Exception | None:
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        LongWork().add("u", steps(), done.set_result, lambda: len(taken) >= lost_after)
        return await done

    assert asyncio.run(asyncio.wait_for(body(), 10)) is None
    assert taken == list(range(lost_after))
