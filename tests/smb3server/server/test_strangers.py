"""Peers that nobody knows yet: the greedy give way before newcomers are refused."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from functools import partial

import pytest

from smb3server.config.model import Config
from smb3server.net.listener import TcpListener
from smb3server.net.tcp import TcpTransport
from smb3server.server.idle import IdleSweep
from smb3server.service.service import Service
from smb3server.settings.server import Settings
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from smbdirect.providers.iwarp.provider import IwarpProvider
from smbdirect.rdma.pool import BufferPool
from smbdirect.unauthenticated import UnauthenticatedPeer, UnauthenticatedPeers, source_of
from tests.lab.wire_client import Harness, drive, setup_body

LONGEST_TURN = 0.1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not an address", "not an address"),
    ],
)
def test_what_counts_as_one(address: str, source: str) -> None:
    assert source_of(address) == source


def test_the_greediest_gives_way() -> None:
    table = UnauthenticatedPeers(10, clock=Clock())
    dropped: list[int] = []
    for number in range(8):
        assert table.enter("10.0.0.1", lambda number=number: dropped.append(number))  # type: ignore[misc]
    for host in ("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"):
        assert table.enter(host, lambda: dropped.append(-1))
    assert dropped == [0, 1]
    # One who has as much as the greediest would have is refused, and takes nothing from anybody.
    even = UnauthenticatedPeers(4, clock=Clock())
    for host in ("10.0.0.1", "10.0.0.2"):
        for _ in range(2):
            assert even.enter(host, lambda: dropped.append(-2))
    assert even.enter("10.0.0.1", lambda: None) is None
    assert -2 not in dropped


def test_the_oldest_gives_way_to_equals_after_a_grace() -> None:
    clock = Clock()
    table = UnauthenticatedPeers(2, grace=5.0, clock=clock)
    dropped: list[str] = []
    for host in ("10.0.0.1", "10.0.0.2"):
        assert table.enter(host, lambda host=host: dropped.append(host))  # type: ignore[misc]
    assert table.enter("10.0.0.3", lambda: None) is None
    clock.now = 5.1
    assert table.enter("10.0.0.3", lambda: None)
    assert dropped == ["10.0.0.1"]


def test_a_source_has_its_own_limit() -> None:
    clock = Clock()
    table = UnauthenticatedPeers(100, per_source=3, clock=clock)
    dropped: list[int] = []
    for number in range(3):
        assert table.enter(f"2001:db8::{number}", lambda number=number: dropped.append(number))  # type: ignore[misc]
    assert table.enter("2001:db8::9", lambda: None) is None
    assert table.enter("2001:db8:0:1::9", lambda: None)
    clock.now = 6.0
    assert table.enter("2001:db8::9", lambda: None)
    assert dropped == [0]


def _take_out(entries: list[UnauthenticatedPeer], made: list[UnauthenticatedPeer]) -> None:
    entries.remove(made[0])


@pytest.mark.parametrize("seed", range(10))
def test_the_books_are_right(seed: int) -> None:
    rng = random.Random(seed)
    clock = Clock()
    table = UnauthenticatedPeers(60, per_source=rng.choice([0, 25]), clock=clock)
    entries: list[UnauthenticatedPeer] = []
    for _ in range(3000):
        clock.now += rng.random()
        if rng.random() < 0.6:
            made: list[UnauthenticatedPeer] = []
            drop = partial(_take_out, entries, made)
            entry = table.enter(f"10.0.0.{rng.randrange(9)}", drop, rng.choice([1, 1, 4]))
            if entry is not None:
                made.append(entry)
                entries.append(entry)
        elif entries:
            gone = entries.pop(rng.randrange(len(entries)))
            gone.leave()
            gone.leave()
        assert len(table) == len(entries)
        assert table.taken == sum(entry.size for entry in entries) <= table.limit
        for host in range(9):
            held = sum(entry.size for entry in entries if entry.source == f"10.0.0.{host}")
            assert table.held_by(f"10.0.0.{host}") == held
    for entry in entries:
        entry.leave()
    assert (table.taken, len(table), table._ranks, table._held) == (0, 0, {}, {})


def test_the_cost_of_a_newcomer_does_not_grow() -> None:
    """However many are there, however many have to go."""
    for limit in (100, 10_000):
        table = UnauthenticatedPeers(limit, clock=Clock())
        looked = 0

        class Counted(dict[int, dict[str, None]]):
            def __iter__(self) -> Iterator[int]:
                nonlocal looked
                looked += len(self)
                return super().__iter__()

        table._ranks = Counted()
        for number in range(limit):
            table.enter(f"10.{number % 50}.0.1", lambda: None)
        for number in range(1000):
            table.enter(f"11.0.{number >> 8}.{number & 255}", lambda: None)
        assert looked <= 3 * 1000


# TCP


def connect(address: tuple[str, int], source: str, say: bytes = b"") -> socket.socket:
    sock = socket.socket()
    sock.bind((source, 0))
    sock.connect(address)
    sock.sendall(say)
    return sock


def test_silent_connections_of_one_address_keep_nobody_out() -> None:
    async def body() -> None:
        accepted: list[TcpTransport] = []

        def serve(transport: object) -> None:
            assert isinstance(transport, TcpTransport)
            accepted.append(transport)

        listener = TcpListener("127.0.0.1", 0, BufferPool(), serve, 70000, silent=UnauthenticatedPeers(40))
        with contextlib.ExitStack() as stack:
            for _ in range(80):
                stack.enter_context(contextlib.closing(connect(listener.address, "127.0.0.9")))
            while len(listener._silent) < 40:
                await asyncio.sleep(0.01)
            for number in range(10):
                stack.enter_context(
                    contextlib.closing(connect(listener.address, f"127.0.1.{number + 1}", b"\0\0\0\4abcd"))
                )
            async with asyncio.timeout(10):
                while len(accepted) < 10:
                    await asyncio.sleep(0.01)
            assert {transport.peer_address[0][:8] for transport in accepted} == {"127.0.1."}
            for transport in accepted:
                transport.abort()
            await listener.close()
            assert listener._places.taken == 0

    asyncio.run(body())


def test_strangers_do_not_take_the_places_of_users() -> None:
    """``max_connections`` counts users' connections; whoever says something and does not log on counts apart."""

    async def test(harness: Harness) -> None:
        for _ in range(30):
            await (await harness.connect()).negotiate()
        assert harness.server.logged_on == 0
        for _ in range(3):
            client = await harness.connect()
            await client.login()
        assert harness.server.logged_on == 3
        # One more user than there may be is told so; those who are in stay.
        late = await harness.connect()
        with pytest.raises((OSError, EOFError, asyncio.IncompleteReadError)):
            await late.negotiate()
        assert harness.server.logged_on == 3
        client.writer.close()
        while harness.server.logged_on == 3:
            await asyncio.sleep(0.01)
        again = await harness.connect()
        await again.login()

    drive(test, Settings(max_connections=3))


