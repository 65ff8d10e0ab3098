"""What this machine can serve: the checks of ``smb3server doctor`` without a target."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smb3server.admin.own_servers import OwnServer, own_servers
from smb3server.doctor.findings import EXIT_NO_RDMA, EXIT_RDMA, EXIT_UNKNOWN, Finding, Verdict, verdict_lines
from smb3server.net.fabric_choice import FABRICS, Choice, Machine, choose_automatically, ports_needed
from smb3server.net.host import (
    CAP_NET_BIND_SERVICE,
    CAP_NET_RAW,
    ROOT,
    SMB_PORT,
    RdmaDevice,
    effective_capabilities,
    interfaces_down,
    kernel_owner,
    module_loaded,
    mtu,
    overlapping,
    port_owners,
    rdma_devices,
)
from smb3server.net.interfaces import Interface, rdma_capable, read_interfaces
from smbdirect import native
from smbdirect.errors import ProviderError
from smbdirect.providers.make import make_provider

MEMLOCK_WANTED = 256 << 20
"""Bytes of locked memory that pools and receive buffers of some connections may need."""
SMALLEST_USEFUL_MTU = 1500
WILDCARDS = ("0.0.0.0", "::")


@dataclass(slots=True)
class Host:
    """The facts that the checks use, gathered once."""

    interfaces: list[Interface]
    devices: list[RdmaDevice]
    machine: Machine
    root: Path = ROOT
    capabilities: int = 0
    memlock: int = 0
    """Limit of locked memory in bytes; RLIM_INFINITY is -1."""
    servers: list[OwnServer] = field(default_factory=list)
    """Servers of this project that run here and answer this user."""
    not_native: dict[str, str] = field(default_factory=dict)
    """Modules in C that are not used, with the reasons."""

    def own(self, pid: int | None) -> OwnServer | None:
        """Return our server with this process id, or None."""
        return next((server for server in self.servers if server.pid == pid), None)

    @property
    def first_unprivileged_port(self) -> int:
        """The lowest port that needs no capability. [ip(7)]"""
        try:
            return int((self.root / "proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
        except (OSError, ValueError):
            return 1024

    @property
    def machine_without_servers(self) -> Machine:
        """The machine as if its ports that belong to our own servers were free."""
        return self.machine._replace(owners=[owner for owner in self.machine.owners if self.own(owner.pid) is None])


def gather(root: Path = ROOT, more_ports: Sequence[tuple[str, int]] = ()) -> Host:
    """Gather the facts about this machine. Blocks for some milliseconds.

    ``more_ports``: (protocol, port) pairs whose owners matter beside those of the usual ports."""
    unavailable: dict[str, str] = {}
    for fabric in FABRICS:
        try:
            make_provider(fabric)
        except ProviderError as error:
            unavailable[fabric] = str(error)
    try:
        interfaces = read_interfaces()
    except Exception:
        interfaces = []
    devices = rdma_devices(root)
    owners = port_owners([*ports_needed(None), *more_ports], root)
    machine = Machine(interfaces, devices, owners, unavailable)
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Host(
        interfaces, devices, machine, root, effective_capabilities(root), memlock, own_servers(), native.problems()
    )


def _devices(host: Host) -> Iterator[Finding]:
    if not host.devices:
        yield Finding(Verdict.NOTE, "devices", "no RDMA device: iWARP and RoCEv2 are served in user space")
    for device in host.devices:
        state = device.state
        where = ", ".join(state.netdevs) or "no interface"
        text = f"{device.fabric}, driver {device.driver or 'unknown'}, on {where}"
        numbers = " and ".join(str(port) for port in device.smb_ports)
        if not state.active:
            yield Finding(Verdict.WARNING, device.name, f"{text}: port {state.port} is down", "check cable and switch")
        elif not state.netdevs:
            yield Finding(
                Verdict.WARNING,
                device.name,
                f"{text}: clients cannot reach it",
                "load ib_ipoib and give ib0 an address",
            )
        else:
            yield Finding(Verdict.OK, device.name, f"{text}: active, SMB Direct on port {numbers}")
    missing = host.machine.unavailable.get("verbs")
    if host.devices and missing is not None:
        yield Finding(Verdict.PROBLEM, "verbs", missing)


def _modules(host: Host) -> Iterator[Finding]:
    if not host.devices:
        return
    for name in ("rdma_ucm", "ib_uverbs"):
        if module_loaded(name, host.root):
            yield Finding(Verdict.OK, "modules", f"{name} is loaded")
        else:
            yield Finding(Verdict.PROBLEM, "modules", f"{name} is not loaded", f"modprobe {name}")


def _ports(host: Host) -> Iterator[Finding]:
    forbidden = host.first_unprivileged_port > SMB_PORT and not host.capabilities >> CAP_NET_BIND_SERVICE & 1
    for protocol, port in ports_needed(None):
        subject = f"{protocol} port {port}"
        owner = overlapping(host.machine.owners, protocol, "0.0.0.0", port)
        if owner is None and port == SMB_PORT and forbidden:
            yield Finding(
                Verdict.WARNING,
                subject,
                "free, but this user may not bind it",
                "run as root, give the service the right (AmbientCapabilities=CAP_NET_BIND_SERVICE in a unit file), or"
                " serve --port 1445",
            )
            continue
        if owner is None:
            yield Finding(Verdict.OK, subject, "free")
            continue
        own = host.own(owner.pid)
        if own is not None:
            yield Finding(Verdict.OK, subject, f"served by {own}")
            continue
        who, remedy = kernel_owner(owner, host.devices, host.root)
        ours = owner.process.startswith(("smb3server", "python"))
        verdict = Verdict.NOTE if ours else Verdict.PROBLEM if port == SMB_PORT else Verdict.WARNING
        text = f"belongs to {who}" + (" (perhaps one of our servers)" if ours else "")
        yield Finding(verdict, subject, text, "" if ours else remedy)


def _rights(host: Host) -> Iterator[Finding]:
    if host.capabilities >> CAP_NET_RAW & 1:
        yield Finding(Verdict.OK, "CAP_NET_RAW", "there: software RoCEv2 checks the ICRC of what it receives")
    else:
        yield Finding(
            Verdict.WARNING,
            "CAP_NET_RAW",
            "missing: software RoCEv2 serves, but cannot check the ICRC of IPv4 packets in full; a node of a cluster"
            " cannot announce addresses that it takes over, nor notify clients that their connections are gone",
            "run as root, or give the service the capability (AmbientCapabilities=CAP_NET_RAW in a unit file)",
        )
    if host.memlock == resource.RLIM_INFINITY or host.memlock >= MEMLOCK_WANTED:
        amount = "unlimited" if host.memlock == resource.RLIM_INFINITY else f"{host.memlock >> 20} MiB"
        yield Finding(Verdict.OK, "locked memory", amount)
    elif host.devices:
        yield Finding(
            Verdict.PROBLEM if os.geteuid() != 0 else Verdict.NOTE,
            "locked memory",
            f"{host.memlock >> 10} KiB may be locked; registered buffers need more",
            "raise `ulimit -l` (LimitMEMLOCK= in a unit file)",
        )


def _native(host: Host) -> Iterator[Finding]:
    if not host.not_native:
        yield Finding(Verdict.OK, "modules in C", "in use")
    for module, why in host.not_native.items():
        remedy = "install again on a machine with a C compiler and Python's headers"
        yield Finding(Verdict.NOTE, "modules in C", f"{module}: {why}; Python does the same, slower", remedy)


def _links(host: Host) -> Iterator[Finding]:
    for name in dict.fromkeys(entry.name for entry in host.interfaces if not entry.loopback):
        size = mtu(name, host.root)
        if 0 < size < SMALLEST_USEFUL_MTU:
            yield Finding(Verdict.WARNING, name, f"MTU {size} is small", f"ip link set {name} mtu 1500 (or 9000)")
        elif size:
            hint = "" if size >= 9000 else "; 9000 makes RDMA in user space faster, if all on this network can"
            yield Finding(Verdict.OK, name, f"MTU {size}{hint}")


def plan(host: Host) -> list[Choice]:
    """Return what ``--rdma=auto`` serves or would serve here. Ports of our own servers count as free."""
    return choose_automatically(WILDCARDS, host.machine_without_servers, None)


def _running(host: Host) -> Iterator[Finding]:
    for server in host.servers:
        for fabric, address, ports in server.served:
            numbers = " and ".join(str(port) for port in ports)
            yield Finding(Verdict.OK, "server", f"{server} serves {fabric} on {address}, port {numbers}")
        for problem in server.problems:
            yield Finding(Verdict.NOTE, "server", f"{server} serves {problem}")
        if server.rdma == "off":
            yield Finding(Verdict.WARNING, "server", f"{server} runs without RDMA", "start it with --rdma")


def _served(host: Host) -> Iterator[Finding]:
    choices = plan(host)
    for choice in choices:
        verdict = Verdict.OK if choice.served else Verdict.NOTE if choice.fabric == "verbs" else Verdict.WARNING
        yield Finding(verdict, "--rdma=auto", str(choice))
    addresses = {choice.host for choice in choices if choice.served}
    visible = [entry for entry in host.interfaces if not entry.loopback]
    if not visible:
        down = interfaces_down(host.root)
        yield Finding(
            Verdict.PROBLEM,
            "interface list",
            "no interface with an address that clients can reach" + (f"; down: {', '.join(down)}" if down else ""),
            f"`ip link set {down[0]} up`, and `ip address` shows its address" if down else "`ip address add ...`",
        )
    for entry in visible:
        flagged = bool(rdma_capable([entry], addresses))
        flag = "RDMA capable" if flagged else "not RDMA capable"
        yield Finding(
            Verdict.OK if flagged else Verdict.WARNING,
            "interface list",
            f"clients will see {entry.address} ({entry.name}, {entry.speed // 1_000_000} Mbit/s) as {flag}",
        )


FIREWALL = Finding(
    Verdict.NOTE,
    "firewall",
    "clients need TCP 445, TCP 5445 (iWARP) and UDP 4791 (RoCEv2)",
    "let them through here and on the way (docs/firewall.md); from a client `smb3server doctor //HOST/SHARE` tells",
)
"""The ports to open. Rules are not judged: a firewall may be anywhere on the way."""


CHECKS: tuple[Callable[[Host], Iterator[Finding]], ...] = (
    _devices,
    _modules,
    _ports,
    _rights,
    _native,
    _links,
    _running,
    _served,
)


def examine(host: Host) -> list[Finding]:
    """Return the findings of all checks."""
    return [finding for check in CHECKS for finding in check(host)]


def conclude(host: Host, findings: Sequence[Finding]) -> tuple[int, str]:
    """Return exit status and verdict."""
    for server in host.servers:
        if server.fabrics:
            return EXIT_RDMA, f"RDMA is served: {', '.join(server.fabrics)}, by {server}"
    choices = plan(host)
    fabrics = list(dict.fromkeys(choice.fabric for choice in choices if choice.served))
    if fabrics:
        problems = sum(finding.verdict is Verdict.PROBLEM for finding in findings)
        rest = f", with {problems} problem(s) to solve" if problems else ""
        return EXIT_RDMA, f"RDMA can be served: {', '.join(fabrics)}{rest}"
    taken = any(choice.taken for choice in choices)
    if taken and any(owner.hidden for owner in host.machine_without_servers.owners):
        # One of our servers may own these ports and serve RDMA.
        return (
            EXIT_UNKNOWN,
            "it is unknown whether RDMA is served here: ports belong to another user; ask again as root",
        )
    return EXIT_NO_RDMA, "RDMA cannot be served here: see the warnings"


def report(as_json: bool) -> int:
    """Examine this machine, print the findings and the verdict, and return the exit status."""
    host = gather()
    findings = examine(host)
    status, text = conclude(host, findings)
    served = any(server.fabrics for server in host.servers)
    return show(status, [*findings, FIREWALL], text, served, as_json)


def show(status: int, findings: Sequence[Finding], text: str, served: bool, as_json: bool) -> int:
    """Print findings and verdict, and return the exit status."""
    if as_json:
        document: dict[str, Any] = {
            "host": socket.gethostname(),
            "rdma": status == EXIT_RDMA,
            "served": served,
            "verdict": text,
            "findings": [finding.as_json() for finding in findings],
        }
        print(json.dumps(document, indent=2))
    else:
        for finding in findings:
            print(finding.line())
        print(verdict_lines(text))
    return status
