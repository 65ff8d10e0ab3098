"""Clients' connections in the store, and the packets that are made of them."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6

from smb3server.cluster import peers as module
from smb3server.cluster import tickle
from smb3server.cluster.peers import GROUP, GROUPS_PER_WRITE, Peer, PeerRecord, pack, parse, peer_of
from smb3server.cluster.tickle import PER_TURN, Tickler, end_connections, packet
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import MAX_BATCH, Condition, Operation, Put, Store, StoreError

if TYPE_CHECKING:
    from smb3server.state.objects import Connection

PORTS = st.integers(0, 0xFFFF)
NUMBERS = st.integers(0, 0xFFFFFFFF)
PEERS = st.builds(Peer, st.ip_addresses(v=4), PORTS, st.ip_addresses(v=4), PORTS) | st.builds(
    Peer, st.ip_addresses(v=6), PORTS, st.ip_addresses(v=6), PORTS
)
HERE = ipaddress.IPv4Address("10.0.0.100")
OWNER = "owner"


def client(number: int) -> Peer:
    return Peer(HERE, 445, ipaddress.IPv4Address((10 << 24) + (1 << 16) + number // 50000), 1024 + number % 50000)


# Packets


@given(PEERS, NUMBERS, NUMBERS)
def test_packet(peer: Peer, sequence: int, acknowledgment: int) -> None:
    """RFC 9293 3.1, RFC 791 3.1, RFC 8200 3: scapy reads what was meant, and makes the same checksums."""
    data = packet(peer, sequence, acknowledgment)
    layer = IP if peer.local.version == 4 else IPv6
    read = layer(data)
    tcp = read[TCP]
    assert ipaddress.ip_address(read.src) == peer.local
    assert ipaddress.ip_address(read.dst) == peer.client
    assert (tcp.sport, tcp.dport, tcp.seq, tcp.ack) == (peer.local_port, peer.client_port, sequence, acknowledgment)
    assert tcp.flags == "A"
    assert tcp.window and not tcp.options and not tcp.payload
    assert len(data) == (read.len if layer is IP else 40 + read.plen)
    again = layer(data)
    del again[TCP].chksum
    if layer is IP:
        del again.chksum
    assert bytes(again) == data


# Keys' values


@given(st.lists(PEERS, max_size=GROUP))
def test_pack(peers: list[Peer]) -> None:
    assert parse(pack(peers)) == peers


@given(st.lists(PEERS, min_size=1, max_size=3), st.integers(1, 12))
def test_cut_short(peers: list[Peer], missing: int) -> None:
    with pytest.raises(ValueError):
        parse(pack(peers)[:-missing])


@given(st.binary(max_size=100))
def test_bad_values(data: bytes) -> None:
    try:
        assert pack(parse(data)) == data
    except ValueError:
        return


def test_value_is_small() -> None:
    """A change writes its whole group."""
    addresses = [ipaddress.IPv6Address(number) for number in range(GROUP)]
    assert len(pack([Peer(entry, 445, entry, 1) for entry in addresses])) < 1300


# Which connections


def connection(local: str, peer: str, fabric: str) -> Connection:
    transport = SimpleNamespace(local_address=(local, 445), peer_address=(peer, 50000), fabric=fabric)
    return cast("Connection", SimpleNamespace(transport=transport))


@pytest.mark.parametrize(
    ("local", "peer", "fabric", "wanted"),
    [
        ("10.0.0.100", "10.0.0.1", "tcp", True),
        ("fd00::64", "fd00::1", "tcp", True),
        ("10.0.0.100", "10.0.0.1", "iwarp", True),
        ("::ffff:10.0.0.100", "::ffff:10.0.0.1", "tcp", True),
        ("10.0.0.100", "10.0.0.1", "roce", False),
        ("10.0.0.100", "10.0.0.1", "verbs", False),
        ("fd00::64", "fe80::1", "tcp", False),
        ("loopback", "loopback", "tcp", False),
    ],
)
def test_recorded_are_tcp_connections(local: str, peer: str, fabric: str, wanted: bool) -> None:
    found = peer_of(connection(local, peer, fabric))
    assert (found is not None) == wanted
    if found is not None:
        assert str(found.local) == local.removeprefix("::ffff:")
        assert (found.local_port, found.client_port) == (445, 50000)


# The record


class Watched:
    """A store that counts, and that may fail."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.batches: list[tuple[Sequence[Operation], Sequence[Condition]]] = []
        self.failing = False

    def submit(self, operations: Sequence[Operation], conditions: Sequence[Condition] = ()) -> asyncio.Future[int]:
        self.batches.append((list(operations), conditions))
        if self.failing:
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(StoreError("no"))
            return failed
        return self.store.submit(operations, conditions)

    @property
    def octets(self) -> int:
        return sum(len(entry.value) for operations, _ in self.batches for entry in operations if isinstance(entry, Put))


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[Watched, Callable[[], PeerRecord]]]:
    """A store, and a function that makes the record of the next owner."""
    store = await SqliteStore.open(path / "store.db")
    watched = Watched(store)
    watched_store = cast(Store, watched)
    watched.commit = store.commit  # type: ignore[attr-defined]
    watched.scan = store.scan  # type: ignore[attr-defined]
    versions = [await store.commit([Put(OWNER, b"")])]

    def record() -> PeerRecord:
        return PeerRecord(watched_store, "state/one/", versions[-1], (Condition(OWNER, versions[-1]),))

    async def next_owner() -> None:
        versions.append(await store.commit([Put(OWNER, b"")]))

    watched.next_owner = next_owner  # type: ignore[attr-defined]
    try:
        yield watched, record
    finally:
        await store.close()


