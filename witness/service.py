"""The Witness service: registrations, the RPC endpoint and the endpoint mapper. The cluster's events drive it."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from smb3server.auth.acceptor import Acceptor
from smb3server.rpc import endpoint_mapper
from smb3server.rpc.association import Association
from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.endpoint_mapper import EndpointMapper, Mapping
from smb3server.rpc.tcp import RpcListener
from smb3server.state.events import Events
from smbdirect.unauthenticated import UnauthenticatedPeers
from witness import ndr
from witness.cluster import ClusterEvents, Event, ManualCluster
from witness.interface import WitnessInterface
from witness.registrations import Limits, Registrations

log = logging.getLogger(__name__)


@dataclass(slots=True)
class WitnessSettings:
    """The settings of a Witness service."""

    listen: list[str] = field(default_factory=lambda: ["0.0.0.0", "::"])
    port: int = 0
    """0 means any free port, which clients learn from the endpoint mapper."""
    endpoint_mapper_port: int | None = endpoint_mapper.PORT
    """None means that there is no endpoint mapper."""
    require_privacy: bool = False
    """Whether calls that are only signed are refused."""
    max_connections: int = 32768
    admits: Callable[[str], bool] = lambda host: True
    """Returns whether connections from an address are accepted."""
    limits: Limits = field(default_factory=Limits)
    events: Events | None = None
    """Is told of failed logons. None means that they are not counted."""


class WitnessService:
    """A Witness service. ``start`` it, then ``stop`` it, once. Used on one event loop only."""

    def __init__(
        self,
        cluster: ClusterEvents,
        new_acceptor: Callable[[], Acceptor],
        settings: WitnessSettings | None = None,
        extra_interfaces: Callable[[Association], list[Interface]] = lambda association: [],
        unauthenticated: UnauthenticatedPeers | None = None,
    ) -> None:
        """``extra_interfaces``: returns further interfaces for the same port. ``unauthenticated``: the table of
        unauthenticated peers, None means that each port has its own."""
        self.settings = settings or WitnessSettings()
        self.cluster = cluster
        self.registrations = Registrations(cluster, self.settings.limits)
        self.mapper = EndpointMapper()
        self.port = 0
        """The port of the interface, once started."""
        self.mapper_port: int | None = None
        """The port of the endpoint mapper, None if it is not served."""
        self.notes: list[str] = []
        """Messages for the operator."""
        self.events_told = 0
        """Number of notifications made, for all events and registrations."""
        self._interface = WitnessInterface(
            cluster, self.registrations, self.settings.require_privacy, self._now, self._set_timer
        )
        self._listener = RpcListener(
            lambda association: [self._interface.interface(association), *extra_interfaces(association)],
            new_acceptor,
            self.settings.max_connections,
            admits=self.settings.admits,
            unauthenticated=unauthenticated,
            events=self.settings.events,
        )
        self._mapper_listener = RpcListener(
            lambda association: [self.mapper.interface(association)],
            new_acceptor,
            self.settings.max_connections,
            max_stub=4096,
            admits=self.settings.admits,
            unauthenticated=unauthenticated,
            events=self.settings.events,
        )
        self._unsubscribe: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Start listening. Raises ``OSError`` if the port is in use.

        If the port of the endpoint mapper is in use, add a note instead."""
        settings = self.settings
        self.port = await _listen_all(self._listener, settings.listen, settings.port)
        self.mapper.mappings.append(Mapping(ndr.UUID, ndr.MAJOR, ndr.MINOR, self.port, "Service Witness Protocol"))
        if settings.endpoint_mapper_port is not None:
            try:
                self.mapper_port = await _listen_all(
                    self._mapper_listener, settings.listen, settings.endpoint_mapper_port
                )
            except OSError as error:
                self.notes.append(
                    f"no endpoint mapper on port {settings.endpoint_mapper_port} ({error.strerror}): "
                    f"clients find the Witness service only if they are configured with its port, {self.port}"
                )
        self._unsubscribe = self.cluster.subscribe(self.notify)

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        self._unsubscribe()
        await self._mapper_listener.close()
        await self._listener.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def notify(self, event: Event) -> int:
        """Notify the registrations that an event concerns. Return how many."""
        count = self.registrations.notify(event, self._now())
        self.events_told += count
        log.info("%s: %d clients notified", event, count)
        self._interface.cluster_changed()
        self._set_timer()
        return count

    def _set_timer(self) -> None:
        """Let the timer fire no later than the next deadline. A timer that fires too early is set again then."""
        deadline = self.registrations.next_deadline()
        if self._timer is not None:
            if deadline is not None and self._timer.when() <= deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.registrations.handle_timer(self._now())
        self._set_timer()

    def status(self) -> dict[str, Any]:
        """Return port numbers, registrations and counts, for status displays."""
        return {
            "port": self.port,
            "endpoint_mapper_port": self.mapper_port,
            "registrations": [
                {
                    "client": entry.client,
                    "user": entry.user,
                    "net_name": entry.net_name,
                    "share": entry.share_name,
                    "address": str(entry.ip_address),
                    "version": entry.version >> 16,
                    "waiting": bool(entry.waiters),
                    "queued": len(entry.queue),
                }
                for entry in self.registrations
            ],
            "notifications_sent": self.registrations.notifications_sent,
            "notifications_dropped": self.registrations.notifications_dropped,
        }


