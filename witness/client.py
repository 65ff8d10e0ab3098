"""A blocking Witness client with one connection, over impacket's DCE/RPC. [MS-SWN 3.2]"""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

from impacket.dcerpc.v5 import epm, transport
from impacket.dcerpc.v5.dtypes import NULL
from impacket.dcerpc.v5.rpcrt import RPC_C_AUTHN_LEVEL_PKT_INTEGRITY, RPC_C_AUTHN_LEVEL_PKT_PRIVACY, DCERPCException
from impacket.uuid import uuidtup_to_bin

from smbdirect.errors import DecodeError
from witness import ndr


class WitnessClientError(Exception):
    """The service refused a call, or cannot be reached."""

    def __init__(self, text: str, status: int | None = None) -> None:
        """``status``: the return value of the call; None if there was no answer."""
        super().__init__(text)
        self.status = status


class Registered(NamedTuple):
    """A registration of this client."""

    handle: bytes


class Notice(NamedTuple):
    """A decoded notification."""

    kind: ndr.MessageType
    resources: list[tuple[str, int]]
    """(name, ``InterfaceState``) pairs of a resource change; empty for other kinds."""
    addresses: list[ndr.AddressInfo]
    """The addresses of a notification of another kind."""

    def __str__(self) -> str:
        if self.kind == ndr.MessageType.RESOURCE_CHANGE:
            said = [f"{name} {ndr.InterfaceState(state).name.lower()}" for name, state in self.resources]
        else:
            said = [f"{entry.address} {'online' if entry.online else 'offline'}" for entry in self.addresses]
        return f"{self.kind.name.lower().replace('_', ' ')}: {', '.join(said)}"


_INTERFACE = uuidtup_to_bin((ndr.UUID_TEXT, f"{ndr.MAJOR}.{ndr.MINOR}"))


_FAILURES = (OSError, DCERPCException, struct.error, KeyError, IndexError, ValueError, TypeError)
"""Exceptions of impacket for answers that it cannot read, also if the connection ends within an answer."""


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError | DCERPCException):
        return str(error) or type(error).__name__
    return "the server's answer cannot be read, or the server closed the connection"


