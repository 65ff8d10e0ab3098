"""The listener of the page: TLS, and how many connections there may be."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

from smb3server.access.identity import Identity
from smb3server.admin.socket import Command
from smb3server.auth.directory import Logons
from smb3server.auth.guessing import Guesses
from smb3server.net.http import HttpDoor
from smb3server.process.log_tail import LogTail
from smb3server.process.own_files import mark_of
from smb3server.settings.web import WebConfig
from smb3server.web.guards import Guard
from smb3server.web.logins import Logins
from smb3server.web.page import Page
from smbdirect.unauthenticated import UnauthenticatedPeers

log = logging.getLogger(__name__)

MAX_STRANGERS, MAX_STRANGERS_PER_ADDRESS = 128, 32
"""Most connections that have not logged on, of all addresses and of one."""
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
        users: Logons,
        administers: Callable[[Identity], bool],
        guesses: Guesses,
        admits: Callable[[str], bool],
        commands: Callable[[], Mapping[str, Command]],
        unauthenticated: UnauthenticatedPeers,
    ) -> None:
        """``administers`` returns whether a user may log on, ``admits`` whether an address may use the server at all,
        and ``commands`` the commands of the admin socket. ``unauthenticated`` is the table that SMB's connections
        without a session share with those of the page that have not logged on.
        """
        self._config = config
        secure = config.certificate is not None
        names = {"localhost", server_name, f"{server_name}.local", socket.gethostname(), config.listen, *config.names}
        self._tail = LogTail(_worth_showing)
        loop = asyncio.get_running_loop()
        logins = Logins(users, administers, guesses, loop.time)
        self._page = Page(commands, logins, Guard(names, admits, secure), self._tail, secure)
        self._admits = admits
        self._tables = UnauthenticatedPeers(MAX_STRANGERS, MAX_STRANGERS_PER_ADDRESS), unauthenticated
        self.door: HttpDoor | None = None
        self._certificate: Certificate | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen. Raises ``OSError``, and ``ValueError`` for a certificate that cannot be used."""
        config = self._config
        context = None
        if config.certificate is not None:
            self._certificate = Certificate(config.certificate, config.key)
            context = self._certificate.context
        self.door = HttpDoor(self._page.application(), self._admits, self._tables, context, END)
        self._page.on_login = self.door.know
        await self.door.start()
        listening = _listen(config.listen, config.port)
        port = listening.getsockname()[1]
        self.door.listen(listening)
        host = f"[{config.listen}]" if ":" in config.listen else config.listen
        self.url = f"http{'s' if context is not None else ''}://{host}:{port}/"
        if self._certificate is not None:
            self._certificate.keep_fresh()
        logging.getLogger().addHandler(self._tail)

    async def stop(self) -> None:
        """End all requests and stop listening."""
        logging.getLogger().removeHandler(self._tail)
        if self._certificate is not None:
            self._certificate.stop()
        self._page.feed.close()
        if self.door is not None:
            await self.door.close()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address. Raises ``OSError``.

    An event loop that is given the address looks it up in threads of its own. They would keep the privileges that the
    process gives up after its start.
    """
    (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return socket.create_server(address[:2], family=family)


class Certificate:
    """A certificate from a file, which may be renewed while the server runs."""

    def __init__(self, path: Path, key: Path | None) -> None:
        """Read it. Raises ``ValueError``."""
        self._path = path
        self._key = key
        self._timer: asyncio.TimerHandle | None = None
        self._seen = self._marks()
        self.context = _server_context()
        self._load()

    def _marks(self) -> tuple[tuple[int, int, int], ...]:
        return mark_of(self._path), mark_of(self._key)

    def _load(self) -> None:
        try:
            # A context that has refused a key has no key any more: the one in use gets what another has taken.
            for context in (_server_context(), self.context):
                context.load_cert_chain(self._path, self._key, password=lambda: "")
        except OSError as error:
            # ssl.SSLError is one, too.
            raise ValueError(f"certificate {self._path}: {error.strerror or error}") from error

    def keep_fresh(self) -> None:
        """Use a renewed certificate for new connections, from now on."""
        self._timer = asyncio.get_running_loop().call_later(RENEWAL, self._look)

    def look(self) -> None:
        """Use a renewed certificate from now on. One that cannot be used is said in the log, and the old one stays."""
        marks = self._marks()
        if marks == self._seen:
            return
        self._seen = marks
        try:
            self._load()
        except ValueError as error:
            log.warning("the web page keeps its certificate: %s", error)
        else:
            log.info("the web page has a new certificate")

    def _look(self) -> None:
        self.look()
        self.keep_fresh()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _worth_showing(record: logging.LogRecord) -> bool:
    own = record.name.partition(".")[0] in ("smb3server", "smbdirect", "witness")
    return record.levelno >= logging.WARNING or (own and record.levelno >= logging.INFO)
