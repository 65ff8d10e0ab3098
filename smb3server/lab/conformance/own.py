"""A server of ours in this process, as a target."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.local.backend import LocalBackend
from smb3server.commands import load
from smb3server.lab.conformance.target import Target, Timing
from smb3server.net.interfaces import DEFAULT_SPEED, Interface
from smb3server.net.listener import TcpListener
from smb3server.server.server import Server
from smb3server.service.listeners import transport_settings
from smb3server.settings.server import Settings
from smb3server.state.share import Share
from smbdirect.errors import ProviderError
from smbdirect.providers.base import Provider
from smbdirect.providers.iwarp.provider import IwarpProvider
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.providers.roce.provider import RoceProvider
from smbdirect.transport.listen import listen

HOST = "127.0.0.1"
TCP_ONLY = "127.0.0.2"
"""Another address of the server, as on an interface without RDMA."""
USER, SHARE = "conformance", "share"
FABRICS = ("loopback", "iwarp", "roce")
SHORT = Timing(negotiation=1.5, keepalive=2.0, keepalive_answer=1.0, credit=1.5, patience=10.0, quiet=0.2, slack=0.6)
"""The timers of our server when it is tested: the rules are the same, and the run does not take minutes."""
_MESSAGE = (1 << 20) + (1 << 16)
"""Bytes of the longest message. The default is eight times as much, in as many more Sends."""


def _free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def make_provider(fabric: str) -> Provider:
    """Return a provider that both listens and connects on this host. Raises ``ProviderError``."""
    if fabric == "loopback":
        return LoopbackProvider()
    if fabric == "iwarp":
        return IwarpProvider()
    if fabric == "roce":
        # A port of its own: the usual one may be in use, and the ICRC is checked as far as this process may.
        return RoceProvider(_free_udp_port(), raw=False)
    raise ProviderError(f"no server of ours is started on {fabric}: name a --target")


@asynccontextmanager
async def own_server(fabric: str, timing: Timing = SHORT) -> AsyncIterator[Target]:
    """Serve a new folder on ``fabric``, with the timers in ``timing``, and remove it afterwards. Raises
    ``ProviderError`` and ``OSError``.

    Shares are folders: files in memory have no descriptors, and READ and WRITE of those take other paths."""
    with tempfile.TemporaryDirectory(prefix="smb3server-conformance-") as folder:
        async with _serve(folder, fabric, timing) as target:
            yield target


@asynccontextmanager
async def _serve(folder: str, fabric: str, timing: Timing) -> AsyncIterator[Target]:
    load()
    password = secrets.token_hex(16)
    users = UserDatabase()
    users.add(Account(USER, nt_hash(password)))
    settings = Settings(max_io_size=1 << 20, max_message_size=_MESSAGE)
    server = Server(settings, users)
    server.add_share(Share(SHARE, backend=LocalBackend(folder)))
    provider = make_provider(fabric)
    limit = settings.max_message_before_authentication
    tcp = TcpListener(HOST, 0, server.buffers, server.accept, limit)
    plain = TcpListener(TCP_ONLY, tcp.address[1], server.buffers, server.accept, limit)
    server.interfaces.interfaces = [
        Interface(number, "lo", ipaddress.IPv4Address(address), DEFAULT_SPEED, loopback=True)
        for number, address in enumerate((HOST, TCP_ONLY), 1)
    ]
    server.tcp_addresses, server.rdma_addresses = {HOST, TCP_ONLY}, {HOST}
    listener = await listen(
        provider,
        HOST,
        0,
        server.accept,
        replace(
            transport_settings(settings),
            negotiation_timeout_passive=timing.negotiation,
            keepalive_interval=timing.keepalive,
            keepalive_response_timeout=timing.keepalive_answer,
            send_credit_timeout=timing.credit,
        ),
        pool=server.buffers,
        unauthenticated=server.unauthenticated,
    )
    try:
        yield Target(
            fabric,
            provider,
            HOST,
            listener.address[1],
            tcp.address[1],
            USER,
            password,
            SHARE,
            timing,
            f"smb3server over {fabric}, in this process",
        )
    finally:
        await listener.close()
        await tcp.close()
        await plain.close()
        await server.shutdown(1.0)
