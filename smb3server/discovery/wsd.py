"""The target service of WS-Discovery, with which Windows' Explorer finds the server. [WSD] [MS-PBSD]

Explorer sends a Probe by multicast and then asks for the metadata over HTTP, at the place that the answer names. It
shows computers only with the metadata, so without the HTTP port nothing is announced.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import socket
from collections.abc import Callable, Iterator, Sequence

from aiohttp import web

from smb3server.discovery.links import Link
from smb3server.discovery.soap import MAX_SIZE
from smb3server.discovery.wsd_limits import AnswerLimits
from smb3server.discovery.wsd_messages import TargetService, read_request
from smb3server.discovery.wsd_sockets import LinkSockets, Peer
from smb3server.net.http import HttpDoor, body_in_time
from smbdirect.unauthenticated import UnauthenticatedPeers

log = logging.getLogger(__name__)

HTTP_PORT = 5357
"""Windows' own port for the metadata (wsdapi). Firewalls know it."""
MAX_DELAY = 0.5
"""Seconds, APP_MAX_DELAY: answers of many servers must not come all at once. [WSD 2.4]"""
MIN_REPEAT, MAX_REPEAT = 0.05, 0.25
"""Seconds between two copies of a message: UDP_MIN_DELAY and UDP_MAX_DELAY. [SOAP-over-UDP, appendix I]"""
ANNOUNCEMENTS, ANSWERS = 4, 2
"""Copies of a message: MULTICAST_UDP_REPEAT and UNICAST_UDP_REPEAT, with the first one. [SOAP-over-UDP, appendix I]"""
MAX_WAITING = 128
"""Answers that wait to be sent."""
BACKLOG = 16
MAX_CLIENTS, MAX_CLIENTS_PER_ADDRESS = 64, 8
"""Connections for the metadata, of all addresses and of one."""


