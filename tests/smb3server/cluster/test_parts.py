"""Packets, records and deadlines by themselves."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet6 import ICMPv6ND_NA
from scapy.layers.l2 import ARP, Ether

from smb3server.cluster import address
from smb3server.cluster import cluster as cluster_module
from smb3server.cluster.cluster import STARTUP_GRACE, SUCCESSION_DELAY, Cluster
from smb3server.cluster.view import MoveClientEvent, NodeChanged, NodeEvent, Question, ReportEvent, ServiceEvent, View
from smb3server.cluster.witness_source import WitnessSource
from smb3server.persistence import journal as persistence
from smb3server.persistence.records import parse
from smb3server.persistence.store import Change, Condition, ConditionFailed, Put, Store, StoreError
from smb3server.server.server import Server
from smb3server.settings.cluster import ClusterConfig, ServiceConfig, VirtualAddress
from smb3server.settings.server import Settings
from smb3server.state.share import Share
from smb3server.wire import share_redirect as redirect
from witness import cluster as witness
from witness.ndr import AddressInfo, InterfaceState

if TYPE_CHECKING:
    from smb3server.state.objects import Open

MAC = bytes.fromhex("020000000001")


def test_gratuitous_arp() -> None:
    """RFC 5227 section 3: sender and target address are the announced one."""
    for packet, operation in zip(address.arp_packets(ipaddress.IPv4Address("10.0.0.1"), MAC), (1, 2), strict=True):
        frame = Ether(packet)
        assert (frame.dst, frame.src, frame.type) == ("ff:ff:ff:ff:ff:ff", "02:00:00:00:00:01", 0x0806)
        arp = frame[ARP]
        assert (arp.op, arp.psrc, arp.pdst, arp.hwsrc) == (operation, "10.0.0.1", "10.0.0.1", "02:00:00:00:00:01")


def test_unsolicited_advertisement() -> None:
    """RFC 4861 section 7.2.6: override, not solicited, with the new link-layer address."""
    packet = ICMPv6ND_NA(address.advertisement(ipaddress.IPv6Address("fd00::1"), MAC))
    assert (packet.type, packet.code, packet.R, packet.S, packet.O) == (136, 0, 0, 0, 1)
    assert packet.tgt == "fd00::1"
    assert (packet.payload.type, packet.payload.lladdr) == (2, "02:00:00:00:00:01")


def test_virtual_addresses() -> None:
    found = VirtualAddress.parse("10.0.0.1/24@eth0")
    assert (str(found.address), found.prefix_length, found.interface) == ("10.0.0.1", 24, "eth0")
    assert str(VirtualAddress.parse("fd00::1/64@lan")) == "fd00::1/64@lan"
    for bad in ("10.0.0.1", "10.0.0.1/24", "10.0.0.1@eth0", "10.0.0.1/24@", "10.0.0.1/33@eth0", "x/24@eth0"):
        with pytest.raises(ValueError):
            VirtualAddress.parse(bad)


@pytest.mark.parametrize("seconds", [3, 1, 0, -1])
def test_no_address_behind_the_deadline(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """The deadline is asked for behind everything that takes time: a process may be stopped anywhere."""
    done: list[object] = []

    class Route:
        def __enter__(self) -> Route:
            return self

        def __exit__(self, *details: object) -> None: ...

        def link_lookup(self, ifname: str) -> list[int]:
            done.append("interface")
            return [2]

        def addr(self, command: str, **details: object) -> None:
            done.append(details["IFA_CACHEINFO"])

    def lifetime() -> int:
        assert done == ["interface"]
        return seconds

    monkeypatch.setattr("pyroute2.IPRoute", Route)
    entry = VirtualAddress.parse("10.0.0.1/24@eth0")
    if seconds > 0:
        address.hold(entry, lifetime)
        assert done == ["interface", {"ifa_valid": seconds, "ifa_preferred": seconds}]
    else:
        with pytest.raises(OSError, match="no longer this node's"):
            address.hold(entry, lifetime)
        assert done == ["interface"]


@given(st.lists(st.ip_addresses(), max_size=4), st.text(max_size=20))
def test_share_redirect(addresses: list[redirect.Address], name: str) -> None:
    try:
        name.encode("utf-16-le")
    except UnicodeEncodeError:
        return
    assert redirect.parse(redirect.pack(addresses, name)) == (addresses, name)


@given(st.binary(max_size=80))
def test_bad_share_redirect(data: bytes) -> None:
    try:
        redirect.parse(data)
    except ValueError:
        return


@given(st.binary(max_size=80) | st.sampled_from([b"{}", b"[]", b'{"format":1}', b'{"format":2}', b"null"]))
def test_bad_records(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse(data)


class FakeStore:
    """Takes everything."""

    def __init__(self) -> None:
        self.put: list[Put] = []

    def submit(self, operations: list[Put]) -> asyncio.Future[int]:
        self.put += operations
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(1)
        return done


def test_view() -> None:
    view = View("n/c/")

    def change(key: str, value: bytes | None) -> object:
        return view.apply(Change(f"n/c/{key}", value, 1))

    assert change("nodes/a", b'{"addresses": []}') == NodeEvent("a", True)
    assert change("nodes/a", b'{"addresses": []}') is None
    assert change("nodes/a", b'{"addresses": ["10.0.0.1"], "services": ["s", "t"]}') == NodeChanged("a")
    # Who has put the owner key serves nobody yet.
    assert change("services/s/owner", b'{"node": "a"}') is None and view.owners == {"s": "a"}
    assert view.served_by("s") is None and view.services() == {"s", "t"}
    assert change("services/s/serving", b'{"node": "a", "since": 1}') == ServiceEvent("s", "a")
    assert change("services/s/serving", b'{"node": "a", "since": 2}') is None
    assert change("services/s/owner", b'{"node": "a"}') is None
    assert change("services/s/owner", b'{"node": "b"}') == ServiceEvent("s", None)
    assert change("services/s/serving", b'{"node": "b"}') == ServiceEvent("s", "b")
    assert change("services/s/serving", None) == ServiceEvent("s", None)
    assert change("services/s/owner", None) is None and not view.owners
    assert change("services/s/target", b'{"node": "b"}') is None and view.targets == {"s": "b"}
    assert change("draining/a", b"{}") is None and view.draining == {"a"}
    assert change("draining/a", None) is None and not view.draining
    told = b'{"kind": "move-client", "client": "c", "node": "a", "answer": "n/answers/1", "lease": 5}'
    assert change("events/x", told) == MoveClientEvent("c", "a", Question("n/answers/1", 5))
    assert change("events/x", b'{"kind": "report", "lease": "5"}') == ReportEvent(Question("None", 0))
    assert change("events/x", b"not json") is None and change("events/x", None) is None
    assert change("nodes/a", None) == NodeEvent("a", False)


class Told:
    """A node's cluster whose changes a test makes, and what its Witness service would tell."""

    def __init__(self) -> None:
        server = Server(Settings(server_name="CLU"))
        services = [ServiceConfig("files", [VirtualAddress.parse("10.0.0.100/24@eth0")]), ServiceConfig("bare")]
        config = ClusterConfig("", "a", services=services)
        self.cluster = Cluster(server, persistence.Persistence(), cast("Store", FakeStore()), config, dict)
        self.cluster.services["files"].shares.append(Share("data", service="files"))
        self.source = WitnessSource(self.cluster, server)
        self.events: list[witness.Event] = []

        def listen(event: witness.Event) -> int:
            self.events.append(event)
            return 1

        self.stop = self.source.subscribe(listen)
        self.change("nodes/a", b'{"addresses": ["10.0.0.1"]}')
        self.change("nodes/b", b'{"addresses": ["10.0.0.2", "fd00::2"]}')

    def change(self, key: str, value: bytes | None) -> list[witness.Event]:
        """What is told of it."""
        self.events.clear()
        self.cluster._tell(self.cluster.view.apply(Change(self.cluster.prefix + key, value, 1)))
        return list(self.events)


