"""Asks controllers by their Netlogon service: who has made an NTLM response, and for a new machine password.

All methods block, for ``TIMEOUT`` at most: call them on worker threads. Several threads may call at once; each uses a
connection of its own. [MS-NRPC 3.5.4, MS-APDS 3.1.5]
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from smb3server.access.descriptor import Sid
from smb3server.auth.users import LogonError
from smb3server.domain import netlogon_calls as calls
from smb3server.domain.netlogon_calls import ChannelRefused, Secret
from smb3server.domain.rpc_client import Fault, Interface, RpcConnection, RpcError, find_port
from smb3server.domain.secure_channel import Sealing
from smb3server.domain.user import Controller, Controllers, DomainUser, NoController
from smb3server.domain.validation import user_of
from smb3server.process.log_lines import printable
from smb3server.wire.status import NtStatus

log = logging.getLogger(__name__)

TIMEOUT = 20.0
"""Seconds for one call, all controllers together. Clients wait for a logon for at least 30 seconds."""
_TIMEOUT_OF_ONE = 6.0
"""Seconds for each controller."""
_MAX_IDLE = 4
"""Connections to one controller that wait for the next call."""
_Result = TypeVar("_Result")


class Machine(Protocol):
    """The member's machine account."""

    def secrets(self) -> list[Secret]:
        """Return what the account's password may be, the latest first. Raises ``ValueError`` if there is none."""
        ...


class SecureChannel:
    """The secure channel to one controller. [MS-NRPC 3.1.4.6]"""

    def __init__(self, controller: Controller, secret: Secret, deadline: float) -> None:
        """Establish the channel. Raises ``RpcError`` and ``OSError``."""
        self.controller = controller
        self.secret = secret
        self._lock = threading.Lock()
        self._authenticating = threading.Lock()
        """Calls with authenticators are made one after the other."""
        self._idle: list[RpcConnection] = []
        self._port = find_port(controller.address, calls.NETLOGON, deadline)
        self._ports: dict[Interface, int] = {}
        """Ports of other services."""
        connection = RpcConnection(controller.address, self._port, deadline)
        try:
            connection.bind(calls.NETLOGON)
            self._key, self._credentials = calls.authenticate(connection, controller.name, secret)
        finally:
            connection.close()
        self._with_authenticator(
            lambda connection: calls.check_capabilities(connection, secret, self._credentials), deadline
        )

    def close(self) -> None:
        """Close the connections that no call uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def call(self, operation: Callable[[RpcConnection], _Result], deadline: float) -> _Result:
        """Return the result of an operation over a sealed connection. Raises ``RpcError`` and ``OSError``."""
        connection = self._take(deadline)
        try:
            result = operation(connection)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return result
        connection.close()
        return result

    def call_other(self, interface: Interface, opnum: int, stub: bytes, deadline: float) -> bytes:
        """Return the answer of another service of the controller. Raises ``RpcError`` and ``OSError``."""
        port = self._ports.get(interface)
        if port is None:
            port = self._ports[interface] = find_port(self.controller.address, interface, deadline)
        connection = self.connect(interface, port, deadline)
        try:
            return connection.call(opnum, stub)
        finally:
            connection.close()

    def _with_authenticator(self, operation: Callable[[RpcConnection], _Result], deadline: float) -> _Result:
        """Return the result of an operation that uses the channel's credentials."""
        with self._authenticating:
            return self.call(operation, deadline)

    def set_password(self, password: str, deadline: float) -> None:
        """Set the machine account's password. Raises ``RpcError``, ``OSError`` and ``ValueError``."""
        self._with_authenticator(
            lambda connection: calls.set_password(connection, self.secret, self._credentials, self._key, password),
            deadline,
        )

    def _take(self, deadline: float) -> RpcConnection:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            connection.deadline = deadline
            return connection
        return self.connect(calls.NETLOGON, self._port, deadline)

    def connect(self, interface: Interface, port: int, deadline: float) -> RpcConnection:
        """Return a sealed connection to an interface of the controller. Raises ``RpcError`` and ``OSError``."""
        connection = RpcConnection(self.controller.address, port, deadline)
        try:
            connection.bind(interface, Sealing(self._key, self.secret.domain, self.secret.machine))
        except BaseException:
            connection.close()
            raise
        return connection


