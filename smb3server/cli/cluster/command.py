"""``smb3server cluster``: inspect and control a cluster, from any machine that reaches its store."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from smb3server.cli.exits import EXIT_USAGE, CommandError
from smb3server.cli.together import together
from smb3server.process import parts

if TYPE_CHECKING:
    from smb3server.cli.cluster.admin import Admin

_FILE = click.Path(readable=False, path_type=Path)
_Decorated = TypeVar("_Decorated", bound=Callable[..., object])


@dataclass(slots=True)
class _Store:
    """How the store is found and entered, as the command line says it. None means not given."""

    cluster: str | None = None
    config: Path | None = None
    name: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    secret_file: Path | None = None

    def over(self, other: _Store) -> _Store:
        """Return these options; those that are not given are taken from ``other``."""
        return _Store(*(getattr(self, field.name) or getattr(other, field.name) for field in fields(self)))


_store_options = together(
    click.option("--cluster", metavar="etcds://HOST:PORT,...", help="The cluster's store."),
    click.option("--config", type=_FILE, metavar="FILE.toml", help="Take [cluster] from a node's configuration."),
    click.option("--name", metavar="NAME", help="The cluster's name. Default: smb3server."),
    click.option("--ca", type=_FILE, metavar="FILE", help="Authority that signed etcd's certificate."),
    click.option("--cert", type=_FILE, metavar="FILE", help="Certificate to show to etcd."),
    click.option("--key", type=_FILE, metavar="FILE", help="Its key."),
    click.option("--user", metavar="NAME", help="User of etcd."),
    click.option("--password-file", type=_FILE, metavar="FILE", help="With the user's password."),
    click.option("--secret-file", type=_FILE, metavar="FILE", help="The cluster's secret."),
)
"""The options of ``_Store``. The group and all its commands have them: they may stand before or after."""


class _Seconds(click.ParamType[float]):
    """A number of seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds) or seconds < 0:
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


def _timeout(function: _Decorated) -> _Decorated:
    return click.option(
        "--timeout", type=_Seconds(), default=30.0, show_default=True, metavar="SECONDS", help="How long to wait."
    )(function)


@click.group()
@_store_options
@click.pass_context
def command(context: click.Context, /, **store: Any) -> None:
    """Inspect and control a cluster, from any machine that reaches its etcd.

    Options that name the store stand before or after the command. --config takes them from a node's configuration.

    \b
    Examples:
      smb3server cluster --config /etc/smb3server/smb3server.toml status
      smb3server cluster --config /etc/smb3server/smb3server.toml drain node-a
      smb3server cluster status --cluster etcds://10.0.0.1:2379 --ca ca.pem
      smb3server cluster secret cluster.secret

    Exit status: 0, 1 if it cannot be done (etcd does not answer, no such node or service, timeout), 2 for wrong usage.
    """
    context.obj = _Store(**store)


@command.command()
@_store_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--quick", is_flag=True, help="Do not ask the nodes: only what the store knows.")
@click.pass_obj
def status(before: _Store, /, as_json: bool, quick: bool, **store: Any) -> None:
    """Show nodes and services: which node serves what, since when, and to how many clients."""
    found = _administer(before, store, lambda admin: admin.status(quick))
    if as_json:
        print(json.dumps(found))
    else:
        from smb3server.cli.cluster.status import show

        show(found)
    if found["stale"]:
        raise CommandError("etcd has no leader: its quorum is lost; remedy: start the members that are down")


@command.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Allow services on the node again. None moves back by itself.")
@_timeout
@_store_options
@click.pass_obj
def drain(before: _Store, /, node: str, undo: bool, timeout: float, **store: Any) -> None:
    """Move all services off a node, and let none move back.

    Witness notifies clients first. Then services move to the next node of their order.
    """
    print(_administer(before, store, lambda admin: admin.undo_drain(node) if undo else admin.drain(node, timeout)))


@command.command()
@click.argument("service")
@click.argument("node")
@_timeout
@_store_options
@click.pass_obj
def move(before: _Store, /, service: str, node: str, timeout: float, **store: Any) -> None:
    """Move a service to a node. Witness notifies clients first."""
    print(_administer(before, store, lambda admin: admin.move(service, node, timeout)))


@command.command()
@click.argument("node")
@_store_options
@click.pass_obj
def fenced(before: _Store, /, node: str, **store: Any) -> None:
    """Say that a silent node is off, or cut off from the storage, when fence_command cannot.

    Its services are taken over then. If it is not off, data may be lost.
    """
    print(_administer(before, store, lambda admin: admin.fenced(node)))


@command.command("move-client")
@click.argument("client")
@click.argument("node")
@_store_options
@click.pass_obj
def move_client(before: _Store, /, client: str, node: str, **store: Any) -> None:
    """Ask a client, by Witness, to connect to a node.

    CLIENT is the ClientComputerName of its registrations. It is sent to the addresses at which the node serves what
    the client registered for.
    """
    print(_administer(before, store, lambda admin: admin.move_client(client, node)))


@command.command()
@_store_options
@click.pass_obj
def purge(before: _Store, /, **store: Any) -> None:
    """Remove records that are not sealed with the cluster's secret.

    Such records are ignored, but block valid ones. Records older than the secret are removed, too.
    """
    print(_administer(before, store, lambda admin: admin.purge()))


@command.command()
@click.argument("file", type=_FILE)
def secret(file: Path) -> None:
    """Make a secret for a cluster, in a new file of mode 600. Copy it to all nodes."""
    from smb3server.cli.cluster.admin import AdminError, make_secret

    try:
        make_secret(file)
    except AdminError as error:
        raise CommandError(str(error)) from error


_Result = TypeVar("_Result")


def _administer(before: _Store, /, after: dict[str, Any], operation: Callable[[Admin], Awaitable[_Result]]) -> _Result:
    """Carry out an operation on the cluster that the options name. Raises ``CommandError``."""
    from smb3server.cli.cluster.admin import AdminError, administer
    from smb3server.config.error import ConfigError
    from smb3server.config.reader import read_cluster
    from smb3server.net.store_access import StoreAccess
    from smb3server.persistence.store import StoreError
    from smb3server.settings.cluster import DEFAULT_NAME

    # Refused records are part of the output, so that they need no log lines.
    logging.getLogger("smb3server").addHandler(logging.NullHandler())
    given = _Store(**after).over(before)
    url, name, access = given.cluster, given.name, StoreAccess()
    try:
        if given.config is not None:
            known = read_cluster(given.config)
            url, name, access = url or known.url, name or known.name, known.access
        for key in ("ca", "cert", "key", "user", "password_file", "secret_file"):
            setattr(access, key, getattr(given, key) or getattr(access, key))
        if not url:
            raise CommandError("no cluster given: use --cluster etcds://HOST:PORT,... or --config", EXIT_USAGE)
        return asyncio.run(administer(url, name or DEFAULT_NAME, access, operation))
    except ImportError as error:
        raise CommandError(f"needs {error.name}; {parts.remedy('cluster')}") from error
    except (ConfigError, ValueError) as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except (AdminError, StoreError) as error:
        raise CommandError(str(error)) from error
