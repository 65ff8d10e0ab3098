"""Accepting connections on a listening socket: from admitted addresses only, and with patience when there are no
descriptors left."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 512
PAUSE_WITHOUT_DESCRIPTORS = 1.0
"""Seconds."""
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Door:
    """One listening socket. It listens from the start until ``close``."""

    def __init__(
        self,
        listening: socket.socket,
        admits: Callable[[str], bool],
        on_socket: Callable[[socket.socket, str], None],
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """``admits`` returns whether an address may connect; others are closed before a byte of them is read.

        ``on_socket`` gets each connection, non-blocking, and its address. ``has_room`` returns whether another one may
        be accepted in this turn of the event loop.
        """
        self._socket = listening
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._admits = admits
        self._on_socket = on_socket
        self._has_room = has_room
        self._closed = False
        self._loop.add_reader(listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if not self._has_room():
                return
            try:
                sock, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    log.warning("cannot accept: %s", error)
                    self._loop.remove_reader(self._socket.fileno())
                    self._loop.call_later(PAUSE_WITHOUT_DESCRIPTORS, self._resume)
                    return
                log.warning("accept: %s", error)
                return
            # The peer of a Unix socket has no address.
            host = peer[0] if peer else ""
            if not self._admits(host):
                sock.close()
                continue
            sock.setblocking(False)
            self._on_socket(sock, host)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening. Connections that were accepted remain. Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
