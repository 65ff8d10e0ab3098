"""Two nodes, an etcd and a client in network namespaces of their own: addresses move with the service."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol import Client
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.transports import open_tcp
from smb3server.net.interfaces import FAMILY_IPV4
from smb3server.wire import share_redirect as redirect
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.oplock_break import LeaseState
from smb3server.wire.session import TREE_CONNECT_REQUEST, TreeConnectRequest
from smb3server.wire.status import NtStatus
from tests.lab.nodes import PASSWORD, USER, seconds_since
from tests.lab.persistent import PersistentShare
from tools.cluster import lab
from tools.cluster.lab import PORT, SHARE, VIRTUAL, VIRTUAL6, ClusterLab

pytestmark = pytest.mark.root

RWH = int(LeaseState.READ | LeaseState.HANDLE | LeaseState.WRITE)
BOUND = 2 + 8.0
"""Seconds: the lease; the kernel keeps an address up to a second longer than told, and the machine may be busy."""


def client(host: str = VIRTUAL) -> PersistentShare:
    return PersistentShare(lambda: open_tcp(host, PORT, 1.0), SHARE, USER, PASSWORD, 40.0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterLab]:
    if reason := lab.why_not():
        pytest.skip(reason)
    with ClusterLab(tmp_path) as found:
        found.wait_for_address("a")
        yield found


@pytest.mark.parametrize(
    "how", ["killed", *(pytest.param(how, marks=pytest.mark.long) for how in ("cut off", "stopped"))]
)
def test_copy_goes_on_at_the_other_node(cluster: ClusterLab, how: str) -> None:
    """Issue: kill -9, network cut, SIGSTOP. The copy goes on within a bound, every block is there."""
    network, a, b = cluster.network, cluster.nodes["a"], cluster.nodes["b"]

    async def body() -> None:
        share = client(VIRTUAL6 if how == "killed" else VIRTUAL)
        file = await share.open("copy", share=1, lease_state=RWH)
        await file.lock(1 << 40, 10)
        pauses: list[float] = []
        for number in range(60):
            if number == 20:
                if how == "killed":
                    a.kill()
                elif how == "cut off":
                    await asyncio.to_thread(network.cut, "a")
                else:
                    a.send(signal.SIGSTOP)
                # Nobody tells this client that its connection is dead; a real one has its echo and its Witness.
                share.drop()
            start = time.monotonic()
            await file.write(number * 4096, number.to_bytes(4, "little") * 1024)
            pauses.append(seconds_since(start))
        print(f"{how}: resumed after {max(pauses):.2f} s")
        assert max(pauses) < BOUND
        assert {VIRTUAL, VIRTUAL6} <= network.addresses("b")
        if how != "cut off":
            # From a process that is dead or stopped, the kernel has taken it back.
            assert VIRTUAL not in network.addresses("a")
        if how == "stopped":
            a.send(signal.SIGCONT)
        if how == "cut off":
            await asyncio.to_thread(network.cut, "a", False)
        await asyncio.sleep(1.5)
        assert VIRTUAL not in network.addresses("a")
        await file.unlock(1 << 40, 10)
        await file.close()
        await share.close()
        content = (cluster.share / "copy").read_bytes()
        assert content == b"".join(number.to_bytes(4, "little") * 1024 for number in range(60))
        assert "is served here" in b.log()

    network.inside("cli", body)


def test_wrong_node_redirects(cluster: ClusterLab) -> None:
    """2.2.2.2.2: who asks at a node's own address is told where the service is, if it wants to know."""

    async def body() -> None:
        for host in (cluster.network.address("a"), cluster.network.address("b")):
            connection = await Client.connect(await open_tcp(host, PORT, 2.0))
            session = await connection.log_on(USER, PASSWORD)
            for flags in (0, 2):
                name = f"\\\\{host}\\data".encode("utf-16-le")
                offset = HEADER_SIZE + TREE_CONNECT_REQUEST.size
                record = TreeConnectRequest(flags=flags, path_offset=offset, path_length=len(name))
                with pytest.raises(ServerError) as caught:
                    await connection.call(
                        Command.TREE_CONNECT, [TREE_CONNECT_REQUEST.pack(record), name], session, sign=True
                    )
                assert caught.value.status == NtStatus.BAD_NETWORK_NAME
                if flags:
                    addresses, resource = redirect.parse(caught.value.data)
                    assert [str(address) for address in addresses] == [VIRTUAL, VIRTUAL6]
                    assert resource == "data"
                else:
                    assert not caught.value.data
            await connection.close()

    cluster.network.inside("cli", body)


def test_channels_lead_to_the_same_server(cluster: ClusterLab) -> None:
    """2.2.32.5, 3.2.5.2: a client on a virtual address is told those that have the same ServerGuid, which move with it;
    others are told of the node's own."""

    async def told(host: str) -> set[str]:
        connection = await Client.connect(await open_tcp(host, PORT, 2.0))
        tree = await (await connection.log_on(USER, PASSWORD)).tree_connect("IPC$")
        answer = await tree.ioctl(Fsctl.QUERY_NETWORK_INTERFACE_INFO)
        await connection.close()
        return {str(address) for address in interface_addresses(answer)}

    async def body() -> None:
        network = cluster.network
        assert await told(VIRTUAL) == {VIRTUAL, VIRTUAL6} == await told(VIRTUAL6)
        assert await told(network.address("a")) == {network.address("a"), network.address6("a")}

    cluster.network.inside("cli", body)


def interface_addresses(data: bytes) -> list[str]:
    found, offset = [], 0
    while True:
        (following,) = struct.unpack_from("<I", data, offset)
        (family,) = struct.unpack_from("<H", data, offset + 24)
        where, length = (offset + 28, 4) if family == FAMILY_IPV4 else (offset + 32, 16)
        found.append(str(ipaddress.ip_address(data[where : where + length])))
        if not following:
            return found
        offset += following
