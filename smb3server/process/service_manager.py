"""Talk to the service manager that started this process: readiness, reloads, watchdog, and sockets that it opened.

The protocols are systemd's, which other managers and container engines speak, too. Without a manager nothing happens.
[sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)]
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping

log = logging.getLogger(__name__)

FIRST_SOCKET = 3
"""Descriptor of the first socket that is handed over. [sd_listen_fds(3)]"""
SOCKETS_VARIABLE = "LISTEN_FDS"
"""How many sockets are handed over. [sd_listen_fds(3)]"""
STATUS_SECONDS = 10.0
"""How often the status text is looked at; it is sent if it has changed."""
_PATIENCE = 1.0
"""Seconds that a message may wait: the manager's queue can be full."""


class ServiceManager:
    """The manager, or nobody if ``address`` is empty."""

    def __init__(self, address: str = "", watchdog: float | None = None, channel: socket.socket | None = None) -> None:
        """Connect. ``watchdog`` is the longest silence in seconds that the manager bears; None means any.

        ``channel``: a socket that keeps messages apart and leads to the manager already."""
        self.watchdog = watchdog
        self._socket = channel
        self._status = ""
        self._timers: list[asyncio.TimerHandle] = []
        if address:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            sock.settimeout(_PATIENCE)
            try:
                # A name that begins with @ is abstract. [unix(7)]
                sock.connect("\0" + address[1:] if address.startswith("@") else address)
            except OSError as error:
                sock.close()
                log.warning("the service manager's socket %s: %s", address, error.strerror)
            else:
                self._socket = sock

    @classmethod
    def of_process(cls, environment: MutableMapping[str, str] = os.environ) -> ServiceManager:
        """Return the manager that the environment names, and take its names out: children do not inherit them."""
        address = environment.pop("NOTIFY_SOCKET", "")
        interval = environment.pop("WATCHDOG_USEC", "")
        process = environment.pop("WATCHDOG_PID", "")
        meant = not process or process == str(os.getpid())
        return cls(address, int(interval) / 1e6 if interval.isdecimal() and int(interval) and meant else None)

    def ready(self, status: str) -> None:
        """Say that clients are served."""
        self._status = status
        self._send("READY=1", _status_line(status))

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Say that a reload begins, and at the end of the ``with`` block, that it is over."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            self._send("READY=1")

    def stopping(self) -> None:
        """Say that the process is about to end, and stop the timers."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._send("STOPPING=1")

    def failed(self, text: str) -> None:
        """Leave the reason why the process ends in the unit's status."""
        self._send(_status_line(text))

    def keep_informed(self, describe: Callable[[], str]) -> None:
        """From now on send ``describe()`` when it changes, and signs of life of the event loop to a watchdog."""
        if self._socket is None:
            return
        self._every(STATUS_SECONDS, lambda: self.tell(describe()))
        if self.watchdog is not None:
            self._every(self.watchdog / 2, self.alive)

    def alive(self) -> None:
        """Give a sign of life."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def tell(self, status: str) -> None:
        """Send a status text, if it is another one."""
        if status != self._status:
            self._status = status
            self._send(_status_line(status))

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        place = len(self._timers)

        def run() -> None:
            self._timers[place] = loop.call_later(seconds, run)
            action()

        self._timers.append(loop.call_later(seconds, run))

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send("\n".join(lines).encode())
        except OSError as error:
            log.warning("the service manager is not told %s: %s", lines[0], error)


def _status_line(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"


def passed_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the listening TCP sockets that the manager opened for this process, and take their names out of the
    environment.

    Raises ``ValueError`` with a remedy for a descriptor that is something else. [sd_listen_fds(3)]
    """
    process, count = environment.pop("LISTEN_PID", ""), environment.pop(SOCKETS_VARIABLE, "")
    environment.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()) or not count.isdecimal():
        return []
    return [_listening(number) for number in range(FIRST_SOCKET, FIRST_SOCKET + int(count))]


def _listening(descriptor: int) -> socket.socket:
    """Return a socket that was handed over, after checks. Raises ``ValueError``."""
    os.set_inheritable(descriptor, False)
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ValueError(f"descriptor {descriptor} of the service manager is no socket: {error.strerror}") from error
    name = sock.getsockname()
    internet = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    if not internet or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ValueError(
            f"socket {name!r} of the service manager does not listen on TCP; remedy: only ListenStream=ADDRESS:PORT "
            "in the .socket unit, and Accept=no"
        )
    if sock.family == socket.AF_INET6 and not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
        raise ValueError(
            f"socket [{name[0]}]:{name[1]} of the service manager takes IPv4, too; remedy: BindIPv6Only=ipv6-only in "
            "the .socket unit, and a ListenStream=0.0.0.0:PORT of its own"
        )
    sock.setblocking(False)
    return sock
