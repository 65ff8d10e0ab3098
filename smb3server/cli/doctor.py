"""``smb3server doctor``: what this machine can serve, or whether a share is reached by RDMA, and what to do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smb3server.cli.admin.password_input import logon_password
from smb3server.cli.exits import EXIT_USAGE, CommandError
from smb3server.doctor.findings import EXIT_NO_RDMA, EXIT_RDMA, EXIT_UNKNOWN

if TYPE_CHECKING:
    from smb3server.doctor.patient import Target


@click.command()
@click.argument("target", required=False, metavar="[//HOST[:PORT]/SHARE]")
@click.option(
    "--user", metavar="NAME[:PASSWORD]", help="Log on as; the password may be in SMB3SERVER_PASSWORD, or is asked for."
)
@click.option("--fabrics", metavar="NAMES", help="Fabrics to try, with commas. Default: all.")
@click.option(
    "--rdma-port",
    type=int,
    metavar="PORT",
    help="Port to try SMB Direct on. Default: 5445; over RoCE and InfiniBand then 445.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="What this configuration would serve on this machine.",
)
@click.option("--as", "as_user", metavar="USER", default="", help="With --config: judge as this user, as check --as.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
def command(
    target: str | None,
    user: str | None,
    fabrics: str | None,
    rdma_port: int | None,
    config: Path | None,
    as_user: str,
    as_json: bool,
) -> int:
    """Find out what this machine can serve, or with a target how that share is reached from here.

    With a target, the doctor logs on, writes a temporary file of 4 MiB, reads and deletes it; where it may not write,
    it reads the largest file in the share's root.

    \b
    Examples:
      smb3server doctor
      smb3server doctor --config /etc/smb3server/smb3server.toml
      smb3server doctor //files.example.com/data --user alice
      smb3server doctor smb://192.0.2.1:1445/data --fabrics iwarp --json

    Exit status: 0 if RDMA is used (without a target: served, or can be), 1 if not, 2 if that could not be found out,
    and for wrong usage.
    """
    from smb3server.config.sources.passwords import hide_arguments

    hide_arguments([user or ""])
    if config is not None and target is not None:
        raise click.UsageError("--config is about this machine: give no target with it")
    if config is not None:
        from smb3server.doctor.config import examine_config
        from smb3server.doctor.host import show

        status, findings, text = examine_config(config, as_user)
        return show(status, findings, text, False, as_json)
    if target is None:
        from smb3server.doctor.host import report

        return report(as_json)
    return _examine_share(_target(target, user, fabrics, rdma_port), as_json)


def _target(text: str, user: str | None, fabrics: str | None, rdma_port: int | None) -> Target:
    """Return what is to be examined. Raises ``CommandError``."""
    from smb3server.client.address import is_remote, parse
    from smb3server.doctor.patient import Target
    from smb3server.net.fabric_choice import FABRICS

    try:
        address = parse(text if is_remote(text) else f"//{text}")
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from None
    chosen = tuple(name for name in fabrics.split(",") if name) if fabrics is not None else FABRICS
    unknown = [name for name in chosen if name not in FABRICS]
    if unknown:
        raise CommandError(f"unknown fabric {unknown[0]}; there are {', '.join(FABRICS)}", EXIT_USAGE)
    user = user or address.user
    name, separator, password = (user or "guest").partition(":")
    if not separator:
        password = (address.password or logon_password(name)) if user else ""
    return Target(address.host, address.port, address.share, name, password, chosen, rdma_port)


def _examine_share(target: Target, as_json: bool) -> int:
    from smb3server.doctor.findings import verdict_lines
    from smb3server.doctor.patient import Answer
    from smb3server.doctor.share import consult

    result = asyncio.run(consult(target))
    if as_json:
        print(json.dumps(result.as_json(), indent=2))
    else:
        for finding in result.findings:
            print(finding.line())
        print(verdict_lines(result.verdict))
    if result.answer is Answer.UNKNOWN:
        return EXIT_UNKNOWN
    return EXIT_RDMA if result.answer is Answer.USED else EXIT_NO_RDMA
