"""``smb3server hash``: print a line for ``users_file``."""

from __future__ import annotations

from pathlib import Path

import click

from smb3server.cli.exits import EXIT_USAGE, CommandError


@click.command()
@click.argument("name")
@click.argument("unix_user", required=False)
@click.option(
    "--password-file",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Its first line is the password.",
)
def command(name: str, unix_user: str | None, password_file: Path | None) -> None:
    """Print a line for the server's users_file: user NAME, who acts as UNIX_USER of the host if it is given.

    The password is asked for, unless there is --password-file or $SMB3SERVER_PASSWORD.

    \b
    Examples:
      smb3server hash alice >> /etc/smb3server/users
      smb3server hash alice www-data --password-file alice.password

    Exit status: 0, 2 for a bad name or if there is no password.
    """
    from smb3server.auth.users import nt_hash
    from smb3server.config.error import ConfigError
    from smb3server.config.sources.passwords import find_password

    parts = [name, *([unix_user] if unix_user else [])]
    if any(not part or set(part) & set(":\n") for part in parts) or name.startswith("#"):
        raise CommandError("a name must not contain a colon or a line break, nor begin with #", EXIT_USAGE)
    try:
        password = find_password(name, password_file)
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    print(":".join([name, nt_hash(password).hex(), *parts[1:]]))
