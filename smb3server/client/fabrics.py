"""Find the way by which a session's data goes by RDMA, and the reason if there is none. [MS-SMB2 3.2.4.2.3.1]"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from smb3server.client import errors
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.session import ClientSession
from smb3server.client.protocol.transports import open_rdma
from smb3server.client.silent import TIME_TO_LIVE, SilentAddresses
from smb3server.net.host import SMB_DIRECT_PORT, SMB_PORT, rdma_devices
from smb3server.wire.negotiate import Capability, Dialect
from smb3server.wire.session import SessionFlags
from smbdirect.errors import ProviderError
from smbdirect.message_transport import MessageTransport

if TYPE_CHECKING:
    from smb3server.client.protocol.interfaces import ServerInterface
    from smbdirect.providers.base import Provider

FABRICS = ("verbs", "iwarp", "roce")
"""In the order in which they are tried: a NIC is faster than software, and iWARP needs nothing of the network."""
SOFTWARE = ("iwarp", "roce")
"""Those that are done in software. They reach files as well, NICs only memory."""
MODES = ("auto", "prefer", "off", *FABRICS)
MAX_ADDRESSES = 4
"""Most addresses of a server that are tried on one fabric."""
MAX_ATTEMPTS = 16
"""Most connections that are tried at the same time."""
ATTEMPT_TIMEOUT = 3.0
"""Seconds for one connection that the server lists."""
PATIENCE = 6.0
"""Seconds for all attempts together, after which data goes over TCP: a firewall may swallow all of them."""
NO_NIC = "no RDMA NIC here; in software it is slower than TCP (rdma=prefer takes it all the same)"
UNLISTED_TIMEOUT = 1.0
"""Seconds for a connection that the server does not list: it is tried because it costs little where nobody listens."""


class Way(NamedTuple):
    """One fabric, address and port to try."""

    fabric: str
    host: str
    port: int
    timeout: float

    @property
    def name(self) -> str:
        """What it is remembered by."""
        return f"{self.fabric} {self.host} {self.port}"


def has_nic() -> bool:
    """Return whether this machine has an RDMA device that is up and more than software."""
    return any(device.state.active and device.driver not in ("rxe", "siw", "") for device in rdma_devices())


def tried_by(mode: str) -> tuple[str, ...]:
    """Return the fabrics that a mode may use for further channels, the best first."""
    if mode == "auto":
        # What software does at one end sets the pace, so a NIC at the server's end alone gains nothing.
        return ("verbs",) if has_nic() else ()
    return FABRICS if mode == "prefer" else () if mode == "off" else (mode,)


def obstacle(session: ClientSession) -> str:
    """Return why a session can have no further channel by RDMA; empty if it can. [MS-SMB2 3.2.4.2.3.1]"""
    client = session.client
    if client.dialect < Dialect.SMB_3_0:
        return "the server speaks no dialect from 3.0 on"
    if session.flags & (SessionFlags.IS_GUEST | SessionFlags.IS_NULL):
        return "guests and anonymous users have no key, so they cannot open another channel; name the fabric"
    if not client.negotiated.capabilities & Capability.MULTI_CHANNEL:
        return "the server does not offer multichannel; name the fabric"
    return ""


async def list_interfaces(session: ClientSession) -> list[ServerInterface]:
    """Return the server's interfaces; none if it keeps no list."""
    # Who moves no data does not pay for the import.
    from smb3server.client.protocol.interfaces import query_interfaces

    try:
        tree = await session.tree_connect("IPC$")
        try:
            return await query_interfaces(tree)
        finally:
            await tree.disconnect()
    except ServerError:
        return []


def candidates(interfaces: Iterable[ServerInterface], peer: str, fabrics: Sequence[str], port: int | None) -> list[Way]:
    """Return what to try, best first: RDMA capable addresses of the list, the one already connected to before others.

    If the list has none, iWARP at the address already connected to: a user-space server may not know the address by
    which it is reached (NAT, loopback).
    """
    listed = [str(entry.address) for entry in interfaces if entry.rdma]
    addresses = sorted(dict.fromkeys(listed), key=lambda address: address != peer)[:MAX_ADDRESSES]
    if not addresses:
        return [Way("iwarp", peer, port or SMB_DIRECT_PORT, UNLISTED_TIMEOUT)] if "iwarp" in fabrics else []
    return [
        Way(fabric, address, number, ATTEMPT_TIMEOUT)
        for fabric in fabrics
        for address in addresses
        for number in ports_of(fabric, port)
    ]


def ports_of(fabric: str, port: int | None) -> tuple[int, ...]:
    """Return the ports at which a fabric's server listens: iWARP's own, or that of SMB. [MS-SMBD 2.1]"""
    if port:
        return (port,)
    return (SMB_DIRECT_PORT,) if fabric == "iwarp" else (SMB_PORT, SMB_DIRECT_PORT)


class Fabrics:
    """The providers of this process, made once."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        """Why fabrics cannot be used here, or what came of the last attempt."""
        self.silent = SilentAddresses()
        self._providers: dict[str, Provider] = {}

    def provider(self, fabric: str) -> Provider:
        """Return the provider. Raises ``ProviderError`` with the reason if this machine cannot use the fabric."""
        found = self._providers.get(fabric)
        if found is None:
            # Who moves no data by RDMA does not pay for the import.
            from smbdirect.providers.make import make_provider

            found = self._providers[fabric] = make_provider(fabric)
        return found

    async def open(self, way: Way) -> MessageTransport:
        """Connect. Raises ``OSError`` with the reason. An address that does not answer is remembered."""
        began = time.monotonic()
        try:
            transport = await open_rdma(self.provider(way.fabric), way.host, way.port, timeout=way.timeout)
        except (*errors.TROUBLE, OSError) as error:
            short = str(error) if isinstance(error, ProviderError) else reason_of(error)
            where = "" if isinstance(error, ProviderError) else f" at {way.host} port {way.port}"
            self.reasons[way.fabric] = f"{way.fabric}{where}: {short}"
            if time.monotonic() - began >= 0.9 * way.timeout:
                self.silent.add(way.name)
            raise errors.of(error) from error
        self.silent.remove(way.name)
        return transport

    def worth_trying(self, ways: Sequence[Way]) -> list[Way]:
        """Leave out the fabrics that this machine does not have, and the addresses that did not answer of late."""
        usable = []
        for way in ways:
            if way.name in self.silent:
                hours = TIME_TO_LIVE / 3600
                self.reasons[way.fabric] = (
                    f"{way.fabric} at {way.host} port {way.port}: no answer, seen within the last {hours:.0f} hours"
                )
                continue
            try:
                self.provider(way.fabric)
            except errors.TROUBLE as error:
                self.reasons[way.fabric] = f"{way.fabric}: {error}"
                continue
            usable.append(way)
        return usable[:MAX_ATTEMPTS]


def reason_of(error: BaseException) -> str:
    """Return an error's reason in few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and not isinstance(error, errors.RemoteError):
        # asyncio's own text contains the address, but not the reason. Numbers of gaierror are no errno.
        number = 0 if isinstance(error, socket.gaierror) else error.errno
        if said := os.strerror(number) if number else error.strerror:
            return said
    return str(error) or type(error).__name__
