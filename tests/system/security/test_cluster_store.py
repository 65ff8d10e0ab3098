"""A cluster whose etcd wants TLS, certificates and a user, and whose records bear seals: what others write is
ignored."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.client.protocol import Client
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.transports import open_tcp
from smb3server.cluster.view import coordination_prefix
from smb3server.net.store_access import etcd_access
from smb3server.net.store_url import parse_url
from smb3server.persistence.etcd import EtcdStore
from smb3server.persistence.seal import Seal
from smb3server.persistence.store import DeletePrefix
from smb3server.settings.cluster import DEFAULT_NAME
from smb3server.wire.create import ShareAccess
from smb3server.wire.create_contexts import (
    DURABLE_RECONNECT_V2,
    DURABLE_RECONNECT_V2_CODEC,
    DurableReconnectV2,
    RawContext,
)
from smb3server.wire.status import NtStatus
from tests.lab.etcd import TOKEN_TTL, SecuredEtcd
from tests.lab.nodes import PASSWORD, USER, Node, asked, client
from tools.support import own_user

ID, CREATE_GUID, CLIENT_GUID = 0x1234567890, b"c" * 16, b"g" * 16
EXPIRED = TOKEN_TTL + 3.0
"""Seconds after which a token that nobody used is no good."""


class Cluster:
    def __init__(self, folder: Path, etcd: SecuredEtcd) -> None:
        self.etcd = etcd
        self.share = folder / "share"
        self.share.mkdir()
        sections = (
            '[[service]]\nname = "one"\nnodes = ["a", "b"]\n'
            f'[[share]]\nname = "data"\npath = "{self.share}"\n{own_user.LINE}'
            'continuous_availability = true\nservice = "one"\n'
        )
        self.a, self.b = (Node(folder, name, etcd.url, sections, cluster_options=etcd.options) for name in "ab")

    def stop(self) -> None:
        self.a.kill()
        self.b.kill()

    def forget_file_systems(self) -> None:
        """Remove the marks of the shares' file systems: the next test has a folder of its own."""

        async def body() -> None:
            store = EtcdStore(parse_url(self.etcd.url), access=etcd_access(self.etcd.url, self.etcd.access))
            await store.commit([DeletePrefix(f"{coordination_prefix(DEFAULT_NAME)}services/one/storage/")])
            await store.close()

        asyncio.run(body())

    def admin(self, *arguments: str) -> str:
        """What the command says when it succeeds."""
        status, out, errors = asked(self.etcd.url, *arguments, *self.etcd.arguments)
        assert status == 0, errors
        return out

    def status(self) -> dict[str, Any]:
        found = json.loads(self.admin("status", "--json"))
        assert isinstance(found, dict)
        return found

    def node_of(self) -> str | None:
        """Who serves the service; None until a node has made it known, too."""
        return next((service["node"] for service in self.status()["services"] if service["serving"]), None)

    def start_a(self) -> None:
        """Start the first node, and return when it serves the service. The store may still show the record of a node of
        the same name, whose lease has not expired: that of another test."""
        self.a.start()
        self.wait(lambda: "a joined the cluster" in self.a.log())
        self.wait(lambda: self.node_of() == "a")

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.a.log()[-3000:] + self.b.log()[-3000:]
            time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path, secured: SecuredEtcd) -> Iterator[Cluster]:
    found = Cluster(tmp_path, secured)
    try:
        yield found
    finally:
        found.stop()
        found.admin("purge")
        found.forget_file_systems()


def forged_open(path: Path) -> bytes:
    """What a server of before seals would have acted upon: the user has all access to a file, as root."""
    return json.dumps({
        "format": 1, "id": ID, "share": "data", "path": [path.name], "stream": "", "inode": path.stat().st_ino,
        "directory": False, "create_guid": CREATE_GUID.hex(), "client_guid": CLIENT_GUID.hex(),
        "identity": [USER, "", False, False], "user": [0, 0, []], "timeout": 300.0, "access": [0x1F01FF, 0x1F01FF, 7],
        "options": 0, "action": 1, "delete": [False, False], "caching": None, "locks": "", "sequences": [],
        "app": None, "app_version": None,
    }).encode()  # fmt: skip


async def reconnect(node: Node, name: str) -> int:
    """The status of coming back to the forged open."""
    connection = await Client.connect(await open_tcp("127.0.0.1", node.port), client_guid=CLIENT_GUID)
    try:
        session = await connection.log_on(USER, PASSWORD)
        tree = await session.tree_connect("data")
        wanted = DURABLE_RECONNECT_V2_CODEC.pack(DurableReconnectV2(ID, 0, CREATE_GUID, 2))
        try:
            await tree.create(name, 0x12019F, contexts=[RawContext(DURABLE_RECONNECT_V2, wanted)])
        except ServerError as error:
            return error.status
        return int(NtStatus.SUCCESS)
    finally:
        await connection.close()