class NotifyError(ValueError):
    """A command of the administrator is wrong. The text says why."""


def notify_by_hand(cluster: ManualCluster, kind: str, subject: str, addresses: Sequence[str] = ()) -> str:
    """Emit the event of the administrator's command ``witness notify``. Return its kind and subject.

    Raises ``NotifyError``. The commands are:

    ``available|unavailable NAME`` (a net name or share), ``node-up|node-down NODE``, ``move-client CLIENT ADDRESS...``,
    ``move-share [NET_NAME/]SHARE ADDRESS...``, ``ip-change NET_NAME [+|-]ADDRESS...``.
    """
    name, separator, share = subject.partition("/")
    net_name = name if separator else cluster.names[0]
    try:
        given = [(entry.startswith("-"), ipaddress.ip_address(entry.lstrip("+-"))) for entry in addresses]
    except ValueError as error:
        raise NotifyError(str(error)) from None
    parsed = [address for _, address in given]
    if kind in ("move-client", "move-share", "ip-change") and not parsed:
        raise NotifyError(f"{kind}: at least one address is needed")
    if kind in ("available", "unavailable"):
        cluster.resource_changed(subject, kind == "available")
    elif kind in ("node-up", "node-down"):
        try:
            cluster.node_changed(subject, kind == "node-up")
        except KeyError:
            raise NotifyError(f"no node {subject}") from None
    elif kind == "move-client":
        cluster.move_client(subject, parsed)
    elif kind == "move-share":
        cluster.move_share(net_name, share if separator else subject, parsed)
    elif kind == "ip-change":
        added = [address for gone, address in given if not gone]
        cluster.ip_change(subject, added, [address for gone, address in given if gone])
    else:
        raise NotifyError(f"no notification {kind}")
    return f"{kind} {subject}"


_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def _listen_all(listener: RpcListener, hosts: Sequence[str], port: int) -> int:
    """Listen on all addresses, with the same port. Return the port. Machines without IPv6 serve IPv4 only.

    Raises ``OSError`` whose ``filename`` is the address and port that cannot be used."""
    problem: OSError | None = None
    chosen = port
    listening = False
    for host in hosts:
        try:
            chosen = (await listener.listen(host, chosen))[1]
            listening = True
        except OSError as error:
            if ":" not in host or not listening or error.errno not in _NO_IPV6:
                problem = problem or OSError(error.errno, _why_not(error), f"{host} port {chosen}")
            log.info("not listening on %s: %s", host, error)
    if problem is not None:
        await listener.close()
        raise problem
    return chosen


def _why_not(error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have the address"
    return os.strerror(error.errno) if error.errno else str(error)