def test_users_that_log_on_at_once_are_counted() -> None:
    async def test(harness: Harness) -> None:
        clients = [await harness.connect() for _ in range(5)]
        for client in clients:
            await client.negotiate()
        statuses = [(await client.session_setup()).status for client in clients]
        assert statuses == [0, 0, 0, NtStatus.INSUFFICIENT_RESOURCES, NtStatus.INSUFFICIENT_RESOURCES]

    drive(test, Settings(max_connections=3))


def test_unfinished_messages_of_one_address_keep_nobody_out() -> None:
    """A long token needs memory that strangers share: who has most of it, and does not go on, gives way."""

    async def test(harness: Harness) -> None:
        server = harness.server
        reader_writers = []
        for _ in range(80):
            reader, writer = await asyncio.open_connection(*harness.listener.address, local_addr=("127.0.0.9", 0))
            writer.write((65_000).to_bytes(4, "big") + bytes(63_000))
            reader_writers.append((reader, writer))
        strangers = server.buffers.unauthenticated
        while strangers.taken < strangers.limit - 70_000:
            await asyncio.sleep(0.01)
        client = await harness.connect()
        await client.negotiate()
        reply = await client.call(Command.SESSION_SETUP, setup_body(bytes(20_000)), session_id=0)
        assert reply.status == NtStatus.INVALID_PARAMETER
        for _, writer in reader_writers:
            writer.close()
        await asyncio.sleep(0)

    drive(test)


