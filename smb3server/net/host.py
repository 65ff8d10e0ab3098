"""The machine's ports and RDMA devices, from /proc and /sys, without any library.

Every function takes ``root``, the directory that contains ``proc`` and ``sys``, so that tests can simulate a machine.
No function raises for files that are missing or unreadable: their information is left out.
"""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from smbdirect.providers.verbs.device import PortState


ROOT = Path("/")
ROCE_UDP_PORT = 4791
SMB_PORT, SMB_DIRECT_PORT = 445, 5445
_LISTENING, _UNCONNECTED = 0x0A, 0x07
"""TCP_LISTEN and, for an unconnected UDP socket, TCP_CLOSE (Linux net/tcp_states.h)."""
CAP_NET_RAW, CAP_NET_BIND_SERVICE, CAP_IPC_LOCK = 13, 10, 14
"""Bit numbers (capability.h)."""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def machine_id(root: Path = ROOT) -> str:
    """Return the machine's ID, which does not change at a restart (machine-id(5)). It must not be disclosed to
    others."""
    return _read(root / "etc/machine-id")


class PortOwner(NamedTuple):
    """The owner of a socket that is bound to a port."""

    protocol: str
    """tcp or udp."""
    address: str
    """0.0.0.0 and :: are wildcards."""
    port: int
    process: str
    """Name of the process; empty if the kernel owns the socket or its process is not visible."""
    pid: int | None
    hidden: bool
    """Whether the owner may be a process of another user, whose descriptors could not be read."""

    def __str__(self) -> str:
        if self.pid is not None:
            return f"{self.process or 'a process'} (process {self.pid})"
        return "a process of another user, or the kernel" if self.hidden else "the kernel"


