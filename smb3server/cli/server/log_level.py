"""``smb3server log-level``: show or change the levels of a running server's log."""

from __future__ import annotations

import click

from smb3server.cli.exits import EXIT_DONE
from smb3server.cli.running_server import ServerChoice, server_choice


@click.command()
@click.argument("levels", nargs=-1, metavar="[LEVEL|COMPONENT=LEVEL]...")
@server_choice
def command(levels: tuple[str, ...], server: ServerChoice) -> int:
    """Show or change the levels of a running server's log, until its next reload or restart.

    Levels are debug, info, warning, error and critical. Components are auth, rdma, files, rpc, cluster and net. The
    level "default" gives a component the level of everything.

    \b
    Examples:
      smb3server log-level
      smb3server log-level auth=debug
      smb3server log-level warning net=info auth=default

    Exit status: 0 done, 1 the server refuses, 3 no server found.
    """
    from smb3server.cli.ask_server import ask_server

    print(ask_server(server, "log-level", level=",".join(levels))["level"])
    return EXIT_DONE
