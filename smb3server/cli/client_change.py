"""``smb3server client mv``, ``rm`` and ``mkdir``: change names on a share."""

from __future__ import annotations

from typing import Any

import click

from smb3server.cli.client_options import Shares, address_of, connection_options, run, take
from smb3server.cli.exits import EXIT_USAGE, CommandError

_URL = "smb://[USER@]HOST[:PORT]/SHARE/PATH"


@click.command("mv")
@connection_options
@click.option("-n", "--no-clobber", is_flag=True, help="Fail if the new name is taken.")
@click.argument("source", nargs=-1, required=True, metavar=_URL)
@click.argument("target", metavar="TARGET")
def mv(source: tuple[str, ...], target: str, no_clobber: bool, **options: Any) -> int:
    """Rename files and folders of one share, or move them into a folder of it.

    \b
    Examples:
      smb3server client mv smb://alice@nas/data/old.txt smb://alice@nas/data/new.txt
      smb3server client mv 'smb://alice@nas/data/*.log' smb://alice@nas/data/logs/

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """

    async def work(shares: Shares) -> None:
        to = address_of(target)
        share = await shares.at(to)
        into = await share.is_dir(to.path)
        found = [one for text in source for one in await shares.expand(text)]
        if not into and len(found) > 1:
            raise CommandError(f"{to}: not a folder, and there are {len(found)} files to move")
        for other, path in found:
            if other is not share:
                raise CommandError(f"{to}: another share; copy with cp -r, and remove with rm -r", EXIT_USAGE)
            name = f"{to.path}/{path.rpartition('/')[2]}" if into else to.path
            await (share.rename(path, name) if no_clobber else share.replace(path, name))

    return run(take(options), work)


@click.command("rm")
@connection_options
@click.option("-r", "--recursive", is_flag=True, help="Folders with everything below them, too.")
@click.option("-f", "--force", is_flag=True, help="Do not mind what is not there; read-only files, too.")
@click.argument("address", nargs=-1, required=True, metavar=_URL)
def rm(address: tuple[str, ...], recursive: bool, force: bool, **options: Any) -> int:
    """Remove files. Symbolic links are removed, and not followed.

    \b
    Examples:
      smb3server client rm 'smb://alice@nas/data/tmp/*.part'
      smb3server client rm -r smb://alice@nas/data/old

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """

    async def work(shares: Shares) -> None:
        for text in address:
            try:
                found = await shares.expand(text)
            except CommandError as error:
                if force and error.status != EXIT_USAGE:
                    continue
                raise
            for share, path in found:
                if not path:
                    raise CommandError(
                        f"{share.address}: the whole share is not removed; name what is in it", EXIT_USAGE
                    )
                try:
                    entry = await share.stat(path)
                    if entry.is_dir() and not recursive:
                        raise CommandError(f"{share.address}/{path}: a folder; remove it with -r", EXIT_USAGE)
                    if entry.is_dir():
                        await share.rmtree(path)
                    else:
                        if force and entry.read_only:
                            await share.set_attributes(path, 0)
                        await share.remove(path)
                except FileNotFoundError:
                    if not force:
                        raise

    return run(take(options), work)


@click.command("mkdir")
@connection_options
@click.option("-p", "--parents", is_flag=True, help="Folders above it, too; it may be there already.")
@click.argument("address", nargs=-1, required=True, metavar=_URL)
def mkdir(address: tuple[str, ...], parents: bool, **options: Any) -> int:
    """Make folders.

    \b
    Example:
      smb3server client mkdir -p smb://alice@nas/data/2026/11

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """

    async def work(shares: Shares) -> None:
        for text in address:
            where = address_of(text)
            await (await shares.at(where)).mkdir(where.path, parents=parents, exist_ok=parents)

    return run(take(options), work)