def _address(text: str) -> str:
    """Return an address from /proc/net, which prints 32-bit words in host order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _processes(root: Path, inodes: set[int]) -> tuple[dict[int, tuple[str, int]], bool]:
    """Return (process name, pid) by socket inode, and whether the descriptors of some process could not be read."""
    found: dict[int, tuple[str, int]] = {}
    hidden = False
    try:
        entries = [entry for entry in os.listdir(root / "proc") if entry.isdigit()]
    except OSError:
        return found, True
    for entry in entries:
        folder = root / "proc" / entry / "fd"
        try:
            numbers = os.listdir(folder)
        except PermissionError:
            hidden = True
            continue
        except OSError:
            continue
        for number in numbers:
            try:
                target = os.readlink(folder / number)
            except OSError:
                continue
            if target.startswith("socket:[") and int(target[8:-1]) in inodes:
                found[int(target[8:-1])] = (_read(root / "proc" / entry / "comm"), int(entry))
    return found, hidden


def port_owners(wanted: Iterable[tuple[str, int]], root: Path = ROOT) -> list[PortOwner]:
    """Return the owners of the sockets that listen on (or, for UDP, are bound to) the given (protocol, port) pairs."""
    pairs = set(wanted)
    sockets: list[tuple[str, str, int, int]] = []
    for protocol in ("tcp", "udp"):
        state = _LISTENING if protocol == "tcp" else _UNCONNECTED
        for family in ("", "6"):
            for line in _read(root / "proc" / "net" / (protocol + family)).splitlines()[1:]:
                fields = line.split()
                if len(fields) < 10 or int(fields[3], 16) != state:
                    continue
                address, port = fields[1].split(":")
                if (protocol, int(port, 16)) in pairs:
                    sockets.append((protocol, _address(address), int(port, 16), int(fields[9])))
    if not sockets:
        return []
    processes, hidden = _processes(root, {inode for _, _, _, inode in sockets})
    owners = []
    for protocol, text, number, inode in sockets:
        name, pid = processes.get(inode, ("", None))
        owners.append(PortOwner(protocol, text, number, name, pid, hidden and pid is None))
    return owners


def overlapping(owners: Sequence[PortOwner], protocol: str, host: str, port: int) -> PortOwner | None:
    """Return the owner that prevents binding to ``port`` on ``host``, or None."""
    family = 6 if ":" in host else 4
    for owner in owners:
        if (owner.protocol, owner.port) != (protocol, port):
            continue
        theirs = 6 if ":" in owner.address else 4
        # A socket on :: may accept IPv4 as well; /proc does not show whether it does.
        wildcard = owner.address == "::" or (owner.address == "0.0.0.0" and family == 4)
        if wildcard or (theirs == family and (owner.address == host or host in ("0.0.0.0", "::"))):
            return owner
    return None


class RdmaDevice(NamedTuple):
    """One port of an RDMA device, its driver and its interfaces."""

    state: PortState
    driver: str
    """rxe or siw for the kernel's software devices, else the name of the NIC's driver (may be empty)."""

    @property
    def name(self) -> str:
        """The name of the device."""
        return self.state.device

    @property
    def fabric(self) -> str:
        """iWARP, RoCE or InfiniBand."""
        if self.state.iwarp:
            return "iWARP"
        return "InfiniBand" if self.state.link_layer == "InfiniBand" else "RoCE"

    @property
    def smb_ports(self) -> tuple[int, ...]:
        """The ports on which clients expect SMB Direct. Over iWARP that is 5445, since iWARP shares TCP's ports with
        direct TCP on 445. On other fabrics it is 445; Linux 6.12 requests 5445 first."""
        return (SMB_DIRECT_PORT,) if self.state.iwarp else (SMB_PORT, SMB_DIRECT_PORT)


def _driver(device: str, root: Path) -> str:
    folder = root / "sys" / "class" / "infiniband" / device
    description = _read(folder / "node_desc").lower()
    # The kernel's software devices have no bus device with a driver; they describe themselves.
    if not (folder / "device" / "driver").exists():
        if description == "rxe" or device.startswith("rxe"):
            return "rxe"
        if "siw" in description or "software iwarp" in description or device.startswith("siw"):
            return "siw"
        return ""
    return os.path.basename(os.path.realpath(folder / "device" / "driver"))


def rdma_devices(root: Path = ROOT) -> list[RdmaDevice]:
    """Return all ports of all RDMA devices."""
    folder = root / "sys" / "class" / "infiniband"
    if not folder.exists():
        return []
    # A machine without devices does not pay for the import.
    from smbdirect.providers.verbs.device import ports

    return [RdmaDevice(state, _driver(state.device, root)) for state in ports(folder)]


def module_loaded(name: str, root: Path = ROOT) -> bool:
    """Return whether a module is loaded, or built in with parameters. One that is built in without parameters leaves no
    trace."""
    return (root / "sys" / "module" / name).is_dir()


def effective_capabilities(root: Path = ROOT) -> int:
    """Return the bit mask of this process's effective capabilities."""
    for line in _read(root / "proc" / "self" / "status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def mtu(interface: str, root: Path = ROOT) -> int:
    """Return the MTU of an interface in bytes; 0 if unknown."""
    text = _read(root / "sys" / "class" / "net" / interface / "mtu")
    return int(text) if text.isdigit() else 0


def interfaces_down(root: Path = ROOT) -> list[str]:
    """Return the interfaces that somebody has set down, or whose link is."""
    folder = root / "sys" / "class" / "net"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [name for name in names if _read(folder / name / "operstate") in ("down", "lowerlayerdown")]


def kernel_owner(owner: PortOwner, devices: Sequence[RdmaDevice], root: Path = ROOT) -> tuple[str, str]:
    """Return (owner, remedy) for a port that another program or one of the kernel's drivers has."""
    rxe = [device for device in devices if device.driver == "rxe"]
    if owner.pid is None and owner.protocol == "udp" and owner.port == ROCE_UDP_PORT:
        if rxe:
            names = ", ".join(device.name for device in rxe)
            return (
                f"the kernel's rdma_rxe ({names})",
                f"serve it there with --rdma=verbs, or `rdma link delete {rxe[0].name}`",
            )
        if module_loaded("rdma_rxe", root):
            return "the kernel's rdma_rxe", "`rdma link` shows its devices; delete them or `rmmod rdma_rxe`"
    if owner.pid is None and owner.protocol == "tcp" and module_loaded("ksmbd", root):
        return "the kernel's SMB server (ksmbd)", "stop it: `ksmbd.control --shutdown`"
    if owner.pid is None and owner.protocol == "tcp" and any(device.driver == "siw" for device in devices):
        return "a listener on the kernel's siw device (ksmbd or another SMB Direct server)", "stop that server"
    remedy = f"stop it or choose another port (`ss -lnp 'sport = :{owner.port}'` shows it)"
    return str(owner), remedy