class Netlogon:
    """Implements ``user.PassThrough``, over the secure channel to the first controller that answers."""

    def __init__(self, controllers: Controllers, machine: Machine) -> None:
        self._controllers = controllers
        self._machine = machine
        self._lock = threading.Lock()
        self._channel: SecureChannel | None = None

    def validate(
        self, name: str, domain: str, workstation: str, challenge: bytes, lm_response: bytes, nt_response: bytes
    ) -> DomainUser:
        """Return the user whose response it is. Raises ``LogonError`` and ``NoController``. [MS-APDS 3.1.5.1]"""

        def ask(channel: SecureChannel, deadline: float) -> calls.Answer:
            return channel.call(
                lambda connection: calls.logon(
                    connection,
                    channel.controller.name,
                    channel.secret,
                    calls.Network(name, domain, workstation, challenge, lm_response, nt_response),
                ),
                deadline,
            )

        answer = self.ask(ask)
        if answer.status != NtStatus.SUCCESS:
            raise LogonError(f"the controller refuses {printable(name)}: {answer.words}", answer.known_status, "domain")
        try:
            return user_of(answer.validation, answer.realm, answer.session_key)
        except Exception as error:
            # impacket's structures may raise any exception for what a controller should not have sent.
            raise LogonError(f"the controller's answer is wrong: {error}", code="domain") from error

    def forest(self) -> frozenset[Sid]:
        """Return the domains of the forest. Raises ``NoController``."""

        def ask(channel: SecureChannel, deadline: float) -> frozenset[Sid]:
            return channel.call(lambda connection: calls.forest_domains(connection, channel.controller.name), deadline)

        return self.ask(ask)

    def call(self, interface: str, opnum: int, stub: bytes) -> bytes:
        """Call another service of a controller over the secure channel. ``interface``: the UUID of one of version 0.

        Raises ``NoController``."""

        def ask(channel: SecureChannel, deadline: float) -> bytes:
            return channel.call_other(Interface(interface, 0), opnum, stub, deadline)

        return self.ask(ask)

    def ask(self, operation: Callable[[SecureChannel, float], _Result]) -> _Result:
        """Return what the first controller says that can be asked. ``operation`` gets a channel and a deadline.

        Raises ``NoController``."""
        end = time.monotonic() + TIMEOUT
        channel = self._channel
        reasons: list[str] = []
        if channel is not None:
            try:
                return operation(channel, min(end, time.monotonic() + _TIMEOUT_OF_ONE))
            except TimeoutError as error:
                # It hangs. Others come first now, so that a logon waits for it once.
                reasons.append(self._failed(channel.controller, error))
                self._drop(channel)
            except (RpcError, OSError) as error:
                # The controller may have closed the connection long ago, or forgotten the channel at its restart. So it
                # is tried again, in its turn.
                log.info("controller %s: the secure channel is lost: %s", channel.controller.name, error)
                self._drop(channel)
        for controller in self._controllers.locate():
            if time.monotonic() >= end:
                reasons.append("no time is left")
                break
            deadline = min(end, time.monotonic() + _TIMEOUT_OF_ONE)
            try:
                channel = self._open(controller, deadline)
            except (RpcError, OSError) as error:
                reasons.append(self._failed(controller, error))
                continue
            try:
                result = operation(channel, deadline)
            except (RpcError, OSError) as error:
                reasons.append(self._failed(controller, error))
                self._drop(channel)
                continue
            self._controllers.answered(controller)
            return result
        raise NoController("; ".join(reasons) or "no controller is known: neither `controllers` nor DNS names one")

    def _failed(self, controller: Controller, error: Exception) -> str:
        """Have a controller tried last for a while, and return what was wrong."""
        log.warning("controller %s (%s): %s", controller.name, controller.address, error)
        self._controllers.failed(controller)
        return f"{controller.name}: {error}"

    def _drop(self, channel: SecureChannel) -> None:
        with self._lock:
            if self._channel is channel:
                self._channel = None
        channel.close()

    def _open(self, controller: Controller, deadline: float) -> SecureChannel:
        """Return a channel to a controller, which others use from now on. Raises ``RpcError`` and ``OSError``."""
        known = self._channel
        if known is not None and known.controller == controller:
            return known
        channel = open_channel(controller, self._machine, deadline)
        with self._lock:
            self._channel = channel
        return channel

    def close(self) -> None:
        """End the secure channel."""
        channel = self._channel
        if channel is not None:
            self._drop(channel)


def open_channel(controller: Controller, machine: Machine, deadline: float) -> SecureChannel:
    """Return a secure channel, with the latest password that the controller knows.

    Raises ``RpcError`` and ``OSError``."""
    try:
        secrets = machine.secrets()
    except ValueError as error:
        raise RpcError(str(error)) from error
    refused: RpcError | None = None
    for secret in secrets:
        try:
            return SecureChannel(controller, secret, deadline)
        except ChannelRefused as error:
            # Another controller may not have heard of the latest password yet.
            refused = error
        except Fault as error:
            raise RpcError(f"the controller ends the call ({error})") from error
    raise refused or RpcError("there is no machine password")
