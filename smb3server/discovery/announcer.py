"""Starts and stops the announcements of a server, and follows its interfaces."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
import uuid
from collections.abc import Callable, Collection

from smb3server import __version__
from smb3server.discovery.links import Link, choose, link_local_addresses
from smb3server.discovery.mdns import Mdns
from smb3server.discovery.mdns import fits as mdns_fits
from smb3server.discovery.wsd import HTTP_PORT, WsDiscovery
from smb3server.discovery.wsd_messages import TargetService
from smb3server.net.host import machine_id, port_owners
from smb3server.net.interfaces import Interface
from smb3server.settings.discovery import DiscoveryConfig
from smbdirect.unauthenticated import UnauthenticatedPeers

log = logging.getLogger(__name__)


class Announcer:
    """The announcements of one server. Call ``start`` and then ``stop``, once; ``refresh_soon`` after changes."""

    def __init__(
        self,
        config: DiscoveryConfig,
        name: str,
        interfaces: Callable[[], Collection[Interface]],
        served: Callable[[], Collection[str]],
        port: int,
        admits: Callable[[str], bool],
        unauthenticated: UnauthenticatedPeers,
        backups: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Announce the server ``name`` at the TCP port ``port``.

        ``interfaces`` and ``served`` return the machine's interfaces, and the addresses that the server listens on.
        ``unauthenticated`` is the server's table of connections without a session. ``backups`` returns the names of the
        shares that Macs back up to.
        """
        self._config = config
        self._name = name
        self._interfaces = interfaces
        self._served = served
        self._port = port
        self._admits = admits
        self._unauthenticated = unauthenticated
        self._backups = backups
        self._links: list[Link] | None = None
        """None until the interfaces are known."""
        self._mdns: Mdns | None = None
        self._mdns_places: list[tuple[int, tuple[str, ...]]] = []
        """Interfaces and addresses that ``_mdns`` announces. Link-local addresses are not among them."""
        self._mdns_backups: list[str] = []
        """The shares that it announces for backups."""
        self._wsd: WsDiscovery | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.problems: list[str] = []
        """Why something is not announced, for the operator."""

    def start(self) -> None:
        """Announce the server in the background: finding out whether its name is free takes a second."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def refresh_soon(self) -> None:
        """Compare the interfaces with those that are announced, in the background."""
        self._changed.set()

    def describe(self) -> dict[str, object]:
        """Return what is announced where, as plain data."""
        return {
            "mdns": self._mdns.instance if self._mdns is not None else "",
            "mdns_host": self._mdns.host if self._mdns is not None else "",
            "ws_discovery": self._name if self._wsd is not None else "",
            "time_machine": list(self._mdns_backups) if self._mdns is not None else [],
            "interfaces": [link.name for link in self._links or ()],
            "problems": list(self.problems),
        }

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._follow()
            except Exception:
                # A failed announcement is no reason to stop announcing for ever.
                log.exception("discovery failed; it is tried again when an interface changes")
            await self._changed.wait()

    async def _follow(self) -> None:
        links = choose(self._interfaces(), self._served(), self._config.interfaces, link_local_addresses())
        backups = sorted(self._backups()) if self._config.mdns else []
        if links == self._links and backups == self._mdns_backups:
            return
        self._links = links
        self.problems.clear()
        if not links:
            self._problem("nothing is announced: the server listens on no address that other machines reach")
        await self._follow_mdns(links, backups)
        await self._follow_wsd(links)
        if links:
            log.info("announced on %s", ", ".join(link.name for link in links))

    async def _follow_mdns(self, links: list[Link], backups: list[str]) -> None:
        if not self._config.mdns:
            return
        for share in backups:
            if not mdns_fits(share):
                self._problem(f"share {share} is not announced for Time Machine: its name is too long, or has a comma")
        places = [(link.number, link.addresses) for link in links]
        if places == self._mdns_places and backups == self._mdns_backups:
            return
        self._mdns_places, self._mdns_backups = places, backups
        # A new responder for other links or addresses: the goodbye of the old one tells clients what is no longer true.
        if self._mdns is not None:
            await self._mdns.stop()
            self._mdns = None
        if not links:
            return
        mdns = Mdns(self._name, self._port, self._config.model, list(filter(mdns_fits, backups)))
        try:
            await mdns.start(links, {str(entry.address) for entry in self._interfaces()})
        except OSError as error:
            self._problem(f"no mDNS: {error.strerror or error}")
            await mdns.stop()
            return
        self._mdns = mdns

    async def _follow_wsd(self, links: list[Link]) -> None:
        if not self._config.ws_discovery:
            return
        if self._wsd is not None:
            self._wsd.update(links)
            return
        if not links:
            return
        identity = uuid.uuid5(uuid.NAMESPACE_URL, f"smb3server:{machine_id()}:{self._name}")
        target = TargetService(self._name, self._config.workgroup, identity.urn, __version__, int(time.time()))
        wsd = WsDiscovery(target, self._admits, self._unauthenticated)
        try:
            await wsd.start(links)
        except OSError as error:
            self._problem(f"no WS-Discovery: {_why_no_port(error)}")
            await wsd.stop()
            return
        self._wsd = wsd

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        log.warning("%s", text)

    async def stop(self) -> None:
        """Say goodbye, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._wsd is not None:
            await self._wsd.stop()
        if self._mdns is not None:
            await self._mdns.stop()
        self._wsd = self._mdns = None


def _why_no_port(error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return error.strerror or str(error)
    owners = [str(owner) for owner in port_owners([("tcp", HTTP_PORT)])]
    owner = owners[0] if owners else "another program"
    return f"TCP port {HTTP_PORT} belongs to {owner}; stop it (wsdd?), or set ws_discovery = false in [discovery]"
