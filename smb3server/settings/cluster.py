"""What can be set about a cluster and its services; ``config`` fills it in from the command line and a file."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from smb3server.wire.address import Address

DEFAULT_NAME = "smb3server"
DEFAULT_TTL = 4.0
"""Seconds."""


class VirtualAddress(NamedTuple):
    """An address that moves with its service, and where it is put on a node."""

    address: Address
    prefix_length: int
    interface: str

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix_length}@{self.interface}"

    @classmethod
    def parse(cls, text: str) -> VirtualAddress:
        """Read ``ADDRESS/LENGTH@INTERFACE``. Raises ``ValueError``."""
        network, separator, interface = text.partition("@")
        if not separator or not interface or "/" not in network:
            raise ValueError(f"{text}: write ADDRESS/LENGTH@INTERFACE")
        found = ipaddress.ip_interface(network)
        return cls(found.ip, found.network.prefixlen, interface)


@dataclass(slots=True)
class StoreAccess:
    """Keys of the section [cluster], and options of ``smb3server cluster``: how the store is reached and sealed.

    ``store_access`` loads and checks the files that are named here.
    """

    ca: Path | None = None
    """Authorities that may have signed etcd's certificate; None: the system's."""
    cert: Path | None = None
    key: Path | None = None
    user: str = ""
    password_file: Path | None = None
    secret_file: Path | None = None
    """Holds the secret that records are sealed with; None: they are not."""
    unauthenticated_store: bool = False
    """Records need no seal although opens are among them."""


@dataclass(slots=True, eq=False)
class ServiceConfig:
    """Section [[service]]."""

    name: str
    addresses: list[VirtualAddress] = field(default_factory=list)
    """Empty: its shares are served on all addresses of whichever node has it."""
    nodes: list[str] = field(default_factory=list)
    """In order of preference; empty: any."""


@dataclass(slots=True)
class ClusterConfig:
    """``--cluster`` and ``--node``, sections [cluster] and [[service]]."""

    url: str = ""
    """Of the store; empty: there is no cluster."""
    node: str = ""
    name: str = DEFAULT_NAME
    ttl: float = DEFAULT_TTL
    """Seconds until a dead node's services move."""
    max_stall: float = 0.0
    """Seconds for which the event loop may stand still; 0: a multiple of the ttl, see ``Membership``."""
    access: StoreAccess = field(default_factory=StoreAccess)
    services: list[ServiceConfig] = field(default_factory=list)