def run_told(body: Callable[[Told], None]) -> None:
    async def main() -> None:
        body(Told())

    asyncio.run(main())


VIRTUAL = ipaddress.ip_address("10.0.0.100")
NODE_B = [ipaddress.ip_address("10.0.0.2"), ipaddress.ip_address("fd00::2")]


def test_witness_knows_the_cluster() -> None:
    def body(told: Told) -> None:
        source = told.source
        assert [(info.group_name, info.witness) for info in source.interfaces()] == [("a", False), ("b", True)]
        assert set(source.net_names()) == {"CLU", "files", "bare"}
        assert source.shares("Files") == ["data"] == source.shares("clu")
        assert set(source.addresses("files")) == {VIRTUAL}
        # Who serves a service that has no addresses is found at its own.
        assert set(source.addresses("bare")) == {ipaddress.ip_address("10.0.0.1"), *NODE_B}
        told.change("nodes/b", None)
        assert [(info.group_name, info.state) for info in source.interfaces()] == [
            ("a", InterfaceState.AVAILABLE),
            ("b", InterfaceState.UNAVAILABLE),
        ]

    run_told(body)


def test_witness_is_told_of_services() -> None:
    def body(told: Told) -> None:
        told.change("services/files/owner", b'{"node": "b"}')
        assert not told.events
        at = frozenset([VIRTUAL])
        online, offline = (AddressInfo(VIRTUAL, True),), (AddressInfo(VIRTUAL, False),)
        assert told.change("services/files/serving", b'{"node": "b"}') == [
            witness.ResourceChanged("files", True),
            witness.ResourceChanged("CLU", True, at),
            witness.IpChange("files", online),
            witness.IpChange("CLU", online),
        ]
        moved = told.change("events/x", b'{"kind": "move", "service": "files", "node": "a"}')
        assert moved == [
            witness.ServiceMove("files", frozenset(["data"]), online),
            witness.ServiceMove("CLU", frozenset(["data"]), online, at),
        ]
        assert told.change("services/files/owner", None) == [
            witness.ResourceChanged("files", False),
            witness.ResourceChanged("CLU", False, at),
            witness.IpChange("files", offline),
            witness.IpChange("CLU", offline),
        ]
        told.stop()
        assert not told.change("services/files/serving", b'{"node": "a"}')

    run_told(body)


