"""The configuration that a program gives as objects: the keys of the file, without a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from smb3server.config.build import build
from smb3server.config.checks import find
from smb3server.config.command_line.command_line import default_name
from smb3server.config.error import Problems
from smb3server.config.model import Config
from smb3server.config.schema import Document, Share, User
from smb3server.config.sections import SectionReader, keys_of
from smb3server.settings.declaring import Section

_THE_PROGRAMS = ("run_as", "drop_privileges", "sandbox", "log_level", "log_format", "log_file", "log")
"""Keys about the whole process: the command sets them, because the process is its own."""


def configure(shares: Iterable[Share], users: Iterable[User], options: Mapping[str, object]) -> Config:
    """Make and check a configuration. Raises ``ConfigError`` with all mistakes.

    ``options`` are keys of ``[server]``; a section besides ``[server]`` is given by its name, with a mapping of its
    keys. The users file is read only if ``users_file`` or ``state`` is given.
    """
    problems = Problems()
    values: dict[str, object] = {"share": [*map(_values, shares)], "user": [*map(_values, users)]}
    server: dict[str, object] = {}
    for name, value in options.items():
        if name in _THE_PROGRAMS:
            problems.add("[server]", name, "concerns the whole process, which is the program's; remedy: leave it out")
        elif name in keys_of(Document):
            values[name] = value
        elif value is not None:
            server[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    document = SectionReader(Path("program"), None, problems).document({**values, "server": server})
    problems.finish()
    for share in document.share:
        # A folder that a program names has to be there, as one on a command line.
        problems.override(f"share {share.name}", f"Share {share.name!r}")
    config = build(document, problems, own_users=bool(document.server.users_file or document.server.state))
    config.settings.server_name = document.server.name or default_name()
    find(config, problems)
    settings = config.settings
    if not (config.accounts or config.users_file or settings.allow_guest or settings.keytab or problems.found):
        problems.add("", "", "no user could log on: give users=[User(NAME, password=...)], guest=True or a keytab")
    problems.finish()
    return config


def _values(section: Section) -> dict[str, object]:
    """Return what a file would have for a section. Keys that are None are not given."""
    given = msgspec.structs.asdict(section)
    return {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in given.items()
        if value is not None
    }
