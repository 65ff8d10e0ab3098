"""``smb3server share``: the shares of a running server, and adding, changing and removing some at run time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smb3server.cli import known_names
from smb3server.cli.exits import EXIT_DONE, CommandError
from smb3server.cli.running_server import ServerChoice, server_choice

if TYPE_CHECKING:
    from smb3server.settings.declaring import Section

_SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the share, named as in the configuration file; a list: KEY=one,two. May be repeated.",
)

unset_option = click.option(
    "--unset", "defaults", multiple=True, metavar="KEY", help="Give a setting its default again."
)
NOT_KEPT = "note: the server has no state directory to keep it in: give it one with --state or [server] state"


@click.group()
def command() -> None:
    """List, add, change and remove the shares of a running server.

    Shares that are added here stay after a restart: the server keeps them in shares.toml in its state directory. The
    shares of the configuration file belong to that file: change them there, then "smb3server reload".

    \b
    Examples:
      smb3server share list
      smb3server share add projects /srv/projects --set users=alice,@staff
      smb3server share set projects --set read_only=true
      smb3server share remove projects

    Exit status: 0 done, 1 the server refuses, 2 wrong usage, 3 no server found.
    """


@command.command("list")
@server_choice
@click.option("--json", "as_json", is_flag=True, help="JSON: a list of objects.")
def list_shares(server: ServerChoice, as_json: bool) -> int:
    """List the shares of a running server, and where each comes from."""
    from smb3server.cli.ask_server import ask_server
    from smb3server.cli.status.short_tables import print_list

    shares = ask_server(server, "share-list")["shares"]
    rows = [(entry["name"], entry["origin"], str(entry["tree_connects"]), entry["path"]) for entry in shares]
    print_list(as_json, shares, ("SHARE", "FROM", "IN USE", "PATH"), rows)
    return EXIT_DONE


@command.command()
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path))
@_SET
@click.option("--temporary", is_flag=True, help="Forget it at the next restart.")
@server_choice
def add(name: str, path: Path, settings: Sequence[str], temporary: bool, server: ServerChoice) -> int:
    """Share the directory PATH as NAME, at once."""
    from smb3server.cli.ask_server import ask_server

    share = ask_server(
        server, "share-add", name=name, path=str(path.absolute()), options=read_settings(settings), temporary=temporary
    )["share"]
    kept = "" if share["origin"] == "run time" else " until the server restarts"
    print(f"share {name}: {share['path']}{kept}")
    if kept and not temporary:
        print(NOT_KEPT)
    return EXIT_DONE


@command.command("set")
@click.argument("name", shell_complete=known_names.shares)
@_SET
@unset_option
@server_choice
def set_settings(name: str, settings: Sequence[str], defaults: Sequence[str], server: ServerChoice) -> int:
    """Change settings of a share that was added at run time. Clients stay connected where they may."""
    from smb3server.cli.ask_server import ask_server

    ask_server(server, "share-set", name=name, options=read_changes(settings, defaults))
    print(f"share {name}: changed")
    return EXIT_DONE


@command.command()
@click.argument("name", shell_complete=known_names.shares)
@server_choice
def remove(name: str, server: ServerChoice) -> int:
    """Stop sharing a directory that was shared at run time. Its clients are disconnected from it; its files stay."""
    from smb3server.cli.ask_server import ask_server

    ask_server(server, "share-remove", name=name)
    print(f"share {name}: removed; its directory stays")
    return EXIT_DONE


def read_changes(
    settings: Sequence[str], defaults: Sequence[str], section: type[Section] | None = None
) -> dict[str, Any]:
    """Return what ``--set`` and ``--unset`` change, by key; see ``read_settings``. None stands for the default."""
    if not settings and not defaults:
        raise click.UsageError("nothing to change: give --set KEY=VALUE or --unset KEY")
    return {**read_settings(settings, section), **dict.fromkeys(defaults)}


def read_settings(settings: Sequence[str], section: type[Section] | None = None) -> dict[str, Any]:
    """Return settings ``KEY=VALUE`` by key. Raises ``CommandError``.

    Values are taken as TOML if they are, else as text. The server judges them. ``section`` declares the keys; None
    means those of a share.
    """
    import tomllib

    from smb3server.config.schema import Share
    from smb3server.config.sections import keys_of

    known = keys_of(section or Share)

    found: dict[str, Any] = {}
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise CommandError(f"--set {text}: write KEY=VALUE, as in --set read_only=true", 2)
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, KeyError):
            parsed = value
        if key in known and known[key].repeated and isinstance(parsed, str):
            parsed = [entry.strip() for entry in parsed.split(",") if entry.strip()]
        found[key] = parsed
    return found
