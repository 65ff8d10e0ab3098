"""Two nodes and an etcd on one machine: who serves, who must not, and what clients notice of it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smb3server.client.protocol import Client
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.cluster.cluster import coordination_prefix
from smb3server.net.store_url import parse_url
from smb3server.persistence.etcd import EtcdStore
from smb3server.persistence.store import Delete, Operation, Put
from smb3server.settings.cluster import DEFAULT_NAME
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, ShareAccess
from smb3server.wire.oplock_break import LeaseState
from smb3server.wire.status import NtStatus
from smbdirect.errors import ConnectionLost
from tests.lab.etcd import Etcd
from tests.lab.nodes import TTL, Node, asked, client, seconds_since
from tests.lab.persistent import PersistentShare
from tests.lab.process import PASSWORD, USER
from tools.support import own_user

RWH = int(LeaseState.READ | LeaseState.HANDLE | LeaseState.WRITE)
DELETE_ON_CLOSE = int(CreateOptions.DELETE_ON_CLOSE)
BOUND = TTL + 6.0
"""Seconds in which a service must be back: lease, etcd's expiry, succession, and a slow machine."""


def wait_until(condition: Callable[[], bool], complaint: Callable[[], str], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.1)


class Cluster:
    def __init__(self, folder: Path, members: int = 1, ttl: int = TTL) -> None:
        self.share = folder / "share"
        self.share.mkdir()
        self.etcd = Etcd(folder, members)
        self.etcd.start()
        services = (
            '[[service]]\nname = "one"\nnodes = ["a", "b"]\n[[service]]\nname = "two"\nnodes = ["b", "a"]\n'
            f'[[share]]\nname = "data"\npath = "{self.share}"\n{own_user.LINE}'
            'continuous_availability = true\nservice = "one"\n'
            f'[[share]]\nname = "more"\npath = "{self.share}"\n{own_user.LINE}service = "two"\n'
            f'[[share]]\nname = "local"\npath = "{self.share}"\n{own_user.LINE}'
        )
        self.nodes = {name: Node(folder, name, self.etcd.url, services, ttl) for name in ("a", "b")}

    @property
    def a(self) -> Node:
        return self.nodes["a"]

    @property
    def b(self) -> Node:
        return self.nodes["b"]

    def start(self) -> Cluster:
        """Returns with service "one" on a and "two" on b, as they would rather have them, however long starting took:
        until both nodes are up, neither may have a service."""
        self._write([Put(self._draining(name), b"{}") for name in self.nodes])
        with ThreadPoolExecutor() as threads:
            list(threads.map(Node.start, self.nodes.values()))
        for node in self.nodes.values():
            wait_until(lambda node=node: f"{node.name} joined" in node.log(), node.log)  # type: ignore[misc]
        assert not any(self.status().values())
        self._write([Delete(self._draining(name)) for name in self.nodes])
        self.wait_for({"one": "a", "two": "b"})
        return self

    def _write(self, operations: list[Operation]) -> None:
        """All at once."""

        async def body() -> None:
            store = EtcdStore(parse_url(self.etcd.url))
            await store.commit(operations)
            await store.close()

        asyncio.run(body())

    @staticmethod
    def _draining(node: str) -> str:
        return f"{coordination_prefix(DEFAULT_NAME)}draining/{node}"

    def status(self) -> dict[str, str | None]:
        status, out, errors = asked(self.etcd.url, "status", "--json", "--quick")
        assert status == 0, errors
        return {entry["name"]: entry["node"] for entry in json.loads(out)["services"]}

    def wait_for(self, wanted: dict[str, str]) -> None:
        wait_until(lambda: self.status() == wanted, lambda: self.a.log()[-2000:] + self.b.log()[-2000:])

    def client(self, patience: float = 30.0) -> PersistentShare:
        return client([self.a, self.b], patience=patience)

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.etcd.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    try:
        yield found.start()
    finally:
        found.stop()


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 90))


def test_services_are_spread_and_moved(cluster: Cluster) -> None:
    """One owner each, on the nodes that would rather have them; moved and drained without losing a handle."""

    async def body() -> None:
        share = cluster.client()
        file = await share.open("f", share=int(ShareAccess.READ), lease_state=RWH)
        await file.lock(0, 4)
        await file.write(0, b"on a")
        status, _, errors = await asyncio.to_thread(asked, cluster.etcd.url, "move", "one", "b")
        assert status == 0, errors
        await file.write(4, b" on b")
        assert cluster.status() == {"one": "b", "two": "b"}
        status, _, errors = await asyncio.to_thread(asked, cluster.etcd.url, "drain", "b")
        assert status == 0, errors
        assert cluster.status() == {"one": "a", "two": "a"}
        await file.write(9, b" and on a")
        await file.unlock(0, 4)
        await file.close()
        assert (cluster.share / "f").read_bytes() == b"on a on b and on a"
        assert asked(cluster.etcd.url, "drain", "--undo", "b")[0] == 0
        assert asked(cluster.etcd.url, "move", "one", "nowhere")[0] == 1
        assert asked(cluster.etcd.url, "move", "nothing", "a")[0] == 1
        await share.close()

    run(body)


