"""``smb3server doctor --config``: what a configuration would serve on this machine, before it is started."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

from smb3server.config.command_line.options import ServerOptions
from smb3server.config.examination import examine
from smb3server.config.model import Config
from smb3server.config.service_user import lacks_rights
from smb3server.doctor.domain import examine_domain
from smb3server.doctor.findings import EXIT_NO_RDMA, EXIT_RDMA, EXIT_UNKNOWN, Finding, Verdict
from smb3server.doctor.host import Host, gather
from smb3server.net.fabric_choice import WILDCARDS, Choice, choose_automatically, choose_named, fatal, ports_needed
from smb3server.net.host import CAP_NET_BIND_SERVICE, SMB_PORT, kernel_owner, overlapping
from smb3server.net.host_lists import is_loopback
from smb3server.net.interfaces import rdma_capable
from smb3server.process import parts, state_lock
from smb3server.wire.negotiate import DIALECT_NAMES, Dialect
from smb3server.wire.rdma_transform import RdmaTransformId

PORT_REMEDY = (
    "run as root, give the service the right (AmbientCapabilities=CAP_NET_BIND_SERVICE in a unit file), or serve"
    " another port (`port` of [server])"
)


_INLINE = "that data goes inline"


def _choices(config: Config, host: Host) -> list[Choice]:
    """Return what the configuration would serve by RDMA."""
    hosts = config.listen or list(WILDCARDS)
    if config.rdma == "off":
        return []
    if config.rdma == "auto":
        return choose_automatically(hosts, host.machine_without_servers, config.rdma_port)
    return choose_named(config.rdma.split(","), hosts, host.machine_without_servers, config.rdma_port)


def _tcp(config: Config, host: Host) -> Iterator[Finding]:
    port = SMB_PORT if config.port is None else config.port
    subject = f"tcp port {port}"
    if 0 < port < host.first_unprivileged_port and not host.capabilities >> CAP_NET_BIND_SERVICE & 1:
        # Without a port in the configuration the server takes another one, which clients have to name.
        verdict = Verdict.WARNING if config.port is None or lacks_rights() else Verdict.PROBLEM
        yield Finding(verdict, subject, "this user may not bind it; the unit's server may", PORT_REMEDY)
    machine = host.machine_without_servers
    for address in config.listen or WILDCARDS:
        owner = overlapping(machine.owners, "tcp", address, port) if port else None
        if owner is not None:
            who, remedy = kernel_owner(owner, machine.devices, host.root)
            yield Finding(Verdict.PROBLEM, subject, f"{address}: belongs to {who}", remedy)
            return
    own = {str(entry.address) for entry in host.interfaces}
    for address in config.listen:
        if address not in WILDCARDS and address not in own and not is_loopback(address):
            yield Finding(
                Verdict.PROBLEM,
                "listen",
                f"this machine does not have the address {address}, or its interface is down",
                "`ip address` shows what it has; `ip link set IFACE up`",
            )
    if config.listen and all(is_loopback(address) for address in config.listen):
        yield Finding(
            Verdict.WARNING, "listen", "only at loopback addresses: no other machine reaches them", "change `listen`"
        )


def _state(config: Config) -> Iterator[Finding]:
    """Find a server that uses the state directory: a second one would not start."""
    user = state_lock.user_of(config.state) if config.state is not None else ""
    if user:
        yield Finding(
            Verdict.NOTE,
            "state directory",
            f"{config.state}: another server uses it: {user}",
            "none needed if that is this configuration's server; else give each server a `state` of its own",
        )


def _protection(config: Config) -> Iterator[Finding]:
    settings = config.settings
    if settings.max_dialect < Dialect.SMB_3_0:
        name = DIALECT_NAMES[settings.max_dialect]
        yield Finding(Verdict.PROBLEM, "max_dialect", f"{name}: RDMA needs 3.0", "raise it to 3.1.1")
    if not settings.multichannel:
        yield Finding(Verdict.WARNING, "multichannel", "off: only mounts that ask for RDMA find it", "turn it on")
    encrypts = settings.require_encryption or any(share.encrypt for share in config.shares)
    for needed, transform, what in (
        (settings.require_signing, RdmaTransformId.SIGNING, "require_signing"),
        (encrypts, RdmaTransformId.ENCRYPTION, "encryption"),
    ):
        if needed and transform not in settings.rdma_transforms:
            name = transform.name.lower()
            yield Finding(
                Verdict.WARNING,
                what,
                f"required, and rdma_transforms lacks {name}: {_INLINE}",
                f'add "{name}" to rdma_transforms',
            )
        elif needed:
            yield Finding(
                Verdict.NOTE,
                what,
                "required: data goes by RDMA for clients with RDMA transforms (Windows 11, Windows Server 2022 or"
                " later), and inline for others (Linux)",
            )


def _fabrics(config: Config, host: Host, choices: list[Choice]) -> Iterator[Finding]:
    if config.rdma == "off":
        yield Finding(Verdict.WARNING, "rdma", "off", 'rdma = "auto"')
        return
    for choice in choices:
        verdict = Verdict.OK if choice.served else Verdict.NOTE if choice.fabric == "verbs" else Verdict.WARNING
        yield Finding(verdict, f"rdma = {config.rdma}", str(choice))
    addresses = {choice.host for choice in choices if choice.served}
    for entry in host.interfaces:
        if not entry.loopback and rdma_capable([entry], addresses):
            yield Finding(Verdict.OK, "interface list", f"clients will see {entry.address} as RDMA capable")


def _cluster(config: Config) -> Iterator[Finding]:
    """Look at the cluster's etcd: whether it answers, its size and its alarms."""
    if not config.cluster.url:
        return
    subject = "cluster"
    try:
        # aiohttp is an extra.
        from smb3server.persistence.etcd import open_store
        from smb3server.persistence.etcd_health import MemberState, problems
    except ImportError as error:
        yield Finding(
            Verdict.PROBLEM, subject, f"it needs {error.name}", parts.remedy("cluster").removeprefix("remedy: ")
        )
        return

    async def look() -> list[MemberState]:
        store = open_store(config.cluster.url, config.cluster.name, config.cluster.access)
        try:
            return await store.etcd.members_state()
        finally:
            await store.close()

    try:
        members = asyncio.run(look())
    except ValueError as error:
        yield Finding(Verdict.PROBLEM, subject, str(error), "mend [cluster]")
        return
    if all(member.error for member in members):
        yield Finding(
            Verdict.PROBLEM, subject, "no member of etcd answers: services would not be served", "docs/etcd.md"
        )
    found = problems(members)
    for problem in found:
        text, _, remedy = problem.text.partition("; remedy: ")
        yield Finding(Verdict.PROBLEM if problem.is_error else Verdict.WARNING, subject, text, remedy)
    if not found:
        yield Finding(Verdict.OK, subject, f"etcd answers: {', '.join(member.endpoint for member in members)}")


