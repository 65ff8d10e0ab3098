"""``smb3server domain``: join a domain, leave it, look at the membership, change the machine account's password."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smb3server.cli.exits import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, CommandError
from smb3server.cli.running_server import FILE
from smb3server.cli.together import together

if TYPE_CHECKING:
    from smb3server.domain.join import Administrator
    from smb3server.settings.domain import DomainConfig

_config = together(
    click.option(
        "--config",
        type=FILE,
        metavar="FILE.toml",
        help="The server's configuration file. Default: /etc/smb3server/smb3server.toml.",
    ),
    click.option(
        "--state",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="The server's state, if the configuration does not name it; the packaged unit's is /var/lib/smb3server.",
    ),
)
"""The options that say which server it is."""

_administrator = together(
    click.option(
        "--user",
        metavar="NAME",
        default="Administrator",
        show_default=True,
        help="Who may add computers to the domain; the password may be in SMB3SERVER_PASSWORD, or is asked for.",
    ),
    click.option("--ticket", is_flag=True, help="Use the ticket that kinit has got, and no password."),
    click.option("--password-stdin", is_flag=True, help="The first line of stdin is the password."),
)
"""The options that say who changes the domain."""


@click.group()
def command() -> None:
    """Join a domain of Active Directory, leave it, look at the membership, change the machine account's password.

    The section [domain] of the configuration names the domain. What a command changes counts for a running server, too.

    \b
    Examples:
      smb3server domain join --user Administrator
      smb3server domain status
      kinit alice && smb3server domain join --ticket --ou "OU=Servers,DC=contoso,DC=com"
      smb3server domain rotate

    Exit status: 0 done, 1 it could not be done or something is wrong, 2 wrong usage or configuration.
    """


@command.command()
@_config
@_administrator
@click.option("--ou", "container", metavar="DN", default="", help="Where the machine account is made.")
@click.option("--reuse", is_flag=True, help="Take over a machine account of this name.")
def join(
    config: Path | None, state: Path | None, user: str, password_stdin: bool, ticket: bool, container: str, reuse: bool
) -> int:
    """Make this server's machine account in the domain, its secret and its keytab.

    \b
    Examples:
      smb3server domain join --user Administrator
      smb3server domain join --state /var/lib/smb3server
      smb3server domain join --ticket --ou "OU=Servers,DC=contoso,DC=com"
    """
    found = _domain_of(config, state)
    from smb3server.domain import join as joining
    from smb3server.domain.member import controllers_of

    who = _who(user, password_stdin, ticket)
    try:
        if found.secret is not None:
            _make_folder(found.secret.parent)
        account, controller = joining.join(found, controllers_of(found), who, container, reuse)
    except joining.JoinError as error:
        raise CommandError(str(error)) from error
    print(
        f"{account.machine}$ has joined {account.realm} by {controller.name}\n"
        f"keys of cifs/{account.host}, version {account.versions[0].number}: {found.keytab}\n"
        f"clients reach it as {account.host}, if DNS has that name"
    )
    return EXIT_DONE


@command.command()
@_config
@_administrator
def leave(config: Path | None, state: Path | None, user: str, password_stdin: bool, ticket: bool) -> int:
    """Remove the machine account from the domain, and the secret and the keytab from this machine."""
    found = _domain_of(config, state)
    from smb3server.domain import join as joining
    from smb3server.domain.member import controllers_of

    try:
        name = joining.leave(found, controllers_of(found), _who(user, password_stdin, ticket))
    except joining.JoinError as error:
        raise CommandError(str(error)) from error
    print(f"removed {name}" if name else f"the domain had no account {found.machine}$; the files are removed")
    return EXIT_DONE


@command.command()
@_config
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
def status(config: Path | None, state: Path | None, as_json: bool) -> int:
    """Show the membership: controllers, clocks, machine account, keys and secure channel."""
    found = _domain_of(config, state)
    from smb3server.doctor.domain import examine_domain
    from smb3server.doctor.findings import Verdict

    findings = list(examine_domain(found))
    wrong = any(finding.verdict is Verdict.PROBLEM for finding in findings)
    if as_json:
        data: dict[str, Any] = {"realm": found.realm, "workgroup": found.workgroup, "machine": found.machine}
        print(json.dumps(data | {"ok": not wrong, "findings": [one.as_json() for one in findings]}, indent=2))
    else:
        for finding in findings:
            print(finding.line())
    return EXIT_FAILED if wrong else EXIT_DONE


@command.command()
@_config
def rotate(config: Path | None, state: Path | None) -> int:
    """Change the machine account's password now. Tickets that clients have stay valid."""
    found = _domain_of(config, state)
    from smb3server.domain.machine import MachineError
    from smb3server.domain.member import Member
    from smb3server.domain.user import NoController

    try:
        member = Member(found)
        member.rotate()
        number = member.machine.account().versions[0].number
    except (MachineError, NoController, OSError) as error:
        raise CommandError(str(error)) from error
    print(f"the password of {found.machine}$ is changed; its key has version {number}")
    return EXIT_DONE


def _domain_of(file: Path | None, state: Path | None) -> DomainConfig:
    """Return the section [domain] of a configuration. Raises ``CommandError``."""
    from smb3server.config.command_line.arguments import read_options
    from smb3server.config.command_line.options import ServerOptions
    from smb3server.config.error import ConfigError, Problems
    from smb3server.config.membership import membership_of

    try:
        problems = Problems()
        found = membership_of(read_options(ServerOptions(config=file, state=state)).document(problems), problems)
        problems.finish()
    except ConfigError as error:
        raise CommandError("\n  ".join(map(str, error.problems)), EXIT_USAGE) from error
    if found is None:
        raise CommandError(
            'the configuration has no [domain]; remedy: a section [domain] with realm = "CONTOSO.COM"', EXIT_USAGE
        )
    return found


def _make_folder(folder: Path) -> None:
    """Make the folder of the secret. Raises ``CommandError``."""
    from smb3server.process.own_files import check_planted_folder

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_planted_folder(folder)
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror}") from error


def _who(user: str, password_stdin: bool, ticket: bool) -> Administrator:
    """Return who changes the domain. Raises ``CommandError``."""
    import sys

    from smb3server.cli.admin.password_input import logon_password
    from smb3server.domain.join import Administrator

    if ticket and password_stdin:
        raise CommandError("choose one of --ticket and --password-stdin", EXIT_USAGE)
    if ticket:
        return Administrator(user, None)
    password = sys.stdin.readline(4096).removesuffix("\n") if password_stdin else logon_password(user)
    if not password:
        raise CommandError(
            "no password, and no terminal to ask for it; give --password-stdin, SMB3SERVER_PASSWORD, or --ticket",
            EXIT_USAGE,
        )
    return Administrator(user, password)