def test_witness_is_told_where_clients_of_a_service_without_addresses_go() -> None:
    def body(told: Told) -> None:
        told.change("services/bare/serving", b'{"node": "b"}')
        assert told.events[1] == witness.ResourceChanged("CLU", True, frozenset(NODE_B))
        changed = told.change("nodes/b", b'{"addresses": ["10.0.0.3", "fd00::2"]}')
        change = (AddressInfo(ipaddress.ip_address("10.0.0.3"), True), AddressInfo(NODE_B[0], False))
        assert changed == [witness.IpChange("bare", change), witness.IpChange("CLU", change)]
        assert not told.change("nodes/a", b'{"addresses": []}')
        told.change("nodes/b", None)
        gone = told.change("services/bare/serving", None)
        assert gone[1] == witness.ResourceChanged(
            "CLU", False, frozenset([ipaddress.ip_address("10.0.0.3"), NODE_B[1]])
        )

    run_told(body)


def test_clients_are_sent_where_their_service_is() -> None:
    def body(told: Told) -> None:
        def move(node: str) -> list[witness.Event]:
            event = {"kind": "move-client", "client": "PC", "node": node, "answer": "smb3server/answers/1", "lease": 9}
            return told.change("events/x", json.dumps(event).encode())

        assert not move("b")
        told.change("services/files/serving", b'{"node": "b"}')
        told.change("services/bare/serving", b'{"node": "b"}')
        virtual, of_b = (AddressInfo(VIRTUAL, True),), tuple(AddressInfo(entry, True) for entry in NODE_B)
        assert move("b") == [
            witness.ClientMove("PC", virtual, "files"),
            witness.ClientMove("PC", virtual, "CLU", frozenset([VIRTUAL])),
            witness.ClientMove("PC", of_b, "bare"),
            witness.ClientMove("PC", of_b, "CLU", frozenset(NODE_B)),
        ]
        assert not move("a")
        (answered,) = {put.value for put in cast("FakeStore", told.cluster._store).put if put.key.endswith("/a")} - {
            b'{"told": 0}'
        }
        assert answered == b'{"told": 4}'

    run_told(body)


def test_who_leaves_a_free_service_to_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has just joined waits for one that would rather have it and may be a moment behind, not for ever."""
    now = 1000.0
    monkeypatch.setattr(cluster_module, "boottime", lambda: now)
    config = ServiceConfig("files", nodes=["a", "b"])

    async def body() -> None:
        nonlocal now
        found = Cluster(
            Server(Settings(server_name="CLU")),
            persistence.Persistence(),
            cast("Store", FakeStore()),
            ClusterConfig("", "b", services=[config]),
            dict,
        )

        def change(key: str, value: bytes | None = b"{}") -> float:
            found.view.apply(Change(found.prefix + key, value, 1))
            return found._patience(config, found.candidates(config))

        found.membership.joined_at = now
        assert change("nodes/b") == STARTUP_GRACE
        now += STARTUP_GRACE
        assert change("nodes/b") == 0.0
        assert change("nodes/a") == SUCCESSION_DELAY
        assert change("draining/a") == 0.0
        assert change("draining/b") == float("inf")

    asyncio.run(body())


class Unreachable:
    """A store that is away once, and then finds that this node is owner no longer."""

    def __init__(self) -> None:
        self.submitted = 0

    def submit(self, operations: object, conditions: object) -> asyncio.Future[int]:
        self.submitted += 1
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(StoreError("away") if self.submitted == 1 else ConditionFailed("owner"))
        return future


@pytest.mark.parametrize("ended", [False, True])
def test_what_a_service_left_behind_harms_no_later_one(monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    """A record that could not be removed is no reason to stop serving once the service has been taken over anew."""
    monkeypatch.setattr(persistence, "RETRY_DELAY", 0.01)

    async def body() -> None:
        store, refused = Unreachable(), asyncio.Event()
        domain = persistence.Domain(cast("Store", store), "s/", (Condition("owner", 1),), refused.set)
        keeper = persistence.Persistence()
        share = Share("data")
        keeper.serve(domain, [share])
        keeper.closed(cast("Open", SimpleNamespace(file_id=(7, 8), tree=SimpleNamespace(share=share))))
        await keeper.drain()
        domain.ended = ended
        await asyncio.sleep(0.1)
        assert refused.is_set() is not ended
        assert store.submitted == 1 if ended else store.submitted > 1
        keeper.close()

    asyncio.run(body())
