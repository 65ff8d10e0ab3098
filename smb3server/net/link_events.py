"""The kernel's notification that an interface or an address changed (rtnetlink(7)), without details."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

_GROUPS = 0x1 | 0x10 | 0x100
"""RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR."""
_RECEIVE_SIZE = 65536
SETTLE = 0.05
"""Seconds from the first event to the notification: a link that comes or goes causes several events."""


class LinkEvents:
    """Calls ``on_change`` on the loop's thread shortly after interfaces, addresses or links changed."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to listen for events. Raise ``OSError`` if netlink is not permitted."""
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        try:
            sock.bind((0, _GROUPS))
        except OSError:
            sock.close()
            raise
        self._socket = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable)

    def stop(self) -> None:
        """Stop listening for events. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        sock = self._socket
        while sock is not None:
            try:
                sock.recv(_RECEIVE_SIZE)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                # There were more events than the buffer holds: some were lost, which also means that something changed.
                if error.errno != errno.ENOBUFS:
                    log.warning("events of network interfaces have ended: %s", error)
                    self.stop()
                    return
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._on_change()
