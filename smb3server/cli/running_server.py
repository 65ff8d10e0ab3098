"""Finding the running server that a command is about."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from smb3server.cli.exits import EXIT_NO_SERVER, EXIT_USAGE, CommandError

FILE = click.Path(readable=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
_Decorated = TypeVar("_Decorated", bound=Callable[..., object])


def server_choice(function: _Decorated) -> _Decorated:
    """Add the options ``--state``, ``--socket`` and ``--config``, which say what server is meant."""
    for option in (
        click.option("--config", type=FILE, metavar="FILE.toml", help="The server's configuration file."),
        click.option("--socket", type=FILE, metavar="PATH", help="The server's admin socket."),
        click.option("--state", type=FOLDER, metavar="DIR", help="The server's state directory."),
    ):
        function = option(function)
    return function


def find_socket(state: Path | None, socket: Path | None, config: Path | None) -> Path:
    """Return the admin socket of the server that the options name, or of the only one that runs.

    Raises ``CommandError``.
    """
    from smb3server.status.admin_socket import SOCKET_NAME, running

    if socket is not None:
        return socket
    if state is None and config is not None:
        state = _state_of(config)
    if state is not None:
        return state / SOCKET_NAME
    sockets = running()
    if len(sockets) == 1:
        return sockets[0]
    if not sockets:
        raise CommandError(
            "no server found; start one, or name its state directory with --state DIR (its user and root may ask it)",
            EXIT_NO_SERVER,
        )
    raise CommandError(
        "several servers run; name one: " + ", ".join(f"--socket {path}" for path in sockets), EXIT_USAGE
    )


def _state_of(config: Path) -> Path | None:
    """Return the state directory that a configuration file names. The rest of the file is not judged."""
    try:
        server = tomllib.loads(config.read_text()).get("server", {})
    except OSError as error:
        raise CommandError(f"{config}: {error.strerror}", EXIT_USAGE) from error
    except ValueError as error:
        raise CommandError(f"{config}: {error}", EXIT_USAGE) from error
    state = server.get("state") if isinstance(server, dict) else None
    return config.parent / state if isinstance(state, str) else None
