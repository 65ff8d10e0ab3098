"""Settings of a cluster and its services. ``config`` fills them in from the command line and a file."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import NamedTuple

from smb3server.net.store_access import StoreAccess
from smb3server.wire.address import Address

DEFAULT_NAME = "smb3server"
DEFAULT_TTL = 4.0
"""Seconds until the services of a dead node move."""

DEFAULT_FENCE_TIMEOUT = 30.0
DEFAULT_STORAGE_TIMEOUT = 10.0


class VirtualAddress(NamedTuple):
    """An IP address that moves with its service, and the network interface that gets it on a node."""

    address: Address
    prefix_length: int
    interface: str

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix_length}@{self.interface}"

    @classmethod
    def parse(cls, text: str) -> VirtualAddress:
        """Parse ``ADDRESS/LENGTH@INTERFACE``. Raises ``ValueError``."""
        network, separator, interface = text.partition("@")
        if not separator or not interface or "/" not in network:
            raise ValueError(f"{text}: write ADDRESS/LENGTH@INTERFACE")
        found = ipaddress.ip_interface(network)
        return cls(found.ip, found.network.prefixlen, interface)


@dataclass(slots=True, eq=False)
class ServiceConfig:
    """One service of the cluster: a section [[service]]."""

    name: str
    addresses: list[VirtualAddress] = field(default_factory=list)
    """Addresses that move with the service. If empty, the node that has the service serves its shares on all
    addresses."""
    nodes: list[str] = field(default_factory=list)
    """Nodes that may have the service, in order of preference. Empty means any node."""


@dataclass(slots=True)
class ClusterConfig:
    """``--cluster`` and ``--node``, and the sections [cluster] and [[service]]."""

    url: str = ""
    """URL of the store. Empty means that there is no cluster."""
    node: str = ""
    """Name of this node."""
    name: str = DEFAULT_NAME
    ttl: float = DEFAULT_TTL
    """Seconds until a dead node's services move."""
    max_stall: float = 0.0
    """Seconds for which the event loop may be blocked. 0 means a multiple of the ttl, see ``Membership``."""
    access: StoreAccess = field(default_factory=StoreAccess)
    fence_command: list[str] = field(default_factory=list)
    """Program and arguments that make sure that a silent node writes no more. Empty means that there is none."""
    fence_timeout: float = DEFAULT_FENCE_TIMEOUT
    """Seconds that ``fence_command`` may take."""
    storage_timeout: float = DEFAULT_STORAGE_TIMEOUT
    """Seconds after which a file system that does not answer counts as missing."""
    services: list[ServiceConfig] = field(default_factory=list)
