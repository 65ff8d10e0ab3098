"""Parts of made-up machines: interfaces, RDMA devices, files of the kernel."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from smb3server.net.host import (
    RdmaDevice,
)
from smb3server.net.interfaces import Interface
from smbdirect.providers.verbs.device import PortState


def interface(name: str, address: str, loopback: bool = False) -> Interface:
    return Interface(1, name, ipaddress.ip_address(address), 10**9, loopback)


def device(name: str, netdev: str, driver: str = "mlx5_core", iwarp: bool = False, active: bool = True) -> RdmaDevice:
    return RdmaDevice(PortState(name, 1, active, "Ethernet", (netdev,), iwarp), driver)


PLAIN = (interface("lo", "127.0.0.1", True), interface("eth0", "192.0.2.1"), interface("eth0", "fd00::1"))


RDMA = (*PLAIN, interface("eth1", "198.51.100.1"))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
