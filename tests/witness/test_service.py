"""The service as a whole: floods, disconnects, many clients, configuration, commands."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from impacket.dcerpc.v5 import epm, transport
from impacket.dcerpc.v5.rpcrt import DCERPCException
from impacket.uuid import uuidtup_to_bin

from smb3server.auth.users import Account, nt_hash
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.reader import read_file
from smb3server.rpc import tcp
from smb3server.service.service import Service
from smb3server.settings.witness import WitnessConfig
from smb3server.state.share import ShareCapabilities
from tests.lab.witness import ADDRESS_A, ADDRESS_B, NET_NAME, PASSWORD, USER, Running, settings
from witness import ndr
from witness.client import WitnessClient, WitnessClientError
from witness.registrations import Limits

CLIENTS = 40


def test_many_clients_are_told_within_a_second(running: Running) -> None:
    def watch(number: int) -> float:
        with running.client() as client:
            registered = client.register(NET_NAME, ADDRESS_A, f"CLIENT-{number}")
            notice = client.wait(registered, 30)
            assert notice is not None
            return time.monotonic()

    with ThreadPoolExecutor(CLIENTS) as pool:
        arrivals = [pool.submit(watch, number) for number in range(CLIENTS)]
        running.wait_for(lambda: sum(bool(entry.waiters) for entry in running.service.registrations) == CLIENTS)
        begin = time.monotonic()
        running.call(running.cluster.node_changed, "NODE-A", False)
        slowest = max(arrival.result(30) for arrival in arrivals) - begin
    assert slowest < 1
    running.wait_for(lambda: len(running.service.registrations) == 0)


def test_flood_of_registrations(running: Running) -> None:
    with running.client() as client, running.client("other") as other:
        for _ in range(running.service.settings.limits.registrations_per_owner):
            client.register(NET_NAME, ADDRESS_A, "CLIENT")
        with pytest.raises(WitnessClientError) as caught:
            client.register(NET_NAME, ADDRESS_A, "CLIENT")
        assert caught.value.status == ndr.Win32.NO_SYSTEM_RESOURCES
        other.register(NET_NAME, ADDRESS_A, "OTHER")


def test_unused_registrations_expire() -> None:
    server = Running(settings(limits=Limits(unused=0.2)))
    try:
        with server.client() as client:
            registered = client.register(NET_NAME, ADDRESS_A, "CLIENT")
            server.wait_for(lambda: len(server.service.registrations) == 0)
            with pytest.raises(WitnessClientError) as caught:
                client.wait(registered)
            assert caught.value.status == ndr.Win32.NOT_FOUND
    finally:
        server.stop()


def test_client_that_vanishes_while_it_waits(running: Running) -> None:
    client = running.client()
    registered = client.register(NET_NAME, ADDRESS_A, "CLIENT")

    def wait() -> None:
        with contextlib.suppress(WitnessClientError):
            client.wait(registered, 30)

    thread = threading.Thread(target=wait)
    thread.start()
    running.wait_for(lambda: any(entry.waiters for entry in running.service.registrations))
    client._socket.shutdown(socket.SHUT_RDWR)
    running.wait_for(lambda: len(running.service.registrations) == 0)
    thread.join(10)
    client.close()
    running.call(running.cluster.node_changed, "NODE-A", False)


@pytest.mark.parametrize("away", [("NODE-A", "NODE-B"), ("NODE-B",)])
def test_interfaces_are_told_once_one_is_there_to_register_with(running: Running, away: tuple[str, ...]) -> None:
    """3.1.4.1: a call waits, is forgotten with its connection, and none at all is an error."""
    cluster, witness = running.cluster, running.service._interface
    for name in away:
        running.call(cluster.node_changed, name, False)
    with running.client() as gone, running.client() as client, ThreadPoolExecutor(2) as pool:
        lost = pool.submit(gone.interfaces)
        told = pool.submit(client.interfaces)
        running.wait_for(lambda: len(witness._waiting) == 2)
        gone._socket.shutdown(socket.SHUT_RDWR)
        running.wait_for(lambda: len(witness._waiting) == 1)
        assert isinstance(lost.exception(10), WitnessClientError)
        running.call(cluster.resource_changed, "elsewhere", True)
        assert not told.done()
        running.call(cluster.node_changed, "NODE-B", True)
        unavailable = {entry.group_name for entry in told.result(10) if entry.state != ndr.InterfaceState.AVAILABLE}
        assert unavailable == set(away) - {"NODE-B"}
        # Who knows no other node has nothing to wait for.
        running.call(cluster.node_changed, "NODE-A", True)
        del cluster.nodes[1:]
        assert [entry.group_name for entry in client.interfaces()] == ["NODE-A"]
        cluster.nodes.clear()
        with pytest.raises(WitnessClientError):
            client.interfaces()


def test_connections_are_bounded() -> None:
    server = Running(settings(max_connections=2))
    try:
        with server.client(), server.client(), pytest.raises(WitnessClientError):
            server.client()
        server.wait_for(lambda: not server.service._listener.connections)
        with server.client() as client:
            client.interfaces()
    finally:
        server.stop()


def test_strangers_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch, running: Running) -> None:
    monkeypatch.setattr(tcp, "AUTHENTICATION_TIMEOUT", 0.1)
    with socket.create_connection(("127.0.0.1", running.service.port)) as sock:
        sock.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    with running.client() as client:
        running.wait_for(lambda: True)
        client.interfaces()


def test_strangers_are_bounded_by_address(running: Running) -> None:
    running.service._listener.unauthenticated.per_source = 2
    with running.client(), running.client():
        strangers = [socket.create_connection(("127.0.0.1", running.service.port)) for _ in range(2)]
        with pytest.raises(WitnessClientError):
            running.client()
        for sock in strangers:
            sock.close()
        running.wait_for(lambda: not running.service._listener.unauthenticated)
        running.client().close()


def test_endpoint_mapper_takes_small_requests_only(running: Running) -> None:
    rpc = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{running.service.mapper_port}]")
    connection = rpc.get_dce_rpc()
    connection.connect()
    connection.bind(epm.MSRPC_UUID_PORTMAP)
    connection.call(3, bytes(5000))
    with pytest.raises(DCERPCException):
        connection.recv()
    with pytest.raises(DCERPCException):
        epm.hept_map("127.0.0.1", uuidtup_to_bin((ndr.UUID_TEXT, "2.0")), protocol="ncacn_ip_tcp", dce=connection)
    connection.disconnect()


def test_noise_ends_the_connection_only(running: Running) -> None:
    for noise in (
        b"GET / HTTP/1.0\r\n\r\n",
        bytes(64),
        b"\x05\x00\x0b\x03\x10\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00",
    ):
        with socket.create_connection(("127.0.0.1", running.service.port)) as sock:
            sock.settimeout(10)
            sock.sendall(noise)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    with running.client() as client:
        assert len(client.interfaces()) == 2


def test_lookup_lists_the_interface(running: Running) -> None:
    rpc = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{running.service.mapper_port}]")
    connection = rpc.get_dce_rpc()
    connection.connect()
    (entry,) = epm.hept_lookup(None, dce=connection)
    floors = entry["tower"]["Floors"]
    assert str(floors[0]).lower() == f"{ndr.UUID_TEXT.lower()} v1.1"
    assert epm.PrintStringBinding(floors) == f"ncacn_ip_tcp:127.0.0.1[{running.service.port}]"
    connection.disconnect()


CONFIGURATION = """
[server]
name = "FILES"
listen = ["127.0.0.1"]
port = 0
rdma = "off"
state = "{state}"
[[share]]
name = "data"
path = "{share}"
[[user]]
name = "u"
password = "pw"
[witness]
endpoint_mapper = false
require_privacy = true
[[witness.node]]
name = "NODE-B"
addresses = ["10.9.0.2", "fd00::2"]
"""


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A whole server: its state directory and the port of its Witness service."""
    (tmp_path / "share").mkdir()
    path = tmp_path / "server.toml"
    path.touch(0o600)
    path.write_text(CONFIGURATION.format(state=tmp_path / "state", share=tmp_path / "share"))
    command = [sys.executable, "-m", "smb3server", "--config", str(path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root) as server:
        try:
            for line in server.stdout or ():
                if found := re.search(r"^ready .*witness 127\.0\.0\.1:(\d+)", line):
                    yield tmp_path / "state", int(found[1])
                    break
            else:
                pytest.fail("the server did not start")
        finally:
            server.terminate()
            server.wait(20)


def command(*arguments: str, status: int = 0) -> str:
    """``smb3server witness``, its output."""
    done = subprocess.run(
        [sys.executable, "-m", "smb3server", "witness", *arguments], capture_output=True, text=True, timeout=60,
        check=False, cwd=Path(__file__).parents[2], env={**os.environ, "PASSWD": PASSWORD},
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if status == 0 else done.stderr


def test_commands_and_configuration(configured: tuple[Path, int]) -> None:
    state, port = configured
    host = ("//127.0.0.1", "--port", str(port), "--user", USER)
    assert f"NODE-B  {ADDRESS_B} fd00::2  available  version 2  witness" in command("list", *host)
    assert "registered and unregistered" in command("register", *host, "--name", NET_NAME, "--address", "10.9.0.9")
    assert "INVALID_PARAMETER" in command("register", *host, "--name", "OTHER", "--address", ADDRESS_A, status=1)
    assert "denied" in command("list", *host, "--sign", status=1)
    watched: list[str] = []
    arguments = ("--name", NET_NAME, "--address", ADDRESS_A, "--share", "data", "--client", "me", "--count", "2")
    thread = threading.Thread(target=lambda: watched.append(command("watch", *host, *arguments)))
    thread.start()
    deadline = time.monotonic() + 30
    while "waits" not in command("status", "--state", str(state)):
        assert time.monotonic() < deadline
    assert command("notify", "--state", str(state), "unavailable", "data") == "1 registrations notified\n"
    assert command("notify", "--state", str(state), "move-client", "ME", ADDRESS_B) == "1 registrations notified\n"
    thread.join(30)
    assert watched[0].splitlines()[1:] == ["resource change: data unavailable", f"client move: {ADDRESS_B} online"]
    assert "no node" in command("notify", "--state", str(state), "node-down", "X", status=1)
    assert "address" in command("notify", "--state", str(state), "move-client", "X", status=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[witness]\nport = 70000", "port: must be an integer from 0 to 65535, not 70000"),
        ("[witness]\nspeed = 1", "speed: unknown key"),
        ('[[witness.node]]\nname = "B"\naddresses = ["x"]', "does not appear to be"),
        ('[[witness.node]]\nname = "B"', "witness.node B: addresses is needed"),
        ("witness = 3", "must be a section"),
    ],
)
def test_bad_configuration(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_file(path)


def test_configuration_is_off_and_has_defaults(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("")
    assert read_file(path).witness is None
    path.write_text("[witness]")
    assert read_file(path).witness == WitnessConfig()


def test_privacy_can_be_required() -> None:
    server = Running(settings(require_privacy=True))
    try:
        with server.client(privacy=False) as client, pytest.raises(WitnessClientError):
            client.interfaces()
        with server.client(privacy=True) as client:
            client.interfaces()
    finally:
        server.stop()


STANDARD_PORT = """
import sys
from tests.lab.witness import Running, PASSWORD
from witness.client import WitnessClient
from witness.service import WitnessSettings
import subprocess
server = Running(WitnessSettings(listen=["127.0.0.1", "::1"]))
try:
    assert server.service.notes == [], server.service.notes
    for host in ("127.0.0.1", "::1"):
        with WitnessClient(host, "u", PASSWORD) as client:
            print(len(client.interfaces()))
    script = "from samba import credentials, param; from samba.dcerpc import witness as w; lp = param.LoadParm();"
    script += "lp.load_default(); c = credentials.Credentials(); c.guess(lp);"
    script += "c.set_username('u'); c.set_password('pw');"
    script += "c.set_kerberos_state(credentials.DONT_USE_KERBEROS);"
    script += "print(w.witness('ncacn_ip_tcp:127.0.0.1[seal]', lp, c).GetInterfaceList().num_interfaces)"
    subprocess.run(["/usr/bin/python3", "-c", script], check=True, timeout=30)
finally:
    server.stop()
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="port 135 and network namespaces need root")
@pytest.mark.skipif(not shutil.which("unshare"), reason="unshare is not installed")
@pytest.mark.skipif(
    not Path("/usr/lib/python3/dist-packages/samba").exists(), reason="Samba's bindings are not installed"
)
def test_endpoint_mapper_on_its_own_port() -> None:
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$0" -c "$1"', sys.executable, STANDARD_PORT],
        capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "2", "2"]


def test_client_reports_what_it_cannot_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    with pytest.raises(WitnessClientError):
        WitnessClient("127.0.0.1", USER, PASSWORD, port=port)
    with pytest.raises(WitnessClientError):
        WitnessClient("127.0.0.1", USER, PASSWORD, endpoint_mapper_port=port)


@pytest.mark.parametrize("nodes", [[], [("NODE-B", [ipaddress.ip_address(ADDRESS_B)])]])
def test_shares_are_clustered_where_there_are_other_nodes(
    tmp_path: Path, nodes: list[tuple[str, list[ndr.Address]]]
) -> None:
    witness = WitnessConfig(["127.0.0.1"], endpoint_mapper_port=None, nodes=nodes)
    account = Account(USER, nt_hash(PASSWORD))
    config = Config([ShareConfig("data", tmp_path)], [account], listen=["127.0.0.1"], port=0, witness=witness)
    config.state = tmp_path / "state"

    async def run() -> int:
        service = Service(config)
        await service.start()
        try:
            assert service.witness is not None and service.witness.service.port
            return service.server.share_list["data"].capabilities
        finally:
            await service.stop()

    assert asyncio.run(run()) == (ShareCapabilities.CLUSTER if nodes else 0)
