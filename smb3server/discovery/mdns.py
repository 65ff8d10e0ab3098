"""Announces the server by multicast DNS and DNS-SD, through python-zeroconf. [RFC 6762] [RFC 6763]

Other responders may run on this machine (avahi-daemon, systemd-resolved): port 5353 is shared. If one of them already
announces this host's name, only the services are announced, and they refer to that name. Two responders that announce
one name with different addresses would each think that another machine has taken it. [RFC 6762 9]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from ipaddress import ip_address

# AddressResolver is documented, but missing in __all__.
from zeroconf import AddressResolver, IPVersion, NonUniqueNameException, ServiceInfo  # type: ignore[attr-defined]
from zeroconf.asyncio import AsyncZeroconf

from smb3server.discovery.links import Link

log = logging.getLogger(__name__)
# It warns, with a traceback, whenever an interface has gone on which it was to say goodbye.
logging.getLogger("zeroconf").setLevel(logging.ERROR)

SMB = "_smb._tcp.local."
DEVICE_INFO = "_device-info._tcp.local."
DISKS = "_adisk._tcp.local."
"""By it Time Machine finds shares to back up to."""
MAX_TEXT = 255
"""Bytes of a string in a TXT record, key and value. [RFC 6763 6.1]"""
RESOLVE_TIMEOUT = 750
"""Milliseconds in which a responder that has the host's name answers. Probing takes as long. [RFC 6762 8.1]"""
GOODBYE_TIMEOUT = 2.0
MAX_NAMES = 9
"""Host names that are tried: NAME, NAME-2, NAME-3 ..."""


class Mdns:
    """The mDNS responder of one server, on links that do not change. Call ``start`` and then ``stop``, once."""

    def __init__(self, name: str, port: int, model: str, backups: Sequence[str] = ()) -> None:
        """Announce ``name``, served at TCP port ``port``. ``backups``: shares that Macs back up to."""
        self._backups = backups
        self._name = name
        self._port = port
        self._model = model
        self._zeroconf: AsyncZeroconf | None = None
        self._services: list[ServiceInfo] = []
        self._announces_host = True
        self.host = ""
        """The host name that the services refer to, such as ``FILES.local.``"""

    @property
    def instance(self) -> str:
        """Return the name that clients see. It may end with a number, if another server had the name before."""
        return self._services[0].name.removesuffix(f".{SMB}") if self._services else self._name

    async def start(self, links: Sequence[Link], own: Collection[str]) -> None:
        """Announce on ``links``. ``own`` are all addresses of this machine. Raises ``OSError``."""
        zeroconf = self._zeroconf = AsyncZeroconf(_interfaces(links), ip_version=_version(links))
        await self._choose_host(zeroconf, own)
        try:
            self._services = [self._service(SMB, self._port, {}, links)]
            await (await zeroconf.async_register_service(self._services[0], allow_name_change=True))
            # Finder shows the icon of this model. It looks for the record under the same name.
            device = self._service(DEVICE_INFO, 0, {"model": self._model}, links)
            self._services.append(device)
            await (await zeroconf.async_register_service(device, cooperating_responders=True))
            if self._backups:
                disks = self._service(DISKS, 0, disk_texts(self._backups), links)
                self._services.append(disks)
                await (await zeroconf.async_register_service(disks, cooperating_responders=True))
        except NonUniqueNameException as error:
            raise OSError(f"the name {self._name} is taken") from error
        if self.instance != self._name:
            log.warning("mDNS: another server announces %s; this one is announced as %s", self._name, self.instance)

    async def _choose_host(self, zeroconf: AsyncZeroconf, own: Collection[str]) -> None:
        """Choose a host name that no other machine has, and find out whether this machine already announces it."""
        for number in range(1, MAX_NAMES + 1):
            self.host = f"{self._name}{f'-{number}' if number > 1 else ''}.local."
            resolver = AddressResolver(self.host)
            await resolver.async_request(zeroconf.zeroconf, RESOLVE_TIMEOUT)
            found = {address.partition("%")[0] for address in resolver.parsed_addresses()}
            # Link-local addresses are not in ``own``: one of several addresses is enough to recognise this machine.
            self._announces_host = not found
            if not found or found & set(own):
                return
            log.warning("mDNS: another machine has the name %s", self.host)
        raise OSError(f"all names {self._name} to {self.host} are taken")

    def _service(self, kind: str, port: int, texts: dict[str, str], links: Sequence[Link]) -> ServiceInfo:
        name = f"{self.instance}.{kind}"
        return ServiceInfo(kind, name, port, properties=texts, server=self.host, addresses=self._addresses(links))

    def _addresses(self, links: Sequence[Link]) -> list[bytes]:
        if not self._announces_host:
            return []
        return [ip_address(text).packed for link in links for text in link.addresses]

    async def stop(self) -> None:
        """Say goodbye, so that clients forget the server at once, and stop. [RFC 6762 10.1]"""
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is None:
            return
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT):
                await zeroconf.async_close()
        except TimeoutError:
            log.warning("mDNS: no time to say goodbye")


def disk_texts(shares: Sequence[str]) -> dict[str, str]:
    """Return the TXT record of shares to back up to.

    ``waMa`` would be the address of a Time Capsule. ``adVF`` are flags: of the server 0x100, of a share 0x82 (it is
    for Time Machine, by SMB)."""
    texts = {"sys": "waMa=0,adVF=0x100"}
    for number, share in enumerate(shares):
        texts[f"dk{number}"] = f"adVN={share},adVF=0x82"
    return texts


def fits(share: str) -> bool:
    """Return whether the name of a share can be in the TXT record. A comma would end it."""
    return "," not in share and len(f"dk999=adVN={share},adVF=0x82".encode()) <= MAX_TEXT


def _interfaces(links: Sequence[Link]) -> list[str | int | tuple[tuple[str, int, int], int]]:
    """Return what python-zeroconf is to join: IPv4 addresses, and indexes of interfaces with IPv6."""
    found: list[str | int | tuple[tuple[str, int, int], int]] = []
    found += [address for link in links for address in link.ipv4]
    found += [link.number for link in links if link.ipv6]
    return found


def _version(links: Sequence[Link]) -> IPVersion:
    ipv4 = any(link.ipv4 for link in links)
    ipv6 = any(link.ipv6 for link in links)
    if ipv4 and ipv6:
        return IPVersion.All
    return IPVersion.V6Only if ipv6 else IPVersion.V4Only
