"""Every fault at every step of a persistent handle's life, in a cluster of real processes in network namespaces.

At each step (open, write, lock, close) the fault comes while the request is under way. Whatever was acknowledged before
must hold afterwards, the request must be done within the bound, and never may two nodes answer: both are asked all
the time. The service has no addresses of its own, so that each node can be asked directly; test_failover has those that
move.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import time
from collections.abc import Iterator

import aiohttp
import pytest

from smb3server.cli.cluster.admin import Admin
from smb3server.client.protocol import Client
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.transports import open_tcp
from smb3server.client.protocol.tree import Tree
from smb3server.cluster.cluster import STARTUP_GRACE
from smb3server.cluster.view import decode
from smb3server.persistence.store import Entry
from smb3server.wire.create import CreateDisposition, ShareAccess
from smb3server.wire.oplock_break import LeaseState
from smb3server.wire.status import NtStatus
from smbdirect.errors import ConnectionLost, ProtocolError
from smbdirect.message_transport import MessageTransport
from tests.lab.nodes import PASSWORD, USER
from tests.lab.persistent import PersistentFile, PersistentShare
from tools.cluster import lab
from tools.cluster.lab import CLIENT, PORT, SHARE, ClusterLab, share_section

pytestmark = pytest.mark.root

TTL = 4
BOUND = TTL + 6.0
"""Seconds in which a request is done that a fault has hit: lease, etcd's expiry, restoring, the client's retry, and a
slow machine. Where etcd has no quorum: from when it has one again."""
ELECTION = TTL + 3.0
"""More, if etcd's members have elected another leader meanwhile, be it by the fault or because the machine is too busy
for them: 1 to 2 s, and the new leader gives every lease its ttl again and the election's time-out (1 s) on top."""
STEPS = ("open", "write", "lock", "close")
DATA = bytes(range(256)) * 16
RWH = int(LeaseState.READ | LeaseState.HANDLE | LeaseState.WRITE)
_FAILURES = (ConnectionLost, ProtocolError, OSError, TimeoutError)
_counter = itertools.count()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterLab]:
    if reason := lab.why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("faults")
    text = '[[service]]\nname = "one"\nnodes = ["a", "b"]\n' + share_section(SHARE, folder / "share", "one")
    with ClusterLab(folder, ("a", "b"), text, etcd_members=3, ttl=TTL) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ClusterLab) -> ClusterLab:
    """Everything up, the service on a, and b long enough there to take over at once."""
    shared.gather("a", ["one"])
    joined = re.findall(r"^(\S+ \S+),\d+ .* b joined", shared.nodes["b"].log(), re.MULTILINE)[-1]
    time.sleep(max(0.0, time.mktime(time.strptime(joined, "%Y-%m-%d %H:%M:%S")) + STARTUP_GRACE + 1 - time.time()))
    return shared


class Asked:
    """Both nodes, asked directly again and again: who answers for the share?"""

    def __init__(self, cluster: ClusterLab) -> None:
        self.answers: list[str] = []
        """The nodes in the order of their answers, repetitions left out."""
        self._seen: dict[str, float] = {}
        self._network = cluster.network
        self._asking = {node: asyncio.Lock() for node in cluster.nodes}
        self._tasks = [
            asyncio.ensure_future(self._ask(node, cluster.network.address(node))) for node in sorted(cluster.nodes)
        ]

    async def _ask(self, node: str, host: str) -> None:
        while True:
            transport: MessageTransport | None = None
            try:
                async with asyncio.timeout(20):
                    transport = await open_tcp(host, PORT, 1.0)
                    session = await (await Client.connect(transport)).log_on(USER, PASSWORD)
                    while True:
                        # A request that waited for a stopped node is among these: it must not be answered.
                        async with self._asking[node]:
                            await session.tree_connect(SHARE)
                        self._seen[node] = time.monotonic()
                        if self.answers[-1:] != [node]:
                            self.answers.append(node)
                        await asyncio.sleep(0.02)
            except (*_FAILURES, ServerError):
                await asyncio.sleep(0.05)
            finally:
                if transport is not None:
                    transport.abort("asked")

    def nothing_on_the_way(self, node: str) -> asyncio.Lock:
        """Hold back the next request to a node. TCP repeats an answer that the network loses. It may arrive late, and
        nobody could tell it from one that should not have been made."""
        return self._asking[node]

    async def connect(self) -> MessageTransport:
        """To whoever serves the share now, as a virtual address would."""
        node = max(self._seen, key=lambda name: self._seen[name], default=None)
        if node is None or time.monotonic() - self._seen[node] > 0.5:
            raise ConnectionLost("nobody answers")
        return await open_tcp(self._network.address(node), PORT, 1.0)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Fault:
    """``strike`` comes before the request is sent, ``settle`` once it waits, ``undo`` after it is done."""

    owners: tuple[list[str], ...] = (["a", "b"],)
    """Who may have owned the service, one after the other, unless etcd elects a leader meanwhile."""

    def __init__(self, cluster: ClusterLab) -> None:
        self.cluster = cluster

    async def strike(self, asked: Asked) -> None:
        raise NotImplementedError

    async def settle(self, share: PersistentShare) -> None:
        """Nobody tells this client that its connection is dead; a real one has its echo and its Witness."""
        share.drop()

    async def undo(self) -> None:
        return


