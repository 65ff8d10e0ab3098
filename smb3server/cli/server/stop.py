"""``smb3server stop``: end a running server."""

from __future__ import annotations

import time
from pathlib import Path

import click

from smb3server.cli.exits import EXIT_DONE, CommandError
from smb3server.cli.running_server import ServerChoice, server_choice

_POLL = 0.1


@click.command()
@server_choice
@click.option("--wait", is_flag=True, help="Return when the server has ended.")
@click.option("--timeout", type=click.FloatRange(min=0), default=60.0, help="Seconds to wait. Default: 60.")
def command(server: ServerChoice, wait: bool, timeout: float) -> int:
    """End a running server, after the requests in flight.

    \b
    Examples:
      smb3server stop
      smb3server stop --wait

    Exit status: 0 done, 1 it still runs after the timeout, 3 no server found.
    """
    from smb3server.cli.ask_server import ask_server

    found = ServerChoice(socket=server.find())
    pid = int(ask_server(found, "ping")["pid"])
    ask_server(found, "stop")
    deadline = time.monotonic() + timeout
    while wait and _runs(pid):
        if time.monotonic() > deadline:
            raise CommandError(f"process {pid} still runs after {timeout:g} s; the log says what it waits for")
        time.sleep(_POLL)
    return EXIT_DONE


def _runs(pid: int) -> bool:
    """Return whether a process runs. One that has ended, and that nobody has waited for, does not. [proc(5)]"""
    try:
        # The second field is the program's name, which may contain blanks and parentheses.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
