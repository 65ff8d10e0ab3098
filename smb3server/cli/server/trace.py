"""``smb3server trace``: write the messages of a client to a file that Wireshark opens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from smb3server.cli.exits import EXIT_DONE
from smb3server.cli.running_server import ServerChoice, server_choice

_LOOKS = 0.5
"""Seconds between two questions how the trace goes on."""


@click.command()
@click.argument("client")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    help="The new file, pcapng. The server writes it, as its own user.",
)
@click.option("--decrypt", is_flag=True, help="Write what was encrypted in the clear.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True, max=86400),
    default=600,
    show_default=True,
    metavar="N",
    help="How long.",
)
@click.option(
    "--max-size",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="MIB",
    help="Size of a file. A full one becomes FILE.1, in place of an earlier one.",
)
@click.option("--background", is_flag=True, help="Return at once. --seconds ends the trace.")
@server_choice
def command(
    client: str, out: Path, decrypt: bool, seconds: float, max_size: int, background: bool, server: ServerChoice
) -> int:
    """Write the messages of a client to a capture file that Wireshark opens, until Ctrl-C.

    CLIENT is an address, or a network such as 192.0.2.0/24. The connections that it has already are included. IP and
    TCP headers are made up. Of SMB Direct the messages are written, not the data that moves by RDMA.

    \b
    Examples:
      smb3server trace 192.0.2.7 --out /var/lib/smb3server/alice.pcapng
      smb3server trace 192.0.2.7 --out /var/lib/smb3server/alice.pcapng --decrypt --seconds 60
      smb3server trace 192.0.2.0/24 --out /var/lib/smb3server/all.pcapng --background

    Exit status: 0 done, 1 the file cannot be written, 2 wrong usage, 3 no server found, 130 interrupted.
    """
    from smb3server.cli.ask_server import ask_server

    path = str(out.absolute())
    ask_server(server, "trace", client=client, file=path, decrypt=decrypt, seconds=seconds, max_size=max_size << 20)
    print(f"the server writes {path} for up to {seconds:g} s" + ("" if background else "; Ctrl-C ends it"), flush=True)
    if not out.exists():
        pid = ask_server(server, "ping")["pid"]
        print(
            "note: you do not see this file: the server has a folder of its own there (PrivateTmp of its unit), or you "
            f"may not look. Root reads it as /proc/{pid}/root{path}"
        )
    if background:
        return EXIT_DONE

    def find() -> dict[str, Any] | None:
        traces = ask_server(server, "trace-list")["traces"]
        return next((entry for entry in traces if entry["file"] == path), None)

    last: dict[str, Any] = {}
    try:
        while (found := find()) is not None:
            last = found
            time.sleep(_LOOKS)
    except KeyboardInterrupt:
        last = ask_server(server, "trace-stop", file=path)
    print(f"{last.get('messages', 0)} messages, {last.get('bytes', 0)} bytes in {path}")
    return EXIT_DONE
