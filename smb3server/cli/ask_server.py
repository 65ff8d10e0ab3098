"""Sending a command to a running server, for the commands that change it."""

from __future__ import annotations

from typing import Any

from smb3server.cli.exits import EXIT_NO_SERVER, CommandError
from smb3server.cli.running_server import ServerChoice

TIMEOUT = 60.0
"""Seconds without any answer. Opening directories on a slow disk takes some."""
SIGN_OF_LIFE_TIMEOUT = 5.0
"""Seconds for the answer to ``ping``, which waits for no disk."""


def ask_server(server: ServerChoice, command: str, /, **arguments: Any) -> dict[str, Any]:
    """Send a command to the server that is meant, print its progress, and return its answer.

    Raises ``CommandError``, with the server's own words if it refuses.
    """
    from smb3server.admin.socket import ask, follow
    from smb3server.process.log_lines import printable_tree

    path = server.find()
    try:
        ask(path, "ping", SIGN_OF_LIFE_TIMEOUT)
        answer = follow(path, command, lambda text: print(f"{text} ...", flush=True), TIMEOUT, **arguments)
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CommandError(f"{path}: {text}", EXIT_NO_SERVER) from error
    if "error" in answer:
        lines = [str(printable_tree(line)) for line in str(answer["error"]).splitlines()]
        raise CommandError("\n  ".join(lines))
    return answer
