"""The report: what is counted for channels, shares and users, and what it tells of open files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from smb3server.client.protocol import Tree
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.net.interfaces import Interface
from smb3server.status.model import Rates, Report
from smb3server.status.rates import add_rates
from smb3server.status.report import collect
from smb3server.wire.create import CreateDisposition
from tests.lab.machine import interface
from tests.lab.scene import Scene, log_on, play

SIZE = 300_000
OPEN_IF = CreateDisposition.OPEN_IF


def of(report: Report, kind: str, key: str, value: str) -> Any:
    (found,) = [entry for entry in getattr(report, kind) if getattr(entry, key) == value]
    return found


async def moves(tree: Tree) -> None:
    """Write and read twice ``SIZE`` bytes, large and small."""
    file = await tree.create("a file", READ_WRITE, OPEN_IF)
    for _ in range(2):
        await tree.write(file, 0, bytes(SIZE))
        assert len(await tree.read(file, 0, SIZE)) == SIZE
    for offset in range(0, 40960, 4096):
        await tree.write(file, offset, bytes(4096))
        assert len(await tree.read(file, offset, 4096)) == 4096


MOVED = 2 * SIZE + 40960


@pytest.mark.parametrize("way", ["tcp", "iwarp", "signed", "encrypted"])
def test_bytes_of_shares_and_users(tmp_path: Path, way: str) -> None:
    """The same over every way that data can go, by the general path and by the fast lane."""

    async def scene(acted: Scene) -> None:
        client = await (acted.rdma() if way == "iwarp" else acted.tcp())
        session = await log_on(client)
        tree = await session.tree_connect("data")
        await moves(tree)
        server = acted.service.server
        report = collect(server)
        share, user = of(report, "shares", "share", "data"), of(report, "users", "user", "u")
        assert (share.bytes_read, share.bytes_written) == (MOVED, MOVED)
        assert (user.bytes_read, user.bytes_written) == (MOVED, MOVED)
        assert (share.connects, share.open_count, user.open_count) == (1, 1, 1)
        (opened,) = report.sessions[0].opens
        assert opened.bytes_read == MOVED
        (channel,) = report.channels
        assert user.requests == channel.requests
        # Closed opens count on.
        await client.close()
        while server.connection_list:
            await asyncio.sleep(0.005)
        share = of(collect(server), "shares", "share", "data")
        assert (share.bytes_read, share.bytes_written, share.open_count) == (MOVED, MOVED, 0)

    settings = {"signed": {"require_signing": True}, "encrypted": {"require_encryption": True}}
    play(tmp_path, scene, **settings.get(way, {}))


def test_requests_are_counted_once_whatever_they_cost(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        session = await log_on(await acted.tcp())
        tree = await session.tree_connect("data")
        file = await tree.create("a file", READ_WRITE, OPEN_IF)
        await tree.write(file, 0, bytes(1 << 20))

        def count() -> int:
            (channel,) = acted.report()
            number = channel["requests"]
            assert isinstance(number, int)
            return number

        before = count()
        assert len(await tree.read(file, 0, 1 << 20)) == 1 << 20
        assert count() - before == 1
        await tree.read(file, 0, 4096)
        assert count() - before == 2

    play(tmp_path, scene)


def test_open_files(tmp_path: Path) -> None:
    """Rights, deny modes, leases, oplocks, locks held and waited for."""

    async def scene(acted: Scene) -> None:
        session = await log_on(await acted.tcp())
        tree = await session.tree_connect("data")
        file = await tree.create("a file", READ_WRITE, OPEN_IF, share=3)
        await tree.create("b file", 0x120089, OPEN_IF, share=1)
        await tree.create("c file", 0x100080, OPEN_IF, share=0)
        (opened,) = [entry for entry in acted.service.server.opens.by_id.values() if entry.path == ("a file",)]
        assert opened.file is not None
        opened.file.locks.acquire(opened, 10, 20, True)
        report = collect(acted.service.server)
        json.dumps(to_builtins(report))
        a, b, c = report.sessions[0].opens
        assert (a.rights, a.denies, a.locks) == (["read", "write", "delete"], ["delete"], 1)
        assert (b.rights, b.denies) == (["read"], ["write", "delete"])
        assert (c.rights, c.denies) == ([], [])
        (lock,) = report.locks
        assert (lock.path, lock.user, lock.offset, lock.length) == ("a file", "u", 10, 20)
        assert (lock.exclusive, lock.waiting, lock.open) == (True, False, a.id)
        assert report.server.lock_count == 1
        without = collect(acted.service.server, files=False)
        assert (without.locks, without.sessions[0].opens, without.sessions[0].open_count) == ([], [], 3)
        await tree.close(file)

    play(tmp_path, scene)


def test_interfaces_as_clients_are_told(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        server = acted.service.server
        await server.interfaces.stop()
        server.rdma_addresses = {"192.0.2.1"}
        server.tcp_addresses = {"192.0.2.1", "192.0.2.2"}
        server.interfaces.interfaces = [
            interface("eth0", "192.0.2.1")._replace(speed=25_000_000_000, queues=8),
            Interface(3, "eth1", interface("eth1", "192.0.2.2").address, 10**9, False, False),
            interface("eth2", "192.0.2.3"),
            interface("lo", "127.0.0.1", True),
        ]
        report = collect(server).interfaces
        rows = {entry.address: (entry.rdma, entry.tcp, entry.rss, entry.told) for entry in report}
        assert rows == {
            "192.0.2.1": (True, True, True, True),
            "192.0.2.2": (False, True, False, False),
            "192.0.2.3": (False, False, False, False),
            "127.0.0.1": (False, False, False, False),
        }
        server.settings.multichannel = False
        assert not any(entry.told for entry in collect(server).interfaces)

    play(tmp_path, scene, rss=True)


def test_rates(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        server = acted.service.server
        session = await log_on(await acted.rdma())
        tree = await session.tree_connect("data")
        before = collect(server, files=False)
        await moves(tree)
        report = collect(server)
        report.server.clock = before.server.clock + 2.0
        assert add_rates(report, before) == 2.0
        (channel,) = report.channels
        share, user = of(report, "shares", "share", "data"), of(report, "users", "user", "u")
        assert share.rates == Rates(read=MOVED / 2, written=MOVED / 2, rdma=0.0, requests=0.0)
        assert user.rates.requests == channel.rates.requests > 10
        assert channel.rates.rdma >= 2 * SIZE
        assert channel.rates.read >= MOVED / 2
        assert report.sessions[0].rates == report.server.rates == channel.rates
        # The same report twice: nothing has moved, and no time has passed.
        assert add_rates(report, report) == 0.0
        assert report.server.rates.read == 0.0

    play(tmp_path, scene)