class WsDiscovery:
    """The responder of one server. Call ``start``, ``update`` any number of times, then ``stop``."""

    def __init__(
        self,
        target: TargetService,
        admits: Callable[[str], bool],
        unauthenticated: UnauthenticatedPeers,
        http_port: int = HTTP_PORT,
    ) -> None:
        """``admits`` returns whether an address may use the server at all. ``unauthenticated`` is the table that
        connections for the metadata share with SMB's without a session."""
        self._target = target
        self._admits = admits
        self._http_port = http_port
        self._path = f"/{target.endpoint.removeprefix('urn:uuid:')}"
        self._links: list[Link] = []
        self._sockets: list[LinkSockets] = []
        self._waiting: set[asyncio.TimerHandle] = set()
        self._limits = AnswerLimits(asyncio.get_running_loop().time())
        self._tables = UnauthenticatedPeers(MAX_CLIENTS, MAX_CLIENTS_PER_ADDRESS), unauthenticated
        self._http: HttpDoor | None = None

    async def start(self, links: Sequence[Link]) -> None:
        """Serve the metadata, and announce the server on ``links``. Raises ``OSError``, EADDRINUSE if another
        program serves the metadata of this machine.
        """
        listeners = _listen(self._http_port)
        self._http_port = listeners[0].getsockname()[1]
        application = web.Application(client_max_size=MAX_SIZE)
        application.router.add_post(self._path, self._get)
        self._http = HttpDoor(application, self._admits, self._tables)
        await self._http.start()
        for sock in listeners:
            self._http.listen(sock)
        self.update(links)

    @property
    def http_port(self) -> int:
        """Return the TCP port of the metadata."""
        return self._http_port

    def update(self, links: Sequence[Link]) -> None:
        """Announce the server on other links, or with other addresses."""
        self._leave()
        self._links = list(links)
        self._target.metadata_version += 1
        for link in links:
            for address in (*link.ipv4[:1], link.link_local):
                if address:
                    self._join(link, address)
        for sockets in self._sockets:
            hello = self._target.hello(self._locations(sockets))
            self._send(sockets, hello, None, ANNOUNCEMENTS)

    def _join(self, link: Link, address: str) -> None:
        try:
            self._sockets.append(LinkSockets(link, address, self._arrived))
        except OSError as error:
            # An interface without multicast, or one that has just gone.
            log.warning("WS-Discovery: not on %s (%s): %s", link.name, address, error.strerror or error)

    def _locations(self, sockets: LinkSockets) -> Iterator[str]:
        """Return the URLs of the metadata, as a client on that link reaches them."""
        if ":" in sockets.address:
            yield f"http://[{sockets.address}]:{self._http_port}{self._path}"
        else:
            for address in sockets.link.ipv4:
                yield f"http://{address}:{self._http_port}{self._path}"

    def _arrived(self, sockets: LinkSockets, data: bytes, peer: Peer) -> None:
        """Answer a message from anybody on the link."""
        now = asyncio.get_running_loop().time()
        if not self._limits.admits(peer.host, now) or not self._admits(peer.host):
            return
        try:
            request = read_request(data)
            answer = self._target.answer(request, self._locations(sockets))
        except ValueError as error:
            log.debug("%s: WS-Discovery: %s", peer.host, error)
            return
        if answer is not None and self._limits.is_new(request.message_id):
            self._send(sockets, answer, peer, ANSWERS)

    def _send(self, sockets: LinkSockets, data: bytes, peer: Peer | None, copies: int) -> None:
        """Send copies of a message in the background, the first after a random time."""
        when = random.uniform(0, MAX_DELAY)
        for _ in range(copies):
            self._later(when, sockets, data, peer)
            when += random.uniform(MIN_REPEAT, MAX_REPEAT)

    def _later(self, seconds: float, sockets: LinkSockets, data: bytes, peer: Peer | None) -> None:
        if len(self._waiting) >= MAX_WAITING:
            return

        def send() -> None:
            self._waiting.discard(timer)
            sockets.send(data, peer)

        timer = asyncio.get_running_loop().call_later(seconds, send)
        self._waiting.add(timer)

    async def _get(self, request: web.Request) -> web.Response:
        """Answer a Get. [WS-Transfer] [DPWS 5]"""
        transport = request.transport
        if transport is None:
            raise web.HTTPBadRequest
        own, peer = (transport.get_extra_info(name)[0].partition("%")[0] for name in ("sockname", "peername"))
        announced = {address for link in self._links for address in (*link.ipv4, link.link_local)}
        if own not in announced or not self._admits(peer):
            raise web.HTTPForbidden
        try:
            async with body_in_time():
                data = await request.read()
            answer = self._target.metadata(read_request(data))
        except ValueError as error:
            log.debug("%s: WS-Discovery: %s", peer, error)
            raise web.HTTPBadRequest from error
        if answer is None:
            raise web.HTTPBadRequest
        return web.Response(body=answer, content_type="application/soap+xml", charset="utf-8")

    def _leave(self) -> None:
        for timer in self._waiting:
            timer.cancel()
        self._waiting.clear()
        for sockets in self._sockets:
            sockets.close()
        self._sockets.clear()

    async def stop(self) -> None:
        """Say Bye, so that clients forget the server at once, and stop. [WSD 4.2]"""
        bye = self._target.bye()
        for sockets in self._sockets:
            # Copies would come after the end.
            sockets.send(bye)
        self._leave()
        if self._http is not None:
            await self._http.close()
            self._http = None


def _listen(port: int) -> list[socket.socket]:
    """Return sockets that listen on ``port`` of all addresses, but answer no host behind a router. Raises ``OSError``.

    Addresses come and go, so the handler looks whether one is announced."""
    found: list[socket.socket] = []
    try:
        for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT:
                    continue
                raise
            found.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, port or found[0].getsockname()[1]))
            sock.listen(BACKLOG)
    except OSError:
        for sock in found:
            sock.close()
        raise
    return found