async def stored(watched: Watched) -> set[Peer]:
    entries = await watched.store.scan("state/one/peers/")
    found = [peer for entry in entries for peer in parse(entry.value)]
    assert len(found) == len(set(found))
    return set(found)


async def settle(record: PeerRecord, watched: Watched) -> None:
    """Until it has written everything."""
    for _ in range(5000):
        await asyncio.sleep(0.002)
        if record.is_stored:
            return
    raise AssertionError("still something to write")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_DELAY", 0.002)
    monkeypatch.setattr(module, "RETRY_DELAY", 0.005)


@pytest.mark.usefixtures("quick")
def test_connections_come_and_go(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (watched, make):
            record = make()
            for number in range(100):
                record.add(client(number))
            record.add(client(5))
            await settle(record, watched)
            assert await stored(watched) == set(map(client, range(100)))
            for number in range(0, 100, 3):
                record.discard(client(number))
            record.discard(client(1000))
            await settle(record, watched)
            assert await stored(watched) == {client(number) for number in range(100) if number % 3}
            for number in range(100):
                record.discard(client(number))
            await settle(record, watched)
            assert not await watched.store.scan("state/one/peers/")
            assert len(record) == 0

    asyncio.run(body())


@pytest.mark.usefixtures("quick")
def test_many_connections_are_few_small_transactions(tmp_path: Path) -> None:
    """20,000 at once, and as many that end: no transaction is large, no more of them than there are groups' worth."""
    count = 20000

    async def body() -> None:
        async with opened(tmp_path) as (watched, make):
            record = make()
            for number in range(count):
                record.add(client(number))
            await settle(record, watched)
            assert len(await stored(watched)) == count
            assert len(watched.batches) == -(-count // (GROUP * GROUPS_PER_WRITE))
            assert watched.octets < 14 * count
            for operations, conditions in watched.batches:
                assert len(operations) + len(conditions) <= min(MAX_BATCH, GROUPS_PER_WRITE + 1)
                assert conditions
            # Now one comes and one goes, and only what they belong to is written.
            watched.batches.clear()
            record.discard(client(7))
            record.add(client(count))
            await settle(record, watched)
            assert len(watched.batches) == 1 and watched.octets <= 2 * (GROUP * 13 + 1)
            watched.batches.clear()
            for number in range(count + 1):
                record.discard(client(number))
            await settle(record, watched)
            assert not await stored(watched)
            assert len(watched.batches) <= -(-count // (GROUP * GROUPS_PER_WRITE)) + 1

    asyncio.run(body())


@pytest.mark.usefixtures("quick")
def test_groups_are_filled_again(tmp_path: Path) -> None:
    """Years of connections that come and go leave no more keys than their greatest number at a time needs, about twice
    over."""

    async def body() -> None:
        async with opened(tmp_path) as (watched, make):
            record = make()
            for number in range(10000):
                record.add(client(number))
                if number >= 500:
                    record.discard(client(number - (number % 7) * 60 - 80))
                    record.discard(client(number - 500))
            await settle(record, watched)
            keys = await watched.store.scan("state/one/peers/")
            assert len(record) <= 500
            assert len(keys) <= 3 * 500 // GROUP

    asyncio.run(body())


@pytest.mark.usefixtures("quick")
def test_short_connections_are_not_written(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (watched, make):
            record = make()
            for number in range(1000):
                record.add(client(number))
                record.discard(client(number))
            await settle(record, watched)
            assert not watched.batches

    asyncio.run(body())


@pytest.mark.usefixtures("quick")
def test_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PEERS", 50)

    async def body() -> None:
        async with opened(tmp_path) as (watched, make):
            record = make()
            for number in range(60):
                record.add(client(number))
            record.discard(client(55))
            await settle(record, watched)
            assert await stored(watched) == set(map(client, range(50)))

    asyncio.run(body())


@pytest.mark.usefixtures("quick")
def test_store_that_fails_is_tried_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (watched, make):
            record = make()
            watched.failing = True
            record.add(client(1))
            while not watched.batches:
                await asyncio.sleep(0.002)
            record.add(client(2))
            watched.failing = False
            await settle(record, watched)
            assert await stored(watched) == {client(1), client(2)}

    asyncio.run(body())


@pytest.mark.usefixtures("quick")
def test_who_lost_the_service_writes_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path) as (watched, _):
            versions = await watched.store.version()
            refused: list[bool] = []
            condition = Condition(OWNER, versions)
            store = cast(Store, watched)
            old = PeerRecord(store, "state/one/", versions, [condition], lambda: refused.append(True))
            await watched.next_owner()  # type: ignore[attr-defined]
            old.add(client(1))
            await settle(old, watched)
            assert refused == [True]
            old.add(client(2))
            await settle(old, watched)
            assert len(watched.batches) == 1
            assert not await stored(watched)

    asyncio.run(body())


# Taking over


class Packets:
    """Stands for a raw socket."""

    def __init__(self, refused: str = "") -> None:
        self.sent: list[tuple[bytes, tuple[str, int]]] = []
        self.bound: tuple[str, int] | None = None
        self.closed = False
        self.refused = refused

    def bind(self, address: tuple[str, int]) -> None:
        self.bound = address

    def sendto(self, data: bytes, address: tuple[str, int]) -> int:
        if address[0] == self.refused:
            raise OSError("no route")
        self.sent.append((data, address))
        return len(data)

    def close(self) -> None:
        self.closed = True


@pytest.mark.usefixtures("quick")
def test_takeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded clients are told several times, with numbers half of all apart, but who is here already, or at
    addresses that the service has no more, is not; then all are forgotten."""
    raw = Packets(refused="10.1.0.2")
    monkeypatch.setattr(tickle, "_raw_socket", lambda version: raw)
    monkeypatch.setattr(tickle, "DELAYS", (0.0, 0.001, 0.002))
    elsewhere = Peer(ipaddress.IPv4Address("10.9.9.9"), 445, ipaddress.IPv4Address("10.1.0.9"), 5)
    unreachable = Peer(HERE, 445, ipaddress.IPv4Address("10.1.0.2"), 6)

    async def body() -> None:
        async with opened(tmp_path) as (watched, make):
            old = make()
            for peer in (client(1), client(2), elsewhere, unreachable):
                old.add(peer)
            await settle(old, watched)
            old.close()
            await watched.store.commit([Put("state/one/peers/0/broken", b"\x07")])
            await watched.next_owner()  # type: ignore[attr-defined]
            new = make()
            new.add(client(2))
            await settle(new, watched)
            await end_connections("one", new, [HERE])
            assert await stored(watched) == {client(2)}

    asyncio.run(body())
    assert raw.bound == (str(HERE), 0)
    assert raw.closed
    read = [IP(data) for data, _ in raw.sent]
    assert [entry[TCP].dport for entry in read] == [client(1).client_port] * 3
    assert {entry.dst for entry in read} == {str(client(1).client)} == {address for _, (address, _) in raw.sent}
    first, second, third = (entry[TCP].seq for entry in read)
    assert (second - first) % (1 << 32) == 1 << 31
    assert third == first


def test_packets_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than so many in one turn of the event loop."""
    raw = Packets()
    monkeypatch.setattr(tickle, "_raw_socket", lambda version: raw)
    most = 0
    waited: list[float] = []

    async def body() -> None:
        nonlocal most
        tickler = Tickler([HERE])
        sleep = asyncio.sleep

        async def counted(seconds: float) -> None:
            nonlocal most
            most = max(most, tickler.sent - len(waited_for))
            waited_for.extend([0] * (tickler.sent - len(waited_for)))
            waited.append(seconds)
            await sleep(0)

        waited_for: list[int] = []
        monkeypatch.setattr(asyncio, "sleep", counted)
        await tickler.tell([client(number) for number in range(1000)], lambda peer: False, (0.0,))
        tickler.close()

    asyncio.run(body())
    assert len(raw.sent) == 1000
    assert most == PER_TURN
    assert waited.count(tickle.PAUSE) == 10


def test_address_that_is_not_here() -> None:
    """Raw sockets send from the service's address only while this machine has it."""
    if tickle.why_not():
        pytest.skip(tickle.why_not())
    for address in ("192.0.2.1", "2001:db8::1"):
        with pytest.raises(OSError):
            Tickler([ipaddress.ip_address(address)])


def test_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(version: int) -> object:
        raise PermissionError("no")

    monkeypatch.setattr(tickle, "_raw_socket", refuse)
    assert tickle.why_not() == "without CAP_NET_RAW"
