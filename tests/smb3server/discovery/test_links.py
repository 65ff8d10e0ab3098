"""Where the server is announced."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path

from smb3server.discovery.links import Link, choose, link_local_addresses
from smb3server.net.interfaces import Interface
from smb3server.settings.discovery import DiscoveryConfig
from tests.lab.announced import announced


def entry(number: int, name: str, address: str, *, loopback: bool = False, running: bool = True) -> Interface:
    return Interface(number, name, ipaddress.ip_address(address), 10**9, loopback, running)


ALL = (
    entry(1, "lo", "127.0.0.1", loopback=True),
    entry(2, "eth0", "192.0.2.1"),
    entry(2, "eth0", "2001:db8::1"),
    entry(3, "eth1", "198.51.100.1"),
    entry(4, "eth2", "203.0.113.1", running=False),
)
LOCAL = {2: "fe80::2", 3: "fe80::3"}


def test_links_that_are_up_are_chosen_without_loopback() -> None:
    assert choose(ALL, {"0.0.0.0", "::"}, (), LOCAL) == [
        Link(2, "eth0", ("192.0.2.1",), ("2001:db8::1",), "fe80::2"),
        Link(3, "eth1", ("198.51.100.1",), (), "fe80::3"),
    ]


def test_only_served_addresses_and_wanted_interfaces_are_announced() -> None:
    assert choose(ALL, {"192.0.2.1"}, (), LOCAL) == [Link(2, "eth0", ("192.0.2.1",), ())]
    assert [link.name for link in choose(ALL, {"0.0.0.0"}, ["eth1"], LOCAL)] == ["eth1"]
    assert [link.name for link in choose(ALL, {"0.0.0.0"}, ["lo"], LOCAL)] == ["lo"]


def test_addresses_that_are_not_usable_yet_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "if_inet6"
    file.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe800000000000000000000000000002 02 40 20 80     eth0\n"
        "fe800000000000000000000000000003 03 40 20 40     eth1\n"
    )
    assert link_local_addresses(file) == {2: "fe80::2"}
    assert link_local_addresses(tmp_path / "none") == {}


def test_a_server_that_nobody_reaches_says_so() -> None:
    async def main() -> None:
        async with asyncio.timeout(10), announced(DiscoveryConfig(), ("127.0.0.1",)) as announcer:
            while not announcer.problems:
                await asyncio.sleep(0.01)
            assert "no address that other machines reach" in announcer.problems[0]

    asyncio.run(main())
