"""``smb3server client get``, ``put``, ``cp`` and ``sync``: copy files and folders."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smb3server.cli.client.options import (
    Connection,
    Shares,
    address_of,
    compress_option,
    connection_options,
    names_folder,
    run,
    shown,
    take,
)
from smb3server.cli.exits import EXIT_FAILED, EXIT_USAGE, CommandError
from smb3server.cli.together import together
from smb3server.process.words import amount

if TYPE_CHECKING:
    from smb3server.client.mirror import MirrorOptions, Totals
    from smb3server.client.places import Item, Place

_URL = "smb://[USER@]HOST[:PORT]/SHARE/PATH"

_copy_options = together(
    click.option(
        "-j",
        "--jobs",
        type=click.IntRange(1, 64),
        default=4,
        show_default=True,
        help="Files at a time; of those up to 64 KiB eight times as many.",
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Leave out names that match, or paths if it has a slash; NAME/ stands for folders only.",
    ),
    click.option(
        "--links",
        type=click.Choice(("skip", "follow")),
        default="skip",
        show_default=True,
        help="What becomes of symbolic links.",
    ),
    click.option("--no-sparse", is_flag=True, help="Copy holes of files as zeros."),
    click.option("-a", "--attributes", is_flag=True, help="Keep read-only, hidden, system and archive."),
    click.option("--verify", is_flag=True, help="Read both files again and compare them."),
    click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done."),
    click.option("-q", "--quiet", is_flag=True, help="Print errors only."),
    click.option("-v", "--verbose", is_flag=True, help="Also name files that are left as they are."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object per file, and one at the end."),
)

_options_of_copies = together(
    connection_options,
    compress_option,
    click.option("-r", "--recursive", is_flag=True, help="Folders with everything below them, too."),
    click.option(
        "-c", "--continue", "resume", is_flag=True, help="Go on where an interrupted copy of the same file stopped."
    ),
    click.option("-u", "--update", is_flag=True, help="Leave out files whose copy has their size and time."),
    _copy_options,
)
"""The options of the commands that copy what their arguments name."""


def _options(given: dict[str, Any], **more: Any) -> MirrorOptions:
    """Return the options of a copy out of those of a command."""
    from smb3server.client.mirror import MirrorOptions

    return MirrorOptions(
        dry_run=given["dry_run"],
        exclude=tuple(given.pop("exclude")),
        follow_links=given.pop("links") == "follow",
        sparse=not given.pop("no_sparse"),
        verify=given.pop("verify"),
        attributes=given.pop("attributes"),
        jobs=given.pop("jobs"),
        **more,
    )


_Entry = tuple["Place", "Item", "Place", str]


async def _sources(shares: Shares, texts: Sequence[str]) -> list[tuple[Place, Item]]:
    """Return what the arguments name. A place is the folder of an entry."""
    from smb3server.client.address import is_remote
    from smb3server.client.names import split
    from smb3server.client.places import LocalPlace, SharePlace

    found: list[tuple[Place, Item]] = []
    for text in texts:
        if is_remote(text):
            for share, path in await shares.expand(text):
                folder, name = split(path)
                place: Place = SharePlace(share, folder)
                found.append((place, _existing(text, await place.look(name))))
            continue
        local = Path(text)
        # "." and ".." have no name of their own.
        base = local.parent if local.name not in ("", "..") else local.resolve().parent
        place = LocalPlace(base)
        item = await place.look(local.name if base == local.parent else local.resolve().name)
        found.append((place, _existing(text, item)))
    return found


def _existing(text: str, item: Item | None) -> Item:
    """Return what an argument names. Raises ``CommandError`` if there is nothing, or a file where a slash follows."""
    from smb3server.client.places import Kind

    if item is None:
        raise CommandError(f"{shown(text)}: no such file or folder")
    if names_folder(text) and item.kind is Kind.FILE:
        raise CommandError(f"{shown(text)}: a file, and not a folder")
    return item


async def _entries(shares: Shares, sources: Sequence[str], target: str) -> list[_Entry]:
    """Return what is to be copied where: into the target if it is a folder, or else as the target."""
    from smb3server.client.address import is_remote
    from smb3server.client.names import split
    from smb3server.client.places import Kind, LocalPlace, SharePlace

    if not is_remote(target) and not all(map(is_remote, sources)):
        raise CommandError("both are of this machine; cp(1) copies those", EXIT_USAGE)
    found = await _sources(shares, sources)
    whole: Place
    if is_remote(target):
        address = address_of(target)
        whole = SharePlace(await shares.at(address), address.path)
        above: Place = SharePlace(whole.share, split(address.path)[0])
        name = split(address.path)[1]
    else:
        local = Path(target)
        whole, above, name = LocalPlace(local), LocalPlace(local.parent), local.name
    there = await whole.look("")
    if there is not None and there.kind is Kind.FOLDER:
        return [(place, item, whole, item.name or _last(place)) for place, item in found]
    if names_folder(target):
        raise CommandError(f"{shown(target)}: no such folder; make it first, or write the name without the slash")
    if len(found) > 1:
        raise CommandError(f"{shown(target)}: not a folder, and there are {len(found)} things to copy")
    return [(place, item, above, name) for place, item in found]


def _last(place: Place) -> str:
    """Return the name under which a whole share is copied: its own."""
    return place.name.rpartition("/")[2] or "share"


def _copy(given: dict[str, Any], how: MirrorOptions, find: Callable[[Shares], Any]) -> int:
    """Copy what ``find`` returns, report, and return the exit status."""
    quiet, as_json = given.pop("quiet"), given.pop("as_json")
    verbose, dry_run = given.pop("verbose"), given.pop("dry_run")
    connection: Connection = take(given)

    async def work(shares: Shares) -> int:
        from smb3server.cli.client.progress import Reporter
        from smb3server.client.mirror import copy_all

        began = time.monotonic()
        entries: list[_Entry] = await find(shares)
        with Reporter(quiet=quiet, as_json=as_json, dry_run=dry_run, verbose=verbose) as reporter:
            try:
                totals = await copy_all(entries, how, reporter)
            except asyncio.CancelledError:
                print("interrupted; the same command with --continue goes on", file=sys.stderr)
                raise
        _conclude(shares, totals, time.monotonic() - began, quiet=quiet, as_json=as_json, dry_run=dry_run)
        return EXIT_FAILED if totals.failed else shares.listed_all

    return run(connection, work, moves_data=True)


def _copy_named(given: dict[str, Any], sources: Sequence[str], target: str) -> int:
    """Copy what the arguments of a command name."""
    recursive, resume, update = map(given.pop, ("recursive", "resume", "update"))
    how = _options(given, recursive=recursive, resume=resume, only_changed=update)
    return _copy(given, how, lambda shares: _entries(shares, sources, target))


def _conclude(shares: Shares, totals: Totals, seconds: float, *, quiet: bool, as_json: bool, dry_run: bool) -> None:
    """Say what was done, and how the data travelled."""
    connected = shares.connected
    if as_json:
        import json

        done = {
            "action": "done",
            "files": totals.files,
            "bytes": totals.bytes,
            "same": totals.same,
            "removed": totals.removed,
            "skipped": totals.skipped,
            "failed": totals.failed,
            "seconds": seconds,
            "shares": [
                {
                    "address": str(share.address),
                    "transport": share.transport,
                    "why_not_rdma": share.why_not_rdma,
                    "compressed": dict(zip(("bytes", "as"), share.compressed, strict=True)),
                    "moved": {kind: {"written": w, "read": r} for kind, (w, r) in share.moved.items()},
                }
                for share in connected
            ],
        }
        print(json.dumps(done))
        return
    if quiet or dry_run:
        return
    rate = f", {amount(totals.bytes / seconds)}/s" if seconds and totals.bytes else ""
    parts = [f"{totals.files} file{'s' * (totals.files != 1)}, {amount(totals.bytes)} in {seconds:.1f} s{rate}"]
    for name in ("same", "removed", "skipped", "failed"):
        if count := getattr(totals, name):
            parts.append(f"{count} {name}")
    print("; ".join(parts), file=sys.stderr)
    for share in connected:
        why = f"; no RDMA: {share.why_not_rdma}" if share.why_not_rdma else ""
        before, after = share.compressed
        packed = f"; {amount(before)} travelled as {amount(after)}" if before else ""
        print(shown(f"{share.address.host}: {share.transport}{packed}{why}"), file=sys.stderr)


@click.command("get")
@_options_of_copies
@click.argument("words", nargs=-1, required=True, metavar=f"{_URL}... [LOCAL]")
def get(words: tuple[str, ...], **options: Any) -> int:
    """Copy files of shares to this machine: into LOCAL if it is a folder, or under that name. Default: here.

    LOCAL with a slash at its end has to be a folder. No two files get the same name.

    A file appears when it is complete. What was copied of it until an interruption stays beside it (NAME.*.part), and
    --continue goes on from there. Patterns: * ? [...] and ** for any folders.

    As after cp(1), this machine may not have written all to its disk yet: run sync(1) before you remove a source.

    \b
    Examples:
      smb3server client get smb://alice@nas/data/big.iso
      smb3server client get -r --continue smb://alice@nas/data/photos /backup
      smb3server client get 'smb://alice@nas/data/**/*.pdf' papers/ -j 8

    Exit status: 0 all was copied, 1 something was not, 2 wrong usage, 3 the server cannot be reached, 130 interrupted.
    """
    from smb3server.client.address import is_remote

    sources, target = (words, ".") if is_remote(words[-1]) else (words[:-1], words[-1])
    if not sources or not all(map(is_remote, sources)):
        raise click.UsageError("get copies from shares; put copies to them")
    return _copy_named(options, sources, target)


@click.command("put")
@_options_of_copies
@click.argument("source", nargs=-1, required=True, metavar="LOCAL")
@click.argument("target", metavar=_URL)
def put(source: tuple[str, ...], target: str, **options: Any) -> int:
    """Copy files of this machine to a share: into a folder of it, or under a new name.

    A file appears under its name when it is complete and the server has written it to its disk: none is cut off or
    empty, whether the client, the server or its machine ends. A machine that loses power may forget the last names.

    \b
    Examples:
      smb3server client put report.pdf smb://alice@nas/data/
      smb3server client put -r --continue photos smb://alice@nas/data/backup

    Exit status: 0 all was copied, 1 something was not, 2 wrong usage, 3 the server cannot be reached, 130 interrupted.
    """
    from smb3server.client.address import is_remote

    if not is_remote(target) or any(map(is_remote, source)):
        raise click.UsageError("put copies from this machine to a share; get copies from one, and cp between two")
    return _copy_named(options, source, target)


@click.command("cp")
@_options_of_copies
@click.argument("source", nargs=-1, required=True, metavar="SOURCE")
@click.argument("target", metavar="TARGET")
def cp(source: tuple[str, ...], target: str, **options: Any) -> int:
    """Copy files: within a share (the server does it, no data travels), between shares, from a share or to it.

    \b
    Examples:
      smb3server client cp smb://alice@nas/data/a.img smb://alice@nas/data/b.img
      smb3server client cp -r smb://alice@old/data/films smb://alice@new/films

    Exit status: 0 all was copied, 1 something was not, 2 wrong usage, 3 the server cannot be reached, 130 interrupted.
    """
    return _copy_named(options, source, target)


@click.command("sync")
@connection_options
@compress_option
@click.option("--delete", is_flag=True, help="Remove what the source does not have.")
@click.option("--checksum", is_flag=True, help="Compare the content of files of one size, and not their times.")
@click.option(
    "--modify-window",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Take times that differ by this much for the same.",
)
@_copy_options
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
def sync(source: str, target: str, delete: bool, checksum: bool, modify_window: float, **options: Any) -> int:
    """Make the folder TARGET the copy of the folder SOURCE; one of them, or both, are of shares.

    Files whose copy has their size and time are left out; on FAT, which counts in 2 seconds, times may differ by that.
    Nothing outside TARGET is ever changed. With --delete, nothing is removed before everything is copied, and nothing
    at all if something could not be copied; what --exclude leaves out stays, and so do the folders that have it.

    \b
    Examples:
      smb3server client sync --delete --dry-run ~/photos smb://alice@nas/data/photos
      smb3server client sync smb://alice@nas/data/mail ./mail --exclude '*.tmp' --exclude cache/

    Exit status: 0 the copy is complete, 1 it is not, 2 wrong usage, 3 the server cannot be reached, 130 interrupted.
    """
    how = _options(
        options,
        recursive=True,
        resume=True,
        only_changed=True,
        mirror=True,
        checksum=checksum,
        delete=delete,
        window_ns=int(modify_window * 1_000_000_000),
    )

    async def find(shares: Shares) -> list[_Entry]:
        from smb3server.client.address import is_remote
        from smb3server.client.places import Kind, LocalPlace

        if not is_remote(source) and not is_remote(target):
            raise CommandError("both are of this machine; rsync(1) copies those", EXIT_USAGE)
        places: list[Place] = [
            await shares.place(address_of(text)) if is_remote(text) else LocalPlace(Path(text))
            for text in (source, target)
        ]
        folder = await places[0].look("")
        if folder is None or folder.kind is not Kind.FOLDER:
            raise CommandError(f"{shown(source)}: not a folder")
        return [(places[0], folder, places[1], "")]

    return _copy(options, how, find)
