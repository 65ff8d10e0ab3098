"""``smb3server check``: test a configuration, and show what it means."""

from __future__ import annotations

from typing import Any

import click

from smb3server.cli.exits import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, program
from smb3server.config.command_line.options import ServerOptions, judging_option, server_options

HELP = """Test a configuration without starting a server, and show the values that it has.

All mistakes are named at once, with file, line and column. What is allowed but seldom meant is a warning. The options
are those of "serve". Without --config and --share the file is /etc/smb3server/smb3server.toml.
Root judges as the user whom the server runs as (--as). What only the service may do is no mistake for others.

\b
Examples:
  smb3server check                                  the file of the service
  smb3server check --config smb.toml --all          with the defaults
  smb3server check --config smb.toml --strict       for scripts: warnings count, too

Exit status: 0 the server would start with it, 1 with --strict: there are warnings, 2 there are mistakes.
"""


def _check(as_json: bool, everything: bool, strict: bool, as_user: str, **options: Any) -> int:
    from smb3server.config.examination import examine

    found = examine(ServerOptions(**options), as_user)
    if as_json:
        print(found.as_json())
    else:
        for problem in found.problems:
            click.echo(f"{program()}: {problem}", err=True)
        for warning in found.warnings:
            click.echo(f"warning: {warning}", err=True)
        if not found.problems:
            print(found.values(everything), end="")
    if found.problems:
        if found.as_user and not as_json:
            click.echo(f"judged as {found.as_user}, whom the server runs as; --as USER names another", err=True)
        return EXIT_USAGE
    return EXIT_FAILED if strict and found.warnings else EXIT_DONE


command = click.Command(
    "check",
    params=[
        *server_options(),
        judging_option(),
        click.Option(["--json", "as_json"], is_flag=True, help="Print mistakes, warnings and all values as JSON."),
        click.Option(["--all", "everything"], is_flag=True, help="Show the defaults, too."),
        click.Option(["--strict"], is_flag=True, help="Exit with 1 if there are warnings."),
    ],
    callback=_check,
    help=HELP,
)
