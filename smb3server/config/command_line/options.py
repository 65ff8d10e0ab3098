"""The options of the server's command line.

This module imports only what declares them: help and completion load nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

DEFAULT_FILE = Path("/etc/smb3server/smb3server.toml")
"""Read if the command line names neither a file nor a share, and it exists."""

DEFAULT_PAGE = "127.0.0.1:8445"
"""Where the web page is if --web does not say it."""


@dataclass(slots=True)
class ServerOptions:
    """The server's command line, parsed but not yet checked. ``None`` and empty mean: not given."""

    config: Path | None = None
    share: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    password_file: Path | None = None
    guest: bool = False
    rdma: str | None = None
    listen: tuple[str, ...] = ()
    port: int | None = None
    rdma_port: int | None = None
    cluster: str | None = None
    node: str | None = None
    state: Path | None = None
    drop_privileges: str | None = None
    allow_root: bool = False
    web: str | None = None
    admin: tuple[str, ...] = ()
    discover: bool = False
    log_level: str | None = None
    trace: tuple[str, ...] = ()


_FILE = click.Path(readable=False, path_type=Path)
# Files are judged by who opens them: a type of click would tell less.
_FOLDER = click.Path(file_okay=False, path_type=Path)


def judging_option() -> click.Option:
    """Return the option that says as whom a configuration is judged."""
    return click.Option(
        ["--as", "as_user"],
        metavar="USER",
        default="",
        help="Judge as root: the server runs as USER, with the capabilities of the unit. Default: the owner of its "
        "state directory or users file.",
    )


def server_options() -> list[click.Parameter]:
    """Return the options, one for each field of ``ServerOptions``."""
    return [
        click.Option(
            ["--config"],
            type=_FILE,
            metavar="FILE.toml",
            help=f"Configuration file. Default, if no share is given: {DEFAULT_FILE}.",
        ),
        click.Option(["--share"], multiple=True, metavar="NAME=PATH[,user=USER][,ro]", help="Share a directory."),
        click.Option(
            ["--user"],
            multiple=True,
            metavar="NAME[:PASSWORD]",
            help="Add a user. Without a password: that of --password-file, of $SMB3SERVER_PASSWORD, or asked for.",
        ),
        click.Option(["--password-file"], type=_FILE, metavar="FILE", help="Its first line is the users' password."),
        click.Option(["--guest"], is_flag=True, help="Let unknown users in as guests, without signing."),
        click.Option(
            ["--rdma"],
            is_flag=False,
            flag_value="auto",
            metavar="[FABRICS]",
            help="Serve SMB Direct, too: auto (the default without a value), off, or fabrics: iwarp,roce,verbs.",
        ),
        click.Option(["--listen"], multiple=True, metavar="ADDR", help="Address to serve. Default: all."),
        click.Option(["--port"], type=int, metavar="PORT", help="TCP port. Default: 445, as root."),
        click.Option(["--rdma-port"], type=int, metavar="PORT", help="SMB Direct port. Default: 5445."),
        click.Option(["--cluster"], metavar="etcds://HOST:PORT,...", help="Be a node of a cluster."),
        click.Option(["--node"], metavar="NAME", help="This node's name in the cluster."),
        click.Option(["--state"], type=_FOLDER, metavar="DIR", help="Where state is kept that outlives the server."),
        click.Option(
            ["--drop-privileges"],
            is_flag=False,
            flag_value="owner",
            metavar="[USER]",
            help="Started as root: become USER once ports are open, by default the owner of the shared folders. "
            "Everybody then acts as USER.",
        ),
        click.Option(["--allow-root"], is_flag=True, help="Let users act as root on this machine."),
        click.Option(
            ["--web"],
            is_flag=False,
            flag_value=DEFAULT_PAGE,
            metavar="[ADDR:PORT]",
            help=f"Show a web page to administrators. Without a value: at {DEFAULT_PAGE}.",
        ),
        click.Option(["--admin"], multiple=True, metavar="NAME", help="This user is an administrator."),
        click.Option(["--discover"], is_flag=True, help="Announce the server by mDNS and WS-Discovery."),
        click.Option(
            ["--log-level"],
            metavar="LEVEL[,COMPONENT:LEVEL]",
            help="debug, info, warning or error; others for components: auth, rdma, files, rpc, cluster, net. "
            "Default: info.",
        ),
        click.Option(
            ["--trace"],
            multiple=True,
            metavar="CLIENT[=FILE][,decrypt]",
            help="Write the messages of a client (an address or a network) to a capture file.",
        ),
    ]


def parse_options(arguments: Sequence[str]) -> ServerOptions:
    """Parse a command line of the server. Raises ``click.UsageError``."""
    command = click.Command("smb3server", params=server_options(), add_help_option=False)
    with command.make_context("smb3server", list(arguments)) as context:
        return ServerOptions(**context.params)


def options_with_value() -> tuple[frozenset[str], frozenset[str]]:
    """Return the options that take the next word as their value, and those that may."""
    found = [option for option in server_options() if isinstance(option, click.Option) and not option.is_flag]
    optional = frozenset(name for option in found if isinstance(option.flag_value, str) for name in option.opts)
    return frozenset(name for option in found for name in option.opts) - optional, optional
