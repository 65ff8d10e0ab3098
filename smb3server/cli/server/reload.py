"""``smb3server reload``: let a running server read its configuration again."""

from __future__ import annotations

import json

import click

from smb3server.cli.exits import EXIT_DONE
from smb3server.cli.running_server import ServerChoice, server_choice


@click.command()
@server_choice
@click.option("--json", "as_json", is_flag=True, help="JSON: the lists changes, restart and notes.")
def command(server: ServerChoice, as_json: bool) -> int:
    """Let a running server read its configuration and its users again.

    Clients keep their connections, sessions and open files, unless what they use is gone. If there is a mistake,
    nothing changes, and all mistakes are told. SIGHUP does the same; the log then has what is printed here.

    \b
    Examples:
      smb3server reload
      smb3server --config /etc/smb3server/smb3server.toml reload
      smb3server reload --json | jq .restart

    Exit status: 0 done, 1 a mistake, nothing was changed, 3 no server found.
    """
    from smb3server.cli.ask_server import ask_server
    from smb3server.process.log_lines import printable

    answer = ask_server(server, "reload")
    if as_json:
        print(json.dumps(answer, indent=2))
        return EXIT_DONE
    for line in answer["changes"]:
        print(printable(line))
    for note in answer["notes"]:
        print(f"note: {printable(note)}")
    if answer["restart"]:
        print(f"after a restart: {', '.join(answer['restart'])}")
    if not answer["changes"] and not answer["restart"]:
        print("nothing has changed")
    return EXIT_DONE
