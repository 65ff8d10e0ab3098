"""A Witness client, as people use it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from smb3server.cli.admin.password_input import logon_password
from witness.client import Registered, WitnessClient, WitnessClientError, choose_witness
from witness.ndr import V1, InterfaceInfo, InterfaceState


@dataclass(slots=True)
class Service:
    """A Witness service and the user that asks it."""

    host: str
    user: str
    """``[DOMAIN\\]NAME[:PASSWORD]``."""
    port: int | None
    endpoint_mapper_port: int
    sign: bool


@dataclass(slots=True)
class Registration:
    """What a client registers for."""

    name: str
    address: str | None
    share: str | None
    client: str
    v1: bool
    elsewhere: bool
    keepalive: int
    ip_changes: bool


def _connect(service: Service, host: str) -> WitnessClient:
    name, separator, password = service.user.partition(":")
    domain, backslash, user = name.rpartition("\\")
    if not separator:
        password = logon_password(name)
    return WitnessClient(
        host, user, password, domain if backslash else "", service.port, service.endpoint_mapper_port, not service.sign
    )


def _describe(entry: InterfaceInfo) -> str:
    addresses = " ".join(str(address) for address in (entry.ipv4, entry.ipv6) if address is not None)
    try:
        state = InterfaceState(entry.state).name.lower()
    except ValueError:
        state = f"state {entry.state}"
    version = 1 if entry.version == V1 else 2
    return f"{entry.group_name}  {addresses}  {state}  version {version}{'  witness' if entry.witness else ''}"


def _host(service: Service) -> str:
    return service.host.strip("/").partition("/")[0]


def _witness(service: Service, registration: Registration) -> WitnessClient:
    """Return a client of the service to register with."""
    client = _connect(service, _host(service))
    if not registration.elsewhere:
        return client
    with client:
        chosen = choose_witness(client.interfaces())
    print(f"witness: {_describe(chosen)}", flush=True)
    return _connect(service, str(chosen.ipv4 or chosen.ipv6))


def _register(client: WitnessClient, service: Service, wanted: Registration) -> Registered:
    address = wanted.address
    if address is None:
        host = _host(service)
        try:
            address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise WitnessClientError(f"{host}: {error.strerror}") from error
    if wanted.v1:
        return client.register(wanted.name, address, wanted.client)
    return client.register_extended(
        wanted.name, address, wanted.client, wanted.share, wanted.ip_changes, wanted.keepalive
    )


def list_interfaces(service: Service) -> None:
    """Print the interfaces of the cluster. Raises ``WitnessClientError``."""
    with _connect(service, _host(service)) as client:
        for entry in client.interfaces():
            print(_describe(entry))


def register(service: Service, wanted: Registration) -> None:
    """Register and unregister. Raises ``WitnessClientError``."""
    with _witness(service, wanted) as client:
        client.unregister(_register(client, service, wanted))
        print("registered and unregistered")


def watch(service: Service, wanted: Registration, count: int) -> None:
    """Print ``count`` notifications, or all until interrupted if it is 0. Raises ``WitnessClientError``."""
    with _witness(service, wanted) as client:
        registered = _register(client, service, wanted)
        print(f"registered for {wanted.name}", flush=True)
        seen = 0
        try:
            while not count or seen < count:
                notice = client.wait(registered)
                if notice is not None:
                    seen += 1
                    print(notice, flush=True)
        except KeyboardInterrupt:
            # The pending call keeps its connection open; closing that unregisters.
            return
        client.unregister(registered)


def show_registrations(answer: dict[str, Any]) -> None:
    """Print the registrations of a running server."""
    print(f"port {answer['port']}, endpoint mapper port {answer['endpoint_mapper_port'] or 'none'}")
    for entry in answer["registrations"]:
        share = f"/{entry['share']}" if entry["share"] else ""
        state = "waits" if entry["waiting"] else f"{entry['queued']} queued"
        print(
            f"{entry['client']}  {entry['user']}  {entry['net_name']}{share}  {entry['address']}  "
            f"version {entry['version']}  {state}"
        )
