"""SMB Direct listeners: which fabrics to serve, and where."""

from __future__ import annotations

import importlib
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smbdirect.errors import ProviderError

if TYPE_CHECKING:
    from smb3server.server import Server
    from smbdirect.providers.base import Provider
    from smbdirect.transport import SmbDirectListener

log = logging.getLogger(__name__)

SMB_DIRECT_PORT, SMB_PORT = 5445, 445
"""Clients ask for SMB Direct on 5445 over iWARP. Over RoCE, where the port is only a number in the request, Windows and
Linux 7.2 ask for 445, and Linux 6.12 for 5445 first."""


def _iwarp() -> Provider:
    from smbdirect.providers.iwarp.provider import IwarpProvider

    return IwarpProvider()


def _roce() -> Provider:
    # By name: the module may be absent.
    provider: Provider = importlib.import_module("smbdirect.providers.roce.provider").RoceProvider()
    return provider


def _verbs() -> Provider:
    from smbdirect.providers.verbs.provider import VerbsProvider

    return VerbsProvider()


_PROVIDERS: dict[str, Callable[[], Provider]] = {"verbs": _verbs, "iwarp": _iwarp, "roce": _roce}


class Fabrics:
    """The listeners of one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.listeners: list[tuple[str, SmbDirectListener]] = []
        """(fabric, listener)."""
        self.adopt: Callable[[socket.socket], None] | None = None
        """Takes a TCP socket that turned out to speak MPA; None without iWARP."""
        self.problems: list[str] = []

    def _make(self, name: str, explicit: bool) -> Provider | None:
        try:
            provider = _PROVIDERS[name]()
            reason = provider.available()
        except (ImportError, OSError, ProviderError) as error:
            reason = str(error)
        if reason is None:
            return provider
        message = f"{name}: {reason}"
        if explicit:
            raise ProviderError(message)
        log.info("fabric not served: %s", message)
        self.problems.append(message)
        return None

    async def start(self, choice: str, hosts: Sequence[str], port: int) -> None:
        """Listen on ``hosts`` for the fabric chosen, or for every one this machine can serve ("auto"). Raises
        ``ProviderError`` or ``OSError`` if one that was asked for by name cannot be."""
        names = list(_PROVIDERS) if choice == "auto" else [choice]
        for name in names:
            provider = self._make(name, choice != "auto")
            if provider is None:
                continue
            for host in hosts:
                await self._listen(name, provider, host, port, choice != "auto")
                if name == "roce" and port == SMB_DIRECT_PORT:
                    await self._listen(name, provider, host, SMB_PORT, choice != "auto")

    async def _listen(self, name: str, provider: Provider, host: str, port: int, explicit: bool) -> None:
        from smbdirect.providers.iwarp.provider import IwarpProvider
        from smbdirect.transport import listen

        try:
            listener = await listen(provider, host, port, self.server.accept)
        except (OSError, ProviderError) as error:
            if explicit and (":" not in host or not self.listeners):
                raise
            log.info("%s on %s: %s", name, host, error)
            self.problems.append(f"{name} on {host}: {error}")
            return
        self.listeners.append((name, listener))
        self.server.rdma_addresses.add(listener.address[0])
        if isinstance(provider, IwarpProvider) and self.adopt is None:
            on_request = listener.on_request
            self.adopt = lambda sock: provider.adopt(sock, on_request)

    async def close(self) -> None:
        """Stop listening; established connections live on."""
        for _, listener in self.listeners:
            await listener.close()
