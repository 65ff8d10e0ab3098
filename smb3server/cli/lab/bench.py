"""``smb3server bench``: measure our server and Samba with the same client and the same cases, in turns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smb3server.cli.exits import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from smb3server.client.address import Address
    from smb3server.client.credentials import Login


def _list_cases(context: click.Context, option: click.Parameter, given: bool) -> None:
    if given and not context.resilient_parsing:
        from smb3server.lab.bench.cases import ALL

        print("\n".join(ALL))
        context.exit()


def _login(text: str, password_file: Path | None) -> tuple[Address, Login]:
    """Return the server to measure, and who logs on. Raises ``CommandError``."""
    from smb3server.cli.client.options import address_of, ask
    from smb3server.client import credentials
    from smb3server.client.options import ConnectOptions
    from smb3server.config.error import ConfigError
    from smb3server.config.sources.passwords import read_password

    address = address_of(text)
    try:
        given = read_password(password_file) if password_file is not None else None
        options = ConnectOptions(password=given, ask=ask if sys.stdin.isatty() else None)
        return address, credentials.find(address, options)
    except (credentials.CredentialsError, ConfigError) as error:
        raise CommandError(str(error), EXIT_USAGE) from error


@click.command()
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Default: as many as a verdict needs.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Per round, case and server.",
)
@click.option("--cases", multiple=True, metavar="NAME", help="Measure this case; repeat it for more. Default: all.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_cases, help="List the cases and stop."
)
@click.option("--crowds", is_flag=True, help="1 to 64 connections instead of one.")
@click.option("--no-samba", is_flag=True, help="Measure our server alone: needs neither root nor Samba.")
@click.option(
    "--fabrics",
    metavar="NAMES",
    help="Our server alone, over TCP and over these: iwarp,roce. Data is clear, signed and encrypted.",
)
@click.option(
    "--against",
    metavar="smb://USER@HOST/SHARE",
    help="Measure this server instead, over TCP, in a folder that is removed afterwards.",
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --against: its first line is the password; mode 600.",
)
@click.option("--python", default=sys.executable, metavar="PATH", help="Interpreter that runs our server.")
@click.option("--pin", is_flag=True, help="Clients and servers on one processor core.")
@click.option(
    "--size",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    metavar="MIB",
    help="Size of the file that is read and written.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("/dev/shm"),
    show_default=True,
    metavar="DIR",
    help="Folder for the data, created if necessary.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every round, in place of Markdown.")
@click.option(
    "--markdown",
    type=click.Path(path_type=Path),
    metavar="PAGE",
    help="Write the table between the markers of this page.",
)
def command(
    rounds: int | None,
    seconds: float,
    cases: tuple[str, ...],
    crowds: bool,
    no_samba: bool,
    fabrics: str | None,
    against: str | None,
    password_file: Path | None,
    python: str,
    pin: bool,
    size: int,
    folder: Path,
    as_json: bool,
    markdown: Path | None,
) -> int:
    """Measure our server against Samba with the same client and the same cases, in turns.

    In a round every case runs on one server and immediately afterwards on the other; the order changes from round to
    round. The result is medians with their spread. A verdict is given only if the rounds agree, and none if other
    programs kept the machine busy.

    With --against, a server that runs already is measured, whatever it is: rates and times of answers, not its
    processor time. The password is that of `smb3server client`: --password-file, SMB3SERVER_PASSWORD,
    ~/.config/smb3server/credentials, or the terminal. On a share with a recycle folder use a folder without it.

    \b
    Examples:
      smb3server bench --no-samba
      smb3server bench --list
      smb3server bench --cases 'echo q1' --cases 'create + close'
      smb3server bench --fabrics iwarp,roce --json
      smb3server bench --against smb://alice@nas/data --rounds 1

    Exit status: 0 measured, 2 something is missing or failed, or wrong usage.
    """
    from smb3server.lab.bench.cases import ALL, CASES, CROWDS, FABRIC_CASES
    from smb3server.lab.bench.command import Options, bench
    from smb3server.lab.bench.errors import BenchError
    from smb3server.lab.bench.figures import ROUNDS_FOR_VERDICT
    from smb3server.lab.bench.servers import FABRICS

    chosen = tuple(name for name in (fabrics or "").split(",") if name)
    for name in chosen:
        if name not in FABRICS:
            raise click.BadParameter(f"{name} is not one of {', '.join(FABRICS)}", param_hint="--fabrics")
    for name in cases:
        if name not in ALL:
            raise click.BadParameter(f"no case {name!r}: --list lists them", param_hint="--cases")
    if against and (chosen or pin):
        raise click.UsageError("--against measures one server over TCP: leave out --fabrics and --pin")
    if password_file and not against:
        raise click.UsageError("--password-file goes with --against")
    if not cases:
        cases = tuple(CROWDS if crowds else FABRIC_CASES if chosen else CASES)
    options = Options(
        rounds or ROUNDS_FOR_VERDICT,
        seconds,
        cases,
        no_samba or bool(chosen),
        chosen,
        python,
        pin,
        size,
        folder,
        as_json,
        markdown,
        _login(against, password_file) if against else None,
    )
    try:
        return bench(options)
    except (BenchError, OSError) as error:
        raise CommandError(str(error), EXIT_USAGE) from error
