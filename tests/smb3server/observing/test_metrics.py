"""Metrics for Prometheus: what they say, the port, the dashboard and the rules that use them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from smb3server.client.protocol.messages import ServerError
from smb3server.dispatch.measuring import CLASSES
from smb3server.files.recycling import Emptied
from smb3server.observing import metrics, metrics_port
from smb3server.observing.loop_lag import LoopLag
from smb3server.observing.metrics_port import MetricsPort
from smb3server.persistence.etcd_health import MemberState
from smb3server.process.storage_queue import StorageQueue
from smb3server.status.cluster_state import ClusterState
from smb3server.status.model import ClusterRecord, EtcdMember, EtcdRecord, ServiceRecord
from smb3server.wire.create import Access, CreateDisposition
from tests.lab.harness import Lab, lab

ACCESS = int(Access.READ_DATA | Access.WRITE_DATA)
ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "dist" / "grafana" / "smb3server.json"
ALERTS = ROOT / "dist" / "prometheus" / "alerts.yml"
PAGE = ROOT / "docs" / "metrics.md"

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Audit:
    written = 3
    lost = 1


class Node:
    """A node of a cluster, as it reports itself."""

    def report(self) -> ClusterRecord:
        full = MemberState("http://m1", size=90, quota=100, has_leader=True, alarms=["NOSPACE"])
        service = ServiceRecord("files", True, "a", [], [], restored=7, takeovers=2, losses=1, clients=0, opens=0)
        states = [full, MemberState("http://m2", error="Connection refused")]
        etcd = EtcdRecord(0.25, [EtcdMember(**state.as_json()) for state in states], [])
        return ClusterRecord("c", "a", True, 3.5, ["a"], [service], 0, None, etcd)


def read(
    scene: Lab, lag: LoopLag | None = None, audit: Audit | None = None, cluster: ClusterState | None = None
) -> Values:
    text = metrics.text(metrics.registry(scene.server, lag, audit, cluster)).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(values: Values, name: str, **labels: str) -> float:
    return values[name, frozenset(labels.items())]


def play(root: Path, body: Callable[[Lab], Awaitable[None]]) -> None:
    async def run() -> None:
        async with lab(root) as scene:
            await body(scene)

    asyncio.run(run())


def test_metrics_say_what_happened(tmp_path: Path) -> None:
    async def body(scene: Lab) -> None:
        scene.server.measuring.count()
        async with scene.tree() as tree:
            file = await tree.create("f", ACCESS, CreateDisposition.CREATE)
            await tree.write(file, 0, b"x" * 1000)
            await tree.read(file, 0, 1000)
            found = read(scene)
            assert value(found, "smb3server_connections", fabric="tcp") == 1
            assert value(found, "smb3server_sessions", kind="user") == 1
            assert value(found, "windows_smb_server_shares_open_files", share="share") == 1
            assert value(found, "windows_smb_server_shares_current_open_file_count", share="share") == 1
            assert value(found, "windows_smb_server_shares_tree_connects", share="share") == 1
            assert value(found, "windows_smb_server_shares_received_bytes_total", share="share") == 1000
            assert value(found, "windows_smb_server_shares_sent_bytes_total", share="share") == 1000
            assert value(found, "windows_smb_server_shares_read_requests_total", share="share") == 1
            assert value(found, "windows_smb_server_shares_files_opened_total", share="share") == 1
            assert value(found, "samba_individual_user_count") == 1
            assert value(found, "samba_locked_file_count") == 1
            assert value(found, "smb3server_request_duration_seconds_count", command="read") == 1
            assert value(found, "smb3server_credits", fabric="tcp") > 1
            before = value(found, "smb3server_message_bytes_total", fabric="tcp", direction="received")
            with pytest.raises(ServerError):
                await tree.create("none", ACCESS, CreateDisposition.OPEN)
        async with asyncio.timeout(10):
            while scene.server.connection_list:
                await asyncio.sleep(0.005)
        found = read(scene, audit=Audit())
        assert value(found, "smb3server_connections", fabric="tcp") == 0
        assert value(found, "smb3server_connections_ended_total", fabric="tcp") == 1
        # What ended connections have carried is not forgotten: counters never fall.
        assert value(found, "smb3server_message_bytes_total", fabric="tcp", direction="received") > before
        assert value(found, "smb3server_request_errors_total", command="create", status="OBJECT_NAME_NOT_FOUND") == 1
        assert value(found, "smb3server_logons_total") == 1
        assert value(found, "smb3server_audit_lost_total") == 1

    play(tmp_path, body)


def test_bytes_by_rdma_have_fabric_and_direction(tmp_path: Path) -> None:
    async def body(scene: Lab) -> None:
        async with scene.tree(rdma=True) as tree:
            file = await tree.create("f", ACCESS, CreateDisposition.CREATE)
            await tree.write(file, 0, b"x" * 100_000)
            await tree.read(file, 0, 100_000)
            found = read(scene)
        assert value(found, "smb3server_rdma_bytes_total", fabric="loopback", direction="received") == 100_000
        assert value(found, "smb3server_rdma_bytes_total", fabric="loopback", direction="sent") == 100_000

    play(tmp_path, body)


def test_a_node_tells_of_its_cluster(tmp_path: Path) -> None:
    async def body(scene: Lab) -> None:
        found = read(scene, cluster=Node())
        assert value(found, "smb3server_cluster_member") == 1
        assert value(found, "smb3server_cluster_lease_seconds") == 3.5
        assert value(found, "smb3server_cluster_takeovers_total", service="files") == 2
        assert value(found, "smb3server_cluster_service_restored_opens", service="files") == 7
        assert value(found, "smb3server_etcd_read_seconds") == 0.25
        assert value(found, "smb3server_etcd_alarms", member="http://m1") == 1
        assert value(found, "smb3server_etcd_member_up", member="http://m2") == 0
        assert ("smb3server_etcd_size_bytes", frozenset([("member", "http://m2")])) not in found

    play(tmp_path, body)


def test_without_counting_there_are_no_times(tmp_path: Path) -> None:
    async def body(scene: Lab) -> None:
        async with scene.tree():
            names = {name for name, _ in read(scene)}
        assert "smb3server_logons_total" in names
        assert not any(name.startswith("smb3server_request_duration") for name in names)

    play(tmp_path, body)


def test_the_lag_of_the_loop_is_a_histogram(tmp_path: Path) -> None:
    async def body(scene: Lab) -> None:
        lag = LoopLag()
        lag.note(-0.1)
        lag.note(0.003)
        lag.start()
        lag.stop()
        found = read(scene, lag)
        assert value(found, "smb3server_event_loop_lag_seconds_count") == 2
        assert value(found, "smb3server_event_loop_lag_seconds_bucket", le="0.004096") == 2
        assert value(found, "smb3server_event_loop_lag_seconds_bucket", le="0.002048") == 1
        assert len(lag.classes) == CLASSES

    play(tmp_path, body)


async def ask(port: MetricsPort, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*port.address)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def test_the_port_answers_get_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "PATIENCE", 0.05)

    async def run() -> None:
        port = MetricsPort(lambda: b"a 1\n")
        port.start("127.0.0.1", 0)
        try:
            answer = await ask(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
            assert answer.endswith(b"\r\n\r\na 1\n")
            assert (await ask(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
            assert (await ask(port, b"GET /healthz HTTP/1.0\r\n\r\n")).endswith(b"ok\n")
            assert b" 404 " in await ask(port, b"GET /../etc/passwd HTTP/1.1\r\n\r\n")
            assert b" 405 " in await ask(port, b"POST /metrics HTTP/1.1\r\n\r\n")
            assert b" 400 " in await ask(port, b"\xff\xfe\r\n\r\n")
            # Neither endless heads nor silence hold a connection.
            assert await ask(port, b"GET " + b"x" * 20_000) == b""
            assert await ask(port, b"GET") == b""
            assert not port.connections
        finally:
            await port.close()

    asyncio.run(run())


def test_a_client_that_does_not_read_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "PATIENCE", 0.2)
    size = 16 << 20

    async def run() -> None:
        port = MetricsPort(lambda: bytes(size))
        port.start("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        with socket.socket() as slow:
            slow.setblocking(False)
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(slow, port.address)
            await loop.sock_sendall(slow, b"GET /metrics HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(20):
                while not port.connections:
                    await asyncio.sleep(0.01)
                while port.connections:
                    await asyncio.sleep(0.01)
                # What the system has taken may still come, but the server keeps nothing back for later.
                received = 0
                with contextlib.suppress(ConnectionResetError):
                    while data := await loop.sock_recv(slow, 1 << 20):
                        received += len(data)
        assert received < size
        await port.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("address", "is_here"), [("127.9.9.9", True), ("::1", True), ("192.0.2.1", False), ("fe80::1%eth0", False)]
)
def test_this_machine_may_always_ask(address: str, is_here: bool) -> None:
    assert metrics_port.is_this_machine(address) is is_here


def test_one_address_does_not_keep_others_out() -> None:
    async def run() -> None:
        port = MetricsPort(lambda: b"a 1\n", lambda host: False)
        port.start("127.0.0.1", 0)
        crowd = [await asyncio.open_connection(*port.address) for _ in range(40)]
        await asyncio.sleep(0.1)
        assert port.connections == metrics_port.MAX_CLIENTS_PER_ADDRESS
        reader, writer = await asyncio.open_connection(*port.address, local_addr=("127.0.0.77", 0))
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"ok\n")
        for _, stream in (*crowd, (reader, writer)):
            stream.transport.abort()
        await port.close()
        assert port.connections == 0

    asyncio.run(run())


def exported(tmp_path: Path) -> set[str]:
    """All names that a server may export, with what histograms add."""
    names: set[str] = set()

    async def body(scene: Lab) -> None:
        scene.server.measuring.count()
        async with scene.tree(rdma=True) as tree:
            await tree.close(await tree.create("f", ACCESS, CreateDisposition.CREATE))
            with pytest.raises(ServerError):
                await tree.create("none", ACCESS, CreateDisposition.OPEN)
            with pytest.raises(ServerError):
                await tree.session.tree_connect("none")  # type: ignore[attr-defined]
            scene.server.events.counts.refused_logons["wrong_password"] += 1
            for share in scene.server.share_list.values():
                share.emptied = Emptied()
                share.queue = StorageQueue(share.name)
            names.update(name for name, _ in read(scene, LoopLag(), Audit(), Node()))
            for share in scene.server.share_list.values():
                share.queue = None

    play(tmp_path, body)
    return names


@pytest.fixture
def names(tmp_path: Path) -> Iterator[set[str]]:
    yield exported(tmp_path)


_NAME = re.compile(r"\b((?:smb3server|windows_smb_server_shares|samba|process|python)_[a-z0-9_]+)\b")


def used(text: str) -> set[str]:
    return set(_NAME.findall(text))


def test_the_dashboard_shows_metrics_that_exist(names: set[str]) -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert board["uid"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 8
    for panel in panels:
        for target in panel["targets"]:
            found = used(target["expr"])
            assert found, panel["title"]
            assert found <= names, f"{panel['title']}: {found - names}"
            assert target["expr"].count("(") == target["expr"].count(")")
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24


def test_the_rules_use_metrics_that_exist(names: set[str]) -> None:
    expressions = re.findall(r"^\s+expr: (.+)$", ALERTS.read_text(), re.MULTILINE)
    assert len(expressions) >= 6
    assert all(used(text) for text in expressions if "up{" not in text)
    assert used("\n".join(expressions)) <= names


def test_the_page_names_every_metric(names: set[str]) -> None:
    page = PAGE.read_text()
    ours = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names if name.startswith("smb3server_")}
    assert ours - used(page) == set()
    named = used(page) - {"smb3server_request_duration_seconds", "smb3server_event_loop_lag_seconds"}
    assert {name for name in named if name.startswith(("smb3server_", "windows_"))} <= names
