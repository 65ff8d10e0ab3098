"""``smb3server status``: show the report of a running server, as tables or JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

import click

from smb3server.cli.exits import EXIT_DONE, EXIT_NO_SERVER, CommandError
from smb3server.cli.running_server import find_socket, server_choice

REFRESH_SECONDS = 2.0
LEAST_REFRESH_SECONDS = 0.2


@click.command()
@server_choice
@click.option("--json", "as_json", is_flag=True, help="JSON, with every counter; one line each with --watch.")
@click.option(
    "--watch",
    type=float,
    is_flag=False,
    flag_value=REFRESH_SECONDS,
    metavar="[SECONDS]",
    help=f"Refresh until interrupted. Default: every {REFRESH_SECONDS:g} seconds.",
)
def command(state: Path | None, socket: Path | None, config: Path | None, as_json: bool, watch: float | None) -> int:
    """Show sessions, channels and opens of a running server, and whether RDMA is used.

    The server is found by itself if only one runs. Its user and root may ask it.

    \b
    Examples:
      smb3server status
      smb3server status --watch 5
      smb3server status --json | jq '.channels[].rdma'
      smb3server --config /etc/smb3server/smb3server.toml status

    Exit status: 0 shown, 2 wrong usage, 3 no server found, or it does not answer.
    """
    found = find_socket(state, socket, config)
    interval = None if watch is None else max(LEAST_REFRESH_SECONDS, watch)
    try:
        return _show_json(found, interval) if as_json else _show(found, interval)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CommandError(f"{found}: {text}", EXIT_NO_SERVER) from error
    except KeyboardInterrupt:
        return EXIT_DONE


def _report(path: Path) -> dict[str, Any]:
    from smb3server.status.admin_socket import ask

    report = ask(path, "status")
    if "error" in report:
        raise ValueError(str(report["error"]))
    return report


def _shown(path: Path) -> dict[str, Any]:
    """Return the report with names escaped for a terminal: clients choose some of them."""
    from smb3server.process.log_lines import printable_tree

    return cast("dict[str, Any]", printable_tree(_report(path)))


def _show_json(path: Path, interval: float | None) -> int:
    while True:
        print(json.dumps(_report(path), indent=None if interval else 2), flush=True)
        if interval is None:
            return EXIT_DONE
        time.sleep(interval)


def _show(path: Path, interval: float | None) -> int:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from smb3server.cli.status_view import render

    def shown() -> RenderableType:
        return render(_shown(path))

    console = Console()
    if interval is None:
        console.print(shown(), highlight=False)
        return EXIT_DONE
    with Live(shown(), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(shown(), refresh=True)
