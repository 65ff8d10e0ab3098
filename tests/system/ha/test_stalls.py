"""A node whose event loop stands still: for a while it keeps what it has, for too long it does not."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol.transports import open_tcp
from smb3server.cluster.lease_keeper import boottime
from smb3server.net.store_url import parse_url
from smb3server.persistence.etcd import EtcdStore
from smb3server.persistence.store import Entry
from smbdirect.errors import ConnectionLost
from tests.lab.etcd import Etcd
from tests.lab.nodes import PASSWORD, USER, Node, client
from tests.lab.persistent import PersistentShare
from tools.cluster import lab
from tools.cluster.lab import CLIENT, PORT, SHARE, VIRTUAL, VIRTUAL6, ClusterLab
from tools.support import own_user

TTL = 4
PATIENCE = 60.0
"""Seconds for what must come about, on whatever machine."""


class Stalling:
    """Nodes "a" and "b", of which a's event loop can be held."""

    def __init__(self, folder: Path, etcd: Etcd, max_stall: int) -> None:
        self.folder = folder
        self.etcd = etcd
        self.name = folder.name.replace("[", "-").replace("]", "")
        """Of the cluster: each test has a folder of its own, which is not the file system of an earlier one."""
        self.share = folder / "share"
        self.share.mkdir()
        services = (
            '[[service]]\nname = "one"\nnodes = ["a", "b"]\n'
            f'[[share]]\nname = "data"\npath = "{self.share}"\n{own_user.LINE}'
            'continuous_availability = true\nservice = "one"\n'
        )
        self.a, self.b = (
            Node(
                folder, name, etcd.url, services, TTL,
                cluster_options=f'max_stall = {max_stall}\nname = "{self.name}"',
                program=("-m", "tests.lab.stalling", str(folder)),
            )
            for name in "ab"
        )  # fmt: skip

    async def start(self) -> None:
        """The service on a, which is there alone first."""
        await asyncio.to_thread(self.a.start)
        await self.wait_until(lambda: "service one is served here" in self.a.log())
        await asyncio.to_thread(self.b.start)
        await self.wait_until(lambda: "b joined" in self.b.log())

    async def stall(self, how: str) -> None:
        (self.folder / how).touch()
        self.a.send(signal.SIGUSR1)
        await self.wait_until(self.is_stalled)

    def is_stalled(self) -> bool:
        return (self.folder / "stalled").exists()

    def go_on(self, how: str) -> None:
        (self.folder / how).unlink()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, (self.a.log()[-2000:], self.b.log()[-2000:])
            await asyncio.sleep(0.05)

    def client(self) -> PersistentShare:
        return client([self.a, self.b], patience=PATIENCE)

    def stop(self) -> None:
        for node in (self.a, self.b):
            node.kill()


Make = Callable[[int], Stalling]


@pytest.fixture
def make(tmp_path: Path, etcd: Etcd) -> Iterator[Make]:
    made: list[Stalling] = []

    def make_one(max_stall: int) -> Stalling:
        made.append(Stalling(tmp_path, etcd, max_stall))
        return made[-1]

    yield make_one
    for entry in made:
        entry.stop()


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 110))


async def owner(store: EtcdStore, cluster: Stalling) -> Entry:
    found = await store.get(f"{cluster.name}/c/services/one/owner")
    assert found is not None
    return found


@pytest.mark.parametrize("how", ["busy", pytest.param("stuck", marks=pytest.mark.long)])
def test_services_stay_while_the_event_loop_stands_still(make: Make, how: str) -> None:
    """For longer than the lease lives without a renewal. The client's connection, handle and lock stay, too."""

    async def body() -> None:
        cluster = make(600)
        await cluster.start()
        store = EtcdStore(parse_url(cluster.etcd.url))
        share = cluster.client()
        file = await share.open("f", share=1)
        await file.lock(0, 1)
        tree = await share.connected()
        remote = await file._attached(tree)
        before = await owner(store, cluster)
        await cluster.stall(how)
        end = boottime() + 2 * TTL
        writing = asyncio.ensure_future(tree.write(remote, 0, b"waited for"))
        while boottime() < end:
            assert await owner(store, cluster) == before
            await asyncio.sleep(0.2)
        assert cluster.is_stalled() and not writing.done()
        cluster.go_on(how)
        await writing
        await file.unlock(0, 1)
        assert tree.client.closed is None and share.tree is tree
        assert await owner(store, cluster) == before
        assert "a turn of the event loop took" in cluster.a.log()
        assert "service one is lost" not in cluster.a.log()
        await file.close()
        assert (cluster.share / "f").read_bytes() == b"waited for"
        await share.close()
        await store.close()

    run(body)


@pytest.mark.long
def test_a_dead_event_loop_gives_the_lease_up(make: Make) -> None:
    """Its process lives, and its thread: all the same the other node takes over, and what waited there is not done."""

    async def body() -> None:
        cluster = make(TTL)
        await cluster.start()
        store = EtcdStore(parse_url(cluster.etcd.url))
        share = cluster.client()
        file = await share.open("f", share=7)
        await file.write(0, b"old")
        tree = await share.connected()
        remote = await file._attached(tree)
        before = await owner(store, cluster)
        began = boottime()
        await cluster.stall("stuck")
        late = asyncio.ensure_future(tree.write(remote, 0, b"LATE"))
        await asyncio.sleep(0.1)
        share.tree = None
        # The client goes on at the other node, once that has it.
        await file.write(0, b"new")
        assert cluster.is_stalled()
        after = await owner(store, cluster)
        assert json.loads(after.value)["node"] == "b" and after.version > before.version
        # Not before the loop was silent for as long as it may be.
        assert boottime() - began > TTL
        assert "no sign of life of the event loop" in cluster.a.log()
        cluster.go_on("stuck")
        with pytest.raises(ConnectionLost):
            await late
        await cluster.wait_until(lambda: cluster.a.log().count("a joined the cluster") == 2)
        assert (cluster.share / "f").read_bytes() == b"new"
        await file.write(0, b"end")
        assert await owner(store, cluster) == after
        await file.close()
        await share.close()
        await store.close()

    run(body)


@pytest.mark.root
def test_addresses_stay_while_the_event_loop_stands_still(tmp_path: Path) -> None:
    """They have a lifetime in the kernel, which is no longer than the lease's."""
    if reason := lab.why_not():
        pytest.skip(reason)
    program = ("-m", "tests.lab.stalling", str(tmp_path))

    async def body() -> None:
        share = PersistentShare(lambda: open_tcp(VIRTUAL, PORT, 1.0), SHARE, USER, PASSWORD, PATIENCE)
        file = await share.open("f", share=1)
        tree = await share.connected()
        remote = await file._attached(tree)
        (tmp_path / "stuck").touch()
        node.send(signal.SIGUSR1)
        end = boottime() + 2 * TTL
        while boottime() < end or not (tmp_path / "stalled").exists():
            assert {VIRTUAL, VIRTUAL6} <= await asyncio.to_thread(cluster.network.addresses, "a")
            await asyncio.sleep(0.2)
        (tmp_path / "stuck").unlink()
        await tree.write(remote, 0, b"x")
        assert tree.client.closed is None
        await file.close()
        await share.close()

    with ClusterLab(tmp_path, ttl=TTL, cluster_options="max_stall = 600", program=program) as cluster:
        cluster.wait_for_address("a")
        node = cluster.nodes["a"]
        cluster.network.inside(CLIENT, body)
