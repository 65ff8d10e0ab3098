"""The client for people on a host of its own: it finds the server's fabrics by itself, or says why not."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.remote import connect, fabrics
from smb3server.remote.connecting import Rdma
from tests.lab.two_hosts import TwoHosts
from tools.cluster.network import why_not

pytestmark = pytest.mark.root
MIB = 1 << 20


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    reason = why_not() or ("" if shutil.which("nft") else "nft is not installed (Debian: nftables)")
    if reason:
        pytest.skip(reason)
    found = TwoHosts(tmp_path)
    try:
        found.up()
        yield found
    finally:
        found.network.down()


def there_and_back(hosts: TwoHosts, rdma: Rdma, channels: int = 1) -> tuple[str, str, set[str]]:
    """Write and read a file; return transport, the reason against RDMA, and what carried data."""

    found: list[tuple[str, str, set[str]]] = []

    async def body() -> None:
        data = os.urandom(4 * MIB)
        url = f"smb://u@{hosts.server}/data"
        async with asyncio.timeout(60), connect(url, password="pw", rdma=rdma, channels=channels) as share:
            await share.write_bytes("a", data)
            assert await share.read_bytes("a") == data
            assert all(count == (len(data), len(data)) for count in share.moved.values())
            found.append((share.transport, share.why_not_rdma, set(share.moved)))

    hosts.network.run("client", lambda: asyncio.run(body()))
    return found[0]


def test_the_listed_interface_is_used(hosts: TwoHosts) -> None:
    with hosts.served(rdma="iwarp,roce"):
        assert there_and_back(hosts, "auto", 2) == ("iwarp (RDMA, signed), 2 channels", "", {"iwarp"})
        assert there_and_back(hosts, "roce") == ("roce (RDMA, signed)", "", {"roce"})
    with hosts.served(rdma="roce"):
        assert there_and_back(hosts, "auto") == ("roce (RDMA, signed)", "", {"roce"})


def test_a_firewall_that_swallows_rdma(hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabrics, "PATIENCE", 0.6)
    hosts.firewall("server", "tcp dport 5445 drop", "udp dport 4791 drop")
    with hosts.served(rdma="iwarp,roce"):
        began = time.monotonic()
        transport, why, moved = there_and_back(hosts, "auto")
        assert (transport, moved) == ("tcp", {"tcp"})
        assert "iwarp at 10.77.0.1 port 5445: peer does not answer" in why
        assert time.monotonic() - began < 10
