"""``smb3server selfcheck``: check that the verbs provider keeps its contract on this machine's NICs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    metavar="TREE",
    help="Run the contract suite of this source tree, too. Needs pytest.",
)
def command(addresses: tuple[str, ...], as_json: bool, source: Path | None) -> int:
    """Check that RDMA NICs of this machine carry messages and data unharmed.

    It is for owners of an RDMA NIC. Without an ADDRESS, every interface with an RDMA device that is up is checked. The
    device talks to itself, which most devices support: that tests library, driver and firmware.

    \b
    Examples:
      smb3server selfcheck
      smb3server selfcheck 192.0.2.1 --json

    Exit status: 0 if everything passed on every address, 1 if not, 2 if there is nothing to check.
    """
    from smb3server.lab.selfcheck import run

    return run(addresses, as_json, source)
