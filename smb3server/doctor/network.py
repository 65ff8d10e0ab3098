"""The doctor's look at the way to a host: what is wrong if a port does not answer, and what to do about it."""

from __future__ import annotations

import asyncio
import enum
import errno
import os
import socket
from pathlib import Path
from typing import NamedTuple

from smb3server.net.host import ROCE_UDP_PORT, ROOT, SMB_DIRECT_PORT, SMB_PORT

TIMEOUT = 3.0
"""Seconds that an answer to a probe may take."""
BANNER_TIMEOUT = 1.0
_BANNER = 64
_INCOMPLETE = "0x0"
"""Flags of a neighbour in /proc/net/arp that does not answer. [proc(5), ATF_COM is not set]"""
OPEN_IT = "see docs/firewall.md for the rules, and `nft list ruleset` for those in force"


class Port(enum.Enum):
    """What a port says to a connection."""

    OPEN = "open"
    REFUSED = "refused"
    """The host answers, and nothing listens there (or a firewall says so)."""
    SILENT = "silent"
    NO_ROUTE = "no route"
    """This machine knows no way to the network."""
    HOST_UNREACHABLE = "host unreachable"
    """The host's neighbour, or the host as a neighbour, does not answer, or a firewall prohibits it."""
    UNKNOWN_NAME = "unknown name"
    OTHER = "other"


_ALIVE = (Port.OPEN, Port.REFUSED)


class Trouble(NamedTuple):
    """Why a host or port cannot be reached, and the remedy."""

    text: str
    remedy: str
    dead: bool = False
    """Whether no other port of the host can be expected to answer."""


_BY_ERRNO = {
    errno.ECONNREFUSED: Port.REFUSED,
    errno.ENETUNREACH: Port.NO_ROUTE,
    errno.EHOSTUNREACH: Port.HOST_UNREACHABLE,
    errno.EHOSTDOWN: Port.HOST_UNREACHABLE,
    errno.ETIMEDOUT: Port.SILENT,
}


def kind_of(error: BaseException) -> Port:
    """Return what an error of a connection says of the port."""
    if isinstance(error, socket.gaierror):
        return Port.UNKNOWN_NAME
    if isinstance(error, TimeoutError):
        return Port.SILENT
    return _BY_ERRNO.get(error.errno or 0, Port.OTHER) if isinstance(error, OSError) else Port.OTHER


async def knock(host: str, port: int) -> Port:
    """Return what a TCP port says."""
    try:
        async with asyncio.timeout(TIMEOUT):
            _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return kind_of(error)
    writer.close()
    return Port.OPEN


async def knock_udp(host: str, port: int = ROCE_UDP_PORT) -> Port:
    """Return REFUSED if the host says that nothing has the UDP port, else SILENT: services need not answer. [RFC 1122
    4.1.3.1]"""
    loop = asyncio.get_running_loop()
    try:
        (family, kind, protocol, _, address), *_ = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind, protocol) as sock:
            sock.setblocking(False)
            sock.connect(address)
            await loop.sock_sendall(sock, b"\0")
            async with asyncio.timeout(min(TIMEOUT, 1.0)):
                await loop.sock_recv(sock, 1)
    except OSError as error:
        return kind_of(error)
    return Port.OPEN


