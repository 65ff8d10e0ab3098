"""What the Witness service is told of the cluster."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable
from typing import cast

from smb3server.cluster.cluster import Cluster
from smb3server.cluster.witness_source import WitnessSource
from smb3server.persistence import journal as persistence
from smb3server.persistence.store import Change, Store
from smb3server.server.server import Server
from smb3server.settings.cluster import ClusterConfig, ServiceConfig, VirtualAddress
from smb3server.settings.server import Settings
from smb3server.state.share import Share
from tests.lab.fake_store import FakeStore
from witness import cluster as witness
from witness.ndr import AddressInfo, InterfaceState


class Told:
    """A node's cluster whose changes a test makes, and what its Witness service would tell."""

    def __init__(self) -> None:
        server = Server(Settings(server_name="CLU"))
        services = [ServiceConfig("files", [VirtualAddress.parse("10.0.0.100/24@eth0")]), ServiceConfig("bare")]
        config = ClusterConfig("", "a", services=services)
        self.cluster = Cluster(server, persistence.Persistence(), cast("Store", FakeStore()), config, dict)
        self.cluster.services["files"].shares.append(Share("data", service="files"))
        self.source = WitnessSource(self.cluster, server.settings.server_name)
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
