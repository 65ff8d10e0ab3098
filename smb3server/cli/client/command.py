"""``smb3server client``: files of shares, for people and scripts."""

from __future__ import annotations

import click

from smb3server.cli.client.bench import bench
from smb3server.cli.client.change import mkdir, mv, rm
from smb3server.cli.client.copy import cp, get, put, sync
from smb3server.cli.client.look import cat, du, ls, stat, tree, watch


@click.group()
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


for _command in (ls, tree, stat, du, cat, get, put, cp, mv, rm, mkdir, sync, watch, bench):
    command.add_command(_command)
