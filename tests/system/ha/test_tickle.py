"""A node dies without a word; a client that only waits hears of it from the node that takes over. The client is
impacket's, its socket Python's; tcpdump listens at its interface and scapy reads what it heard."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from impacket.smbconnection import SMBConnection
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet
from scapy.utils import rdpcap

from smb3server.client.protocol import Client
from smb3server.client.protocol.transports import open_rdma
from smb3server.cluster.peers import Peer, parse
from smb3server.net.store_url import parse_url
from smb3server.persistence.etcd import EtcdStore
from smbdirect.providers.iwarp.provider import IwarpProvider
from tests.lab.nodes import PASSWORD, USER
from tools.cluster import lab
from tools.cluster.lab import CLIENT, PORT, SERVICE, VIRTUAL, VIRTUAL6, ClusterLab

pytestmark = pytest.mark.root

BOUND = 2 + 8.0
"""Seconds from the node's end until the client knows: the lease, etcd's expiry, the takeover, and a busy machine."""
LONGER = 14.0
"""Seconds after which a client that is not told is still waiting: all packets would have been sent by then."""
WITHOUT_CAPABILITY = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"]


@contextlib.contextmanager
def running(cluster: ClusterLab) -> Iterator[ClusterLab]:
    with cluster:
        cluster.wait_for_service(SERVICE, "a")
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterLab:
    if reason := lab.why_not():
        pytest.skip(reason)
    return ClusterLab(tmp_path)


@contextlib.contextmanager
def capture(cluster: ClusterLab, path: Path) -> Iterator[None]:
    """What the client's interface carries, into a file."""
    command = [*cluster.network.prefix(CLIENT), "tcpdump", "-Z", "root", "-i", "eth0", "--immediate-mode", "-U", "-w"]
    with subprocess.Popen([*command, str(path), "tcp"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening" in line:
                break
        try:
            yield
        finally:
            process.terminate()


class Waiting:
    """A foreign client that has logged on and then waits for whatever the server says next."""

    def __init__(self, host: str) -> None:
        self.smb = SMBConnection(host, host, sess_port=PORT)
        self.smb.login(USER, PASSWORD)
        self.smb.connectTree("data")
        self.socket: socket.socket = self.smb.getSMBServer().get_socket()
        self.port: int = self.socket.getsockname()[1]

    def seconds_until(self, error: type[OSError], start: float, limit: float) -> float:
        """From ``start`` until the socket says so."""
        self.socket.settimeout(limit)
        with pytest.raises(error):
            self.socket.recv(1)
        return time.monotonic() - start


@contextlib.contextmanager
def clients_at(cluster: ClusterLab, *hosts: str) -> Iterator[list[Waiting]]:
    clients: list[Waiting] = []
    try:
        cluster.network.run(CLIENT, lambda: clients.extend(map(Waiting, hosts)))
        yield clients
    finally:
        for client in clients:
            client.socket.close()


def waiting_for_record(cluster: ClusterLab, clients: int) -> None:
    """Until the store knows them: keys of any owner."""

    def recorded() -> bool:
        return sum(len(peers) for peers in stored(cluster)) >= clients

    cluster.wait_until(recorded, f"{clients} connections recorded")


def stored(cluster: ClusterLab) -> list[list[Peer]]:
    """By key."""
    found: list[list[Peer]] = []

    async def body() -> None:
        store = EtcdStore(parse_url(cluster.etcd.url))
        found.extend(parse(entry.value) for entry in await store.scan(f"smb3server/state/{SERVICE}/peers/"))
        await store.close()

    cluster.network.inside(CLIENT, body)
    return found


def between(packets: list[Packet], port: int) -> list[tuple[bool, Packet]]:
    """(whether it is the server's, its TCP header), of the client's connection from ``port``."""
    found = [packet[TCP] for packet in packets if TCP in packet and port in (packet[TCP].sport, packet[TCP].dport)]
    return [(tcp.dport == port, tcp) for tcp in found]


def test_waiting_clients_are_told(cluster: ClusterLab, tmp_path: Path) -> None:
    """RFC 9293 3.10.7.4 and 3.10.7.1: an acknowledgment out of nowhere, the client's own, the reset; IPv4 and IPv6."""
    heard = tmp_path / "heard.pcap"
    with running(cluster), capture(cluster, heard), clients_at(cluster, VIRTUAL, VIRTUAL6) as clients:
        waiting_for_record(cluster, len(clients))
        cluster.nodes["a"].send(signal.SIGSTOP)
        start = time.monotonic()
        took = [client.seconds_until(ConnectionResetError, start, BOUND) for client in clients]
        print(f"clients that only wait knew after {took[0]:.1f} s (IPv4) and {took[1]:.1f} s (IPv6)")
        # Whoever comes back finds the service.
        with clients_at(cluster, VIRTUAL):
            assert not cluster.network.addresses("a") & {VIRTUAL, VIRTUAL6}
        cluster.nodes["a"].send(signal.SIGCONT)
        log = cluster.nodes["b"].log()
        assert "ending 2 connections to its last node" in log

        def forgotten() -> bool:
            return not stored(cluster)

        cluster.wait_until(forgotten, "the dead node's connections forgotten")
        time.sleep(0.5)
    packets = list(rdpcap(str(heard)))
    for client, layer in zip(clients, (IP, IPv6), strict=True):
        exchange = between([packet for packet in packets if layer in packet], client.port)
        # The connection ends with the first reset; what follows goes to a client that knows.
        first = next(number for number, (ours, tcp) in enumerate(exchange) if ours and tcp.flags.R)
        assert [ours for ours, _ in exchange[first - 2 : first + 1]] == [True, False, True]
        told, answer, reset = (tcp for _, tcp in exchange[first - 2 : first + 1])
        assert told.flags == answer.flags == "A"
        assert not told.payload and told.seq != reset.seq == answer.ack


@pytest.mark.long
def test_without_the_capability_nobody_is_told(cluster: ClusterLab) -> None:
    """The node says so, and serves; a client that only waits goes on waiting."""
    cluster.nodes["b"].prefix += WITHOUT_CAPABILITY
    with running(cluster), clients_at(cluster, VIRTUAL) as clients:
        waiting_for_record(cluster, 1)
        complaint = "this node cannot notify clients that only wait"
        assert cluster.nodes["b"].log().count(complaint) == 1
        assert "without CAP_NET_RAW" in cluster.admin("status")
        cluster.nodes["a"].send(signal.SIGSTOP)
        start = time.monotonic()
        cluster.wait_for_service(SERVICE, "b")
        took = clients[0].seconds_until(TimeoutError, start, LONGER)
        print(f"a client that is not told was still waiting after {took:.1f} s")
        assert "1 connections to its last node are left alone" in cluster.nodes["b"].log()
        assert cluster.nodes["b"].log().count(complaint) == 1


def test_planned_move_ends_connections(cluster: ClusterLab, tmp_path: Path) -> None:
    """The old node's own kernel says so to its clients, before the new one has the address."""
    heard = tmp_path / "heard.pcap"
    with running(cluster), capture(cluster, heard), clients_at(cluster, VIRTUAL, VIRTUAL6) as clients:
        cluster.admin("move", SERVICE, "b")
        for client in clients:
            client.socket.settimeout(BOUND)
            assert client.socket.recv(1) == b""
        time.sleep(0.5)
    packets = list(rdpcap(str(heard)))
    for client in clients:
        ends = [tcp for ours, tcp in between(packets, client.port) if ours and (tcp.flags.F or tcp.flags.R)]
        assert ends and ends[0].flags.F


@pytest.mark.parametrize("how", ["moved", "stopped"])
def test_iwarp_connections_end(tmp_path: Path, how: str) -> None:
    """SMB Direct over software iWARP is TCP, too; the client is the project's, its TCP the kernel's."""
    if reason := lab.why_not():
        pytest.skip(reason)
    heard = tmp_path / "heard.pcap"
    cluster = ClusterLab(tmp_path, options='rdma = "iwarp"')
    ports: list[int] = []

    async def body() -> None:
        transport = await open_rdma(IwarpProvider(), VIRTUAL)
        ports.append(transport.local_address[1])
        client = await Client.connect(transport)
        lost = asyncio.Event()
        client.on_closed = lambda error: lost.set()
        await client.log_on(USER, PASSWORD)
        if how == "moved":
            await asyncio.to_thread(cluster.admin, "move", SERVICE, "b")
        else:
            await asyncio.to_thread(waiting_for_record, cluster, 1)
            cluster.nodes["a"].send(signal.SIGSTOP)
        async with asyncio.timeout(BOUND):
            await lost.wait()

    with running(cluster), capture(cluster, heard):
        cluster.network.inside(CLIENT, body)
        time.sleep(0.5)
    told = [tcp for ours, tcp in between(list(rdpcap(str(heard))), ports[0]) if ours]
    ends = [tcp for tcp in told if tcp.flags.F or tcp.flags.R]
    assert ends and ends[0].sport == 5445
    if how == "stopped":
        # A reset without acknowledgment is one of a kernel that has no such connection (3.10.7.1).
        assert ends[0].flags == "R"
