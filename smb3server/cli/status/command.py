"""``smb3server status``: show the report of a running server, as tables or JSON."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smb3server.cli import known_names
from smb3server.cli.exits import EXIT_DONE, EXIT_NO_SERVER, CommandError
from smb3server.cli.running_server import ServerChoice, server_choice

if TYPE_CHECKING:
    from smb3server.cli.status.selection import Selection
    from smb3server.status.model import Report

REFRESH_SECONDS = 2.0
LEAST_REFRESH_SECONDS = 0.2
MEASURED_SECONDS = 0.5
"""How long one report measures rates."""
SECTIONS = ("sessions", "channels", "shares", "users", "files", "locks", "interfaces", "flows")
_PIPE_WIDTH = 160
"""Columns for output that is no terminal, if COLUMNS does not say otherwise."""


@click.command()
@click.argument("sections", nargs=-1, type=click.Choice(SECTIONS), metavar="[SECTION]...")
@server_choice
@click.option("--pid", type=int, metavar="PID", help="The server with this process id.")
@click.option("--all", "every", is_flag=True, help="All servers that answer, one after the other.")
@click.option("--user", metavar="NAME", shell_complete=known_names.users, help="Only what belongs to this user.")
@click.option("--share", metavar="NAME", shell_complete=known_names.shares, help="Only what belongs to this share.")
@click.option("--client", metavar="ADDRESS", help="Only what belongs to this client.")
@click.option("--locks", "with_locks", is_flag=True, help="The same as the sections files and locks.")
@click.option("--json", "as_json", is_flag=True, help="JSON, with every counter; one line each with --watch.")
@click.option(
    "--rates",
    "measured",
    type=click.FloatRange(min=0),
    default=MEASURED_SECONDS,
    metavar="SECONDS",
    help=f"Measure rates for so long; 0 measures none and answers at once. Default: {MEASURED_SECONDS:g}.",
)
@click.option(
    "--watch",
    type=click.FloatRange(min=0),
    is_flag=False,
    flag_value=REFRESH_SECONDS,
    metavar="[SECONDS]",
    help=f"A live screen until q or Ctrl-C; into a pipe a line each time. Default: every {REFRESH_SECONDS:g} seconds.",
)
def command(
    sections: tuple[str, ...],
    server: ServerChoice,
    pid: int | None,
    every: bool,
    user: str | None,
    share: str | None,
    client: str | None,
    with_locks: bool,
    as_json: bool,
    measured: float,
    watch: float | None,
) -> int:
    """Show sessions, channels and opens of a running server, and whether RDMA is used.

    The server is found by itself if only one runs. Its user and root may ask it. SECTION is one or more of sessions,
    channels, shares, users, files, locks, interfaces. docs/status.md explains columns and fields.

    \b
    Examples:
      smb3server status
      smb3server status --watch
      smb3server status files locks --user alice
      smb3server status channels --client 192.0.2.7
      smb3server status --json | jq '.channels[].rdma'

    Exit status: 0 shown, 2 wrong usage, 3 no server found, or it does not answer.
    """
    from smb3server.cli.status.selection import Selection

    if with_locks:
        sections = tuple(dict.fromkeys([*sections, "files", "locks"]))
    found = server.find_all(pid, every)
    selection = Selection(user, share, client)
    if watch is not None and len(found) > 1:
        raise click.UsageError("--watch shows one server: name it with --pid instead of --all")
    try:
        if watch is not None:
            _watch(_Asked(found[0], selection), max(LEAST_REFRESH_SECONDS, watch), sections, as_json)
        else:
            _show([_Asked(path, selection) for path in found], sections, as_json, every, measured)
    except KeyboardInterrupt:
        pass
    return EXIT_DONE


class _Asked:
    """One server, its latest report, and what is selected of it."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        self._selection = selection
        self._before: Report | None = None

    def ask(self, files: bool = True) -> Report:
        """Return the report, with rates since the one before. Raises ``CommandError``."""
        from msgspec import ValidationError, convert

        from smb3server.admin.socket import ask
        from smb3server.status.model import SCHEMA, Report
        from smb3server.status.rates import add_rates

        try:
            answer = ask(self._path, "status", files=files)
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CommandError(f"{self._path}: {text}", EXIT_NO_SERVER) from error
        if "error" in answer:
            raise CommandError(f"{self._path}: {answer['error']}", EXIT_NO_SERVER)
        try:
            report = convert(answer, Report)
        except ValidationError as error:
            text = f"the server is of another version (schema {answer.get('schema')}, not {SCHEMA}): {error}"
            raise CommandError(f"{self._path}: {text}", EXIT_NO_SERVER) from error
        if self._before is not None:
            add_rates(report, self._before)
        self._before = report
        return self._selection.apply(report)


def _parts(report: Report, sections: Sequence[str]) -> dict[str, Any]:
    """Return what the sections need of a report, or all of it."""
    from msgspec import to_builtins

    found: dict[str, Any] = to_builtins(report)
    if not sections:
        return found
    kept = {"schema", "pid", "server", "cluster"} | {"sessions" if name == "files" else name for name in sections}
    if "shares" in sections:
        kept.add("down")
    return {key: value for key, value in found.items() if key in kept or (key == "away" and "files" in sections)}


def _show(servers: list[_Asked], sections: Sequence[str], as_json: bool, every: bool, measured: float) -> None:
    if measured:
        for server in servers:
            server.ask(files=False)
        time.sleep(measured)
    if as_json:
        reports = [_parts(server.ask(), sections) for server in servers]
        print(json.dumps({"schema": reports[0]["schema"], "servers": reports} if every else reports[0], indent=2))
        return
    from rich.console import Console
    from rich.text import Text

    from smb3server.cli.status.tables import render

    console = Console(width=None if sys.stdout.isatty() else _pipe_width(), highlight=False, soft_wrap=True)
    with console:  # One write: ``status | grep -q`` ends at its first match, and must not break the rest off.
        for number, server in enumerate(servers):
            if number:
                console.print(Text())
            for text in render(server.ask(), console.width, sections):
                console.print(text)


def _pipe_width() -> int:
    return shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns


def _watch(server: _Asked, interval: float, sections: Sequence[str], as_json: bool) -> None:
    server.ask(files=False)
    if as_json:
        _print_lines(interval, lambda: json.dumps(_parts(server.ask(), sections)))
    if not sys.stdout.isatty():
        from smb3server.cli.status.live import line

        _print_lines(interval, lambda: line(server.ask()))
    from rich.console import Console

    from smb3server.cli.status.live import watch

    time.sleep(min(MEASURED_SECONDS, interval))
    watch(server.ask, interval, sections, Console(highlight=False))


def _print_lines(interval: float, line: Callable[[], str]) -> None:
    """Print a line for each interval, until interrupted."""
    while True:
        time.sleep(interval)
        print(line(), flush=True)
