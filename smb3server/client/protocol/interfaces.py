"""A server's list of interfaces, as a client reads it. [MS-SMB2 2.2.32.5, 3.2.5.14.11]"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from smb3server.client.protocol.tree import Tree
from smb3server.net.interfaces import FAMILY_IPV4, FAMILY_IPV6, RDMA_CAPABLE, RSS_CAPABLE
from smb3server.wire.address import Address
from smb3server.wire.ioctl import Fsctl
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError

_FIXED = struct.Struct("<IIIIQ")
_FAMILY = struct.Struct("<HH")
ENTRY_SIZE = 152
"""Bytes of NETWORK_INTERFACE_INFO with its 128-byte address."""


class ServerInterface(NamedTuple):
    """One interface of the server."""

    number: int
    """IfIndex."""
    address: Address
    speed: int
    """Bits per second."""
    rdma: bool
    rss: bool


def parse_interfaces(data: Buffer) -> list[ServerInterface]:
    """Parse the list; leave out entries of unknown address families. Raises ``DecodeError``."""
    found: list[ServerInterface] = []
    offset = 0
    while offset + ENTRY_SIZE <= len(data):
        step, number, capability, _reserved, speed = _FIXED.unpack_from(data, offset)
        family, _port = _FAMILY.unpack_from(data, offset + _FIXED.size)
        at = offset + _FIXED.size + _FAMILY.size
        address: Address | None = None
        if family == FAMILY_IPV4:
            address = ipaddress.IPv4Address(bytes(data[at : at + 4]))
        elif family == FAMILY_IPV6:
            address = ipaddress.IPv6Address(bytes(data[at + 4 : at + 20]))
        if address is not None:
            rdma, rss = bool(capability & RDMA_CAPABLE), bool(capability & RSS_CAPABLE)
            found.append(ServerInterface(number, address, speed, rdma, rss))
        if not step:
            return found
        if step < ENTRY_SIZE:
            raise DecodeError("interface entries overlap")
        offset += step
    raise DecodeError("the interface list is cut off")


async def query_interfaces(tree: Tree) -> list[ServerInterface]:
    """Send FSCTL_QUERY_NETWORK_INTERFACE_INFO on ``tree``, which may be any tree of the session.

    Raises ``ServerError``, ``ConnectionLost`` and ``DecodeError``.
    """
    return parse_interfaces(await tree.ioctl(Fsctl.QUERY_NETWORK_INTERFACE_INFO))
