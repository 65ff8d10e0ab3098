"""``smb3server snapshot``: making, listing and removing snapshots of a share that lies on btrfs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from smb3server.cli.exits import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, CommandError
from smb3server.cli.running_server import FILE, FOLDER
from smb3server.cli.together import together

if TYPE_CHECKING:
    from smb3server.backends.local.snapshot_making import SnapshotMaker

_server = together(
    click.option(
        "--config",
        type=FILE,
        metavar="FILE.toml",
        help="The server's configuration file. Default: /etc/smb3server/smb3server.toml.",
    ),
    click.option(
        "--state", type=FOLDER, metavar="DIR", help="The server's state directory, if the file does not name it."
    ),
)
"""The options ``--config`` and ``--state``, which say what server's shares are meant."""


@click.group()
def command() -> None:
    """Make, list and remove the snapshots of a share, which clients see as previous versions.

    The share's key "snapshots" says where they are. Snapshots of btrfs can be made and removed here, whether the server
    runs or not; it sees them at once. Those of other file systems are listed; their own tools make them.
    This takes root: a server's own user may not remove snapshots.

    \b
    Examples:
      smb3server snapshot create data
      smb3server snapshot list data
      smb3server snapshot remove data @GMT-2024.05.06-07.08.09
      smb3server snapshot schedule data --hourly 24 --daily 14 --weekly 8     from a timer, each hour

    Exit status: 0 done, 1 it could not be done, 2 wrong usage or configuration.
    """


def _maker(config: Path | None, state: Path | None, name: str) -> SnapshotMaker:
    """Return what makes the snapshots of a share of the configuration, or of one that was added at run time."""
    return _look(config, state, name)[0]


def _look(config: Path | None, state: Path | None, name: str) -> tuple[SnapshotMaker, Path | None]:
    """Return what makes the snapshots of a share, and the server's state directory."""
    from smb3server.backends.local.snapshot_making import SnapshotMaker
    from smb3server.config.command_line.arguments import read_options
    from smb3server.config.command_line.options import ServerOptions
    from smb3server.config.error import ConfigError, Problems
    from smb3server.config.sources import stored_shares
    from smb3server.config.values import snapshot_pattern

    try:
        problems = Problems()
        document = read_options(ServerOptions(config=config, state=state)).document(problems)
        problems.finish()
        found: dict[str, tuple[str, str, str]] = {
            share.name.casefold(): (share.path, share.snapshots, share.snapshot_times) for share in document.share
        }
        folder = Path(document.server.state) if document.server.state else None
        if folder is not None:
            for key, table in stored_shares.read(folder / stored_shares.FILE_NAME).tables.items():
                times = str(table.get("snapshot_times", "utc"))
                found.setdefault(key, (str(table["path"]), str(table.get("snapshots", "")), times))
        if name.casefold() not in found:
            known = ", ".join(share.name for share in document.share) or "none"
            raise CommandError(f"there is no share {name}; there are: {known}", EXIT_USAGE)
        path, text, times = found[name.casefold()]
        pattern = snapshot_pattern(text, path, times)
    except ConfigError as error:
        raise CommandError("\n  ".join(map(str, error.problems)), EXIT_USAGE) from error
    if pattern is None:
        raise CommandError(
            f'share {name} has no snapshots; remedy: snapshots = ".snapshots/@GMT-%Y.%m.%d-%H.%M.%S" in its section, '
            "then smb3server reload",
            EXIT_USAGE,
        )
    return SnapshotMaker(pattern, path), folder


@command.command()
@click.argument("share")
@_server
def create(share: str, config: Path | None, state: Path | None) -> int:
    """Make a snapshot of SHARE as it is now."""
    from smb3server.backends.local.snapshot_making import CannotError

    maker = _maker(config, state, share)
    try:
        _, name = maker.make()
    except CannotError as error:
        raise CommandError(str(error)) from error
    print(name)
    return EXIT_DONE


@command.command("list")
@click.argument("share")
@_server
@click.option("--json", "as_json", is_flag=True, help="JSON: a list of objects.")
def list_snapshots(share: str, config: Path | None, state: Path | None, as_json: bool) -> int:
    """List the snapshots of SHARE, the newest first: as clients name them, and their folders."""
    from smb3server.backends.local.snapshot_making import CannotError
    from smb3server.backends.snapshot_names import token
    from smb3server.cli.status.short_tables import print_list

    try:
        names = sorted(_maker(config, state, share).names().items(), reverse=True)
    except CannotError as error:
        raise CommandError(str(error)) from error
    found = [{"version": token(seconds), "time": seconds, "name": name} for seconds, name in names]
    print_list(as_json, found, ("VERSION", "NAME"), [(token(seconds), name) for seconds, name in names])
    return EXIT_DONE


@command.command()
@click.argument("share")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_server
def remove(share: str, names: tuple[str, ...], config: Path | None, state: Path | None) -> int:
    """Remove snapshots of SHARE by the names of their folders, or by the names that clients see."""
    from smb3server.backends.local.snapshot_making import CannotError
    from smb3server.backends.snapshot_names import token

    maker = _maker(config, state, share)
    try:
        known = {token(seconds): name for seconds, name in maker.names().items()}
        for name in names:
            maker.remove(known.get(name, name))
    except CannotError as error:
        raise CommandError(str(error)) from error
    return EXIT_DONE


_COUNT = click.IntRange(min=0)


@command.command()
@click.argument("share")
@_server
@click.option("--hourly", type=_COUNT, default=24, show_default=True, help="Hours whose last snapshot is kept.")
@click.option("--daily", type=_COUNT, default=7, show_default=True, help="Days whose last snapshot is kept.")
@click.option("--weekly", type=_COUNT, default=4, show_default=True, help="Weeks whose last snapshot is kept.")
@click.option("--monthly", type=_COUNT, default=0, show_default=True, help="Months whose last snapshot is kept.")
def schedule(share: str, config: Path | None, state: Path | None, **counts: int) -> int:
    """Make a snapshot of SHARE, and remove those that are not to be kept any longer.

    A timer runs this each hour (docs/previous-versions.md has one for systemd). Hours, days, weeks and months count if
    they have a snapshot. Whatever matches the share's pattern is removed, whoever made it. The latest one is kept, and
    those that a backup program has not given back yet.
    """
    from smb3server.backends.local.snapshot_making import CannotError, to_keep
    from smb3server.persistence.shadow_copies import held

    maker, folder = _look(config, state, share)
    failed = False
    try:
        spared = held(folder, share) if folder is not None else set()
    except (OSError, ValueError) as error:
        raise CommandError(f"{error}; nothing was made or removed") from error
    try:
        _, made = maker.make()
        print(f"made {made}")
        names = maker.names()
        kept = to_keep(names, counts)
    except CannotError as error:
        raise CommandError(str(error)) from error
    for seconds, name in sorted(names.items()):
        if seconds in kept or name in spared:
            continue
        try:
            maker.remove(name)
        except CannotError as error:
            # The others can be removed all the same.
            click.echo(f"smb3server snapshot schedule: {error}", err=True)
            failed = True
        else:
            print(f"removed {name}")
    return EXIT_FAILED if failed else EXIT_DONE
