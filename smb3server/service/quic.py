"""SMB over QUIC of a server, as configured. The module loads aioquic, and is imported only if it is served."""

from __future__ import annotations

import os
from collections.abc import Sequence

from aioquic.quic.configuration import QuicConfiguration

from smb3server.config.error import ConfigError
from smb3server.net.quic.certificates import ClientRules, Renewal
from smb3server.net.quic.connection import configuration
from smb3server.net.quic.listener import QuicListener
from smb3server.service.reception import Reception
from smb3server.settings.quic import QuicConfig
from smb3server.settings.server import Settings


class QuicPorts:
    """The QUIC listeners of one server. Call ``open``, then ``close``, and ``end`` when all connections are closed."""

    def __init__(self, config: QuicConfig, settings: Settings, reception: Reception) -> None:
        self._config = config
        self._settings = settings
        self._reception = reception
        self._renewal: Renewal | None = None
        self._current: QuicConfiguration = configuration(client=False)
        self.listeners: list[QuicListener] = []

    async def open(self, hosts: Sequence[str], optional: Sequence[str]) -> None:
        """Listen on ``hosts``. Those in ``optional`` may be missing on this machine. Raises ``ConfigError``."""
        config, reception = self._config, self._reception
        if config.client_authority is not None and not os.access(config.client_authority, os.R_OK):
            raise ConfigError(f"[quic]: client_authority: {config.client_authority} cannot be read")
        rules = ClientRules(config.client_authority, config.clients)
        try:
            self._renewal = Renewal(config.certificate, config.key, self._use)
        except ValueError as error:
            raise ConfigError(f"[quic]: {error}") from error
        for host in hosts:
            listener = QuicListener(
                reception.buffers,
                reception.accept,
                self._settings.max_message_before_authentication,
                self._current,
                rules,
                self._settings.negotiate_timeout,
                reception.silent_peers,
                reception.admits,
            )
            port = self.listeners[0].address[1] if self.listeners else config.port
            try:
                await listener.open(host, port)
            except PermissionError as error:
                raise ConfigError(
                    f"[quic]: UDP port {port}: ports below 1024 need root or CAP_NET_BIND_SERVICE; remedy: port = 1443"
                ) from error
            except OSError as error:
                if host in optional:
                    continue
                raise ConfigError(f"[quic]: cannot listen on {host} port {port}: {error.strerror or error}") from error
            self.listeners.append(listener)

    def _use(self, current: QuicConfiguration) -> None:
        self._current = current
        for listener in self.listeners:
            listener.configuration = current

    def look_again(self) -> None:
        """Use a certificate that was renewed, for connections from now on."""
        if self._renewal is not None:
            self._renewal.look()

    async def close(self) -> None:
        """Stop listening. Established connections stay open."""
        if self._renewal is not None:
            self._renewal.stop()
        for listener in self.listeners:
            await listener.close()

    def end(self) -> None:
        """End what is left of the connections."""
        for listener in self.listeners:
            listener.end()
