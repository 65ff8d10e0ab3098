"""``smb3server client mv``, ``rm`` and ``mkdir``: change names on a share."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from smb3server.cli.client.options import (
    Shares,
    address_of,
    connection_options,
    names_folder,
    run,
    shown,
    status_of,
    take,
)
from smb3server.cli.exits import EXIT_DONE, EXIT_FAILED, EXIT_NO_SERVER, EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from smb3server.client.address import Address
    from smb3server.client.share import Share

_URL = "smb://[USER@]HOST[:PORT]/SHARE/PATH"


async def each(work: Sequence[tuple[str, Callable[[], Awaitable[None]]]]) -> int:
    """Do one thing after the other, whatever becomes of those before; report errors, and return the exit status.

    One thing alone raises its error. Nothing is done any more once the server is out of reach.
    """
    if len(work) == 1:
        await work[0][1]()
        return EXIT_DONE
    status = EXIT_DONE
    for path, one in work:
        try:
            await one()
        except CommandError as error:
            print(f"error: {shown(error.message)}", file=sys.stderr)
            status = EXIT_FAILED
        except OSError as error:
            where = "" if error.filename else f"{path}: "
            print(f"error: {shown(where + str(error))}", file=sys.stderr)
            status = status_of(error)
            if status == EXIT_NO_SERVER:
                break
    return status


@click.command("mv")
@connection_options
@click.option("-n", "--no-clobber", is_flag=True, help="Fail if the new name is taken.")
@click.argument("source", nargs=-1, required=True, metavar=_URL)
@click.argument("target", metavar="TARGET")
def mv(source: tuple[str, ...], target: str, no_clobber: bool, **options: Any) -> int:
    """Rename files and folders of one share, or move them into a folder of it.

    A file that has the new name is replaced, except with -n; a folder is not. A name with a slash at its end has to be
    that of a folder.

    \b
    Examples:
      smb3server client mv smb://alice@nas/data/old.txt smb://alice@nas/data/new.txt
      smb3server client mv 'smb://alice@nas/data/*.log' smb://alice@nas/data/logs/

    Exit status: 0 done, 1 something was not, 2 wrong usage, 3 the server cannot be reached.
    """

    async def work(shares: Shares) -> int:
        from smb3server.client.names import join, key, split

        to = address_of(target)
        share = await shares.at(to)
        into = await share.is_dir(to.path)
        if not into and names_folder(target):
            raise CommandError(f"{shown(target)}: no such folder; make it first with mkdir")
        found = [(text, *one) for text in source for one in await shares.expand(text)]
        if len(found) == 1 and found[0][2] != to.path and key(found[0][2]) == key(to.path):
            # The case of a folder's name changes.
            into = False
        if not into and len(found) > 1:
            raise CommandError(f"{to}: not a folder, and there are {len(found)} files to move")
        if any(other is not share for _, other, _ in found):
            raise CommandError(f"{to}: another share; copy with cp -r, and remove with rm -r", EXIT_USAGE)
        taken: set[str] = set()

        async def move(text: str, path: str) -> None:
            name = join(to.path, split(path)[1]) if into else to.path
            if not path:
                raise CommandError(f"{share.address}: the whole share is not moved; name what is in it", EXIT_USAGE)
            if names_folder(text) and not await share.is_dir(path):
                raise CommandError(f"{shown(text)}: not a folder")
            if name == path:
                raise CommandError(f"{share.address}/{path}: source and target are the same file")
            if key(name).startswith(f"{key(path)}/"):
                raise CommandError(f"{share.address}/{path}: a folder cannot be moved into itself")
            if key(name) in taken:
                raise CommandError(f"{share.address}/{name}: another file was moved there just now, so this one stays")
            taken.add(key(name))
            await (share.rename(path, name) if no_clobber else share.replace(path, name))

        return await each([(path, partial(move, text, path)) for text, _, path in found])

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

    Exit status: 0 done, 1 something was not, 2 wrong usage, 3 the server cannot be reached.
    """

    async def remove(share: Share, path: str, text: str) -> None:
        try:
            if recursive or names_folder(text):
                entry = await share.stat(path)
                if entry.is_dir() and recursive:
                    await share.rmtree(path, force=force)
                    return
                if not entry.is_dir() and names_folder(text) and not entry.is_symlink():
                    raise CommandError(f"{shown(text)}: a file, and not a folder")
            await share.remove(path, force=force)
        except IsADirectoryError:
            raise CommandError(f"{share.address}/{path}: a folder; remove it with -r", EXIT_USAGE) from None
        except FileNotFoundError:
            if not force:
                raise

    async def work(shares: Shares) -> int:
        found: list[tuple[Share, str, str]] = []
        for text in address:
            try:
                found += [(share, path, text) for share, path in await shares.expand(text)]
            except CommandError as error:
                if not force or error.status == EXIT_USAGE:
                    raise
        for share, path, _ in found:
            if not path:
                raise CommandError(f"{share.address}: the whole share is not removed; name what is in it", EXIT_USAGE)
        return await each([(path, partial(remove, share, path, text)) for share, path, text in found])

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

    Exit status: 0 done, 1 something was not, 2 wrong usage, 3 the server cannot be reached.
    """

    async def make(shares: Shares, where: Address) -> None:
        await (await shares.at(where)).mkdir(where.path, parents=parents, exist_ok=parents)

    async def work(shares: Shares) -> int:
        places = [address_of(text) for text in address]
        return await each([(str(where), partial(make, shares, where)) for where in places])

    return run(take(options), work)
