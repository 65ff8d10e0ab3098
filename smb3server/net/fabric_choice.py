"""The choice of the fabric for each address, with the reasons: pure functions of the request and the machine."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from smb3server.net.host import (
    ROCE_UDP_PORT,
    SMB_DIRECT_PORT,
    SMB_PORT,
    PortOwner,
    RdmaDevice,
    kernel_owner,
    overlapping,
)
from smb3server.net.interfaces import Interface
from smbdirect.errors import ProviderError

FABRICS = ("verbs", "iwarp", "roce")
SOFTWARE = ("iwarp", "roce")
WILDCARDS = ("0.0.0.0", "::")


class Choice(NamedTuple):
    """One decision. ``host`` is empty if it applies to the fabric as a whole."""

    fabric: str
    host: str
    ports: tuple[int, ...]
    """The ports to listen on, the fabric's own first. Empty means not served."""
    reason: str
    remedy: str = ""
    taken: bool = False
    """Whether it is not served because another program has the port, or because this process may not use it."""

    @property
    def served(self) -> bool:
        """Whether the fabric is served."""
        return bool(self.ports)

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        if self.served:
            numbers = " and ".join(str(port) for port in self.ports)
            # A firewall sees RoCEv2 as one UDP port; the numbers are in the connection requests inside.
            below = f"UDP {ROCE_UDP_PORT}, " if self.fabric == "roce" else ""
            return f"{self.fabric}{where}, {below}port {numbers}: {self.reason}"
        return f"{self.fabric} not served{where}: {self.reason}" + (f"; remedy: {self.remedy}" if self.remedy else "")

    def failed(self, reason: str, remedy: str = "", taken: bool = False) -> Choice:
        """Return the same choice, but not served."""
        return self._replace(ports=(), reason=reason, remedy=remedy, taken=taken)


class Machine(NamedTuple):
    """The state of the machine on which the decision depends."""

    interfaces: Sequence[Interface] = ()
    devices: Sequence[RdmaDevice] = ()
    owners: Sequence[PortOwner] = ()
    """The owners of the ports that fabrics need."""
    unavailable: Mapping[str, str] = {}
    """By fabric: the reason (with its remedy) why it cannot be served on this machine at all."""


def ports_needed(port: int | None) -> list[tuple[str, int]]:
    """Return the (protocol, port) pairs whose owners matter. ``port`` is None for the usual ports."""
    numbers = {SMB_PORT, SMB_DIRECT_PORT} if port is None else {port}
    return [("udp", ROCE_UDP_PORT), *(("tcp", number) for number in sorted(numbers))]


def obstacle(fabric: str, host: str, port: int, machine: Machine) -> tuple[str, str] | None:
    """Return (reason, remedy) if another program has the port that ``fabric`` needs on ``host``, else None."""
    protocol, number = ("udp", ROCE_UDP_PORT) if fabric == "roce" else ("tcp", port)
    owner = overlapping(machine.owners, protocol, host, number) if number else None
    if owner is None:
        return None
    who, remedy = kernel_owner(owner, machine.devices)
    return f"{protocol.upper()} port {number} belongs to {who}", remedy


def _software(fabric: str, host: str, why: str, port: int | None, machine: Machine) -> Choice:
    if fabric in machine.unavailable:
        return Choice(fabric, host, (), machine.unavailable[fabric])
    first = SMB_DIRECT_PORT if port is None else port
    blocked = obstacle(fabric, host, first, machine)
    if blocked is not None:
        return Choice(fabric, host, (), *blocked, taken=True)
    # Over RoCE the port is only a number in the request: Windows requests 445, Linux 6.12 requests 5445.
    ports = (first, SMB_PORT) if fabric == "roce" and port is None else (first,)
    return Choice(fabric, host, ports, why)


class _Addresses:
    """A map of addresses to their interfaces and RDMA devices."""

    def __init__(self, machine: Machine) -> None:
        self._devices: dict[str, RdmaDevice] = {}
        for device in machine.devices:
            for name in device.state.netdevs:
                if name not in self._devices or (device.state.active and not self._devices[name].state.active):
                    self._devices[name] = device
        self._interfaces = {str(entry.address): entry for entry in machine.interfaces}

    def device(self, host: str) -> RdmaDevice | None:
        entry = self._interfaces.get(host)
        return self._devices.get(entry.name) if entry is not None else None

    def interface(self, host: str) -> str:
        entry = self._interfaces.get(host)
        return entry.name if entry is not None else "an unknown interface"

    def expand(self, host: str) -> list[str]:
        """Return the addresses that a wildcard stands for, or only ``host`` if it is not a wildcard."""
        if host not in WILDCARDS:
            return [host]
        version = 6 if ":" in host else 4
        return [text for text, entry in self._interfaces.items() if entry.address.version == version]


def _verbs(host: str, device: RdmaDevice, interface: str, port: int | None) -> Choice:
    where = f"{device.name} ({device.fabric}, driver {device.driver or 'unknown'}) on {interface}"
    if not device.state.active:
        return Choice("verbs", host, (), f"the port of {where} is down", "check the cable, the switch and `rdma link`")
    return Choice("verbs", host, device.smb_ports if port is None else (port,), where)


