"""``smb3server metrics``: print the metrics of a running server, as Prometheus reads them."""

from __future__ import annotations

import time

import click

from smb3server.cli.exits import EXIT_DONE
from smb3server.cli.running_server import ServerChoice, server_choice


@click.command()
@server_choice
@click.option(
    "--counters",
    type=click.FloatRange(min=0.05),
    is_flag=False,
    flag_value=1.0,
    metavar="[SECONDS]",
    help="Print performance counters by Windows' names, measured for so long. Default: 1 second.",
)
def command(server: ServerChoice, counters: float | None) -> int:
    """Print the metrics of a running server in Prometheus' text format.

    Without [metrics] in the configuration, requests are counted from the first call on.
    docs/metrics.md says what each counter of Windows is made of.

    \b
    Examples:
      smb3server metrics | grep rdma
      smb3server metrics > /var/lib/node_exporter/smb3server.prom
      smb3server metrics --counters 10 | grep 'Avg. sec'

    Exit status: 0 done, 1 failed, 3 no server found.
    """
    from smb3server.cli.ask_server import ask_server

    text = str(ask_server(server, "metrics")["text"])
    if counters is None:
        print(text, end="")
        return EXIT_DONE
    from smb3server.status import windows_counters

    started = time.monotonic()
    time.sleep(counters)
    again = str(ask_server(server, "metrics")["text"])
    samples = windows_counters.parse(text), windows_counters.parse(again)
    for path, value in windows_counters.read(*samples, time.monotonic() - started):
        print(f"\\{path} : {value:.12g}")
    return EXIT_DONE
