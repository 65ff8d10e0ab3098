"""Virtual addresses: how they are written, what announces them, until when a node may have one."""

from __future__ import annotations

import ipaddress

import pytest
from scapy.layers.inet6 import ICMPv6ND_NA
from scapy.layers.l2 import ARP, Ether

from smb3server.cluster import address
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

    class Route:
        def __enter__(self) -> Route:
            return self

        def __exit__(self, *details: object) -> None: ...

        def link_lookup(self, ifname: str) -> list[int]:
            done.append("interface")
            return [2]

        def addr(self, command: str, **details: object) -> None:
            done.append(details["IFA_CACHEINFO"])

    def lifetime() -> int:
        assert done == ["interface"]
        return seconds

    monkeypatch.setattr("pyroute2.IPRoute", Route)
    entry = VirtualAddress.parse("10.0.0.1/24@eth0")
    if seconds > 0:
        address.hold(entry, lifetime)
        assert done == ["interface", {"ifa_valid": seconds, "ifa_preferred": seconds}]
    else:
        with pytest.raises(OSError, match="no longer this node's"):
            address.hold(entry, lifetime)
        assert done == ["interface"]
