"""Finding the running server that a command is about."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from smb3server.cli.exits import EXIT_NO_SERVER, EXIT_USAGE, CommandError
from smb3server.cli.together import together

FILE = click.Path(readable=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
USERS_RUNTIME_DIRECTORIES = Path("/run/user")
_NONE_FOUND = (
    "no server found; start one, or name its state directory with --state DIR. A server that another user started"
    " answers that user and root: ask with sudo"
)
_Result = TypeVar("_Result")


class ServerChoice(NamedTuple):
    """What server a command is about. Without any of these it is the only one that runs."""

    state: Path | None = None
    """Its state directory."""
    socket: Path | None = None
    """Its admin socket."""
    config: Path | None = None
    """Its configuration file."""

    def find(self) -> Path:
        """Return the admin socket of the server. Raises ``CommandError``."""
        return self.find_all()[0]

    def find_all(self, pid: int | None = None, every: bool = False) -> list[Path]:
        """Return the admin socket of the server, or of all that run with ``every``.

        Raises ``CommandError``, which lists the servers if there are several to choose from.
        """
        from smb3server.admin.socket import SOCKET_NAME

        if self.socket is not None:
            return [self.socket]
        state = self.state
        if state is None and self.config is not None:
            state = _state_of(self.config)
        if state is not None:
            return [state / SOCKET_NAME]
        sockets = _running()
        if not sockets:
            raise CommandError(_NONE_FOUND, EXIT_NO_SERVER)
        if pid is None and (every or len(sockets) == 1):
            return sockets
        servers = [(_pid(path), path) for path in sockets]
        chosen = [path for number, path in servers if number == pid]
        if pid is not None and chosen:
            return chosen[:1]
        listed = "".join(f"\n  --pid {number:<8} {path.resolve()}" for number, path in servers)
        if pid is not None:
            raise CommandError(f"no server with process id {pid} answers; these do:{listed}", EXIT_NO_SERVER)
        raise CommandError(
            f"several servers run; name one with --pid, or see all with status --all:{listed}", EXIT_USAGE
        )


def server_choice(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Add the options ``--state``, ``--socket`` and ``--config``, which the command gets as ``server``."""

    @wraps(function)
    def choose(*, state: Path | None, socket: Path | None, config: Path | None, **others: Any) -> _Result:
        return function(server=ServerChoice(state, socket, config), **others)

    return together(
        click.option("--state", type=FOLDER, metavar="DIR", help="The server's state directory."),
        click.option("--socket", type=FILE, metavar="PATH", help="The server's admin socket."),
        click.option("--config", type=FILE, metavar="FILE.toml", help="The server's configuration file."),
    )(choose)


def _running() -> list[Path]:
    """Return the sockets of the servers that answer this user. Root may ask those of all users."""
    from smb3server.admin.socket import running

    found = running()
    if os.geteuid() == 0:
        for directory in sorted(USERS_RUNTIME_DIRECTORIES.glob("*/smb3server")):
            found += running(directory)
    # Several names may lead to one socket.
    return list({path.resolve(): path for path in reversed(found)}.values())[::-1]


def _pid(path: Path) -> int:
    """Return the process id of a server that has just answered, or 0 if it has ended since."""
    from smb3server.admin.socket import ask

    try:
        return int(ask(path, "ping").get("pid", 0))
    except (OSError, ValueError):
        return 0


def _state_of(config: Path) -> Path | None:
    """Return the state directory that a configuration file names. The rest of the file is not judged."""
    from smb3server.config.error import ConfigError
    from smb3server.config.reader import read_values

    try:
        server = read_values(config).get("server", {})
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    state = server.get("state") if isinstance(server, dict) else None
    return config.parent / state if isinstance(state, str) else None
