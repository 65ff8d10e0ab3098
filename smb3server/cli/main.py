"""Where the command ``smb3server`` begins.

This module imports next to nothing: whatever happens during the imports of a command is reported as its other errors
are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from smb3server.process import garbage, output

PROGRAM = "smb3server"
COMPLETION_VARIABLE = "_SMB3SERVER_COMPLETE"
"""Set by the shell's completion script (``smb3server completion``)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status. ``arguments`` None means those of the process."""
    if arguments is not None:
        return output.run(lambda: _run(list(arguments)))
    garbage.begin()
    try:
        return output.run(lambda: _run(sys.argv[1:]))
    finally:
        garbage.end()


def _run(arguments: list[str]) -> int:
    import click

    from smb3server.cli import exits
    from smb3server.cli.tree import TREE

    try:
        if instruction := os.environ.get(COMPLETION_VARIABLE):
            from click.shell_completion import shell_complete

            return shell_complete(TREE, {}, PROGRAM, COMPLETION_VARIABLE, instruction)
        with TREE.make_context(PROGRAM, arguments) as context:
            return int(TREE.invoke(context) or exits.EXIT_DONE)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        print(exits.usage_text(error), file=sys.stderr)
        return exits.EXIT_USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print(file=sys.stderr)
        return exits.EXIT_INTERRUPTED