# iWARP


def test_iwarp_requests_that_do_not_end_keep_nobody_out() -> None:
    async def body() -> None:
        provider = IwarpProvider()
        provider.unauthenticated = UnauthenticatedPeers(40)
        requests: list[object] = []
        listener = await provider.listen("127.0.0.1", 0, requests.append)
        with contextlib.ExitStack() as stack:
            for _ in range(80):
                stack.enter_context(contextlib.closing(connect(listener.address, "127.0.0.9", b"M")))
            while len(provider.handshakes) < 40:
                await asyncio.sleep(0.01)
            frame = b"MPA ID Req Frame" + struct.pack(">BBH", 0, 1, 0)
            stack.enter_context(contextlib.closing(connect(listener.address, "127.0.0.10", frame)))
            async with asyncio.timeout(4):
                while not requests:
                    await asyncio.sleep(0.01)
            for request in requests:
                request.reject()  # type: ignore[attr-defined]
            for handshake in list(provider.handshakes):
                handshake.close()
            assert provider.unauthenticated.taken == 0
            await listener.close()

    asyncio.run(body())


def test_all_listeners_share_the_tables(tmp_path: object) -> None:
    async def body() -> None:
        config = Config(port=0, listen=["127.0.0.1"], rdma="iwarp", rdma_port=0)
        service = Service(config)
        await service.start()
        try:
            server = service.server
            assert [listener._places for listener in service.listeners] == [server.silent_peers]
            for _, listener in service.fabrics.listeners:
                assert listener.unauthenticated is server.unauthenticated
                assert listener._pool is server.buffers
            (provider,) = service.fabrics._providers.values()
            assert isinstance(provider, IwarpProvider)
            assert provider.unauthenticated is server.silent_peers
        finally:
            await service.stop()

    asyncio.run(body())


# Idle sessions


@pytest.mark.parametrize("guest", [False, True])
def test_sessions_that_nobody_uses_end(guest: bool) -> None:
    async def test(harness: Harness) -> None:
        server = harness.server
        sweep = IdleSweep(server.sessions, server.connection_list, 100.0, server.events)

        async def client(tree: bool, open_file: bool = False) -> object:
            made = await harness.connect()
            await made.negotiate()
            assert (await made.session_setup("stranger" if guest else "u")).status == 0
            if tree:
                assert (await made.tree_connect()).status == 0
            if open_file:
                assert (await made.open("f")).status == 0
            return made

        await client(tree=False)
        await client(tree=True)
        busy = await client(tree=True)
        await client(tree=True, open_file=True)
        sweep.sweep(0.0)
        sweep.sweep(99.0)
        assert len(server.sessions.by_id) == 4
        await busy.call(Command.ECHO, struct.pack("<HH", 4, 0))  # type: ignore[attr-defined]
        sweep.sweep(101.0)
        # The one that said something stays, and the one with an open file.
        assert len(server.sessions.by_id) == 2
        sweep.sweep(202.0)
        assert len(server.sessions.by_id) == 1
        # Their connections go with them.
        await asyncio.sleep(0.05)
        assert len(server.connection_list) == 1
        last = harness.clients[-1]
        await last.call(Command.LOGOFF, struct.pack("<HH", 4, 0))
        sweep.sweep(303.0)
        sweep.sweep(402.0)
        assert len(server.connection_list) == 1
        sweep.sweep(403.1)
        await asyncio.sleep(0.05)
        assert not server.connection_list

    settings = Settings(allow_guest=guest)

    async def body(harness: Harness) -> None:
        harness.server.share_list["share"].rules.guest = guest
        await test(harness)

    drive(body, settings)


def test_the_sweep_runs_while_there_are_connections() -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        assert (await client.session_setup()).status == 0
        async with asyncio.timeout(10):
            while harness.server.connection_list:
                await asyncio.sleep(0.02)
        # Nothing is left running for nobody.
        async with asyncio.timeout(10):
            while harness.server.idle._timer is not None:
                await asyncio.sleep(0.02)

    drive(test, Settings(idle_session_timeout=0.4))
