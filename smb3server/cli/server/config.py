"""``smb3server config``: examples, the values in effect, the schema, and what comes from Samba."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smb3server.cli.exits import EXIT_USAGE, CommandError
from smb3server.config.command_line.options import ServerOptions, judging_option, server_options


@click.group(name="config")
def command() -> None:
    """Write and show configuration files. "smb3server check" tests them.

    \b
    Examples:
      smb3server config example > /etc/smb3server/smb3server.toml
      smb3server config show --config smb.toml
      smb3server config import-smb-conf /etc/samba/smb.conf > smb.toml
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


def _show(everything: bool, as_user: str, **options: Any) -> None:
    from smb3server.config.examination import examine

    found = examine(ServerOptions(**options), as_user)
    if found.problems:
        raise CommandError("\n".join(map(str, found.problems)), EXIT_USAGE)
    print(found.values(everything), end="")


command.add_command(
    click.Command(
        "show",
        params=[
            *server_options(),
            judging_option(),
            click.Option(["--all", "everything"], is_flag=True, help="Show the defaults, too."),
        ],
        callback=_show,
        help="""Print the values in effect as TOML: those of the file, overridden by the options. Secrets are hidden.

\b
Example:
  smb3server config show --config smb.toml --all
""",
    )
)


@command.command("import-smb-conf")
@click.argument("file", type=click.Path(readable=False, path_type=Path))
def import_smb_conf(file: Path) -> None:
    """Print Samba's configuration FILE as one of this server.

    What cannot be carried over is a comment, with the reason. Users come with "smb3server user import".

    \b
    Example:
      smb3server config import-smb-conf /etc/samba/smb.conf > smb.toml
      smb3server check --config smb.toml
    """
    from smb3server.config.sources.samba import SambaError, convert

    try:
        print(convert(file), end="")
    except SambaError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
