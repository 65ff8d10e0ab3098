"""``smb3server client``: files of shares, for people and scripts."""

from __future__ import annotations

import importlib

import click

_MODULES = {
    **dict.fromkeys(("ls", "tree", "stat", "du", "cat"), "look"),
    **dict.fromkeys(("get", "put", "cp"), "copy"),
    **dict.fromkeys(("mv", "rm", "mkdir"), "change"),
    "sync": "copy",
    "watch": "look",
    "bench": "bench",
}
"""The module of each command, in the order of the help."""


class Commands(click.Group):
    """The commands, which are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        found = getattr(importlib.import_module(f"smb3server.cli.client.{_MODULES[cmd_name]}"), cmd_name)
        assert isinstance(found, click.Command)
        return found


@click.group(cls=Commands)
def command() -> None:
    """Copy and look at files of any SMB 3 server, by RDMA (SMB Direct) with a NIC for it, or in software if asked.

    Addresses are smb://USER@HOST[:PORT]/SHARE/PATH or //HOST/SHARE/PATH. The password comes from --password-file,
    --credentials, SMB3SERVER_PASSWORD, ~/.config/smb3server/credentials, or is asked for.

    \b
    Examples:
      smb3server client ls -l smb://alice@nas/data
      smb3server client get -r smb://alice@nas/data/photos /backup
      smb3server client sync --delete ~/work smb://alice@nas/data/work
      smb3server client bench smb://alice@nas/data --rdma=iwarp
    """