class WitnessClient:
    """Use it in a ``with`` statement. Every method raises ``WitnessClientError``."""

    def __init__(
        self,
        host: str,
        user: str,
        password: str,
        domain: str = "",
        port: int | None = None,
        endpoint_mapper_port: int = 135,
        privacy: bool = True,
        timeout: float = 30.0,
    ) -> None:
        """Connect and bind. ``port``: None means to ask the endpoint mapper. ``privacy``: whether calls are encrypted,
        instead of only signed. ``timeout``: seconds to connect, and for each call except ``wait``."""
        self._timeout = timeout
        try:
            if port is None:
                port = find_port(host, endpoint_mapper_port, timeout)
            rpc = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:{host}[{port}]")
            rpc.set_credentials(user, password, domain)
            rpc.set_connect_timeout(timeout)
            self._rpc = rpc.get_dce_rpc()
            self._rpc.set_auth_level(RPC_C_AUTHN_LEVEL_PKT_PRIVACY if privacy else RPC_C_AUTHN_LEVEL_PKT_INTEGRITY)
            self._rpc.connect()
            self._socket: socket.socket = rpc.get_socket()
        except _FAILURES as error:
            raise WitnessClientError(f"{host}: {_reason(error)}") from error
        try:
            self._rpc.bind(_INTERFACE)
        except _FAILURES as error:
            self._socket.close()
            raise WitnessClientError(f"{host}: {_reason(error)}") from error

    def __enter__(self) -> WitnessClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, which ends its registrations."""
        self._socket.close()

    def _call(self, request: Any, timeout: float | None) -> Any:
        self._socket.settimeout(timeout)
        try:
            # checkError off: the callers check return values.
            return self._rpc.request(request, checkError=False)
        except _FAILURES as error:
            raise WitnessClientError(_reason(error)) from error

    def interfaces(self) -> list[ndr.InterfaceInfo]:
        """Return the interfaces of the cluster's nodes: WitnessrGetInterfaceList."""
        response = self._call(ndr.GetInterfaceList(), self._timeout)
        _check(response["ErrorCode"])
        return ndr.parse_interface_list(response)

    def register(self, net_name: str, address: str, client: str) -> Registered:
        """Register for a net name and one of its addresses, in version 1: WitnessrRegister.

        ``client``: the name of this client, which an administrator can move."""
        request = ndr.Register()
        request["Version"] = ndr.V1
        request["NetName"] = net_name + "\0"
        request["IpAddress"] = address + "\0"
        request["ClientComputerName"] = client + "\0"
        response = self._call(request, self._timeout)
        _check(response["ErrorCode"])
        return Registered(response["ppContext"])

    def register_extended(
        self,
        net_name: str,
        address: str,
        client: str,
        share: str | None = None,
        ip_notifications: bool = False,
        keepalive: int = 120,
    ) -> Registered:
        """Register for a net name, or one of its shares, in version 2: WitnessrRegisterEx.

        ``ip_notifications``: whether changed addresses are notified. ``keepalive``: seconds after which a call of
        ``wait`` is answered without a notification."""
        request = ndr.RegisterEx()
        request["Version"] = ndr.V2
        request["NetName"] = net_name + "\0"
        request["ShareName"] = NULL if share is None else share + "\0"
        request["IpAddress"] = address + "\0"
        request["ClientComputerName"] = client + "\0"
        request["Flags"] = int(ndr.RegisterFlags.IP_NOTIFICATION if ip_notifications else ndr.RegisterFlags.NONE)
        request["KeepAliveTimeout"] = keepalive
        response = self._call(request, self._timeout)
        _check(response["ErrorCode"])
        return Registered(response["ppContext"])

    def wait(self, registered: Registered, timeout: float | None = None) -> Notice | None:
        """Return the next notification, None if the keepalive expired without one: WitnessrAsyncNotify.

        ``timeout``: seconds, None means no limit."""
        request = ndr.AsyncNotify()
        request["pContext"] = registered.handle
        response = self._call(request, timeout)
        if response["ErrorCode"] == ndr.Win32.TIMEOUT:
            return None
        _check(response["ErrorCode"])
        answer = response["pResp"]
        data = b"".join(answer["MessageBuffer"])
        try:
            kind = ndr.MessageType(answer["MessageType"])
            if kind == ndr.MessageType.RESOURCE_CHANGE:
                return Notice(kind, ndr.unpack_resource_changes(data, answer["NumberOfMessages"]), [])
            return Notice(kind, [], ndr.unpack_address_list(data))
        except (ValueError, DecodeError) as error:
            raise WitnessClientError(f"malformed notification: {error}") from error

    def unregister(self, registered: Registered) -> None:
        """End a registration: WitnessrUnRegister."""
        request = ndr.UnRegister()
        request["pContext"] = registered.handle
        _check(self._call(request, self._timeout)["ErrorCode"])

    def unregister_extended(self, registered: Registered) -> None:
        """End a registration: WitnessrUnRegisterEx."""
        request = ndr.UnRegisterEx()
        request["ppContext"] = registered.handle
        _check(self._call(request, self._timeout)["ErrorCode"])


def choose_witness(interfaces: list[ndr.InterfaceInfo]) -> ndr.InterfaceInfo:
    """Return the interface to register with: one of an available node with a Witness service, in the highest version.
    [MS-SWN 3.2.4.1]

    Raises ``WitnessClientError`` if there is none."""
    fit = [entry for entry in interfaces if entry.witness and entry.state == ndr.InterfaceState.AVAILABLE]
    if not fit:
        raise WitnessClientError("no other node has a Witness service")
    return max(fit, key=lambda entry: entry.version)


def find_port(host: str, endpoint_mapper_port: int, timeout: float) -> int:
    """Return the port of the Witness service, as the endpoint mapper of ``host`` reports it.

    ``timeout``: seconds to connect. Raises the exceptions of ``_FAILURES``."""
    rpc = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:{host}[{endpoint_mapper_port}]")
    rpc.set_connect_timeout(timeout)
    connection = rpc.get_dce_rpc()
    connection.connect()
    try:
        binding = epm.hept_map(host, _INTERFACE, protocol="ncacn_ip_tcp", dce=connection)
    finally:
        connection.disconnect()
    return int(binding.rpartition("[")[2].rstrip("]"))


def _check(status: int) -> None:
    if status != ndr.Win32.SUCCESS:
        try:
            name = f"ERROR_{ndr.Win32(status).name}"
        except ValueError:
            name = f"error {status}"
        raise WitnessClientError(name, status)