async def banner(host: str, port: int) -> str:
    """Return the first line that a service says unasked; empty if it says nothing."""
    try:
        async with asyncio.timeout(BANNER_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                said = await reader.read(_BANNER)
            finally:
                writer.close()
    except OSError:
        return ""
    line = said.split(b"\n")[0].decode("ascii", "replace").strip()
    return "".join(char if char.isprintable() else "?" for char in line)


async def explain(host: str, port: int, error: BaseException) -> Trouble:
    """Return why TCP port ``port`` of a host cannot be reached, after ``error``."""
    found = kind_of(error)
    if found is Port.UNKNOWN_NAME:
        return Trouble(f"the name {host} is unknown", "check the name, or give the server's address")
    if found is Port.NO_ROUTE:
        return Trouble(
            f"{os.strerror(errno.ENETUNREACH)}: this machine has no route to {host}",
            f"`ip route get {host}` and `ip address` show it: an interface may be down, or lack an address",
        )
    if found is Port.REFUSED:
        return Trouble(
            f"{os.strerror(errno.ECONNREFUSED)}: nothing listens on TCP port {port} there, or a firewall rejects it",
            "start the server, or name its port: //HOST:PORT/SHARE (its `smb3server status` has the addresses)",
        )
    if found is Port.HOST_UNREACHABLE:
        return _unreachable(host)
    if found is Port.SILENT:
        return await _silent(host, port)
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return Trouble(text or type(error).__name__, "")


def _unreachable(host: str) -> Trouble:
    text = os.strerror(errno.EHOSTUNREACH)
    if _neighbour_is_silent(host):
        return Trouble(
            f"{text}: {host} does not answer in this network (ARP)",
            "the host is down, or its cable, VLAN or address is wrong",
        )
    return Trouble(f"{text}: a router or firewall on the way says so", f"`traceroute -T -p 445 {host}` shows which one")


def _neighbour_is_silent(host: str, root: Path = ROOT) -> bool:
    # Of this thread: the process may have others in other network namespaces.
    try:
        lines = (root / "proc/thread-self/net/arp").read_text().splitlines()[1:]
    except OSError:
        return False
    return any(line.split()[0] == host and line.split()[2] == _INCOMPLETE for line in lines)


async def _silent(host: str, port: int) -> Trouble:
    others = [number for number in (SMB_PORT, SMB_DIRECT_PORT, 22) if number != port]
    answers = await asyncio.gather(*(knock(host, number) for number in others))
    alive = next((number for number, said in zip(others, answers, strict=True) if said in _ALIVE), None)
    if alive is not None:
        return Trouble(
            f"no answer from TCP port {port}, although the host is there (port {alive} answers): a firewall drops it",
            f"let TCP port {port} through on {host} and on the way: {OPEN_IT}",
        )
    return Trouble(
        f"no answer from TCP port {port}, nor from any other: the host is down, or a firewall drops everything",
        f"`ping {host}`; start the host, or let TCP port {port} through: {OPEN_IT}",
        dead=True,
    )


async def _is_there(host: str) -> bool:
    return await knock(host, SMB_PORT) in _ALIVE


async def explain_fabric(fabric: str, host: str, ports: tuple[int, ...]) -> Trouble:
    """Return why SMB Direct does not answer on a fabric at an address where its clients are told that it does."""
    if fabric == "roce":
        if not await _is_there(host):
            return Trouble(f"{host} cannot be reached from here", "")
        if await knock_udp(host) is Port.REFUSED:
            return Trouble(f"nothing has UDP port {ROCE_UDP_PORT} at {host}: RoCEv2 is not served there", "")
        return Trouble(
            f"no answer from UDP port {ROCE_UDP_PORT} at {host}: a firewall drops it, or RoCEv2 is not served there",
            f"let UDP port {ROCE_UDP_PORT} through, in both directions: {OPEN_IT}",
        )
    port = ports[0]
    said = await knock(host, port)
    if said in (Port.NO_ROUTE, Port.HOST_UNREACHABLE) or (said is Port.SILENT and not await _is_there(host)):
        return Trouble(
            f"{host} cannot be reached from here: it is in another network, or the server is behind address"
            " translation (NAT)",
            "RDMA needs the server's own addresses: connect without NAT, from a network that has a route to them",
        )
    if said is Port.SILENT:
        return Trouble(
            f"no answer from TCP port {port} at {host}: a firewall drops it",
            f"let TCP port {port} through on {host} and on the way: {OPEN_IT}",
        )
    if said is Port.REFUSED:
        return Trouble(
            f"nothing listens on TCP port {port} at {host}, or a firewall rejects it",
            f"serve SMB Direct there (smb3server: --rdma), and let TCP port {port} through: {OPEN_IT}",
        )
    return Trouble(f"TCP port {port} at {host} is open, and what answers there is not SMB Direct", "")