class Killed(Fault):
    """With the request unread."""

    async def strike(self, asked: Asked) -> None:
        self.cluster.nodes["a"].send(signal.SIGSTOP)

    async def settle(self, share: PersistentShare) -> None:
        self.cluster.nodes["a"].kill()


class Stopped(Fault):
    async def strike(self, asked: Asked) -> None:
        self.cluster.nodes["a"].send(signal.SIGSTOP)

    async def undo(self) -> None:
        self.cluster.nodes["a"].send(signal.SIGCONT)


class CutOff(Fault):
    async def strike(self, asked: Asked) -> None:
        async with asked.nothing_on_the_way("a"):
            await asyncio.to_thread(self.cluster.network.cut, "a")

    async def undo(self) -> None:
        await asyncio.to_thread(self.cluster.network.cut, "a", False)


class EtcdMemberKilled(Fault):
    owners = (["a"],)

    def __init__(self, cluster: ClusterLab) -> None:
        super().__init__(cluster)
        self.member = next(_counter) % 3

    async def strike(self, asked: Asked) -> None:
        self.cluster.etcd.kill(self.member)

    async def settle(self, share: PersistentShare) -> None:
        return

    async def undo(self) -> None:
        await asyncio.to_thread(self.cluster.etcd.start, self.member)


class EtcdMemberCutOff(EtcdMemberKilled):
    """Requests to it get no answer at all."""

    async def strike(self, asked: Asked) -> None:
        await asyncio.to_thread(self.cluster.network.cut, f"e{self.member + 1}")

    async def undo(self) -> None:
        await asyncio.to_thread(self.cluster.network.cut, f"e{self.member + 1}", False)


class KilledWithEtcdMember(Killed):
    """The owner, and the link of the etcd member that nodes ask first: news of the one does not wait for the other."""

    async def strike(self, asked: Asked) -> None:
        await asyncio.to_thread(self.cluster.network.cut, "e1")
        await super().strike(asked)

    async def undo(self) -> None:
        await asyncio.to_thread(self.cluster.network.cut, "e1", False)


class QuorumLost(Fault):
    """Until every node's lease is over."""

    owners = (["a"], ["a", "b"])

    async def strike(self, asked: Asked) -> None:
        for member in (1, 2):
            self.cluster.etcd.kill(member)

    async def settle(self, share: PersistentShare) -> None:
        await asyncio.sleep(TTL + 0.5)
        # A node that cannot reach a quorum does not answer, whatever it had.
        for node in self.cluster.nodes:
            with pytest.raises((*_FAILURES, ServerError)):
                async with asyncio.timeout(1):
                    transport = await open_tcp(self.cluster.network.address(node), PORT, 1.0)
                    try:
                        session = await (await Client.connect(transport)).log_on(USER, PASSWORD)
                        await session.tree_connect(SHARE)
                    finally:
                        transport.abort("asked")
        for member in (1, 2):
            self.cluster.etcd.start(member, wait=False)


FAULTS: dict[str, type[Fault]] = {
    "killed": Killed,
    "stopped": Stopped,
    "cut off": CutOff,
    "etcd member killed": EtcdMemberKilled,
    "etcd member cut off": EtcdMemberCutOff,
    "killed with etcd member": KilledWithEtcdMember,
    "etcd quorum lost": QuorumLost,
}