def examine_config(file: Path, as_user: str = "") -> tuple[int, list[Finding], str]:
    """Return exit status, findings and verdict for a configuration file on this machine."""
    found = examine(ServerOptions(config=file), as_user)
    config = found.config
    if config is None:
        findings = [
            Finding(Verdict.PROBLEM, str(file), str(error), "mend the configuration") for error in found.problems
        ]
        return EXIT_UNKNOWN, findings, "the server would not start: the configuration is wrong"
    host = gather(more_ports=[("tcp", config.port or SMB_PORT), *ports_needed(config.rdma_port)])
    choices = _choices(config, host)
    findings = [
        Finding(Verdict.OK, str(file), f"{len(config.shares)} shares, {len(config.accounts)} users"),
        *_tcp(config, host),
        *_state(config),
        *_protection(config),
        *_cluster(config),
        *examine_domain(config.domain),
        *_fabrics(config, host, choices),
    ]
    status, text = _verdict(config, choices, findings)
    return status, findings, text


def _verdict(config: Config, choices: list[Choice], findings: list[Finding]) -> tuple[int, str]:
    wrong = None
    if config.rdma not in ("off", "auto"):
        wrong = fatal(choices, config.rdma.split(","), config.listen or list(WILDCARDS))
    problems = [finding for finding in findings if finding.verdict is Verdict.PROBLEM]
    if wrong is not None:
        where = wrong.host or "any address"
        return EXIT_NO_RDMA, f"the server would not start: {wrong.fabric} cannot be served on {where}"
    if problems:
        return EXIT_NO_RDMA, f"there are problems to solve first: {problems[0].subject}: {problems[0].text}"
    fabrics = list(dict.fromkeys(choice.fabric for choice in choices if choice.served))
    if fabrics and all(is_loopback(choice.host) for choice in choices if choice.served):
        return EXIT_NO_RDMA, "RDMA would be served at loopback addresses only"
    inline = [finding for finding in findings if finding.verdict is Verdict.WARNING and finding.text.endswith(_INLINE)]
    if fabrics and inline:
        return (
            EXIT_NO_RDMA,
            f"{', '.join(fabrics)} would be served, and data goes inline: {inline[0].subject} is required",
        )
    if not fabrics:
        return EXIT_NO_RDMA, f"{socket.gethostname()} would serve no RDMA with this configuration"
    return EXIT_RDMA, f"RDMA would be served: {', '.join(fabrics)}"
