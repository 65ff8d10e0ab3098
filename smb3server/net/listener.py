"""Listening for direct TCP and iWARP on the same port; the first byte distinguishes them."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import time
from collections import deque
from collections.abc import Callable

from smb3server.net.arrived import Pipe
from smb3server.net.door import Door
from smb3server.net.tcp import TcpTransport, tune
from smbdirect.message_transport import OnTransport
from smbdirect.rdma.pool import BufferPool
from smbdirect.unauthenticated import UnauthenticatedPeer, UnauthenticatedPeers

log = logging.getLogger(__name__)

FIRST_BYTE_DIRECT_TCP = 0x00
FIRST_BYTE_MPA = 0x4D
"""'M' of "MPA ID Req Frame" (RFC 5044 7.1)."""
BACKLOG = 65535
"""Most connections that wait to be accepted; the kernel's limit is net.core.somaxconn. Further clients wait for their
next SYN, a second or more."""
FEWEST_PER_TURN, FIRST_PER_TURN, MOST_PER_TURN, MORE_PER_TURN = 4, 32, 128, 4
"""Fewest, first and most new connections that are admitted in one turn of the event loop, and the increment. The effect
of one more connection shows only in later turns, so the number grows slowly and shrinks fast."""
SHORT_TURN, LONG_TURN = 0.02, 0.06
"""Seconds. After a turn shorter than the first more connections are admitted, after one longer than the second fewer. A
long turn delays other work too much, such as the renewal of a cluster's lease and requests of connected clients."""
MAX_SILENT = 1024
"""Most connections that have sent nothing, if the listener shares no table with others."""


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket with one address, that does not listen; an IPv6 address is for IPv6 alone. Raises
    ``OSError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tune(sock)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a TCP listener on one address. Raises ``OSError``."""
    sock = bound_socket(host, port)
    try:
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class TcpListener:
    """A listening address, which passes ``TcpTransport`` objects to ``on_transport``.

    With ``on_iwarp``, sockets whose first byte is MPA's are passed there instead, unread. A connection that sends
    nothing for ``first_byte_timeout`` seconds is closed; until then it needs only a socket.

    When thousands of clients connect at the same time, as after a failover, all connections are accepted: otherwise the
    kernel would let some of them time out. They are admitted in the order of their arrival, in each turn of the event
    loop only as many as keep the turns short.
    """

    def __init__(
        self,
        host: str,
        port: int,
        pool: BufferPool,
        on_transport: OnTransport,
        max_message_size: int,
        on_iwarp: Callable[[socket.socket], None] | None = None,
        first_byte_timeout: float = 30.0,
        silent: UnauthenticatedPeers | None = None,
        admits: Callable[[str], bool] = lambda host: True,
        listening: socket.socket | None = None,
    ) -> None:
        """Listen on ``host`` and ``port``, or on the socket ``listening``, which listens already.

        ``silent`` is the table of connections that have sent nothing, which listeners may share; None means a table of
        its own. ``admits`` returns whether an address may connect. Raises ``OSError`` if listening fails.
        """
        if listening is not None:
            tune(listening)
            listening.listen(BACKLOG)
        accepting = listening_socket(host, port) if listening is None else listening
        name = accepting.getsockname()
        self.address: tuple[str, int] = (name[0], name[1])
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._pipe = Pipe()
        self._on_transport = on_transport
        self._max_message_size = max_message_size
        self._on_iwarp = on_iwarp
        self.first_byte_timeout = first_byte_timeout
        self._places = UnauthenticatedPeers(MAX_SILENT) if silent is None else silent
        self._silent: dict[socket.socket, tuple[asyncio.TimerHandle, UnauthenticatedPeer]] = {}
        """Connections that have sent nothing, the oldest first. Invariant: each has an entry in the table."""
        self._waiting: deque[socket.socket] = deque()
        """Those that are not admitted yet: the loop does not watch them. Some may have been dropped meanwhile."""
        self._admitting = False
        self._per_turn = FIRST_PER_TURN
        self._turn_began = 0.0
        self._door = Door(accepting, admits, self._enter, lambda: len(self._waiting) < self._places.limit)

    def _enter(self, sock: socket.socket, host: str) -> None:
        """Give a new connection a place, and let it wait for its admission."""
        place = self._places.enter(host, functools.partial(self._drop, sock))
        if place is None:
            log.warning("%s: too many connections that send nothing", host)
            sock.close()
            return
        self._silent[sock] = self._loop.call_later(self.first_byte_timeout, self._drop, sock), place
        self._waiting.append(sock)
        if not self._admitting:
            self._admitting = True
            self._turn_began = time.monotonic()
            self._loop.call_soon(self._admit)

    def _admit(self) -> None:
        """Watch some of the waiting connections for their first byte. Runs once in each turn of the event loop while
        any wait."""
        now = time.monotonic()
        turn, self._turn_began = now - self._turn_began, now
        if turn > LONG_TURN:
            self._per_turn = max(self._per_turn // 2, FEWEST_PER_TURN)
        elif turn < SHORT_TURN:
            self._per_turn = min(self._per_turn + MORE_PER_TURN, MOST_PER_TURN)
        waiting = self._waiting
        for _ in range(min(self._per_turn, len(waiting))):
            sock = waiting.popleft()
            if sock in self._silent:
                self._loop.add_reader(sock.fileno(), self._first_byte, sock)
        self._admitting = bool(waiting)
        if waiting:
            self._loop.call_soon(self._admit)

    def _forget(self, sock: socket.socket) -> None:
        timer, place = self._silent.pop(sock)
        timer.cancel()
        place.leave()
        self._loop.remove_reader(sock.fileno())

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock)
        sock.close()

    def _first_byte(self, sock: socket.socket) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._forget(sock)
        try:
            if first and first[0] == FIRST_BYTE_DIRECT_TCP:
                self._on_transport(TcpTransport(sock, self._pool, self._max_message_size, tuned=True, pipe=self._pipe))
                return
            if first and first[0] == FIRST_BYTE_MPA and self._on_iwarp is not None:
                self._on_iwarp(sock)
                return
        except OSError as error:
            log.debug("new connection: %s", error)
        sock.close()

    async def close(self) -> None:
        """Stop listening and drop the connections that have sent nothing; the others remain."""
        self._door.close()
        self._waiting.clear()
        for sock in list(self._silent):
            self._drop(sock)
        self._pipe.close()
