"""The listener of the page: TLS, and how many connections there may be."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

from aiohttp import web

from smb3server.auth.administrators import Administrators
from smb3server.auth.guessing import Guesses
from smb3server.auth.users import UserDatabase
from smb3server.process.log_tail import LogTail
from smb3server.settings.web import WebConfig
from smb3server.status.admin_socket import Command
from smb3server.web.guards import Guard
from smb3server.web.logins import Logins
from smb3server.web.page import Page

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 128
END = 1.0
"""Seconds that requests have to end when the server ends."""
RENEWAL = 60.0
"""Seconds between two looks at the certificate's file."""


class WebServer:
    """The page and its listener. Call ``start`` and then ``stop``, once."""

    def __init__(
        self,
        config: WebConfig,
        server_name: str,
        users: UserDatabase,
        administrators: Callable[[], Administrators],
        guesses: Guesses,
        admits: Callable[[str], bool],
        commands: Callable[[], Mapping[str, Command]],
    ) -> None:
        """``administrators`` returns who may log on, ``admits`` whether an address may use the server at all, and
        ``commands`` the commands of the admin socket.
        """
        self._config = config
        secure = config.certificate is not None
        names = {"localhost", server_name, f"{server_name}.local", socket.gethostname(), config.listen, *config.names}
        self._tail = LogTail(_worth_showing)
        loop = asyncio.get_running_loop()
        logins = Logins(users, administrators, guesses, loop.time)
        self._page = Page(commands, logins, Guard(names, admits, secure), self._tail, secure)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._certificate: Certificate | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen. Raises ``OSError``, and ``ValueError`` for a certificate that cannot be used."""
        config = self._config
        context = None
        if config.certificate is not None:
            self._certificate = Certificate(config.certificate, config.key)
            context = self._certificate.context
        runner = self._runner = web.AppRunner(self._page.application(), access_log=None, shutdown_timeout=END)
        await runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, sock=_listen(config.listen, config.port), ssl=context)
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{config.listen}]" if ":" in config.listen else config.listen
        self.url = f"http{'s' if context is not None else ''}://{host}:{port}/"
        if self._certificate is not None:
            self._certificate.keep_fresh()
        logging.getLogger().addHandler(self._tail)

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server if self._runner is not None else None
        if server is None or len(server.connections) >= MAX_CONNECTIONS:
            return _Refuse()
        return server()

    async def stop(self) -> None:
        """End all requests and stop listening."""
        logging.getLogger().removeHandler(self._tail)
        if self._certificate is not None:
            self._certificate.stop()
        if self._server is not None:
            self._server.close()
        self._page.feed.close()
        if self._runner is not None:
            await self._runner.cleanup()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address. Raises ``OSError``.

    An event loop that is given the address looks it up in threads of its own. They would keep the privileges that the
    process gives up after its start.
    """
    (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return socket.create_server(address[:2], family=family)


class _Refuse(asyncio.Protocol):
    """A connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Certificate:
    """A certificate from a file, which may be renewed while the server runs."""

    def __init__(self, path: Path, key: Path | None) -> None:
        """Read it. Raises ``ValueError``."""
        self._path = path
        self._key = key
        self._changed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load()

    def _load(self) -> None:
        try:
            self._changed = self._path.stat().st_mtime
            self.context.load_cert_chain(self._path, self._key)
        except OSError as error:
            # ssl.SSLError is one, too.
            raise ValueError(f"certificate {self._path}: {error.strerror or error}") from error

    def keep_fresh(self) -> None:
        """Use a renewed certificate for new connections, from now on."""
        self._timer = asyncio.get_running_loop().call_later(RENEWAL, self._look)

    def _look(self) -> None:
        try:
            if self._path.stat().st_mtime != self._changed:
                self._load()
                log.info("the web page has a new certificate")
        except (OSError, ValueError) as error:
            log.warning("the web page keeps its certificate: %s", error)
        self.keep_fresh()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _worth_showing(record: logging.LogRecord) -> bool:
    own = record.name.partition(".")[0] in ("smb3server", "smbdirect", "witness")
    return record.levelno >= logging.WARNING or (own and record.levelno >= logging.INFO)
