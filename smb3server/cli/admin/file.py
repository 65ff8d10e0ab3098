"""``smb3server file``: the open files of a running server, and closing some."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from smb3server.cli import known_names
from smb3server.cli.exits import EXIT_DONE
from smb3server.cli.running_server import ServerChoice, server_choice

_JSON = click.option("--json", "as_json", is_flag=True, help="JSON.")


@click.group()
def command() -> None:
    """List the files that clients of a running server have open, and close some.

    \b
    Examples:
      smb3server file list --share data
      smb3server file list --share data --path projects/2026
      smb3server file close 4be1

    Exit status: 0 done, 1 the server refuses, 2 wrong usage, 3 no server found.
    """


@command.command("list")
@click.option("--user", default="", metavar="NAME", help="Files that this user has open.")
@click.option("--share", default="", metavar="NAME", help="Files in this share.")
@click.option("--path", default="", metavar="PATH", help="Files at or below this path in a share.")
@_JSON
@server_choice
def list_files(user: str, share: str, path: str, as_json: bool, server: ServerChoice) -> int:
    """List open files: who, where, and what keeps them open."""
    from smb3server.cli.ask_server import ask_server
    from smb3server.cli.status.short_tables import print_list

    files = ask_server(server, "file-list", user=user, share=share, path=path)["files"]
    rows = [
        (entry["id"], entry["user"], entry["access"] or "-", _state(entry), f"{entry['share']}/{entry['path']}")
        for entry in files
    ]
    print_list(as_json, files, ("FILE", "USER", "ACCESS", "STATE", "PATH"), rows)
    return EXIT_DONE


def _state(entry: dict[str, Any]) -> str:
    found = [entry["caching"], entry["durable"], f"{entry['locks']} locks" if entry["locks"] else ""]
    found.append("client away" if entry["away"] else "")
    return ", ".join(word for word in found if word) or "-"


@command.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=known_names.files)
@_JSON
@server_choice
def close(ids: Sequence[str], as_json: bool, server: ServerChoice) -> int:
    """Close open files, although their clients have not.

    Locks and caching rights end. What a client has not written yet is lost: close files only if their program cannot.
    The first digits of an ID are enough.
    """
    from smb3server.cli.ask_server import ask_server
    from smb3server.process.log_lines import printable

    closed = ask_server(server, "file-close", ids=list(ids))["closed"]
    if as_json:
        print(json.dumps(closed, indent=2))
        return EXIT_DONE
    for entry in closed:
        print(f"{entry['id']} closed: {printable(entry['share'])}/{printable(entry['path'])} of {entry['user']}")
    return EXIT_DONE
