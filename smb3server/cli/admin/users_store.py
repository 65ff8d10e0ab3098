"""The users file that a command is about, and the running servers that use it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from smb3server.cli.exits import EXIT_FAILED, EXIT_USAGE, CommandError
from smb3server.cli.running_server import FOLDER
from smb3server.cli.together import together

if TYPE_CHECKING:
    from smb3server.auth.groups import Groups
    from smb3server.auth.users_file import StoredUser, Users

_Result = TypeVar("_Result")
_FILE = click.Path(readable=False, path_type=Path)
_ANSWER_TIMEOUT = 10.0


class Store(NamedTuple):
    """A users file, and the configuration file that it belongs to, if that is known."""

    path: Path
    config: Path | None = None

    def read(self) -> Users:
        """Return the content. Raises ``CommandError``."""
        from smb3server.auth.users_file import Users, UsersFileError, read_users
        from smb3server.process.presence import exists

        try:
            return read_users(self.path, self._owners()) if exists(self.path) else Users("")
        except (UsersFileError, PermissionError) as error:
            raise CommandError(str(error)) from error

    def change(self, change: Callable[[Users], None]) -> None:
        """Change the content, or nothing if ``change`` raises. Raises ``CommandError``."""
        from smb3server.auth.users_file import UsersFileError, change_users

        try:
            change_users(self.path, change, self._owners())
        except UsersFileError as error:
            raise CommandError(str(error)) from error

    def _owners(self) -> list[int]:
        """Root may change the file of a server that runs as another user."""
        try:
            return [self.path.stat().st_uid] if os.geteuid() == 0 else []
        except OSError:
            return []

    def document(self) -> dict[str, Any]:
        """Return the content of the configuration file, or nothing if there is none. Raises ``CommandError``."""
        return _document(self.config) if self.config is not None else {}

    def groups(self) -> Groups:
        """Return the groups of the configuration file. Raises ``CommandError``."""
        from smb3server.auth.groups import Groups

        try:
            return Groups(self.document().get("groups", {}))
        except (ValueError, TypeError) as error:
            raise CommandError(f"{self.config}: [groups]: {error}", EXIT_USAGE) from error


def find_store(file: Path | None, config: Path | None, state: Path | None) -> Store:
    """Return the users file that the options name.

    Without options it is that of the only running server that this user may ask, then that of the usual configuration
    file, then the usual users file. Raises ``CommandError``.
    """
    from smb3server.config.sources.users import ROOTS_FOLDER, default_users_file, users_file_of

    if file is not None:
        return Store(file, config)
    if config is not None:
        found = users_file_of(_document(config), config.parent)
        return Store(found or default_users_file(state), config)
    if state is not None:
        return Store(default_users_file(state))
    usual = ROOTS_FOLDER / "smb3server.toml"
    usual_config = usual if os.access(usual, os.R_OK) else None
    running = {answer["file"] for _, answer in _ask_all("users")[0] if answer.get("file")}
    if len(running) == 1:
        return Store(Path(running.pop()), usual_config)
    if running:
        raise CommandError(
            "several servers run; name a users file: " + ", ".join(f"--file {path}" for path in sorted(running)),
            EXIT_USAGE,
        )
    if usual_config is not None:
        return Store(users_file_of(_document(usual), usual.parent) or default_users_file(None), usual)
    return Store(default_users_file(None))


def store_options(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Add the options that say which users file is meant. The command gets it as ``store``."""

    @wraps(function)
    def find(*, file: Path | None, config: Path | None, state: Path | None, **others: Any) -> _Result:
        return function(store=find_store(file, config, state), **others)

    return together(
        click.option("--file", type=_FILE, metavar="FILE", help="The users file itself."),
        click.option("--config", type=_FILE, metavar="FILE.toml", help="The server's configuration file."),
        click.option("--state", type=FOLDER, metavar="DIR", help="The server's state directory."),
    )(find)


def _document(path: Path) -> dict[str, object]:
    from smb3server.config.error import ConfigError
    from smb3server.config.reader import read_values

    try:
        return read_values(path)
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error


def _ask_all(
    command: str, near: Path | None = None, **arguments: str
) -> tuple[list[tuple[Path, dict[str, Any]]], list[Path]]:
    """Ask all servers that this user may ask, and the one whose state directory has the file ``near``.

    Return the answers, and the sockets of those that hang.
    """
    from smb3server.admin.socket import SOCKET_NAME, ask, running

    sockets = running()
    if near is not None and (near.parent / SOCKET_NAME).exists():
        sockets.append(near.parent / SOCKET_NAME)
    answers: dict[Path, dict[str, Any]] = {}
    silent: list[Path] = []
    for socket in {path.resolve() for path in sockets}:
        try:
            answers[socket] = ask(socket, command, _ANSWER_TIMEOUT, **arguments)
        except TimeoutError:
            silent.append(socket)
        except (OSError, ValueError):
            # It is ending, or belongs to another user.
            continue
    return list(answers.items()), silent


def tell_servers(path: Path) -> None:
    """Have the running servers that use the file read it, and say what came of it. Raises ``CommandError`` if one
    cannot use it as it is now.
    """
    file = str(path.absolute())
    told = False
    answers, silent = _ask_all("reload_users", path, file=file)
    for socket, answer in answers:
        if not answer.get("uses_file"):
            continue
        if error := answer.get("error"):
            raise CommandError(f"{file} is changed, but the server at {socket} does not use it: {error}", EXIT_FAILED)
        told = True
        ended = int(answer.get("sessions_ended", 0))
        sessions = f"; {ended} session{'s' if ended != 1 else ''} ended" if ended else ""
        click.echo(f"the running server has the change{sessions}")
        if answer.get("in_cluster"):
            click.echo(
                f"it is a node of a cluster: copy {file} to the other nodes, then `smb3server reload` at each", err=True
            )
    if silent and not told:
        raise CommandError(
            f"{file} is changed, but the server at {silent[0]} does not answer; it hangs or is stopped: `smb3server "
            f"reload --socket {silent[0]}` makes it read the file when it answers again",
            EXIT_FAILED,
        )
    if not told:
        click.echo(f"no running server uses {file}; one that does reads it when it starts")


def get(users: Users, name: str, path: Path) -> StoredUser:
    """Return an account of the file. Raises ``CommandError``."""
    import difflib

    found = users.find(name)
    if found is None:
        close = difflib.get_close_matches(name, [user.name for user in users], 1)
        hint = f"did you mean {close[0]}?" if close else "`smb3server user list` shows who there is"
        raise CommandError(f"{path} has no user {name}; {hint}")
    return found
