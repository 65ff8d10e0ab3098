"""A node is stopped in each step of a request, and goes on after another one has acknowledged newer data.

Whatever it does then, nothing that was acknowledged may be lost. The one step in which only fencing helps is the system
call itself. The service has no addresses of its own, so that late answers would arrive.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.transports import open_tcp
from smb3server.client.protocol.tree import RemoteFile, Tree
from smb3server.cluster.cluster import STARTUP_GRACE
from smb3server.wire import read_write
from smb3server.wire.header import HEADER, HEADER_SIZE, Command
from smbdirect.errors import ConnectionLost, ProtocolError
from smbdirect.message_transport import MessageTransport
from tests.lab.nodes import PASSWORD, USER
from tests.lab.persistent import PersistentShare
from tools.cluster import lab
from tools.cluster.lab import CLIENT, PORT, SHARE, ClusterLab, share_section

pytestmark = pytest.mark.root

TTL = 2
SIZE, BLOCKS = 4096, 12
OLD, LATE, NEW = b"0" * SIZE, b"1" * SIZE, b"2" * SIZE
KILLS = """
if test -e {folder}/no-power; then echo "no power switch" >&2; exit 3; fi
read -r pid < {folder}/$1.pid
echo "$1" >> {folder}/fenced
kill -KILL $pid
until ! grep -q '^State:.[^ZX]' /proc/$pid/status; do sleep 0.05; done
"""
"""Fences a node of this test: ends its process, and waits until it is dead."""


class Cluster:
    """Nodes "a" and "b"; the service is on a."""

    def __init__(self, folder: Path, fences: bool) -> None:
        self.folder = folder
        self.fences = fences
        folder.chmod(0o755)
        (folder / "share").mkdir()
        script = folder / "fence.sh"
        script.write_text(KILLS.replace("{folder}", str(folder)))
        text = '[[service]]\nname = "one"\nnodes = ["a", "b"]\n' + share_section(SHARE, folder / "share", "one")
        self.lab = ClusterLab(
            folder,
            sections=text,
            ttl=TTL,
            program=("-m", "tests.lab.pausing", str(folder)),
            cluster_options=f'fence_command = ["sh", "{script}", "{{node}}"]' if fences else "",
        )

    def prepare(self) -> None:
        """Bring the service to a, with both nodes there for long enough to take over at once."""
        for name in ("pause", "fenced"):
            (self.folder / name).unlink(missing_ok=True)
        started = [node for node in self.lab.nodes.values() if node.process is None]
        self.lab.gather("a", ["one"])
        for node in self.lab.nodes.values():
            assert node.process is not None
            (self.folder / f"{node.name}.pid").write_text(f"{node.process.pid}\n")
        time.sleep(STARTUP_GRACE + 1 if started else 0)


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := lab.why_not():
        pytest.skip(reason)
    made = Cluster(tmp_path_factory.mktemp("paused"), request.param)
    with made.lab:
        made.lab.wait_for_service("one", "a")
        time.sleep(STARTUP_GRACE + 1)
        yield made


def write_all(tree: Tree, file: RemoteFile, data: bytes) -> asyncio.Task[object]:
    """Send one message with a WRITE to each block, then a READ of the first one."""
    client, session = tree.client, tree.session
    signed = session.signer is not None and session.sign
    futures, parts = [], []
    for number in range(BLOCKS + 1):
        last = number == BLOCKS
        command = Command.READ if last else Command.WRITE
        call = client._enter(command, 1, session, tree.tree_id, signed, False, 0)
        futures.append(call.future)
        if last:
            body = read_write.READ_REQUEST.pack(
                read_write.ReadRequest(length=SIZE, persistent=file.file_id[0], volatile=file.file_id[1])
            )
        else:
            request = read_write.WriteRequest(
                data_offset=HEADER_SIZE + read_write.WRITE_REQUEST.size,
                length=SIZE,
                offset=number * SIZE,
                persistent=file.file_id[0],
                volatile=file.file_id[1],
            )
            body = read_write.WRITE_REQUEST.pack(request) + data
        size = HEADER_SIZE + len(body)
        padding = 0 if last else -size & 7
        header = call.header._replace(next_command=0 if last else size + padding)
        message = bytearray(HEADER.pack(header) + body + bytes(padding))
        if signed and session.signer is not None:
            message[48:64] = session.signer.expect(memoryview(message))
        parts.append(bytes(message))
    client.transport.send([b"".join(parts)])
    return asyncio.ensure_future(asyncio.gather(*futures, return_exceptions=True))


class Scene:
    """A client with data at a, whose request is under way when a stops."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node = "a"
        self.share = PersistentShare(self._connect, SHARE, USER, PASSWORD, 40.0)

    async def _connect(self) -> MessageTransport:
        return await open_tcp(self.cluster.lab.network.address(self.node), PORT, 1.0)

    async def play(self, kind: str, point: str) -> list[int]:
        """Return the blocks whose acknowledged data is lost."""
        folder, a = self.cluster.folder, self.cluster.lab.nodes["a"]
        file = await self.share.open("file", share=7)
        for number in range(BLOCKS):
            await file.write(number * SIZE, OLD)
        tree = self.share.tree
        assert tree is not None
        raw = await file._attached(tree)
        if kind == "chain":
            # Not persistent: its WRITEs do not wait until they are flushed.
            raw = await tree.create("file", 0xC0000000, 1, share=7)
        (folder / "pause").write_text(point)
        late: asyncio.Future[object]
        if kind == "chain":
            late = write_all(tree, raw, LATE)
        elif kind == "read":
            late = asyncio.ensure_future(tree.read(raw, 0, SIZE))
        else:
            late = asyncio.ensure_future(tree.write(raw, 0, LATE))
        async with asyncio.timeout(10):
            while (folder / "pause").exists():
                await asyncio.sleep(0.02)
        # The client gives the connection up, and does its work at the other node.
        self.share.tree, self.node = None, "b"
        for number in range(BLOCKS):
            await file.write(number * SIZE, NEW)
        if a.process is not None and a.process.poll() is None:
            a.send(signal.SIGCONT)
        await asyncio.sleep(1.5)
        answer: object = None
        if late.done():
            answer = late.exception() or late.result()
        late.cancel()
        disk = (folder / "share" / "file").read_bytes()
        lost = [number for number in range(BLOCKS) if disk[number * SIZE : (number + 1) * SIZE] != NEW]
        assert await file.read(0, SIZE) == disk[:SIZE]
        await file.close()
        await self.share.close()
        tree.client.transport.abort("done")
        if point != "answer":
            assert not isinstance(answer, bytes | int), "answered after another node has"
            for part in answer if isinstance(answer, list) else ():
                assert isinstance(part, ConnectionLost | ProtocolError | ServerError | OSError)
        return lost


