"""Completion of names that a running server knows: ``smb3server share remove <TAB>``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from smb3server.cli.exits import CommandError
from smb3server.cli.running_server import ServerChoice

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PATIENCE = 1.0
"""Seconds: somebody waits at a prompt."""
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _completion(command: str, rows: str, name: str, help_of: Sequence[str] = ()) -> Complete:
    """Return a completion by the answer to an admin command: field ``name`` of all its ``rows``.

    ``help_of`` are fields that shells show beside the name.
    """

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from smb3server.admin.socket import ask
        from smb3server.process.log_lines import printable

        given = context.params
        try:
            path = ServerChoice(given.get("state"), given.get("socket"), given.get("config")).find()
            found = ask(path, command, _PATIENCE).get(rows, [])
        except (CommandError, OSError, ValueError):
            # Nobody to ask, so there is nothing to offer.
            return []
        return [
            CompletionItem(str(row[name]), help=printable(" ".join(str(row[field]) for field in help_of)))
            for row in found
            if str(row[name]).startswith(incomplete) and str(row[name]).isprintable()
        ]

    return complete


shares = _completion("share-list", "shares", "name", ("path",))
sessions = _completion("session-list", "sessions", "id", ("user", "client"))
files = _completion("file-list", "files", "id", ("user", "share", "path"))
users = _completion("users", "users", "name")
