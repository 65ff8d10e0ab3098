"""``smb3server witness``: a Witness client, and the administrator's notifications."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any, cast

from smb3server.cli.status import find_socket
from smb3server.config.passwords import hide_arguments
from smb3server.process.log_lines import printable_tree
from smb3server.status.admin_socket import ask
from witness.client import Registered, WitnessClient, WitnessClientError, choose_witness
from witness.ndr import V1, InterfaceInfo, InterfaceState

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
_NOTIFICATIONS = ("available", "unavailable", "node-up", "node-down", "move-client", "move-share", "ip-change")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smb3server witness",
        description="Service Witness Protocol: ask a server's Witness service, or let a running server notify clients.",
        epilog="Exit status: 0, 1 if a server refuses or does not answer, 2 for wrong usage.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("list", "interfaces of the cluster, and where clients can register"),
        ("register", "register, show that it works, and unregister"),
        ("watch", "register and print notifications until interrupted"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("host", metavar="//HOST", help="where a Witness service runs")
        command.add_argument("--user", default="", metavar="[DOMAIN\\]NAME[:PASSWORD]", help="password also in PASSWD")
        command.add_argument("--port", type=int, help="of the service (default: ask the endpoint mapper)")
        command.add_argument("--endpoint-mapper-port", type=int, default=135, metavar="PORT")
        command.add_argument("--sign", action="store_true", help="sign calls only (default: encrypt)")
        if name != "list":
            command.add_argument("--name", required=True, metavar="NET_NAME", help="name that clients connect to")
            command.add_argument("--address", metavar="IP", help="address to watch (default: HOST's)")
            command.add_argument("--share", help="share to watch, too (version 2)")
            command.add_argument("--client", default=socket.gethostname().split(".")[0], help="this client's name")
            command.add_argument("--v1", action="store_true", help="version 1 of the protocol")
            command.add_argument(
                "--elsewhere",
                action="store_true",
                help="ask HOST for another node's service and use that, as clients do",
            )
            command.add_argument("--keepalive", type=int, default=60, metavar="SECONDS")
            command.add_argument("--ip-changes", action="store_true", help="also when addresses come and go")
        if name == "watch":
            command.add_argument("--count", type=int, default=0, help="end after so many notifications")
    notify = commands.add_parser(
        "notify",
        help="notify clients of a running server",
        description="SUBJECT is a net name or share (available, unavailable), a node (node-up, node-down), a client "
        "(move-client), [NET_NAME/]SHARE (move-share) or a net name (ip-change: addresses with + or -).",
    )
    notify.add_argument("kind", choices=_NOTIFICATIONS)
    notify.add_argument("subject")
    notify.add_argument("addresses", nargs="*", metavar="ADDRESS")
    status = commands.add_parser("status", help="registrations of a running server")
    for command in (notify, status):
        command.add_argument("--state", metavar="DIR", help="the server's state directory")
        command.add_argument("--socket", metavar="PATH", help="the server's admin socket")
    return parser


def _connect(options: argparse.Namespace, host: str) -> WitnessClient:
    name, separator, password = options.user.partition(":")
    domain, backslash, user = name.rpartition("\\")
    if not separator:
        password = os.environ.get("PASSWD", "")
        if not password and sys.stdin.isatty():
            password = getpass.getpass(f"password of {name}: ")
    return WitnessClient(
        host,
        user,
        password,
        domain if backslash else "",
        options.port,
        options.endpoint_mapper_port,
        not options.sign,
    )


def _describe(entry: InterfaceInfo) -> str:
    addresses = " ".join(str(address) for address in (entry.ipv4, entry.ipv6) if address is not None)
    try:
        state = InterfaceState(entry.state).name.lower()
    except ValueError:
        state = f"state {entry.state}"
    version = 1 if entry.version == V1 else 2
    return f"{entry.group_name}  {addresses}  {state}  version {version}{'  witness' if entry.witness else ''}"


def _host(options: argparse.Namespace) -> str:
    return str(options.host).strip("/").partition("/")[0]


def _witness(options: argparse.Namespace) -> WitnessClient:
    """Return a client of the service to register with."""
    client = _connect(options, _host(options))
    if options.command == "list" or not options.elsewhere:
        return client
    with client:
        chosen = choose_witness(client.interfaces())
    print(f"witness: {_describe(chosen)}", flush=True)
    return _connect(options, str(chosen.ipv4 or chosen.ipv6))


def _register(client: WitnessClient, options: argparse.Namespace) -> Registered:
    address = options.address
    if address is None:
        host = _host(options)
        try:
            address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise WitnessClientError(f"{host}: {error.strerror}") from error
    if options.v1:
        return client.register(options.name, address, options.client)
    return client.register_extended(
        options.name, address, options.client, options.share, options.ip_changes, options.keepalive
    )


def _watch(client: WitnessClient, options: argparse.Namespace) -> None:
    registered = _register(client, options)
    print(f"registered for {options.name}", flush=True)
    seen = 0
    try:
        while not options.count or seen < options.count:
            notice = client.wait(registered)
            if notice is not None:
                seen += 1
                print(notice, flush=True)
    except KeyboardInterrupt:
        # The pending call keeps its connection open; closing that unregisters.
        return
    client.unregister(registered)


def _ask_running(options: argparse.Namespace) -> int:
    found = find_socket(options)
    if isinstance(found, str):
        print(f"smb3server witness: {found}", file=sys.stderr)
        return EXIT_FAILED
    try:
        if options.command == "status":
            answer = ask(found, "witness")
        else:
            answer = ask(
                found, "witness-notify", kind=options.kind, subject=options.subject, addresses=options.addresses
            )
    except (OSError, ValueError) as error:
        print(f"smb3server witness: {found}: {error}", file=sys.stderr)
        return EXIT_FAILED
    if "error" in answer:
        unknown = str(answer["error"]).startswith("unknown command")
        text = "this server has no Witness service: add [witness] to its configuration" if unknown else answer["error"]
        print(f"smb3server witness: {text}", file=sys.stderr)
        return EXIT_FAILED
    if options.command == "status":
        _show(cast("dict[str, Any]", printable_tree(answer)))
    else:
        print(f"{answer['told']} registrations notified")
    return EXIT_OK


def _show(answer: dict[str, Any]) -> None:
    print(f"port {answer['port']}, endpoint mapper port {answer['endpoint_mapper_port'] or 'none'}")
    for entry in answer["registrations"]:
        share = f"/{entry['share']}" if entry["share"] else ""
        state = "waits" if entry["waiting"] else f"{entry['queued']} queued"
        print(
            f"{entry['client']}  {entry['user']}  {entry['net_name']}{share}  {entry['address']}  "
            f"version {entry['version']}  {state}"
        )


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status, as ``--help`` describes."""
    options = _parser().parse_args(arguments)
    hide_arguments([getattr(options, "user", "")])
    if options.command in ("notify", "status"):
        return _ask_running(options)
    try:
        with _witness(options) as client:
            if options.command == "list":
                for entry in client.interfaces():
                    print(_describe(entry))
            elif options.command == "register":
                client.unregister(_register(client, options))
                print("registered and unregistered")
            else:
                _watch(client, options)
    except WitnessClientError as error:
        print(f"smb3server witness: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_OK
    return EXIT_OK
