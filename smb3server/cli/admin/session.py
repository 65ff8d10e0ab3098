"""``smb3server session``: the sessions of a running server, and ending some."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from smb3server.cli import known_names
from smb3server.cli.exits import EXIT_DONE, EXIT_FAILED
from smb3server.cli.running_server import ServerChoice, server_choice

_USER = click.option("--user", default="", metavar="NAME", help="The sessions of this user.")
_SHARE = click.option("--share", default="", metavar="NAME", help="The sessions that use this share.")
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON.")


@click.group()
def command() -> None:
    """List the sessions of a running server, and end some.

    \b
    Examples:
      smb3server session list --user alice
      smb3server session close 8f3a12c4
      smb3server session close --user alice

    Exit status: 0 done, 1 the server refuses, or nobody was connected, 2 wrong usage, 3 no server found.
    """


@command.command("list")
@_USER
@_SHARE
@_JSON
@server_choice
def list_sessions(user: str, share: str, as_json: bool, server: ServerChoice) -> int:
    """List sessions: who, from where, since when."""
    from smb3server.cli.ask_server import ask_server
    from smb3server.cli.status.short_tables import print_list, since

    sessions = ask_server(server, "session-list", user=user, share=share)["sessions"]
    rows = [
        (
            *(entry["id"], entry["user"], entry["client"], since(entry["age"]), str(entry["files"])),
            f"{entry['channels']}{' RDMA' if entry['rdma_channels'] else ''}",
            ", ".join(entry["shares"]),
        )
        for entry in sessions
    ]
    print_list(as_json, sessions, ("SESSION", "USER", "CLIENT", "SINCE", "FILES", "CHANNELS", "SHARES"), rows)
    return EXIT_DONE


@command.command()
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=known_names.sessions)
@_USER
@_SHARE
@_JSON
@server_choice
def close(ids: Sequence[str], user: str, share: str, as_json: bool, server: ServerChoice) -> int:
    """End sessions, with all their open files.

    The clients learn it with their next request, and may log on again. To keep a user out, remove or disable the
    account. The first digits of an ID are enough.
    """
    from smb3server.cli.ask_server import ask_server
    from smb3server.process.log_lines import printable

    if not ids and not user and not share:
        raise click.UsageError("name sessions by their ids, or give --user or --share")
    answer = ask_server(server, "session-close", ids=list(ids), user=user, share=share)
    if as_json:
        print(json.dumps(answer, indent=2))
    else:
        for entry in answer["closed"]:
            print(f"{entry['id']} closed: {printable(entry['user'])} from {entry['client']}, {entry['files']} files")
        if answer["waiting_files_closed"]:
            print(f"{answer['waiting_files_closed']} files closed that waited for their client")
        if not answer["closed"] and not answer["waiting_files_closed"]:
            print("there is no such session")
    return EXIT_DONE if answer["closed"] or answer["waiting_files_closed"] else EXIT_FAILED
