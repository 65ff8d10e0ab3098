"""``smb3server proxy``: carry an SMB client's TCP over SMB Direct."""

from __future__ import annotations

from typing import Any

import click

from smb3server.cli.exits import CommandError

_FABRICS = ("iwarp", "roce", "loopback")


class _Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or int(port) > 0xFFFF:
            self.fail(f"{value}: write HOST:PORT", param, ctx)
        return host.strip("[]"), int(port)


@click.command()
@click.option("--fabric", type=click.Choice(_FABRICS), default="iwarp", show_default=True, help="How to carry.")
@click.option(
    "--listen",
    type=_Address(),
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients connect; port 0: any.",
)
@click.option("--server", type=_Address(), metavar="HOST:PORT", help="Where SMB Direct is. Not for loopback.")
@click.option("--tcp-server", type=_Address(), metavar="HOST:PORT", help="Target of every other connection.")
@click.option("--inline", is_flag=True, help="Leave the data of READ and WRITE in the messages.")
@click.argument("server_options", nargs=-1, metavar="[-- OPTION...]")
def command(
    fabric: str,
    listen: tuple[str, int],
    server: tuple[str, int] | None,
    tcp_server: tuple[str, int] | None,
    inline: bool,
    server_options: tuple[str, ...],
) -> int:
    """Carry an SMB client's TCP over SMB Direct, so that clients without RDMA use a server's.

    For each TCP connection the proxy opens one over SMB Direct and passes whole messages both ways, unchanged. With
    --tcp-server the first and then every other connection goes over TCP, so that a session has channels of both kinds.
    With loopback the server, whose options follow --, runs in the same process. The proxy prints "ready tcp HOST:PORT"
    once clients can connect.

    \b
    Examples:
      smb3server proxy --server 192.0.2.1:5445 --listen 127.0.0.1:1445
      smbclient //127.0.0.1/data -p 1445 -U alice
      smb3server proxy --fabric loopback -- --share data=/srv/data --guest

    Exit status: 0 ended by a signal, 1 it could not start, 2 wrong usage.
    """
    from smb3server.config.error import ConfigError
    from smb3server.lab.proxy.proxy import Options, carry
    from smbdirect.errors import ProviderError

    if (fabric == "loopback") != (server is None):
        raise click.UsageError(
            "--server HOST:PORT is for iwarp and roce, and they need it; loopback has the server in the process"
        )
    try:
        return carry(Options(fabric, listen, server, tcp_server, inline, server_options))
    except (ConfigError, OSError, ProviderError) as error:
        raise CommandError(str(error)) from error