def test_owner_is_killed(cluster: Cluster) -> None:
    async def body() -> None:
        share = cluster.client()
        file = await share.open("f", share=int(ShareAccess.READ), lease_state=RWH)
        await file.lock(0, 1)
        for number in range(50):
            await file.write(number * 4, number.to_bytes(4, "little"))
        writing = asyncio.ensure_future(file.write(200, b"in flight"))
        await asyncio.sleep(0)
        start = time.monotonic()
        cluster.a.kill()
        await writing
        assert seconds_since(start) < BOUND
        other = cluster.client(patience=0)
        with pytest.raises(ServerError) as caught:
            await other.open("f", share=0)
        await other.close()
        assert caught.value.status in (NtStatus.SHARING_VIOLATION, NtStatus.BAD_NETWORK_NAME)
        await file.unlock(0, 1)
        await file.close()
        expected = b"".join(number.to_bytes(4, "little") for number in range(50)) + b"in flight"
        assert (cluster.share / "f").read_bytes() == expected
        await share.close()

    run(body)


def test_stopped_owner_neither_answers_nor_acts_when_it_goes_on(cluster: Cluster) -> None:
    """SIGSTOP, takeover, SIGCONT: requests that waited in the old owner's socket are not done any more."""

    async def body() -> None:
        share = cluster.client()
        file = await share.open("f", share=7)
        await file.write(0, b"old")
        tree = await share.connected()
        remote = await file._attached(tree)
        assert tree.client.transport.peer_address[1] == cluster.a.port
        # An open that does not outlive its connection: with the old owner's, nothing may be deleted.
        await tree.create("kept", READ_WRITE | int(Access.DELETE), CreateDisposition.CREATE, options=DELETE_ON_CLOSE)
        cluster.a.send(signal.SIGSTOP)
        late = [asyncio.ensure_future(tree.write(remote, 0, b"LATE")) for _ in range(3)]
        late.append(asyncio.ensure_future(tree.read(remote, 0, 3)))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        share.tree = None
        # The client goes to the other node, which waits for the lease to end.
        await file.write(0, b"new")
        cluster.a.send(signal.SIGCONT)
        for request in late:
            with pytest.raises(ConnectionLost):
                await request
        assert (cluster.share / "f").read_bytes() == b"new"
        assert (cluster.share / "kept").exists()
        await asyncio.to_thread(cluster.wait_for, {"one": "b", "two": "b"})
        # It is a member again, and takes over in its turn.
        await asyncio.sleep(1.0)
        cluster.b.kill()
        await file.write(0, b"a again")
        assert (cluster.share / "f").read_bytes() == b"a again"
        await share.close()

    run(body)


def test_owner_that_may_not_write_gives_up(cluster: Cluster) -> None:
    """Somebody else has put the owner key, as far as the owner can see: it stops, and the service is taken again."""

    async def body() -> None:
        share = cluster.client()
        file = await share.open("f", share=7)
        await file.lock(0, 1)
        store = EtcdStore(parse_url(cluster.etcd.url))
        member = await store.get("smb3server/c/nodes/a")
        assert member is not None
        lease = json.loads(member.value)["lease"]
        await store.commit([Put("smb3server/c/services/one/owner", b'{"node": "a"}', lease)])
        start = time.monotonic()
        await file.lock(10, 1)
        assert seconds_since(start) < BOUND
        assert "service one is lost" in cluster.a.log()
        await file.unlock(0, 1)
        await file.unlock(10, 1)
        await file.close()
        await store.close()
        await share.close()

    run(body)


def test_without_etcd_nobody_serves(cluster: Cluster) -> None:
    """Quorum lost: the owner stops before its lease could end, and goes on once the quorum is back."""

    async def body() -> None:
        share = cluster.client(patience=40)
        file = await share.open("f", share=7)
        await file.write(0, b"1")
        tree = await share.connected()
        start = time.monotonic()
        cluster.etcd.kill(0)
        while tree.client.closed is None:
            assert seconds_since(start) < TTL
            await asyncio.sleep(0.02)
        for node in (cluster.a, cluster.b):
            transport = await node.connect()
            with pytest.raises((ConnectionLost, OSError, ServerError)):
                lonely = await Client.connect(transport)
                await (await lonely.log_on(USER, PASSWORD)).tree_connect("data")
            transport.abort("seen enough")
        writing = asyncio.ensure_future(file.write(1, b"2"))
        await asyncio.to_thread(cluster.etcd.start, 0)
        await writing
        await file.close()
        assert (cluster.share / "f").read_bytes() == b"12"
        await share.close()

    run(body)


