"""``smb3server serve``: share directories until a signal."""

from __future__ import annotations

from typing import Any

import click

from smb3server.config.command_line.options import ServerOptions, server_options

HELP = """Share directories over SMB 2.0.2 to 3.1.1, on TCP and on SMB Direct (RDMA in user space).

The command line overrides the configuration file, which can set more. SIGTERM and Ctrl-C end the server after the
requests in flight.

\b
Examples:
  smb3server serve --share data=/srv/data --user alice --rdma
  smb3server serve --share data=/srv/data --guest --port 1445     without root
  smb3server serve --config /etc/smb3server/smb3server.toml
  smb3server --config /etc/smb3server/smb3server.toml             the same

Exit status: 0 ended by a signal, 1 it could not start, 2 wrong usage or configuration.
"""


def _serve(**options: Any) -> int:
    from smb3server.cli.server.serving import run

    return run(ServerOptions(**options))


command = click.Command("serve", params=server_options(), callback=_serve, help=HELP)
