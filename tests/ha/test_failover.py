"""Two nodes, an etcd and a client in network namespaces of their own: addresses move with the service."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from smb3server.client.connection import Client, ServerError
from smb3server.client.persistent import PersistentShare
from smb3server.client.transports import open_tcp
from smb3server.ha import redirect
from smb3server.status import NtStatus
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.oplock_break import LeaseState
from smb3server.wire.session import TREE_CONNECT_REQUEST, TreeConnectRequest
from smbdirect.message_transport import MessageTransport
from tests.ha.etcd import Etcd
from tests.ha.nodes import TTL, Node, seconds_since
from tests.ha.process import PASSWORD, USER

pytestmark = pytest.mark.root

RWH = int(LeaseState.READ | LeaseState.HANDLE | LeaseState.WRITE)
VIRTUAL, VIRTUAL6 = "10.77.0.100", "fd77::100"
PORT = 4450
BOUND = TTL + 8.0
"""Seconds: the kernel keeps an address up to a second longer than told, and the machine may be busy."""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    """A bridge and a namespace for each member, addresses 10.77.0.1 onwards."""

    def __init__(self, members: list[str]) -> None:
        self.tag = f"t{os.getpid() % 100000}"
        self.members = members
        self.names = {member: f"{self.tag}{member}" for member in members}

    def up(self) -> None:
        hub = f"{self.tag}hub"
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "link", "set", "br0", "up")
        for number, member in enumerate(self.members, 1):
            name = self.names[member]
            ip("netns", "add", name)
            ip("-n", hub, "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", hub, "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "addr", "add", f"fd77::{number}/64", "dev", "eth0", "nodad")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def down(self) -> None:
        for name in [*self.names.values(), f"{self.tag}hub"]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def prefix(self, member: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[member]]

    def cut(self, member: str, state: str) -> None:
        number = self.members.index(member) + 1
        ip("-n", f"{self.tag}hub", "link", "set", f"p{number}", state)

    def addresses(self, member: str) -> str:
        return subprocess.run(
            ["ip", "-n", self.names[member], "addr"], check=True, capture_output=True, text=True
        ).stdout

    def inside(self, member: str, body: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine whose sockets are in the member's namespace."""
        from pyroute2 import netns

        failure: list[BaseException] = []

        def target() -> None:
            try:
                netns.setns(self.names[member])
                asyncio.run(asyncio.wait_for(body(), 80))
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        if failure:
            raise failure[0]


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.network = Network(["etcd", "a", "b", "cli"])
        self.share = folder / "share"
        self.share.mkdir()
        self.network.up()
        self.etcd = Etcd(folder, 1, "10.77.0.1", self.network.prefix("etcd"))
        services = (
            f'[[service]]\nname = "one"\naddresses = ["{VIRTUAL}/24@eth0", "{VIRTUAL6}/64@eth0"]\nnodes = ["a", "b"]\n'
            f'[[share]]\nname = "data"\npath = "{self.share}"\ncontinuous_availability = true\nservice = "one"\n'
        )
        self.nodes = {
            name: Node(folder, name, self.etcd.url, services, PORT, '0.0.0.0", "::', self.network.prefix(name))
            for name in ("a", "b")
        }

    def start(self) -> None:
        self.etcd.start()
        for node in self.nodes.values():
            node.start()
        deadline = time.monotonic() + 20
        while f"{VIRTUAL}/" not in self.network.addresses("a"):
            assert time.monotonic() < deadline, [node.log() for node in self.nodes.values()]
            time.sleep(0.1)

    async def connect(self) -> MessageTransport:
        return await open_tcp(VIRTUAL, PORT, 1.0)

    def client(self, host: str = VIRTUAL) -> PersistentShare:
        return PersistentShare(lambda: open_tcp(host, PORT, 1.0), "data", USER, PASSWORD, 40.0)

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.etcd.stop()
        self.network.down()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if os.geteuid() != 0 or subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).returncode:
        pytest.skip("needs root and network namespaces")
    found = Cluster(tmp_path)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.mark.parametrize("how", ["killed", "cut off", "stopped"])
def test_copy_goes_on_at_the_other_node(cluster: Cluster, how: str) -> None:
    """Issue: kill -9, network cut, SIGSTOP. The copy goes on within a bound, every block is there."""
    network, a, b = cluster.network, cluster.nodes["a"], cluster.nodes["b"]

    async def body() -> None:
        share = cluster.client(VIRTUAL6 if how == "killed" else VIRTUAL)
        file = await share.open("copy", share=1, lease_state=RWH)
        await file.lock(1 << 40, 10)
        pauses: list[float] = []
        for number in range(60):
            if number == 20:
                if how == "killed":
                    a.kill()
                elif how == "cut off":
                    await asyncio.to_thread(network.cut, "a", "down")
                else:
                    a.send(signal.SIGSTOP)
                # Nobody tells this client that its connection is dead; a real one has its echo and its Witness.
                share.drop()
            start = time.monotonic()
            await file.write(number * 4096, number.to_bytes(4, "little") * 1024)
            pauses.append(seconds_since(start))
        print(f"{how}: resumed after {max(pauses):.2f} s")
        assert max(pauses) < BOUND
        assert f"{VIRTUAL}/" in network.addresses("b") and f"{VIRTUAL6}/" in network.addresses("b")
        if how != "cut off":
            # From a process that is dead or stopped, the kernel has taken it back.
            assert f"{VIRTUAL}/" not in network.addresses("a")
        if how == "stopped":
            a.send(signal.SIGCONT)
        if how == "cut off":
            await asyncio.to_thread(network.cut, "a", "up")
        await asyncio.sleep(1.5)
        assert f"{VIRTUAL}/" not in network.addresses("a")
        await file.unlock(1 << 40, 10)
        await file.close()
        await share.close()
        content = (cluster.share / "copy").read_bytes()
        assert content == b"".join(number.to_bytes(4, "little") * 1024 for number in range(60))
        assert "is served here" in b.log()

    network.inside("cli", body)


def test_wrong_node_redirects(cluster: Cluster) -> None:
    """2.2.2.2.2: who asks at a node's own address is told where the service is, if it wants to know."""

    async def body() -> None:
        for host in ("10.77.0.2", "10.77.0.3"):
            client = await Client.connect(await open_tcp(host, PORT, 2.0))
            session = await client.log_on(USER, PASSWORD)
            for flags in (0, 2):
                name = f"\\\\{host}\\data".encode("utf-16-le")
                offset = HEADER_SIZE + TREE_CONNECT_REQUEST.size
                record = TreeConnectRequest(flags=flags, path_offset=offset, path_length=len(name))
                with pytest.raises(ServerError) as caught:
                    await client.call(
                        Command.TREE_CONNECT, [TREE_CONNECT_REQUEST.pack(record), name], session, sign=True
                    )
                assert caught.value.status == NtStatus.BAD_NETWORK_NAME
                if flags:
                    addresses, resource = redirect.parse(caught.value.data)
                    assert [str(address) for address in addresses] == [VIRTUAL, VIRTUAL6]
                    assert resource == "data"
                else:
                    assert not caught.value.data
            await client.close()

    cluster.network.inside("cli", body)
