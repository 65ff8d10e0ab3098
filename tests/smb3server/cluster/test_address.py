"""Virtual addresses: how they are written, what announces them, until when a node may have one."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import subprocess
import sys

import pytest
from scapy.layers.inet6 import ICMPv6ND_NA
from scapy.layers.l2 import ARP, Ether

from smb3server.cluster import address
from smb3server.net.rtnetlink import CACHE_INFO, Attribute, Order
from smb3server.settings.cluster import VirtualAddress

MAC = bytes.fromhex("020000000001")


def test_gratuitous_arp() -> None:
    """RFC 5227 section 3: sender and target address are the announced one."""
    for packet, operation in zip(address.arp_packets(ipaddress.IPv4Address("10.0.0.1"), MAC), (1, 2), strict=True):
        frame = Ether(packet)
        assert (frame.dst, frame.src, frame.type) == ("ff:ff:ff:ff:ff:ff", "02:00:00:00:00:01", 0x0806)
        arp = frame[ARP]
        assert (arp.op, arp.psrc, arp.pdst, arp.hwsrc) == (operation, "10.0.0.1", "10.0.0.1", "02:00:00:00:00:01")


def test_unsolicited_advertisement() -> None:
    """RFC 4861 section 7.2.6: override, not solicited, with the new link-layer address."""
    packet = ICMPv6ND_NA(address.advertisement(ipaddress.IPv6Address("fd00::1"), MAC))
    assert (packet.type, packet.code, packet.R, packet.S, packet.O) == (136, 0, 0, 0, 1)
    assert packet.tgt == "fd00::1"
    assert (packet.payload.type, packet.payload.lladdr) == (2, "02:00:00:00:00:01")


def test_virtual_addresses() -> None:
    found = VirtualAddress.parse("10.0.0.1/24@eth0")
    assert (str(found.address), found.prefix_length, found.interface) == ("10.0.0.1", 24, "eth0")
    assert str(VirtualAddress.parse("fd00::1/64@lan")) == "fd00::1/64@lan"
    for bad in ("10.0.0.1", "10.0.0.1/24", "10.0.0.1@eth0", "10.0.0.1/24@", "10.0.0.1/33@eth0", "x/24@eth0"):
        with pytest.raises(ValueError):
            VirtualAddress.parse(bad)


@pytest.mark.parametrize("seconds", [3, 1, 0, -1])
def test_no_address_behind_the_deadline(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """The deadline is asked for behind everything that takes time: a process may be stopped anywhere."""
    done: list[object] = []

    def change(order: Order, fixed: bytes, attributes: dict[Attribute, bytes]) -> None:
        done.append((order, CACHE_INFO.unpack(attributes[Attribute.CACHE])))

    def index_of(name: str) -> int:
        done.append(name)
        return 2

    def lifetime() -> int:
        assert done == ["eth0"]
        return seconds

    monkeypatch.setattr(address.rtnetlink, "change", change)
    monkeypatch.setattr(socket, "if_nametoindex", index_of)
    entry = VirtualAddress.parse("10.0.0.1/24@eth0")
    if seconds > 0:
        address.hold(entry, lifetime)
        assert done == ["eth0", (Order.NEW_ADDRESS, (seconds, seconds, 0, 0))]
    else:
        with pytest.raises(OSError, match="no longer this node's"):
            address.hold(entry, lifetime)
        assert done == ["eth0"]


def valid_seconds(interface: str) -> dict[str, int]:
    """Return the addresses of an interface with the seconds that they are valid for, as ``ip`` says."""
    command = ["ip", "-j", "addr", "show", "dev", interface]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {entry["local"]: entry["valid_life_time"] for entry in found[0]["addr_info"]}


def in_a_namespace() -> None:
    """Hold, renew and remove addresses. Runs as a script."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    four, six = VirtualAddress.parse("10.0.0.1/24@lo"), VirtualAddress.parse("fd00::1/64@lo")
    for seconds in (1000, 2000):
        for entry in (four, six):
            address.hold(entry, lambda: seconds)  # noqa: B023
        found = valid_seconds("lo")
        assert seconds - 100 < found["10.0.0.1"] <= seconds and seconds - 100 < found["fd00::1"] <= seconds, found
    for entry in (four, six, four, six):
        address.remove(entry)
    assert not {"10.0.0.1", "fd00::1"} & valid_seconds("lo").keys()
    with pytest.raises(OSError, match="no interface none") as caught:
        address.hold(VirtualAddress.parse("10.0.0.1/24@none"), lambda: 1000)
    assert caught.value.errno == errno.ENODEV


@pytest.mark.root
def test_addresses_are_held_renewed_and_removed() -> None:
    """In a network namespace of its own; iproute2 is the judge."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a network namespace")
    command = ["unshare", "-n", sys.executable, "-m", "tests.smb3server.cluster.test_address"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr


if __name__ == "__main__":
    in_a_namespace()