CASES = [
    *(("write", point) for point in ("received", "asked", "write", "written", "fsync", "answer")),
    *(("chain", point) for point in ("received", "asked", "write", "written")),
    *(("read", point) for point in ("received", "asked", "read", "have-read")),
]
IN_EVERY_RUN = {(False, "chain", "written"), (True, "write", "write")}
"""All others are in the long one."""


def _cases() -> Iterator[object]:
    for fences in (False, True):
        for kind, point in CASES:
            marks = () if (fences, kind, point) in IN_EVERY_RUN else (pytest.mark.long,)
            name = f"{kind}-{point}-{'fenced' if fences else 'not fenced'}"
            yield pytest.param(fences, kind, point, marks=marks, id=name)


@pytest.mark.parametrize(("shared", "kind", "point"), list(_cases()), indirect=["shared"])
def test_paused_at_step(shared: Cluster, kind: str, point: str) -> None:
    shared.prepare()
    lost: list[int] = []

    async def body() -> None:
        lost.extend(await Scene(shared).play(kind, point))

    shared.lab.network.inside(CLIENT, body)
    if shared.fences:
        assert (shared.folder / "fenced").read_text() == "a\n"
        shared.lab.nodes["a"].kill()
        assert not lost
    else:
        # The call that had begun cannot be stopped by the node itself.
        assert lost == ([0] if kind != "read" and point in ("write", "asked") else [])


@pytest.mark.long
@pytest.mark.parametrize("shared", [True], indirect=True, ids=["fenced"])
def test_a_node_that_cannot_be_fenced(shared: Cluster) -> None:
    """Nobody takes its service over, until the administrator says that it is off."""
    shared.prepare()
    cluster = shared.lab
    (shared.folder / "no-power").touch()
    try:
        with pytest.raises(lab.LabError, match="no service waits"):
            cluster.admin("fenced", "b")
        with pytest.raises(lab.LabError, match="node a is up"):
            cluster.admin("fenced", "a")
        cluster.nodes["a"].send(signal.SIGSTOP)
        cluster.wait_until(
            lambda: "cannot be fenced: exit status 3: no power switch" in cluster.admin("status"), "said"
        )
        status = cluster.admin("status", "--quick")
        assert "fencing a" in status and "smb3server cluster fenced a" in status
        assert cluster.served()["one"] is None
        cluster.nodes["a"].kill()
        assert "other nodes may take one" in cluster.admin("fenced", "a")
        cluster.wait_for_service("one", "b")
        assert "fencing" not in cluster.admin("status")
    finally:
        (shared.folder / "no-power").unlink()


@pytest.mark.long
@pytest.mark.parametrize("shared", [True], indirect=True, ids=["fenced"])
def test_who_gives_a_service_up_is_not_fenced(shared: Cluster) -> None:
    """A planned move, and a server that is stopped or that comes back before another one has its service."""
    shared.prepare()
    cluster = shared.lab
    cluster.admin("move", "one", "b")
    cluster.admin("move", "one", "a")
    cluster.nodes["a"].kill(signal.SIGTERM)
    cluster.wait_for_service("one", "b")
    cluster.nodes["a"].start()
    cluster.wait_until(lambda: cluster.up() == {"a", "b"}, "a back")
    assert not (shared.folder / "fenced").exists()
