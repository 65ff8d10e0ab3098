"""FSCTL_QUERY_NETWORK_INTERFACE_INFO while interfaces come and go (MS-SMB2 3.3.5.15.11, 2.2.32.5): real netlink events,
in a network namespace of the test's own. The test runs itself there as a script."""

from __future__ import annotations

import asyncio
import ipaddress
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smb3server.auth.users import Account, nt_hash
from smb3server.client.protocol import Client, open_rdma, open_tcp
from smb3server.client.protocol.interfaces import ServerInterface, parse_interfaces, query_interfaces
from smb3server.config.model import Config, ShareConfig
from smb3server.net.interfaces import Interface, pack_interfaces
from smb3server.service.service import Service
from smbdirect.providers.make import make_provider

IN_TIME = 5.0
"""Seconds; half of the interval at which the list is read without an event."""


def _own_namespace() -> bool:
    probe = subprocess.run(
        ["unshare", "-n", "-m", "ip", "link", "add", "a0", "type", "veth", "peer", "name", "a1"],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return probe.returncode == 0


needs_namespace = pytest.mark.skipif(
    shutil.which("unshare") is None or shutil.which("ip") is None or not _own_namespace(),
    reason="no network namespace of its own may be made here",
)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stdin=subprocess.DEVNULL)


async def _scene() -> None:
    """Runs in the namespace: a server there, and a mounted client that asks again and again."""
    _ip("link", "set", "lo", "up")
    for number in (0, 1):
        queues = ["numrxqueues", "3"] if number else []
        _ip("link", "add", f"near{number}", *queues, "type", "veth", "peer", "name", f"far{number}")
        _ip("addr", "add", f"10.77.{number}.1/24", "dev", f"near{number}")
        _ip("link", "set", f"near{number}", "up")
    _ip("link", "set", "far0", "up")
    with tempfile.TemporaryDirectory() as folder:
        share, state = Path(folder, "share"), Path(folder, "state")
        share.mkdir()
        account = Account("u", nt_hash("pw"))
        config = Config([ShareConfig("data", share)], [account], port=0, rdma="iwarp", rdma_port=0, state=state)
        service = Service(config)
        await service.start()
        try:
            await _watch(service)
        finally:
            await service.stop()


async def _watch(service: Service) -> None:
    over_tcp = await Client.connect(await open_tcp("10.77.0.1", service.listeners[0].address[1]))
    rdma_port = service.fabrics.listeners[0][1].address[1]
    over_rdma = await Client.connect(await open_rdma(make_provider("iwarp"), "10.77.0.1", rdma_port))
    trees = [await (await client.log_on("u", "pw")).tree_connect("data") for client in (over_tcp, over_rdma)]

    async def until(expected: set[str]) -> None:
        """Both clients see these addresses, and no others."""
        async with asyncio.timeout(IN_TIME):
            while True:
                lists = [await query_interfaces(tree) for tree in trees]
                if all({str(entry.address) for entry in found} == expected for found in lists):
                    break
                await asyncio.sleep(0.05)
        by_tcp, by_rdma = lists
        for found in (by_tcp, by_rdma):
            assert all(entry.rdma for entry in found) and len(found) == len(expected)

    one, two, added, six = "10.77.0.1", "10.77.1.1", "10.77.0.5", "fd77::1"
    await until({one})  # near1 is up, but its other end is not: no link
    _ip("link", "set", "far1", "up")
    await until({one, two})
    assert {entry.name: entry.queues for entry in service.server.interfaces.interfaces if not entry.loopback} == {
        "near0": 1,
        "near1": 3,
    }
    _ip("addr", "add", f"{added}/24", "dev", "near0")
    await until({one, two, added})
    _ip("addr", "del", f"{added}/24", "dev", "near0")
    await until({one, two})
    _ip("link", "set", "far1", "down")  # the cable is out
    await until({one})
    _ip("link", "set", "far1", "up")
    await until({one, two})
    _ip("link", "set", "near1", "down")  # the administrator's doing
    await until({one})
    _ip("link", "set", "near1", "up")
    _ip("-6", "addr", "add", f"{six}/64", "dev", "near0", "nodad")
    await until({one, two, six})
    _ip("link", "del", "near1")
    await until({one, six})
    for client in (over_tcp, over_rdma):
        await client.close()


@needs_namespace
def test_list_follows_the_kernels_events() -> None:
    # /sys shows the interfaces of the namespace that it was mounted in.
    command = ["unshare", "-n", "-m", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh"]
    command += [sys.executable, "-W", "error", "-m", "tests.smb3server.net.test_interface_list"]
    run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100, check=False)
    assert run.returncode == 0, run.stderr


def _interface(address: str) -> Interface:
    return Interface(3, "eth0", ipaddress.ip_address(address), 10**10, False)


@pytest.mark.parametrize(
    ("rdma", "tcp", "plain_too", "flags"),
    [
        ((), ("0.0.0.0",), True, [False]),
        (("10.0.0.1",), ("0.0.0.0",), True, [True, False]),
        (("10.0.0.1",), ("0.0.0.0",), False, [True]),
        (("0.0.0.0",), ("10.0.0.2",), True, [True]),
        (("10.0.0.2",), ("10.0.0.2", "::"), True, []),
        (("::",), ("10.0.0.1",), False, [False]),
    ],
)
def test_which_addresses_are_told(
    rdma: tuple[str, ...], tcp: tuple[str, ...], plain_too: bool, flags: list[bool]
) -> None:
    packed = pack_interfaces([_interface("10.0.0.1")], rdma, tcp, plain_too=plain_too)
    found: list[ServerInterface] = parse_interfaces(packed) if packed else []
    assert [entry.rdma for entry in found] == flags
    assert all((entry.number, entry.speed, entry.rss) == (3, 10**10, False) for entry in found)


@pytest.mark.parametrize(("queues", "rss", "flagged"), [(1, True, False), (2, True, True), (2, False, False)])
def test_several_receive_queues_are_told_where_that_is_wanted(queues: int, rss: bool, flagged: bool) -> None:
    entry = _interface("10.0.0.1")._replace(queues=queues)
    packed = pack_interfaces([entry], ("0.0.0.0",), ("0.0.0.0",), plain_too=True, rss=rss)
    assert [(found.rdma, found.rss) for found in parse_interfaces(packed)] == [(True, flagged), (False, flagged)]


if __name__ == "__main__":
    asyncio.run(_scene())
