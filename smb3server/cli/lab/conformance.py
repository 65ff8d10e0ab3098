"""``smb3server conformance``: test an SMB Direct server rule by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smb3server.cli.exits import EXIT_INTERRUPTED, CommandError

EXIT_NOTHING = 2
_FILE = click.Path(readable=False, path_type=Path)


@click.command()
@click.option("--target", metavar="HOST", help="A server. Without it one of ours is started.")
@click.option(
    "--fabric", metavar="NAMES", help="iwarp, roce or verbs: one with --target, else any of iwarp,roce,loopback."
)
@click.option("--port", type=int, metavar="PORT", help="Default: 5445 over iwarp, 445 over roce and verbs.")
@click.option("--tcp-port", type=int, default=445, show_default=True, metavar="PORT", help="Of the same server.")
@click.option("--keepalive", type=float, metavar="SECONDS", help="The server's KeepaliveInterval. Default: 120.")
@click.option(
    "--settle",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="Wait after connecting: Linux's siw can lose a message that comes at once.",
)
@click.option("--user", metavar="USER", help="An account. Without it, cases that need a session do not apply.")
@click.option("--password-file", type=_FILE, metavar="FILE", help="Its first line; else the password is asked for.")
@click.option("--share", metavar="SHARE", help="A share that the user may write to.")
@click.option("--cases", multiple=True, metavar="GLOB", help="Names of cases or suites; repeat it. Default: all.")
@click.option("--at-once", type=int, metavar="N", help="Cases that run side by side.")
@click.option("--list", "list_cases", is_flag=True, help="List the cases and stop.")
@click.option("--evidence", is_flag=True, help="Show the evidence of every case.")
@click.option("--json", type=_FILE, metavar="FILE", help="Write everything, for programs; - is the output.")
@click.option("--junit", type=_FILE, metavar="FILE", help="Write JUnit XML.")
@click.option("--html", type=_FILE, metavar="FILE", help="Write a page.")
@click.option(
    "--markdown", type=_FILE, metavar="PAGE", help="Write the table between the marks of 'conformance' in this page."
)
def command(list_cases: bool, **options: Any) -> int:
    """Test an SMB Direct server rule by rule.

    Without --target it starts a server of ours in this process, with short timers, and tests that. Against another
    server its timers are waited for: a run takes about as long as its keepalive interval and a half.

    The cases send what no client sends. A server that does not check it may stop or damage memory: do not test one
    that others use. With --user and --share, files whose names begin with "conformance-" are made in the share and
    deleted.

    \b
    Examples:
      smb3server conformance
      smb3server conformance --list
      smb3server conformance --target 192.0.2.1 --fabric iwarp --html report.html
      smb3server conformance --target h --fabric roce --user alice --share data
      smb3server conformance --cases 'SmbdCredit*' --evidence

    Exit status: 0 if no rule was found broken, 1 if one was or could not be judged, 2 if there was nothing to test.
    """
    from smb3server.lab.conformance.registry import select
    from smb3server.lab.conformance.run import FAILURES, Options, list_of, run_cases

    options["fabric"] = tuple(name for name in (options["fabric"] or "").split(",") if name)
    try:
        chosen = Options(**options)
        cases = select(chosen.cases)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if list_cases:
        print(list_of(cases))
        return 0
    try:
        return run_cases(chosen, cases)
    except FAILURES as error:
        raise CommandError(str(error), EXIT_NOTHING) from error
    except KeyboardInterrupt:
        raise CommandError("interrupted", EXIT_INTERRUPTED) from None
