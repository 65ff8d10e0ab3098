"""The web page of a server, as configured. The module loads aiohttp, and is imported only if there is a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from smb3server.access.identity import Identity
from smb3server.admin.socket import Command
from smb3server.config.error import ConfigError
from smb3server.net.host_lists import is_loopback
from smb3server.server.server import Server
from smb3server.settings.web import WebConfig
from smb3server.web.serving import WebServer


async def start_page(config: WebConfig, server: Server, commands: Callable[[], Mapping[str, Command]]) -> WebServer:
    """Start the page of ``server``. Raises ``ConfigError``."""
    _check(config, server)
    page = WebServer(
        config,
        server.settings.server_name,
        server.accounts,
        server.accounts.administers if config.admins is None else _are_on(config.admins),
        server.guesses,
        server.admits,
        commands,
        server.unauthenticated,
    )
    try:
        await page.start()
    except ValueError as error:
        await page.stop()
        raise ConfigError(f"[web]: {error}") from error
    except OSError as error:
        await page.stop()
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigError(f"[web]: cannot listen on {config.listen} port {config.port}: {reason}") from error
    return page


def _are_on(names: frozenset[str]) -> Callable[[Identity], bool]:
    return lambda identity: identity.is_on(names)


def _check(config: WebConfig, server: Server) -> None:
    """Raise ``ConfigError`` for a page that nobody could use, or that everybody could listen to."""
    names = server.settings.admins if config.admins is None else config.admins
    if not names:
        raise ConfigError(
            '[web]: nobody may log on to the page; name administrators in [server]: admins = ["alice"], or in [web]'
        )
    if config.certificate is None and not is_loopback(config.listen) and not config.plain_http:
        raise ConfigError(
            f"[web]: {config.listen} can be reached from other machines, and without TLS passwords would cross the "
            "network in the clear; give certificate = FILE.pem, listen on 127.0.0.1, or set plain_http = true"
        )
