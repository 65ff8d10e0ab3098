"""The machine's network interfaces, as they are reported to clients. [MS-SMB2 2.2.32.5]

The list follows the kernel's events. If these are not available, it is refreshed at intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import struct
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from smb3server.net.link_events import LinkEvents
from smb3server.wire.address import Address

log = logging.getLogger(__name__)

RSS_CAPABLE, RDMA_CAPABLE = 1, 2
FAMILY_IPV4, FAMILY_IPV6 = 0x0002, 0x0017
DEFAULT_SPEED = 1_000_000_000
"""Bits per second, if the driver does not report it."""
REFRESH_INTERVAL = 10.0
SPARE_DESCRIPTORS = 16
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
UNUSABLE = 0x40 | 0x08
"""IFA_F_TENTATIVE, IFA_F_DADFAILED: an IPv6 address that cannot be used yet, or at all."""
_INFO = struct.Struct("<IIIIQ128s")
_IPV4 = struct.Struct("<HH4s8x")
_IPV6 = struct.Struct("<HHI16sI")


class Interface(NamedTuple):
    """One address of one interface."""

    number: int
    """IfIndex."""
    name: str
    address: Address
    speed: int
    """Bits per second."""
    loopback: bool
    running: bool = True
    """Whether there is a link: an address whose cable is unplugged cannot be reached."""
    queues: int = 1
    """Receive queues."""


def _speed(name: str) -> int:
    """Return the bits per second of an interface. Drivers of virtual interfaces report -1 or nothing."""
    try:
        megabits = int((Path("/sys/class/net") / name / "speed").read_text())
    except (OSError, ValueError):
        return DEFAULT_SPEED
    return megabits * 1_000_000 if megabits > 0 else DEFAULT_SPEED


def _queues(name: str) -> int:
    """Return how many receive queues an interface has."""
    try:
        return max(1, sum(1 for _ in (Path("/sys/class/net") / name / "queues").glob("rx-*")))
    except OSError:
        return 1


def _check_spare_descriptors() -> None:
    """Raise ``OSError`` if the process has not the descriptors that a netlink socket and its event loop need: pyroute2
    would leave an event loop that is half made."""
    opened: list[int] = []
    try:
        for _ in range(SPARE_DESCRIPTORS):
            opened.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def read_interfaces() -> list[Interface]:
    """Return the addresses of the interfaces that are up, except link-local ones. This blocks for some milliseconds."""
    # Takes a quarter of a second to load, so commands that do not need it do not import it.
    from pyroute2 import IPRoute

    _check_spare_descriptors()
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
            running = bool(link["flags"] & _IFF_RUNNING) and not entry["flags"] & UNUSABLE
            loopback = bool(link["flags"] & _IFF_LOOPBACK)
            found.append(Interface(entry["index"], name, address, _speed(name), loopback, running, _queues(name)))
    return found


class InterfaceList:
    """The list of interfaces, which is refreshed in the background so that no request waits for it."""

    def __init__(self) -> None:
        self.interfaces: list[Interface] = []
        self.on_refresh: Callable[[], None] = lambda: None
        """Called when the list was read again: at intervals, and when anything about an interface has changed."""
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._events = LinkEvents(self.refresh_soon)

    async def start(self) -> None:
        """Read the list, then keep it up to date until ``stop``."""
        try:
            self._events.start()
        except OSError as error:
            log.info("no events of network interfaces, reading the list every %.0f s: %s", REFRESH_INTERVAL, error)
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh())

    async def stop(self) -> None:
        """Stop refreshing the list."""
        self._events.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def refresh_soon(self) -> None:
        """Refresh the list in the background: an interface has changed."""
        self._wanted.set()

    async def refresh(self) -> None:
        """Refresh the list now. On an error keep the old one, and log it."""
        try:
            self.interfaces = await asyncio.to_thread(read_interfaces)
        except Exception as error:
            # A sandbox may not permit netlink. The server works without it, except multichannel.
            log.warning("cannot list network interfaces: %s", error)
        self.on_refresh()

    async def _keep_fresh(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_INTERVAL):
                    await self._wanted.wait()
            self._wanted.clear()
            await self.refresh()

    def visible_from(self, local: str) -> list[Interface]:
        """Return the addresses that a client connected to ``local`` can reach. Loopback addresses are of no use to
        other machines."""
        try:
            inside = ipaddress.ip_address(local).is_loopback
        except ValueError:
            inside = False
        return [entry for entry in self.interfaces if entry.running and (inside or not entry.loopback)]


def serves(addresses: Collection[str], address: Address) -> bool:
    """Return whether a listener on ``addresses`` serves ``address``, directly or by a wildcard."""
    wildcard = "0.0.0.0" if address.version == 4 else "::"
    return str(address) in addresses or wildcard in addresses


def rdma_capable(interfaces: Iterable[Interface], rdma_addresses: Collection[str]) -> int:
    """Return how many of the interfaces ``pack_interfaces`` flags RDMA_CAPABLE."""
    return sum(serves(rdma_addresses, entry.address) for entry in interfaces)


def pack_interfaces(
    interfaces: Iterable[Interface],
    rdma_addresses: Collection[str],
    tcp_addresses: Collection[str],
    *,
    plain_too: bool = False,
    rss: bool = False,
) -> bytes:
    """Return linked NETWORK_INTERFACE_INFO structures of the addresses that are served. [MS-SMB2 2.2.32.5]

    An address is RDMA_CAPABLE if SMB Direct listens on it. With ``plain_too``, such an address is also listed without
    that flag if it is served over TCP. Linux 6.12 uses only one kind: a session that began over TCP gets channels only
    to interfaces without the flag. With ``rss``, an interface with several receive queues is RSS_CAPABLE.
    """
    packed: list[bytes] = []
    for entry in interfaces:
        rdma, tcp = serves(rdma_addresses, entry.address), serves(tcp_addresses, entry.address)
        queues = RSS_CAPABLE if rss and entry.queues > 1 else 0
        if rdma:
            packed.append(_pack(entry, RDMA_CAPABLE | queues))
        if tcp and (plain_too or not rdma):
            packed.append(_pack(entry, queues))
    if packed:
        packed[-1] = bytes(4) + packed[-1][4:]
    return b"".join(packed)


def _pack(entry: Interface, capability: int) -> bytes:
    if isinstance(entry.address, ipaddress.IPv4Address):
        sockaddr = _IPV4.pack(FAMILY_IPV4, 0, entry.address.packed)
    else:
        sockaddr = _IPV6.pack(FAMILY_IPV6, 0, 0, entry.address.packed, 0)
    return _INFO.pack(_INFO.size, entry.number, capability, 0, entry.speed, sockaddr)
