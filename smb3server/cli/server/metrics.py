"""``smb3server metrics``: print the metrics of a running server, as Prometheus reads them."""

from __future__ import annotations

from pathlib import Path

import click

from smb3server.cli.exits import EXIT_DONE
from smb3server.cli.running_server import server_choice


@click.command()
@server_choice
def command(state: Path | None, socket: Path | None, config: Path | None) -> int:
    """Print the metrics of a running server in Prometheus' text format.

    Without [metrics] in the configuration, requests are counted from the first call on.

    \b
    Examples:
      smb3server metrics | grep rdma
      smb3server metrics > /var/lib/node_exporter/smb3server.prom

    Exit status: 0 done, 1 failed, 3 no server found.
    """
    from smb3server.cli.ask_server import ask_server

    print(ask_server(state, socket, config, "metrics")["text"], end="")
    return EXIT_DONE