def choose_automatically(hosts: Sequence[str], machine: Machine, port: int | None) -> list[Choice]:
    """Choose verbs for addresses with a working RDMA device, and software iWARP and RoCEv2 for the others. ``port`` is
    None for the usual ports."""
    addresses = _Addresses(machine)
    choices: list[Choice] = []
    verbs_missing = machine.unavailable.get("verbs")
    if verbs_missing is not None:
        choices.append(Choice("verbs", "", (), verbs_missing))
    for host in hosts:
        expanded = addresses.expand(host)
        usable = {
            text: device
            for text in expanded
            if (device := addresses.device(text)) is not None and device.state.active and verbs_missing is None
        }
        if not usable:
            why = _why_software(host, addresses, machine, verbs_missing)
            choices += [_software(fabric, host, why, port, machine) for fabric in SOFTWARE]
            continue
        # If a device is used, software must not listen on its addresses, so nothing may listen on the wildcard.
        for text in expanded:
            if text in usable:
                choices.append(_verbs(text, usable[text], addresses.interface(text), port))
                continue
            why = _why_software(text, addresses, machine, verbs_missing)
            choices += [_software(fabric, text, why, port, machine) for fabric in SOFTWARE]
    return choices


def _why_software(host: str, addresses: _Addresses, machine: Machine, verbs_missing: str | None) -> str:
    if not machine.devices:
        return "in user space: this machine has no RDMA device"
    device = addresses.device(host)
    if host not in WILDCARDS and device is None:
        return f"in user space: no RDMA device on {addresses.interface(host)}"
    if device is not None and not device.state.active:
        return f"in user space: the port of {device.name} is down"
    if verbs_missing is not None:
        return "in user space: the RDMA device cannot be used"
    return "in user space: no RDMA device has an address here"


def choose_named(fabrics: Sequence[str], hosts: Sequence[str], machine: Machine, port: int | None) -> list[Choice]:
    """Choose exactly the fabrics in ``fabrics``. ``port`` is None for the usual ports."""
    addresses = _Addresses(machine)
    choices: list[Choice] = []
    for fabric in fabrics:
        if fabric in machine.unavailable:
            choices.append(Choice(fabric, "", (), machine.unavailable[fabric]))
        elif fabric != "verbs":
            choices += [_software(fabric, host, "asked for", port, machine) for host in hosts]
        else:
            choices += _named_verbs(hosts, addresses, port)
    return choices


def _named_verbs(hosts: Sequence[str], addresses: _Addresses, port: int | None) -> Iterable[Choice]:
    remedy = "give the device's interface an address (`ip address add`), or name one with --listen"
    for host in hosts:
        found = [(text, device) for text in addresses.expand(host) if (device := addresses.device(text)) is not None]
        for text, device in found:
            yield _verbs(text, device, addresses.interface(text), port)
        if not found and host in WILDCARDS:
            family = "IPv6" if ":" in host else "IPv4"
            yield Choice("verbs", host, (), f"no interface with an RDMA device has an {family} address", remedy)
        elif not found:
            yield Choice("verbs", host, (), f"no RDMA device on {addresses.interface(host)}", remedy)


def fatal(choices: Sequence[Choice], fabrics: Sequence[str], hosts: Sequence[str]) -> Choice | None:
    """Return the first choice that makes a start with explicitly named ``fabrics`` an error, or None.

    It is an error if a fabric serves nothing, does not serve an address that was named, or does not serve an address
    (including a wildcard) because another program has its port. A wildcard of an address family that this machine does
    not have is not an error.
    """
    for fabric in fabrics:
        own = [choice for choice in choices if choice.fabric == fabric]
        served = any(choice.served for choice in own)
        for choice in own:
            named = choice.host in hosts and choice.host not in WILDCARDS
            if not choice.served and (not served or choice.taken or named):
                return choice
    return None


def explain(error: OSError | ProviderError, choice: Choice, port: int, owners: Callable[[], Machine]) -> Choice:
    """Return ``choice`` as failed after listening raised ``error``, with the owner of the port, if there is one, and
    the remedy."""
    blocked = obstacle(choice.fabric, choice.host, port, owners())
    if blocked is not None:
        return choice.failed(*blocked, taken=True)
    if isinstance(error, ProviderError):
        return choice.failed(str(error))
    remedies = {
        errno.EACCES: f"run as root or with CAP_NET_BIND_SERVICE: ports below 1024 need it (port {port})",
        errno.EPERM: "run as root, or grant the missing capability",
        errno.EADDRINUSE: "find the owner with `ss -lntup` (as root) and stop it; ksmbd has no process there",
        errno.EADDRNOTAVAIL: "this machine does not have the address: `ip address add` it, or name another one",
        errno.ENODEV: "check `rdma link`: no RDMA device has this address",
        errno.EINVAL: "bring the interface of this address up (`ip link set IFACE up`)",
    }
    taken = error.errno in (errno.EACCES, errno.EPERM, errno.EADDRINUSE)
    return choice.failed(error.strerror or str(error), remedies.get(error.errno or 0, ""), taken)
