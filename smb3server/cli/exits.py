"""Exit statuses and error texts, the same for all commands.

Commands return a status or raise ``CommandError``. ``main`` prints every error as ``smb3server NAME: text; remedy``.
"""

from __future__ import annotations

import signal

import click

EXIT_DONE = 0
EXIT_FAILED = 1
"""The command could not be carried out, or what it looked for is wrong."""
EXIT_USAGE = 2
"""The command line or the configuration is wrong. Nothing was done."""
EXIT_NO_SERVER = 3
"""No running server was found, or it does not answer."""
EXIT_INTERRUPTED = 128 + signal.SIGINT
"""Interrupted by Ctrl-C, as shells report it."""

STATUSES = (
    f"Exit status: {EXIT_DONE} done, {EXIT_FAILED} failed or found wrong, {EXIT_USAGE} wrong usage or configuration, "
    f"{EXIT_NO_SERVER} no server found, {EXIT_INTERRUPTED} interrupted."
)
"""For the help of ``smb3server``; commands that differ say so in theirs."""


class CommandError(click.ClickException):
    """Ends a command with an error text that says what to do, and an exit status."""

    def __init__(self, text: str, status: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.status = status
        self.program = program()

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """The exit status, as click asks for it."""
        return self.status

    def show(self, file: object = None) -> None:
        """Print the error to stderr."""
        click.echo(f"{self.program}: {self.message}", err=True)


def program(context: click.Context | None = None) -> str:
    """Return the name of the running command, as errors begin with it: ``smb3server status``."""
    context = context or click.get_current_context(silent=True)
    return context.command_path.strip() if context is not None else "smb3server"


def usage_text(error: click.UsageError) -> str:
    """Return one line for wrong usage, which says where to read more."""
    name = program(error.ctx)
    if error.ctx is not None and isinstance(error, click.exceptions.NoArgsIsHelpError):
        # Click's text is the whole help.
        group = error.ctx.command
        known = group.list_commands(error.ctx) if isinstance(group, click.Group) else []
        return f"{name}: which command? {', '.join(known)}; see {name} --help"
    text = error.format_message().rstrip(".")
    # Click begins its texts with a capital letter.
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    return f"{name}: {text}; see {name} --help"
