"""Passwords for commands: new ones, and those to log on with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import click

from smb3server.cli.exits import EXIT_USAGE, CommandError
from smb3server.cli.together import together

_MAX_LINE = 4096


class PasswordSource(NamedTuple):
    """Where a command takes a new password from, and whether it may be short."""

    file: Path | None
    stdin: bool
    random: bool
    force: bool


password_options = together(
    click.option(
        "--password-file",
        type=click.Path(readable=False, path_type=Path),
        metavar="FILE",
        help="Its first line is the password.",
    ),
    click.option("--password-stdin", is_flag=True, help="The first line of stdin is the password."),
    click.option("--random", is_flag=True, help="Make a password by chance, and print it once."),
    click.option("--force", is_flag=True, help="Take a password that is shorter than it should be."),
)
"""The options that ``PasswordSource`` has."""


def refuse_argument(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> None:
    """Refuse words after the name: they would be passwords."""
    if value:
        raise click.UsageError(
            "a password on the command line can be read by everybody on this machine; leave it out and type it when "
            "asked, or use --password-stdin, --password-file or --random",
            context,
        )


no_password_argument = click.argument(
    "password", nargs=-1, expose_value=False, callback=refuse_argument, metavar="", type=click.UNPROCESSED
)
"""Catches a password after the name, to say why it is refused."""


def logon_password(name: str) -> str:
    """Return the password to log on with: from the environment or the terminal; empty if neither has one.

    PASSWD is the variable of Samba's clients.
    """
    import getpass

    from smb3server.process.secret_files import PASSWORD_VARIABLE

    for variable in (PASSWORD_VARIABLE, "PASSWD"):
        if variable in os.environ:
            return os.environ[variable]
    return getpass.getpass(f"password of {name}: ") if sys.stdin.isatty() else ""


def new_password(name: str, source: PasswordSource) -> str:
    """Return a new password for a user. Raises ``CommandError``."""
    from smb3server.auth.password_rules import generate
    from smb3server.config.error import ConfigError
    from smb3server.config.sources.passwords import CREDENTIAL, find_secret
    from smb3server.process.secret_files import PASSWORD_VARIABLE

    if (source.file is not None) + source.stdin + source.random > 1:
        raise CommandError("choose one of --password-file, --password-stdin and --random", EXIT_USAGE)
    if source.random:
        return generate()
    if source.stdin:
        return sys.stdin.readline(_MAX_LINE).removesuffix("\n")
    try:
        found = find_secret(name, source.file)
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    if found is not None:
        return found
    if not sys.stdin.isatty():
        raise CommandError(
            f"no password, and no terminal to ask for it; give --password-stdin, --password-file FILE, --random, the "
            f"variable {PASSWORD_VARIABLE} or systemd's credential {CREDENTIAL}{name}",
            EXIT_USAGE,
        )
    return str(click.prompt(f"New password of {name}", hide_input=True, confirmation_prompt="Again", err=True))