def test_forged_records_do_nothing_and_are_shown(cluster: Cluster) -> None:
    """An open, a drain, a move and a node, by somebody who may write to etcd and does not know the secret; one of them
    under another cluster's secret."""
    secret = cluster.share / "secret.txt"
    secret.write_text("root's")
    secret.chmod(0o600)
    put, prefix = cluster.etcd.ask_put, "smb3server/"
    key = f"{prefix}state/one/opens/{ID:016x}"
    put(key, forged_open(secret))
    put(f"{prefix}c/draining/a", b"{}")
    target = f"{prefix}c/services/one/target"
    put(target, Seal(b"another secret of 16", "smb3server").close(target, b'{"node": "b"}'))
    put(f"{prefix}c/nodes/evil", b'{"addresses": ["192.0.2.66"], "lease": 1}')
    cluster.start_a()
    assert asyncio.run(reconnect(cluster.a, secret.name)) == NtStatus.OBJECT_NAME_NOT_FOUND
    cluster.b.start()
    cluster.wait(lambda: "b joined" in cluster.b.log())
    status = cluster.status()
    assert [node["name"] for node in status["nodes"]] == ["a", "b"]
    assert not any(node["draining"] for node in status["nodes"])
    wanted = {key, target, f"{prefix}c/draining/a", f"{prefix}c/nodes/evil"}
    assert set(status["refused"]) == wanted
    shown = cluster.admin("status")
    assert all(repr(name) in shown for name in wanted) and "smb3server cluster purge" in shown
    assert cluster.a.log().count(f"{key!r} in the store is ignored") == 1
    assert secret.read_text() == "root's"
    removed = cluster.admin("purge")
    assert all(repr(name) in removed for name in wanted) and "4 records removed" in removed
    assert cluster.status()["refused"] == {}
    assert cluster.node_of() == "a"


def test_an_owner_key_that_somebody_takes_away_ends_the_ownership(cluster: Cluster) -> None:
    """So no two nodes serve side by side, and the service comes back once the forged record is gone."""
    cluster.start_a()
    cluster.etcd.ask_put("smb3server/c/services/one/owner", b'{"node": "b"}')
    cluster.wait(lambda: "another party changed its owner key" in cluster.a.log())
    cluster.wait(lambda: cluster.node_of() is None)
    cluster.admin("purge")
    cluster.wait(lambda: cluster.node_of() == "a")


def test_an_event_that_somebody_puts_there_again_does_nothing(cluster: Cluster) -> None:
    """As it was, seal and all, under the same key."""
    cluster.start_a()

    async def captured() -> tuple[str, bytes]:
        store = EtcdStore(parse_url(cluster.etcd.url), access=etcd_access(cluster.etcd.url, cluster.etcd.access))
        try:
            changes = store.watch("smb3server/c/events/")
            first = asyncio.ensure_future(anext(changes))
            asking = asyncio.ensure_future(asyncio.to_thread(cluster.status))
            change = await asyncio.wait_for(first, 30)
            await asking
            assert change.value is not None
            return change.key, change.value
        finally:
            await store.close()

    key, value = asyncio.run(captured())
    assert "is not a new event" not in cluster.a.log()
    cluster.etcd.ask_put(key, value)
    cluster.wait(lambda: f"{key!r} is not a new event" in cluster.a.log())


@pytest.mark.long
def test_opens_survive_takeovers_and_tokens(cluster: Cluster) -> None:
    cluster.start_a()
    cluster.b.start()
    cluster.wait(lambda: "b joined" in cluster.b.log())

    async def body() -> None:
        share = client([cluster.a, cluster.b], patience=60)
        file = await share.open("f", share=int(ShareAccess.READ))
        await file.write(0, b"one")
        await asyncio.sleep(EXPIRED)
        await asyncio.to_thread(cluster.admin, "move", "one", "b")
        await file.write(3, b" two")
        await asyncio.sleep(EXPIRED)
        cluster.b.kill()
        await file.write(7, b" three")
        await file.close()
        await share.close()

    asyncio.run(asyncio.wait_for(body(), 120))
    assert (cluster.share / "f").read_bytes() == b"one two three"
    for node in (cluster.a, cluster.b):
        assert "Traceback" not in node.log() and "is refused" not in node.log()
    assert "lease not renewed" not in cluster.a.log()


def test_who_does_not_know_the_secret_steers_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_a()
    other = tmp_path / "other.secret"
    other.touch(mode=0o600)
    other.write_text("another secret of 16\n")
    for less in (cluster.etcd.arguments[:-2], [*cluster.etcd.arguments[:-1], str(other)]):
        for command in (("drain", "a"), ("move", "one", "b"), ("purge",)):
            if command == ("purge",) and str(other) in less:
                # It would remove what is not its own; rights in etcd are what keeps others from that.
                continue
            status, _, errors = asked(cluster.etcd.url, *command, *less)
            assert status == 1 and errors.count("\n") == 1, errors
            assert "secret" in errors or "its record is refused" in errors or "no node b" in errors
    assert cluster.node_of() == "a"


def test_a_node_with_a_wrong_password_says_so_and_goes_on_trying(tmp_path: Path, secured: SecuredEtcd) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("wrong\n")
    options = secured.options.replace(str(secured.password_file), str(wrong))
    node = Node(tmp_path, "x", secured.url, "", cluster_options=options)
    (tmp_path / "local").mkdir()
    node.config.write_text(node.config.read_text() + f'[[share]]\nname = "l"\npath = "{tmp_path / "local"}"\n')
    node.start()
    try:
        deadline = time.monotonic() + 30
        while "cannot join the cluster" not in node.log():
            assert time.monotonic() < deadline, node.log()
            time.sleep(0.1)
        line = next(line for line in node.log().splitlines() if "cannot join the cluster" in line)
        assert "authentication failed" in line and "remedy: check `user` and `password_file`" in line
        assert node.log().count("cannot see the cluster") <= 1
        assert "wrong" not in node.log().replace(str(wrong), "")
    finally:
        node.kill()


def test_a_secret_that_others_may_read_ends_the_start(tmp_path: Path, secured: SecuredEtcd) -> None:
    loose = tmp_path / "loose"
    loose.write_text("0123456789abcdef\n")
    loose.chmod(0o644)
    options = secured.options.replace(str(secured.secret_file), str(loose))
    node = Node(tmp_path, "x", secured.url, f'[[share]]\nname = "l"\npath = "{tmp_path}"\n', cluster_options=options)
    done = subprocess.run(
        [sys.executable, "-m", "smb3server", *node.arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0 and f"chmod 600 {loose}" in done.stderr
