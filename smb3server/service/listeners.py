"""SMB Direct listeners: make the providers, serve the choices of ``fabric_choice``, and remember the reasons."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial

from smb3server.net.fabric_choice import (
    FABRICS,
    Choice,
    Machine,
    choose_automatically,
    choose_named,
    explain,
    fatal,
    ports_needed,
)
from smb3server.net.host import ROOT, port_owners, rdma_devices
from smb3server.net.interfaces import Interface
from smb3server.service.reception import Reception
from smb3server.settings.server import Settings
from smbdirect.core.constants import MIN_FRAGMENTED_SIZE
from smbdirect.core.settings import Settings as TransportSettings
from smbdirect.errors import ProviderError
from smbdirect.providers.base import Provider
from smbdirect.providers.make import make_provider
from smbdirect.transport.listen import SmbDirectListener, listen

log = logging.getLogger(__name__)

PORT_DOWN_REMEDY = (
    "check cable, switch and `rdma link`; a port that comes back is served again, a device after a restart"
)


def transport_settings(settings: Settings) -> TransportSettings:
    """Return the parameters that the server states in MS-SMBD negotiation. [MS-SMBD 3.1.5.6]

    Messages may be as long as over TCP: clients that sign or encrypt send a WRITE of MaxWriteSize as one message. This
    reserves no memory: a buffer is made when such a message begins, and unauthenticated peers cannot begin one.
    """
    return TransportSettings(max_fragmented_receive_size=max(settings.max_message_size, MIN_FRAGMENTED_SIZE))


class Fabrics:
    """The SMB Direct listeners of one server."""

    def __init__(self, settings: Settings, reception: Reception, interfaces: Callable[[], Sequence[Interface]]) -> None:
        """Prepare for ``start``. ``interfaces`` returns the interfaces of this machine."""
        self._settings = settings
        self._reception = reception
        self._interfaces = interfaces
        self.on_change: Callable[[], None] = lambda: None
        """Called when ports of devices go down or come up; ``addresses`` has changed."""
        self.listeners: list[tuple[str, SmbDirectListener]] = []
        """Pairs of fabric and listener."""
        self.adopt: Callable[[socket.socket], None] | None = None
        """Takes over a TCP socket whose peer speaks MPA; None without iWARP."""
        self.choices: list[Choice] = []
        """Every fabric and address considered, whether it is served, and why."""
        self._providers: dict[str, Provider] = {}
        # Invariant: ``_planned`` has the length and order of ``choices``.
        self._planned: list[tuple[Choice, list[SmbDirectListener]]] = []
        """The choice to show while the ports of its devices are up, and its listeners."""
        self._port: int | None = None
        self._unavailable: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """Why fabrics are not served."""
        return [str(choice) for choice in self.choices if not choice.served]

    def _machine(self) -> Machine:
        return Machine(
            list(self._interfaces()), rdma_devices(ROOT), port_owners(ports_needed(self._port), ROOT), self._unavailable
        )

    async def start(self, fabrics: Sequence[str], hosts: Sequence[str], port: int | None) -> None:
        """Listen for the named fabrics on ``hosts``.

        With ("auto",) every interface gets the best fabric that it supports. ``port`` None means the ports that clients
        of each fabric try. Raises ``ProviderError`` if a named fabric cannot be served.
        """
        automatic = tuple(fabrics) == ("auto",)
        self._port = port
        make = partial(make_provider, iwarp_crc=True) if self._settings.iwarp_crc else make_provider
        for name in FABRICS if automatic else fabrics:
            try:
                self._providers[name] = make(name)
            except ProviderError as error:
                self._unavailable[name] = str(error)
        machine = self._machine()
        if automatic:
            planned = choose_automatically(hosts, machine, port)
        else:
            planned = choose_named(fabrics, hosts, machine, port)
        for choice in planned:
            listeners: list[SmbDirectListener] = []
            served = await self._serve(choice, listeners) if choice.served else choice
            self.choices.append(served)
            self._planned.append((served, listeners))
            for listener in listeners:
                listener.on_change = self._ports_changed
        wrong = None if automatic else fatal(self.choices, fabrics, hosts)
        if wrong is not None:
            raise ProviderError(str(wrong))

    @property
    def addresses(self) -> set[str]:
        """Return the local addresses at which SMB Direct can be reached."""
        return {listener.address[0] for _, listeners in self._planned for listener in listeners if not listener.down}

    def _ports_changed(self) -> None:
        """Announce the reachable addresses after a device's port went down or came up; log the choices that changed."""
        for number, (planned, listeners) in enumerate(self._planned):
            down = next((listener.down for listener in listeners if listener.down), "")
            current = planned.failed(down, PORT_DOWN_REMEDY) if down else planned
            if current != self.choices[number]:
                self.choices[number] = current
                log.warning("%s", current)
        self.on_change()

    async def _serve(self, choice: Choice, listeners: list[SmbDirectListener]) -> Choice:
        """Listen on the ports of ``choice``.

        Return the choice with the ports in use, or with the reason why there is none. Listeners are added to
        ``listeners``.
        """
        served: list[int] = []
        failure: Choice | None = None
        for port in choice.ports:
            try:
                listener = await self._listen(choice.fabric, choice.host, port)
            except (OSError, ProviderError) as error:
                failure = failure or explain(error, choice, port, self._machine)
            else:
                served.append(listener.address[1])
                listeners.append(listener)
        if served:
            notices = self._providers[choice.fabric].notices
            return choice._replace(ports=tuple(served), reason="; ".join([choice.reason, *notices]))
        return failure or choice.failed("nothing to listen on")

    async def _listen(self, name: str, host: str, port: int) -> SmbDirectListener:
        provider = self._providers[name]
        provider.share_table(self._reception.silent_peers, self._reception.admits)
        listener = await listen(
            provider,
            host,
            port,
            self._reception.accept,
            transport_settings(self._settings),
            pool=self._reception.buffers,
            admits=self._reception.admits,
            unauthenticated=self._reception.unauthenticated,
        )
        if self._reception.divert is not None:
            listener.divert = self._reception.divert
        self.listeners.append((name, listener))
        if provider.adopts_sockets and self.adopt is None:
            on_request = listener.on_request
            self.adopt = lambda sock: provider.adopt(sock, on_request)
        return listener

    async def close(self) -> None:
        """Stop listening. Established connections stay open."""
        for _, listener in self.listeners:
            await listener.close()
