"""Several connections of one session: how long each may say nothing, and which one a break takes (MS-SMB2 3.3.4.6)."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

from smb3server.client.protocol import Client, open_rdma, open_tcp
from smb3server.client.protocol.session import BoundSession
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.net.tcp import PEER_TIMEOUT, TcpTransport
from smb3server.service.service import Service
from smb3server.state.break_notifications import BreakNotifications
from smb3server.state.objects import CHANNEL_SILENCE, Connection
from smb3server.state.opens import OpenTable
from smb3server.wire.oplock_break import OplockLevel
from smbdirect.core.settings import Settings
from smbdirect.providers.make import make_provider
from smbdirect.transport.smb_direct import SmbDirectTransport
from tools.support import own_user


def _silence(connection: Connection) -> float:
    """Seconds that the transport gives its peer."""
    transport = connection.transport
    if isinstance(transport, SmbDirectTransport):
        return transport.connection.keepalive_interval + Settings().keepalive_response_timeout
    assert isinstance(transport, TcpTransport)
    if transport._socket.fileno() < 0:
        return 0.0  # closed, and about to be forgotten
    return transport._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000


def test_lone_connections_have_patience_and_channels_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        share = tmp_path / "share"
        share.mkdir()
        arguments = [
            "--share",
            own_user.option("share", share),
            "--user",
            "u:pw",
            "--port",
            "0",
            "--listen",
            "127.0.0.1",
        ]
        arguments += ["--rdma", "iwarp", "--rdma-port", "0", "--state", str(tmp_path / "state")]
        service = Service(parse_arguments(arguments))
        await service.start()
        try:
            await scene(service)
        finally:
            await service.stop()

    async def scene(service: Service) -> None:
        def silences() -> dict[bool, float]:
            return {entry.transport.rdma is not None: _silence(entry) for entry in service.server.connection_list}

        async def settled(expected: dict[bool, float]) -> None:
            async with asyncio.timeout(10):
                while silences() != expected:
                    await asyncio.sleep(0.01)

        first = await Client.connect(await open_tcp("127.0.0.1", service.listeners[0].address[1]))
        session = await first.log_on("u", "pw")
        assert silences() == {False: PEER_TIMEOUT}
        rdma = await open_rdma(make_provider("iwarp"), "127.0.0.1", service.fabrics.listeners[0][1].address[1])
        second = await Client.connect(rdma, client_guid=first.client_guid)
        await BoundSession.bind(session, second, "u", "pw")
        assert silences() == {False: CHANNEL_SILENCE, True: CHANNEL_SILENCE}
        await first.close()
        await settled({True: Settings().keepalive_interval + Settings().keepalive_response_timeout})
        await second.close()

    asyncio.run(main())


class _Transport:
    def __init__(self) -> None:
        self.stalled = False

    def is_stalled(self) -> bool:
        return self.stalled


class _Connection:
    """What choosing and watching a connection needs to know of it; its own host."""

    def __init__(self, sent: list[_Connection]) -> None:
        self.transport = _Transport()
        self.closed = False
        self.ended_by = ""
        self.forced_stall = False
        self.session_table: dict[int, Any] = {}
        self.host = self
        self._sent = sent

    def is_stalled(self) -> bool:
        return self.transport.stalled

    def notify(self, session: object, segments: object) -> None:
        self._sent.append(self)


class _Session:
    def __init__(self, *connections: _Connection) -> None:
        self.connections = connections
        self.channel_list = dict.fromkeys(connections)
        for connection in connections:
            connection.session_table[1] = self


class _Open:
    file_id = (1, 2)

    def __init__(self, session: _Session) -> None:
        self.session = session


class _Oplock:
    """An oplock whose break waits for its acknowledgment."""

    requested, state, breaking = 1, 3, True

    def __init__(self, session: _Session) -> None:
        self.open = _Open(session)


class _Clock(BreakNotifications):
    def __init__(self) -> None:
        super().__init__({}, (), OpenTable(lambda share: False))
        self.due: list[Any] = []

    def call_later(self, delay: float, callback: Any) -> Any:
        self.due.append(callback)
        return self

    def cancel(self) -> None:
        raise AssertionError("nobody cancels these")

    def tick(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


def test_break_moves_to_another_channel_when_its_own_dies_later() -> None:
    """The network took the notification and lost the peer afterwards: the first look does not show it yet."""
    sent: list[_Connection] = []
    first, second = _Connection(sent), _Connection(sent)
    clock, oplock = _Clock(), _Oplock(_Session(first, second))
    assert clock.notify_oplock(cast("Any", oplock), OplockLevel.II) is True
    for _ in range(3):
        clock.tick()
        assert sent == [first]
    first.transport.stalled = True
    clock.tick()
    assert sent == [first, second]
    # Both are lost: nothing is repeated where it cannot arrive, until one of them is back.
    second.transport.stalled = True
    clock.tick()
    assert sent == [first, second]
    first.transport.stalled = False
    clock.tick()
    assert sent == [first, second, first]
    # Acknowledged: nobody looks any more.
    oplock.breaking = False
    clock.tick()
    assert not clock.due


def test_a_break_that_was_acknowledged_is_not_sent_again() -> None:
    """Also if the client has again, or still, the state that the break asked for."""
    sent: list[_Connection] = []
    first, second = _Connection(sent), _Connection(sent)
    clock, oplock = _Clock(), _Oplock(_Session(first, second))
    assert clock.notify_oplock(cast("Any", oplock), OplockLevel.II) is True
    oplock.breaking, oplock.state = False, oplock.requested
    first.closed = first.transport.stalled = True
    clock.tick()
    assert sent == [first] and not clock.due


def test_a_break_without_acknowledgment_moves_to_another_channel() -> None:
    sent: list[_Connection] = []
    first, second = _Connection(sent), _Connection(sent)
    clock, oplock = _Clock(), _Oplock(_Session(first, second))
    oplock.breaking, oplock.state = False, oplock.requested
    assert clock.notify_oplock(cast("Any", oplock), OplockLevel.NONE) is True
    first.closed = first.transport.stalled = True
    clock.tick()
    assert sent == [first, second]


def test_lone_connection_is_not_watched() -> None:
    sent: list[_Connection] = []
    connection = _Connection(sent)
    clock = _Clock()
    assert clock.notify_oplock(cast("Any", _Oplock(_Session(connection))), OplockLevel.II) is True
    assert sent == [connection] and not clock.due
