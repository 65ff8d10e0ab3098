"""Clients that come all at once, and those that come before their service has."""

from __future__ import annotations

import asyncio
import socket
import struct
from unittest.mock import patch

import pytest

from smb3server.net import listener, tcp
from smb3server.state.share import Share
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.status import NtStatus, StatusError
from tests.lab.wire_client import Client, Harness, drive

CROWD = 300


class Arriving:
    """A service that this node is taking over."""

    def __init__(self) -> None:
        self.arriving: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        self.here = False

    def check(self, share: Share, address: str, dialect: int, flags: int) -> None:
        if not self.here:
            raise StatusError(NtStatus.BAD_NETWORK_NAME)

    def decide(self, here: bool) -> None:
        assert self.arriving is not None
        self.arriving.set_result(None)
        self.arriving, self.here = None, here


@pytest.mark.parametrize("here", [True, False])
def test_a_tree_connect_waits_until_it_is_decided(here: bool) -> None:
    async def test(harness: Harness) -> None:
        harness.server.settings.interim_delay = 0.01
        share = harness.server.share_list["share"]
        share.placement = placement = Arriving()
        client = await harness.connect()
        await client.negotiate()
        await client.session_setup()
        waiting = asyncio.ensure_future(client.tree_connect())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        placement.decide(here)
        reply = await waiting
        assert reply.status == (NtStatus.SUCCESS if here else NtStatus.BAD_NETWORK_NAME)
        # An asynchronous response could not tell the TreeId (2.2.1.1).
        assert not reply.header.flags & HeaderFlags.ASYNC_COMMAND
        if here:
            assert (await client.open("f")).status == 0

    drive(test)


def test_who_leaves_meanwhile_leaves_nothing() -> None:
    async def test(harness: Harness) -> None:
        harness.server.share_list["share"].placement = placement = Arriving()
        client = await harness.connect()
        await client.negotiate()
        await client.session_setup()
        await client.post(Command.TREE_CONNECT, _tree_connect_body())
        await asyncio.sleep(0.05)
        client.writer.close()
        await harness.settled()
        placement.decide(True)
        await asyncio.sleep(0.05)
        assert not harness.server.sessions.by_id

    drive(test)


def test_an_unsigned_tree_connect_that_waited_ends_the_connection() -> None:
    """MS-SMB2 3.3.5.7: as one that need not wait."""

    async def test(harness: Harness) -> None:
        harness.server.share_list["share"].placement = placement = Arriving()
        client = await harness.connect()
        await client.negotiate()
        await client.session_setup()
        client.sign = False
        await client.post(Command.TREE_CONNECT, _tree_connect_body())
        await asyncio.sleep(0.05)
        placement.decide(True)
        assert await client.closed()

    drive(test)


def _tree_connect_body() -> bytes:
    path = "\\\\server\\share".encode("utf-16-le")
    return struct.pack("<HHHH", 9, 0, 72, len(path)) + path


def test_a_crowd_is_served_in_turns() -> None:
    """However few are let in at a time, all get in."""

    async def test(harness: Harness) -> None:
        done: list[int] = []

        async def come(number: int, client: Client) -> None:
            await client.negotiate()
            done.append(number)

        clients = [await harness.connect() for _ in range(CROWD)]
        await asyncio.gather(*(come(number, client) for number, client in enumerate(clients)))
        assert sorted(done) == list(range(CROWD))
        assert len(harness.server.connection_list) == CROWD

    with (
        patch.object(listener, "MOST_PER_TURN", 4),
        patch.object(listener, "FIRST_PER_TURN", 4),
        patch.object(listener, "FEWEST_PER_TURN", 1),
        patch.object(listener, "LONG_TURN", 0.0),
    ):
        drive(test)


def test_accepted_sockets_have_their_listeners_options() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        (connection,) = harness.server.connection_list
        transport = connection.transport
        assert isinstance(transport, tcp.TcpTransport)
        sock = transport._socket
        assert not sock.getblocking()
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for option, value in (
            (socket.TCP_NODELAY, 1),
            (socket.TCP_KEEPIDLE, tcp.PEER_TIMEOUT / 2),
            (socket.TCP_USER_TIMEOUT, tcp.PEER_TIMEOUT * 1000),
        ):
            assert sock.getsockopt(socket.IPPROTO_TCP, option) == value

    drive(test)