def test_a_nodes_own_shares_go_on_without_etcd(cluster: Cluster) -> None:
    """The fence is for what another node may have by now: a connection that uses none of it is not cut."""

    async def body() -> None:
        own = await Client.connect(await cluster.a.connect())
        local = await (await own.log_on(USER, PASSWORD)).tree_connect("local")
        file = await local.create("f", READ_WRITE, CreateDisposition.OPEN_IF)
        both = await Client.connect(await cluster.a.connect())
        session = await both.log_on(USER, PASSWORD)
        mixed = await session.tree_connect("local")
        await session.tree_connect("data")
        cluster.etcd.kill(0)
        start = time.monotonic()
        while both.closed is None:
            assert seconds_since(start) < TTL
            await asyncio.sleep(0.02)
        with pytest.raises(ConnectionLost):
            await mixed.create("g", READ_WRITE, CreateDisposition.OPEN_IF)
        await local.write(file, 0, b"still here")
        assert await local.read(file, 0, 10) == b"still here"
        await local.close(file)
        # Newcomers, too; and what the cluster has to say about stays shut.
        new = await Client.connect(await cluster.a.connect())
        session = await new.log_on(USER, PASSWORD)
        local = await session.tree_connect("local")
        await local.close(await local.create("f"))
        for name in ("data", "more"):
            with pytest.raises(ServerError) as caught:
                await session.tree_connect(name)
            assert caught.value.status == NtStatus.BAD_NETWORK_NAME
        await new.close()
        await own.close()

    run(body)


@pytest.mark.long
def test_closed_while_etcd_is_away(cluster: Cluster) -> None:
    """The record that could not be removed neither takes the service from its owner later, nor keeps anybody out."""

    async def body() -> None:
        share = cluster.client(patience=40)
        file = await share.open("f", share=0, lease_state=RWH)
        await asyncio.to_thread(cluster.etcd.kill, 0)
        await file.close()
        tree = await share.connected()
        while tree.client.closed is None:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.etcd.start, 0)
        start = time.monotonic()
        file = await share.open("f", share=0)
        assert seconds_since(start) < BOUND
        # Longer than it takes to try again what could not be stored.
        for number in range(8):
            await file.write(number, b"x")
            await asyncio.sleep(0.25)
        log = cluster.a.log()
        assert "state of 1 opens is not stored" in log
        assert log.count("service one is lost") == 1
        assert log.count("service one is served here, 0 opens restored") == 2
        await file.close()
        await share.close()

    run(body)


def test_ownership_that_nobody_remembers(tmp_path: Path) -> None:
    """A write to etcd may have worked although the node was never told so."""
    cluster = Cluster(tmp_path)

    async def body() -> None:
        store = EtcdStore(parse_url(cluster.etcd.url))
        await store.commit([Put(f"{coordination_prefix(DEFAULT_NAME)}services/one/owner", b'{"node": "a"}')])
        await store.close()
        await asyncio.to_thread(cluster.a.start)
        share = cluster.client()
        await (await share.open("f")).close()
        await share.close()
        assert "service one: its ownership was left over" in cluster.a.log()

    try:
        run(body)
    finally:
        cluster.stop()


@pytest.mark.long
def test_one_etcd_member_down(tmp_path: Path) -> None:
    # An election takes up to two seconds. On a busy machine the next one follows before a node has written again.
    cluster = Cluster(tmp_path, 3, ttl=8)

    async def body() -> None:
        share = cluster.client()
        file = await share.open("f", share=7)
        for member in range(3):
            cluster.etcd.kill(member)
            for number in range(20):
                await file.write(number, b"x")
                await file.lock(100 + number, 1)
                await file.unlock(100 + number, 1)
                await asyncio.sleep(0.05)
            await asyncio.to_thread(cluster.etcd.start, member)
        assert cluster.status() == {"one": "a", "two": "b"}
        await file.close()
        await share.close()

    try:
        cluster.start()
        run(body)
    finally:
        cluster.stop()


@pytest.mark.long
def test_a_share_joins_and_leaves_a_service_by_reload(cluster: Cluster, tmp_path: Path) -> None:
    """Its handles move with the service from then on; other shares of the service are not disturbed."""
    before = {node.name: node.config.read_text() for node in cluster.nodes.values()}

    def reload(text: str) -> None:
        for node in cluster.nodes.values():
            node.config.write_text(before[node.name] + text)
            found = subprocess.run(
                [sys.executable, "-m", "smb3server", "reload", "--state", str(tmp_path / node.name)],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert found.returncode == 0, found.stderr

    late = (
        f'[[share]]\nname = "late"\npath = "{cluster.share}"\n{own_user.LINE}'
        'continuous_availability = true\nservice = "one"\n'
    )

    async def body() -> None:
        data = cluster.client()
        kept = await data.open("kept", share=int(ShareAccess.READ), lease_state=RWH)
        await asyncio.to_thread(reload, late)
        share = client([cluster.a, cluster.b], "late")
        file = await share.open("f", share=int(ShareAccess.READ), lease_state=RWH)
        await file.write(0, b"on a")
        await kept.write(0, b"on a")
        cluster.a.kill()
        await file.write(4, b" on b")
        await kept.write(4, b" on b")
        assert await file.read(0, 9) == b"on a on b"
        await file.close()
        await share.close()
        cluster.a.start()
        await asyncio.to_thread(reload, "")
        await kept.write(9, b" still")
        assert await kept.read(0, 15) == b"on a on b still"
        await data.close()

    run(body)
