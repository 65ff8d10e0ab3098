"""``smb3server hash``: print a line for ``users_file``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from smb3server.auth.users import nt_hash
from smb3server.config.error import ConfigError
from smb3server.config.passwords import find_password

EXIT_OK, EXIT_USAGE = 0, 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smb3server hash",
        description="Print a line for the server's users_file. The password is asked for, unless there is "
        "--password-file or $SMB3SERVER_PASSWORD.",
    )
    parser.add_argument("name", metavar="NAME", help="the user's name")
    parser.add_argument("unix_user", metavar="UNIX_USER", nargs="?", help="act as this user of the host")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="its first line is the password")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    options = _parser().parse_args(arguments)
    parts = [options.name, *([options.unix_user] if options.unix_user else [])]
    if any(not part or set(part) & set(":\n") for part in parts) or options.name.startswith("#"):
        print("smb3server hash: a name must not contain a colon or a line break, nor begin with #", file=sys.stderr)
        return EXIT_USAGE
    try:
        password = find_password(options.name, options.password_file)
    except ConfigError as error:
        print(f"smb3server hash: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(":".join([options.name, nt_hash(password).hex(), *parts[1:]]))
    return EXIT_OK
