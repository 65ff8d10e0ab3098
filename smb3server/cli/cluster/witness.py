"""``smb3server witness``: a Witness client, and the administrator's notifications."""

from __future__ import annotations

import socket as sockets
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click

from smb3server.cli.exits import EXIT_NO_SERVER, CommandError
from smb3server.cli.running_server import ServerChoice, server_choice
from smb3server.cli.together import together

_NOTIFICATIONS = ("available", "unavailable", "node-up", "node-down", "move-client", "move-share", "ip-change")
_SERVICE = ("host", "user", "port", "endpoint_mapper_port", "sign")

_service_options = together(
    click.argument("host", metavar="//HOST"),
    click.option(
        "--user",
        default="",
        metavar="[DOMAIN\\]NAME[:PASSWORD]",
        help="Log on as. The password may be in SMB3SERVER_PASSWORD, or is asked for.",
    ),
    click.option("--port", type=int, metavar="PORT", help="Of the service. Default: ask the endpoint mapper."),
    click.option("--endpoint-mapper-port", type=int, default=135, show_default=True, metavar="PORT", help="Its port."),
    click.option("--sign", is_flag=True, help="Sign calls only. Default: encrypt."),
)

_registration_options = together(
    click.option("--name", required=True, metavar="NET_NAME", help="Name that clients connect to."),
    click.option("--address", metavar="IP", help="Address to watch. Default: HOST's."),
    click.option("--share", metavar="SHARE", help="Share to watch, too (version 2)."),
    click.option(
        "--client",
        default=lambda: sockets.gethostname().split(".")[0],
        metavar="NAME",
        help="This client's name. Default: the host's.",
    ),
    click.option("--v1", is_flag=True, help="Version 1 of the protocol."),
    click.option("--elsewhere", is_flag=True, help="Ask HOST for another node's service and use that, as clients do."),
    click.option("--keepalive", type=int, default=60, show_default=True, metavar="SECONDS", help="Longest silence."),
    click.option("--ip-changes", is_flag=True, help="Also when addresses come and go."),
)


@click.group()
def command() -> None:
    """Ask a server's Witness service [MS-SWN], or let a running server notify clients.

    \b
    Examples:
      smb3server witness status
      smb3server witness list //files.example.com --user alice
      smb3server witness watch //files.example.com --user alice --name FILES
      smb3server witness notify move-client WORKSTATION 192.0.2.7

    Exit status: 0, 1 if a server refuses or does not answer, 2 for wrong usage, 3 if no running server is found.
    """


@command.command("list")
@_service_options
def list_(**service: Any) -> None:
    """Show interfaces of the cluster, and where clients can register."""
    from smb3server.cli.cluster import witness_calls

    _call(service, lambda: witness_calls.list_interfaces(witness_calls.Service(**service)))


@command.command()
@_service_options
@_registration_options
def register(**options: Any) -> None:
    """Register, show that it works, and unregister."""
    from smb3server.cli.cluster import witness_calls

    service = {name: options.pop(name) for name in _SERVICE}
    wanted = witness_calls.Registration(**options)
    _call(service, lambda: witness_calls.register(witness_calls.Service(**service), wanted))


@command.command()
@_service_options
@_registration_options
@click.option("--count", type=int, default=0, metavar="N", help="End after so many notifications.")
def watch(count: int, **options: Any) -> None:
    """Register and print notifications until interrupted."""
    from smb3server.cli.cluster import witness_calls

    service = {name: options.pop(name) for name in _SERVICE}
    wanted = witness_calls.Registration(**options)
    _call(service, lambda: witness_calls.watch(witness_calls.Service(**service), wanted, count))


def _call(service: dict[str, Any], action: Callable[[], None]) -> None:
    from smb3server.config.sources.passwords import hide_arguments
    from witness.client import WitnessClientError

    hide_arguments([service["user"]])
    try:
        action()
    except WitnessClientError as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        # That is how to end it.
        return


@command.command()
@click.argument("kind", type=click.Choice(_NOTIFICATIONS))
@click.argument("subject")
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@server_choice
def notify(kind: str, subject: str, addresses: tuple[str, ...], server: ServerChoice) -> None:
    """Notify clients of a running server.

    SUBJECT is a net name or share (available, unavailable), a node (node-up, node-down), a client (move-client),
    [NET_NAME/]SHARE (move-share) or a net name (ip-change: addresses with + or -).
    """
    answer = _ask(server.find(), "witness-notify", kind=kind, subject=subject, addresses=list(addresses))
    print(f"{answer['told']} registrations notified")


@command.command()
@server_choice
def status(server: ServerChoice) -> None:
    """Show the registrations of a running server."""
    from smb3server.cli.cluster.witness_calls import show_registrations
    from smb3server.process.log_lines import printable_tree

    show_registrations(cast("dict[str, Any]", printable_tree(_ask(server.find(), "witness"))))


def _ask(path: Path, name: str, **arguments: Any) -> dict[str, Any]:
    """Return a running server's answer. Raises ``CommandError``."""
    from smb3server.admin.socket import ask

    try:
        answer = ask(path, name, **arguments)
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CommandError(f"{path}: {text}", EXIT_NO_SERVER) from error
    if "error" in answer:
        unknown = str(answer["error"]).startswith("unknown command")
        raise CommandError(
            "this server has no Witness service: add [witness] to its configuration" if unknown else answer["error"]
        )
    return answer
