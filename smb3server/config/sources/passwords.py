"""Sources of passwords outside the configuration file, and their removal from the command line."""

from __future__ import annotations

import ctypes
import getpass
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from smb3server.config.error import ConfigError, RightsError
from smb3server.process.presence import exists
from smb3server.process.secret_files import PASSWORD_VARIABLE, SecretFileError, read_secret

CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
"""The directory of the unit's credentials; systemd sets it. [systemd.exec(5)]"""
CREDENTIAL = "smb3server."
"""Prefix of the credential with a user's password; the user's name follows."""
_ARGUMENT_START, _ARGUMENT_END = 47, 48
"""Fields arg_start and arg_end of /proc/self/stat, counted from 0. [proc(5)]"""


def read_text(path: Path) -> str:
    """Read a file with secrets. Raises ``ConfigError``."""
    try:
        return read_secret(path).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    except SecretFileError as error:
        kind = RightsError if isinstance(error.__cause__, PermissionError) else ConfigError
        raise kind(str(error)) from error


def read_password(path: Path) -> str:
    """Read the first line of a file with secrets. Raises ``ConfigError``."""
    lines = read_text(path).splitlines()
    if not lines or not lines[0]:
        raise ConfigError(f"{path}: its first line has to be the password")
    return lines[0]


def find_password(name: str, file: Path | None) -> str:
    """Find the password of a user whom the command line gives without one.

    The places are, in this order: ``file``, systemd's credential ``smb3server.NAME``, the variable SMB3SERVER_PASSWORD,
    the terminal. Raises ``ConfigError``.
    """
    found = find_secret(name, file)
    if found is not None:
        return found
    if not sys.stdin.isatty():
        raise ConfigError(
            f"user {name}: no password: give --password-file FILE, the credential {CREDENTIAL}{name} or "
            f"{PASSWORD_VARIABLE}"
        )
    return getpass.getpass(f"Password of {name}: ")


def find_secret(name: str, file: Path | None) -> str | None:
    """Find the password of a user in the places of ``find_password``, without the terminal. Raises ``ConfigError``."""
    if file is not None:
        return read_password(file)
    directory = os.environ.get(CREDENTIALS_VARIABLE)
    if directory and "/" not in name:
        credential = Path(directory) / f"{CREDENTIAL}{name}"
        if exists(credential):
            return read_password(credential)
    return os.environ.get(PASSWORD_VARIABLE) or None


def hide_arguments(given: Sequence[str]) -> None:
    """Overwrite the passwords of ``NAME:PASSWORD`` arguments in the memory behind /proc/PID/cmdline, which all users of
    the host can read.
    """
    with open("/proc/self/stat", "rb") as file:
        # The second field is the program's name, which may contain blanks and parentheses.
        fields = file.read().rpartition(b") ")[2].split()
    start, end = int(fields[_ARGUMENT_START - 2]), int(fields[_ARGUMENT_END - 2])
    memory = ctypes.string_at(start, end - start)
    for text in given:
        name, separator, password = text.partition(":")
        if not separator:
            continue
        whole, length = os.fsencode(text) + b"\0", len(os.fsencode(password))
        at = memory.find(whole)
        while at >= 0:
            ctypes.memset(start + at + len(os.fsencode(name)) + 1, ord("*"), length)
            at = memory.find(whole, at + 1)
        for arguments in (sys.argv, sys.orig_argv):
            arguments[:] = [argument.replace(text, f"{name}:***") for argument in arguments]
