"""The machine's network interfaces, as clients are told of them (MS-SMB2 2.2.32.5)."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import struct
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

RSS_CAPABLE, RDMA_CAPABLE = 1, 2
FAMILY_IPV4, FAMILY_IPV6 = 0x0002, 0x0017
DEFAULT_SPEED = 1_000_000_000
"""Bits per second, where the driver does not know."""
REFRESH_INTERVAL = 10.0
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_INFO = struct.Struct("<IIIIQ128s")
_IPV4 = struct.Struct("<HH4s8x")
_IPV6 = struct.Struct("<HHI16sI")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Interface(NamedTuple):
    """One address of one interface."""

    number: int
    """IfIndex."""
    name: str
    address: Address
    speed: int
    """Bits per second."""
    loopback: bool


def _speed(name: str) -> int:
    """Drivers of virtual interfaces say -1 or nothing."""
    try:
        megabits = int((Path("/sys/class/net") / name / "speed").read_text())
    except (OSError, ValueError):
        return DEFAULT_SPEED
    return megabits * 1_000_000 if megabits > 0 else DEFAULT_SPEED


def read_interfaces() -> list[Interface]:
    """Addresses of the interfaces that are up, link-local ones left out. Blocks for some milliseconds."""
    from pyroute2 import IPRoute

    found: list[Interface] = []
    with IPRoute() as route:
        links = {link["index"]: link for link in route.get_links()}
        for entry in route.get_addr():
            link = links.get(entry["index"])
            text = entry.get_attr("IFA_LOCAL") or entry.get_attr("IFA_ADDRESS")
            if link is None or text is None or not link["flags"] & _IFF_UP:
                continue
            address = ipaddress.ip_address(text)
            if address.is_link_local:
                continue
            name = link.get_attr("IFLA_IFNAME")
            found.append(Interface(entry["index"], name, address, _speed(name), bool(link["flags"] & _IFF_LOOPBACK)))
    return found


class InterfaceList:
    """A list that is refreshed in the background, so that no request waits for it."""

    def __init__(self) -> None:
        self.interfaces: list[Interface] = []
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    async def start(self) -> None:
        """Read it once, then keep it fresh until ``stop``."""
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def refresh_soon(self) -> None:
        """Something about an interface changed."""
        self._wanted.set()

    async def refresh(self) -> None:
        """Now: addresses have just been changed."""
        try:
            self.interfaces = await asyncio.to_thread(read_interfaces)
        except Exception as error:
            # netlink may be out of bounds in a sandbox; the server works without, only multichannel does not.
            log.warning("cannot list network interfaces: %s", error)

    async def _keep_fresh(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), REFRESH_INTERVAL)
            self._wanted.clear()
            await self.refresh()

    def visible_from(self, local: str) -> list[Interface]:
        """Those a client can reach that reached us at ``local``: loopback addresses mean nothing to other machines."""
        try:
            inside = ipaddress.ip_address(local).is_loopback
        except ValueError:
            inside = False
        return [entry for entry in self.interfaces if inside or not entry.loopback]


def _serves(addresses: Collection[str], address: Address) -> bool:
    wildcard = "0.0.0.0" if address.version == 4 else "::"
    return str(address) in addresses or wildcard in addresses


def rdma_capable(interfaces: Iterable[Interface], rdma_addresses: Collection[str]) -> int:
    """How many of them ``pack_interfaces`` flags RDMA_CAPABLE."""
    return sum(_serves(rdma_addresses, entry.address) for entry in interfaces)


def pack_interfaces(interfaces: Iterable[Interface], rdma_addresses: Collection[str]) -> bytes:
    """NETWORK_INTERFACE_INFO structures, linked; RDMA_CAPABLE where SMB Direct listens."""
    packed: list[bytes] = []
    for entry in interfaces:
        if isinstance(entry.address, ipaddress.IPv4Address):
            sockaddr = _IPV4.pack(FAMILY_IPV4, 0, entry.address.packed)
        else:
            sockaddr = _IPV6.pack(FAMILY_IPV6, 0, 0, entry.address.packed, 0)
        # RSS would have clients open several connections per interface; one event loop gains nothing by that.
        capability = RDMA_CAPABLE if _serves(rdma_addresses, entry.address) else 0
        packed.append(_INFO.pack(_INFO.size, entry.number, capability, 0, entry.speed, sockaddr))
    if packed:
        packed[-1] = bytes(4) + packed[-1][4:]
    return b"".join(packed)
