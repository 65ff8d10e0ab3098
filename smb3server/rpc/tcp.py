"""DCE/RPC over TCP: listeners and their connections on asyncio. [MS-RPCE 2.1.1.1, ncacn_ip_tcp]"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from smb3server.auth.acceptor import Acceptor
from smb3server.net.door import Door
from smb3server.rpc.association import Association, AssociationGroups
from smb3server.rpc.dcerpc import Interface
from smb3server.state.events import Events
from smbdirect.unauthenticated import UnauthenticatedPeer, UnauthenticatedPeers

log = logging.getLogger(__name__)

AUTHENTICATION_TIMEOUT = 30.0
"""Seconds from connecting to the end of the authentication. A connection that never authenticates ends after this
time."""
BACKLOG = 1024
MAX_UNAUTHENTICATED = 4096
"""Unauthenticated connections of an endpoint that has its own table of them."""
MAX_UNAUTHENTICATED_PER_ADDRESS = 128
MAX_UNKNOWN_STUB = 4096
"""Bytes of the stubs of an unauthenticated client's incomplete requests. Calls of the endpoint mapper are small."""
MAX_UNSENT = 4 << 20
"""Bytes of answers that a client may leave unread."""
_KEEPALIVE_IDLE, _KEEPALIVE_INTERVAL, _KEEPALIVE_COUNT = 60, 10, 3
"""Seconds, seconds, probes. A client that waits for a notification sends nothing, so only probes detect that it is
gone."""

InterfaceFactory = Callable[[Association], list[Interface]]


class RpcConnection(asyncio.Protocol):
    """One TCP connection. It feeds an ``Association`` and sends its output, including answers that come later."""

    def __init__(self, listener: RpcListener) -> None:
        self.listener = listener
        self.association: Association | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.place: UnauthenticatedPeer | None = None
        """Its entry in the table of unauthenticated peers, until it has authenticated."""
        self._delay: asyncio.TimerHandle | None = None
        """Timer until a delayed logon may be verified."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's classes.
        self._transport = transport = cast(asyncio.Transport, transport)
        listener = self.listener
        peer = transport.get_extra_info("peername")[0]
        if len(listener.connections) < listener.max_connections:
            self.place = listener.unauthenticated.enter(peer, transport.abort)
        if self.place is None:
            log.warning("%s: too many RPC connections", peer)
            transport.abort()
            return
        handle = transport.get_extra_info("socket")
        if handle is not None:
            _keep_alive(handle)
        listener.connections.add(self)
        transport.set_write_buffer_limits(high=64 << 10)
        port = str(transport.get_extra_info("sockname")[1])
        self.association = association = Association(port, listener.interfaces, listener.new_acceptor, listener.groups)
        association.local_host = transport.get_extra_info("sockname")[0]
        association.peer_host = peer
        association.events = listener.events
        association.max_stub = min(listener.max_stub, MAX_UNKNOWN_STUB)
        association.flush = self.flush
        association.on_delay = self._wait
        self._deadline = asyncio.get_running_loop().call_later(AUTHENTICATION_TIMEOUT, self._check_progress)

    def _check_progress(self) -> None:
        if self.association is not None and not self.association.authenticated and self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.association is not None:
            self.association.feed(data)
            self._after_input(self.association)

    def _after_input(self, association: Association) -> None:
        if self.place is not None and association.authenticated:
            self.place.leave()
            self.place = None
            association.max_stub = self.listener.max_stub
        self.flush()

    def _wait(self, seconds: float) -> None:
        """Read nothing more until a delayed logon may be verified."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._delay = asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._delay = None
        association = self.association
        if association is None or self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        association.resume()
        self._after_input(association)

    def flush(self) -> None:
        """Send the fragments that are ready."""
        association, transport = self.association, self._transport
        if association is None or transport is None:
            return
        if association.output:
            fragments, association.output = association.output, []
            transport.writelines(fragments)
            if transport.get_write_buffer_size() > MAX_UNSENT:
                log.warning("%s does not read RPC answers", association.peer_host)
                transport.abort()
        if association.broken:
            transport.close()

    def pause_writing(self) -> None:
        """Read no more requests from a client that does not read its answers."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and self._delay is None:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._delay is not None:
            self._delay.cancel()
        self._transport = None
        if self.place is not None:
            self.place.leave()
            self.place = None
        if self.association is not None:
            self.association.close()
            self.association = None
        self.listener.connections.discard(self)

    def close(self) -> None:
        """Close the connection after unsent answers were sent."""
        if self._transport is not None:
            self._transport.close()


def _keep_alive(handle: socket.socket) -> None:
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_COUNT)


class RpcListener:
    """One endpoint: interfaces that are served on one or more TCP ports."""

    def __init__(
        self,
        interfaces: InterfaceFactory,
        new_acceptor: Callable[[], Acceptor],
        max_connections: int = 32768,
        max_stub: int = 1 << 16,
        admits: Callable[[str], bool] = lambda host: True,
        unauthenticated: UnauthenticatedPeers | None = None,
        events: Events | None = None,
    ) -> None:
        """Make an endpoint that does not listen yet.

        ``max_stub`` is the maximum size of the stubs of one connection's incomplete requests in bytes; decoding NDR
        takes a second per megabyte. ``admits`` decides whether connections from an address are accepted.
        ``unauthenticated`` is the table of unauthenticated connections; None means a table of its own. ``events`` is
        told of failed logons; None means that they are not counted.
        """
        self.events = events or Events()
        self.max_stub = max_stub
        self.admits = admits
        self.unauthenticated = (
            UnauthenticatedPeers(MAX_UNAUTHENTICATED, MAX_UNAUTHENTICATED_PER_ADDRESS)
            if unauthenticated is None
            else unauthenticated
        )
        self.interfaces = interfaces
        self.new_acceptor = new_acceptor
        self.max_connections = max_connections
        self.groups = AssociationGroups()
        self.connections: set[RpcConnection] = set()
        self._doors: list[Door] = []
        self._opening: set[asyncio.Task[None]] = set()
        """Connections that have no protocol yet."""

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on an additional address, and return it. Port 0 means any free port. Raises ``OSError``."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        handle = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                handle.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            handle.bind((host, port))
            handle.listen(BACKLOG)
        except OSError:
            handle.close()
            raise
        self._doors.append(Door(handle, self.admits, self._enter))
        address = handle.getsockname()
        return address[0], address[1]

    def _enter(self, sock: socket.socket, address: str) -> None:
        task = asyncio.get_running_loop().create_task(self._open(sock, address))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: RpcConnection(self), sock)
        except OSError as error:
            log.debug("%s: no RPC connection: %s", address, error)
            sock.close()

    async def close(self) -> None:
        """Stop listening and close every connection."""
        for door in self._doors:
            door.close()
        self._doors.clear()
        await asyncio.gather(*self._opening)
        for connection in list(self.connections):
            connection.close()
