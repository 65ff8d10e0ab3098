"""``smb3server help``: the same as ``--help``."""

from __future__ import annotations

import click

from smb3server.cli.tree import TREE


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in TREE.list_commands(context) if name.startswith(incomplete)]


@click.command()
@click.argument("names", nargs=-1, metavar="[COMMAND]...", shell_complete=_complete)
@click.pass_context
def command(context: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command, or the list of commands.

    \b
    Examples:
      smb3server help
      smb3server help doctor
      smb3server help cluster drain
    """
    root = context.find_root()
    found: click.Context = root
    for name in names:
        group = found.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{found.command_path} has no commands of its own", context)
        _, chosen, _ = group.resolve_command(found, [name])
        assert chosen is not None  # otherwise resolve_command raises
        found = click.Context(chosen, parent=found, info_name=name)
    print(found.get_help())