class Life:
    """A persistent open from its CREATE to its CLOSE."""

    def __init__(self, cluster: ClusterLab, asked: Asked) -> None:
        self.cluster = cluster
        self._connect = asked.connect
        self.name = f"f{next(_counter)}"
        self.share = self.client()
        self.file: PersistentFile | None = None

    def client(self) -> PersistentShare:
        return PersistentShare(self._connect, SHARE, USER, PASSWORD, 30.0)

    async def do(self, step: str) -> None:
        if step == "open":
            self.file = await self.share.open(self.name, share=int(ShareAccess.READ), lease_state=RWH)
            return
        assert self.file is not None
        if step == "write":
            await self.file.write(0, DATA)
        elif step == "lock":
            await self.file.lock(0, 100)
        else:
            await self.file.close()

    async def check(self, done: tuple[str, ...]) -> None:
        """What was acknowledged holds; asked of whoever serves the share now."""
        path = self.cluster.share / self.name
        assert path.exists()
        assert path.read_bytes() == (DATA if "write" in done else b"")
        other = self.client()
        try:
            # It comes back by itself, too: losing an etcd member may cost a pause.
            await other.until_done(lambda tree: self._look(tree, done))
        finally:
            await other.close()

    async def _look(self, tree: Tree, done: tuple[str, ...]) -> None:
        """With another client's eyes."""
        if "close" in done:
            alone = await tree.create(self.name, disposition=CreateDisposition.OPEN, share=0)
            await tree.close(alone)
            return
        if self.file is not None:
            # A client comes back by itself; one that does not has its handle for as long as it wanted it, no longer.
            await self.share.until_done(self.file._attached)
        # Share modes, and the lock: 3.3.5.9, 3.3.5.14.
        with pytest.raises(ServerError) as caught:
            await tree.create(self.name, disposition=CreateDisposition.OPEN, share=0)
        assert caught.value.status == NtStatus.SHARING_VIOLATION
        if "lock" in done:
            reader = await tree.create(self.name, access=0x00120089, disposition=CreateDisposition.OPEN, share=7)
            with pytest.raises(ServerError) as caught:
                await tree.read(reader, 0, 10)
            assert caught.value.status == NtStatus.FILE_LOCK_CONFLICT
            await tree.close(reader)


async def elections(cluster: ClusterLab) -> int:
    """How many etcd's members have had."""
    found = 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        for member in cluster.etcd.members:
            try:
                async with session.post(f"http://{member.client}/v3/maintenance/status", json={}) as response:
                    found = max(found, int((await response.json(content_type=None))["header"]["raft_term"]))
            except (aiohttp.ClientError, TimeoutError):
                # Killed or cut off: then the others know.
                continue
    assert found
    return found


def owners_since(cluster: ClusterLab, first: Entry) -> list[str]:
    """Return the owners of the service, one after the other, as etcd has recorded them since ``first``."""

    async def read(admin: Admin) -> list[str]:
        # A machine that is too busy to renew a lease in time leaves the service without an owner for a moment.
        give_up = time.monotonic() + BOUND
        while (last := await admin.store.get(first.key)) is None:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.1)
        found = [decode(first.value)["node"]]
        if last.version > first.version:
            async for change in admin.store.watch(first.key, first.version):
                if change.value is not None and (node := decode(change.value)["node"]) != found[-1]:
                    found.append(node)
                if change.version >= last.version:
                    break
        return found

    return cluster.ask(read)


def owner(cluster: ClusterLab) -> Entry:
    """Return the entry that names the present owner of the service."""

    async def read(admin: Admin) -> Entry:
        found = await admin.store.get(f"{admin.prefix}services/one/owner")
        assert found is not None
        return found

    return cluster.ask(read)


async def play(cluster: ClusterLab, fault: Fault, step: str) -> None:
    first = await asyncio.to_thread(owner, cluster)
    asked = Asked(cluster)
    life = Life(cluster, asked)
    await life.share.until_done(_itself)
    done: tuple[str, ...] = ()
    before = await elections(cluster)
    for name in STEPS:
        done += (name,)
        if name != step:
            await life.do(name)
            continue
        try:
            await fault.strike(asked)
            acting = asyncio.ensure_future(life.do(name))
            await asyncio.sleep(0.1)
            await fault.settle(life.share)
            start = time.monotonic()
            await acting
            took = time.monotonic() - start
            elected = await elections(cluster) > before
            more = ", with an election" if elected else ""
            print(f"{type(fault).__name__} at {step}: done after {took:.2f} s{more}")
            assert took < BOUND + elected * ELECTION
            await life.check(done)
        finally:
            await fault.undo()
        await asyncio.sleep(0.5)
        await life.check(done)
    await life.check(done)
    await asked.stop()
    await life.share.close()
    owners = await asyncio.to_thread(owners_since, cluster, first)
    print(f"answers {asked.answers}, owners {owners}")
    # Nobody answered before it owned the service, or after it was followed by the other.
    turns = iter(owners)
    assert all(node in turns for node in asked.answers)
    # Each election may take longer than a lease lives; a member that comes back may force another one.
    assert owners in fault.owners or await elections(cluster) > before


async def _itself(tree: Tree) -> Tree:
    return tree


IN_EVERY_RUN = {"killed": "open", "stopped": "write", "cut off": "lock", "etcd member cut off": "open"}
"""All others are in the long one."""


def _cases() -> Iterator[object]:
    for fault in FAULTS:
        for step in STEPS:
            marks = () if IN_EVERY_RUN.get(fault) == step else (pytest.mark.long,)
            yield pytest.param(fault, step, marks=marks, id=f"{fault.replace(' ', '-')}-{step}")


@pytest.mark.parametrize(("fault", "step"), list(_cases()))
def test_fault_at_step(cluster: ClusterLab, fault: str, step: str) -> None:
    cluster.network.inside(CLIENT, lambda: play(cluster, FAULTS[fault](cluster), step))
