"""The TCP ports that a server listens on, and the reason when one is not available."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence

from smb3server.config.error import ConfigError
from smb3server.net.host import ROOT, overlapping, port_owners
from smb3server.net.listener import TcpListener, bound_socket, listening_socket
from smb3server.service.reception import Reception
from smb3server.settings.server import Settings

log = logging.getLogger(__name__)

DEFAULT_PORT, UNPRIVILEGED_PORT = 445, 1445
EVERYWHERE = ("0.0.0.0", "::")
_ATTEMPTS = 16
"""How often a port is chosen that is free on all addresses: another program may have the port on one of them."""


def check_free(hosts: Sequence[str], wanted: int | None) -> None:
    """Check that nobody else has the TCP port. Raises ``ConfigError``.

    This is for a process that has all its rights yet: later it may not be able to tell whose the port is.
    """
    port = DEFAULT_PORT if wanted is None else wanted
    for host in hosts or EVERYWHERE:
        try:
            with bound_socket(host, port):
                pass
        except OSError as error:
            # All other obstacles are judged where the server listens.
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(_why_not(error, host, port)) from error


class TcpPorts:
    """The TCP listeners of one server. Call ``open`` and then ``close``, once."""

    def __init__(self, settings: Settings, reception: Reception, given: Sequence[socket.socket] = ()) -> None:
        """Prepare for ``open``. ``given`` are listening sockets of the service manager: they replace all others."""
        self._settings = settings
        self._given = given
        self._reception = reception
        self.listeners: list[TcpListener] = []
        self.notes: list[str] = []
        """Notes for the operator."""

    @property
    def addresses(self) -> set[str]:
        """Return the local addresses that are listened on."""
        return {listener.address[0] for listener in self.listeners}

    def open(
        self, hosts: Sequence[str], wanted: int | None, adopt: Callable[[socket.socket], None] | None = None
    ) -> None:
        """Listen on ``hosts``, or on all addresses if there are none.

        ``wanted`` None means port 445, or 1445 where binding 445 is forbidden; 0 means a port that is free on all of
        them. ``adopt`` takes over a socket whose peer speaks iWARP's MPA. Raises ``ConfigError``, and ``OSError`` for a
        port below 1024 that was not requested.
        """
        if self._given:
            self.notes.append("the TCP sockets are the service manager's: `listen` and `port` do not count for TCP")
        given = self._given or (_at_one_free_port(hosts) if wanted == 0 else ())
        for sock in given:
            name = sock.getsockname()
            self._listen(name[0], name[1], adopt, sock)
        if given:
            return
        port = DEFAULT_PORT if wanted is None else wanted
        for host in hosts or EVERYWHERE:
            try:
                self._listen(host, port, adopt)
            except PermissionError:
                if wanted is not None:
                    raise ConfigError(
                        f"TCP port {port}: ports below 1024 need root or CAP_NET_BIND_SERVICE; remedy: --port "
                        f"{UNPRIVILEGED_PORT}"
                    ) from None
                port = UNPRIVILEGED_PORT
                self.notes.append(
                    f"ports below 1024 need root or CAP_NET_BIND_SERVICE: using {port} instead of {DEFAULT_PORT}"
                )
                self._listen(host, port, adopt)
            except OSError as error:
                # Machines without IPv6 serve only IPv4, unless IPv6 was requested.
                if hosts or ":" not in host or error.errno == errno.EADDRINUSE:
                    raise ConfigError(_why_not(error, host, port)) from error
                log.info("not listening on %s: %s", host, error)

    def _listen(
        self, host: str, port: int, adopt: Callable[[socket.socket], None] | None, given: socket.socket | None = None
    ) -> None:
        reception = self._reception
        self.listeners.append(
            TcpListener(
                host,
                port,
                reception.buffers,
                reception.accept,
                self._settings.max_message_before_authentication,
                adopt,
                self._settings.negotiate_timeout,
                reception.silent_peers,
                reception.admits,
                given,
            )
        )

    async def close(self) -> None:
        """Stop listening. Established connections stay open."""
        for listener in self.listeners:
            await listener.close()


def _at_one_free_port(hosts: Sequence[str]) -> list[socket.socket]:
    """Listen at a port that is free on all ``hosts``, or on all addresses if there are none. Raises ``ConfigError``."""
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as opened:
            sockets: list[socket.socket] = []
            for host in hosts or EVERYWHERE:
                port = sockets[0].getsockname()[1] if sockets else 0
                try:
                    sockets.append(opened.enter_context(listening_socket(host, port)))
                except OSError as error:
                    if port and error.errno == errno.EADDRINUSE:
                        break
                    if hosts or ":" not in host:
                        raise ConfigError(_why_not(error, host, port)) from error
                    log.info("not listening on %s: %s", host, error)
            else:
                opened.pop_all()
                return sockets
    raise ConfigError(f"no TCP port is free on all of {', '.join(hosts or EVERYWHERE)}; remedy: choose one with --port")


def _why_not(error: OSError, host: str, port: int) -> str:
    """Return why a TCP port is not available, and a remedy."""
    where = f"TCP port {port} on {host}"
    if error.errno == errno.EADDRINUSE:
        owner = overlapping(port_owners([("tcp", port)], ROOT), "tcp", host, port)
        if owner is None:
            return f"{where} is in use; remedy: find the owner with `ss -lntp 'sport = :{port}'` (as root)"
        if owner.pid == os.getpid():
            return f"{where} is already this server's own: --listen and --rdma-port must not overlap with it"
        return f"{where} belongs to {owner}; remedy: stop it or choose another one with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where}: this machine does not have the address (`ip address` shows those it has)"
    return f"{where}: {error.strerror}"
