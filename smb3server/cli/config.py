"""``smb3server config``: examples, the values in effect, and the schema."""

from __future__ import annotations

from typing import Any

import click

from smb3server.cli.exits import EXIT_USAGE, CommandError
from smb3server.config.options import ServerOptions, server_options


@click.group(name="config")
def command() -> None:
    """Write and show configuration files. "smb3server check" tests them.

    \b
    Examples:
      smb3server config example > /etc/smb3server/smb3server.toml
      smb3server config show --config smb.toml
      smb3server config schema > smb3server.schema.json

    Exit status: 0, 2 wrong usage or configuration.
    """


@command.command()
@click.option("--full", is_flag=True, help="With every key.")
def example(full: bool) -> None:
    """Print a commented file to begin with. Every setting in it is switched off by a #.

    \b
    Example:
      smb3server config example --full > smb.toml
    """
    from smb3server.config import documents

    print(documents.example(full), end="")


@command.command()
def schema() -> None:
    """Print the JSON schema of the configuration file, for editors.

    \b
    Example:
      smb3server config schema > smb3server.schema.json
      then begin the file with   #:schema ./smb3server.schema.json   (Taplo, Even Better TOML)
    """
    import json

    from smb3server.config import documents

    print(json.dumps(documents.json_schema(), indent=2))


def _show(everything: bool, **options: Any) -> None:
    from smb3server.config.examination import examine

    found = examine(ServerOptions(**options))
    if found.problems:
        raise CommandError("\n".join(map(str, found.problems)), EXIT_USAGE)
    print(found.values(everything), end="")


command.add_command(
    click.Command(
        "show",
        params=[*server_options(), click.Option(["--all", "everything"], is_flag=True, help="Show the defaults, too.")],
        callback=_show,
        help="""Print the values in effect as TOML: those of the file, overridden by the options. Secrets are hidden.

\b
Example:
  smb3server config show --config smb.toml --all
""",
    )
)
