"""The client for people on a host of its own: it finds the server's fabrics by itself, or says why not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from smb3server.client import connect, fabrics
from smb3server.client.options import Rdma
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
        assert there_and_back(hosts, "prefer", 2) == ("iwarp (RDMA, signed), 2 channels", "", {"iwarp"})
        assert there_and_back(hosts, "roce") == ("roce (RDMA, signed)", "", {"roce"})
    with hosts.served(rdma="roce"):
        assert there_and_back(hosts, "prefer") == ("roce (RDMA, signed)", "", {"roce"})
        assert there_and_back(hosts, "auto") == ("tcp", fabrics.NO_NIC, {"tcp"})


@pytest.mark.parametrize("fabric", ["iwarp", "roce"])
def test_lent_files(hosts: TwoHosts, fabric: Rdma) -> None:
    """Files are read and written without requests over a network with segments of its own size."""
    data, other = os.urandom(4 * MIB + 7), os.urandom(MIB)

    async def body() -> None:
        url = f"smb://u@{hosts.server}/data"
        async with asyncio.timeout(60), connect(url, password="pw", rdma=fabric, one_sided="auto") as share:
            async with await share.open("a", "r+b") as file:
                assert await file.read() == data
                await file.write_at(5, other)
                assert await file.read_at(0, len(data)) == data[:5] + other + data[5 + MIB :]
                await file.flush()
            assert share.transport == f"{fabric} (RDMA, signed), one-sided"
            assert share.moved == {"one-sided": (MIB, 2 * len(data))}

    with hosts.served(rdma=fabric, share={"one_sided": True}) as service:
        Path(service.config.shares[0].path, "a").write_bytes(data)
        hosts.network.run("client", lambda: asyncio.run(body()))
        assert Path(service.config.shares[0].path, "a").read_bytes() == data[:5] + other + data[5 + MIB :]


def test_a_firewall_that_swallows_rdma(hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It costs the time of one attempt, once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hosts.firewall("server", "tcp dport 5445 drop", "udp dport 4791 drop")
    with hosts.served(rdma="iwarp,roce"):
        began = time.monotonic()
        transport, why, moved = there_and_back(hosts, "prefer")
        first = time.monotonic() - began
        assert (transport, moved) == ("tcp", {"tcp"})
        assert "iwarp at 10.77.0.1 port 5445: peer does not answer" in why
        assert fabrics.ATTEMPT_TIMEOUT <= first < fabrics.PATIENCE + 4
        began = time.monotonic()
        transport, why, moved = there_and_back(hosts, "prefer")
        assert (transport, moved) == ("tcp", {"tcp"})
        assert "no answer, seen within the last 24 hours" in why
        assert time.monotonic() - began < fabrics.ATTEMPT_TIMEOUT


def test_a_line_that_is_cut_silently(hosts: TwoHosts) -> None:
    """Who waits for an answer, for changes, or for room to send is told, in the time that was given for it."""
    limits = {"answer_timeout": 2.0, "patience": 1.0, "timeout": 1.0}
    found: list[float] = []

    async def ends(work: Awaitable[object]) -> None:
        with pytest.raises(OSError, match=r"no answer|Timeout|timed out|10\.77\.0\.1"):
            await work
        found.append(time.monotonic())

    async def body(cut: Callable[[], None]) -> None:
        options: Any = {"password": "pw", "rdma": "off"} | limits
        url = f"smb://u@{hosts.server}/data"
        shares = [await connect(url, **options) for _ in range(3)]
        looking, sending, watching = shares
        file = await sending.open("a", "wb")
        await file.write(b"x")
        changes = watching.watch()
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.3)
        cut()
        began = time.monotonic()
        async with asyncio.timeout(60):
            await asyncio.gather(ends(looking.stat()), ends(file.write(bytes(64 * MIB))))
            assert max(found) - began < 10
            with contextlib.suppress(OSError):
                assert (await waiting).action == "overflow"
            assert time.monotonic() - began < 20
        await changes.aclose()
        for share in shares:
            await share.close()

    with hosts.served(rdma="off"):
        # Rules are added by a program of the server's namespace, from whatever thread.
        cut = partial(hosts.firewall, "server", "tcp dport 445 drop")
        hosts.network.run("client", lambda: asyncio.run(body(cut)))
