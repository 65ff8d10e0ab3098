"""``smb3server client ls``, ``tree``, ``stat``, ``du``, ``cat`` and ``watch``: look at a share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from smb3server.cli.client.options import Shares, compress_option, connection_options, run, shown, take
from smb3server.process.words import amount

if TYPE_CHECKING:
    from smb3server.client.entries import Entry
    from smb3server.client.share import Share
    from smb3server.client.share_list import ListedShare

_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
_human = click.option("-h", "--human", is_flag=True, help="Sizes in KiB, MiB and GiB.")
_URL = "smb://[USER@]HOST[:PORT]/SHARE/PATH"


def _json_text(value: dict[str, Any]) -> str:
    # Who prints names does not pay for the import.
    import json

    return json.dumps(value)


def facts(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON has it."""
    return {
        "path": entry.path,
        "type": "folder" if entry.is_dir() else "link" if entry.is_symlink() else "file",
        "size": entry.size,
        "allocated": entry.allocated,
        "attributes": entry.letters,
        "created": entry.created_ns / 1e9,
        "modified": entry.modified_ns / 1e9,
    }


def _line(entry: Entry, name: str, human: bool) -> str:
    size = amount(entry.size) if human else str(entry.size)
    when = entry.modified.astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{entry.letters or '-':<6} {size:>14} {when}  {name}"


def _name(entry: Entry, name: str) -> str:
    return shown(name) + ("/" if entry.is_dir() else "@" if entry.is_symlink() else "")


@click.command("ls")
@connection_options
@click.option("-l", "--long", is_flag=True, help="Attributes, size and time, too.")
@click.option("-R", "--recursive", is_flag=True, help="What is below folders, too.")
@_human
@_json
@click.argument("address", nargs=-1, required=True, metavar=_URL)
def ls(address: tuple[str, ...], long: bool, recursive: bool, human: bool, as_json: bool, **options: Any) -> int:
    """List folders. A path may have patterns: * ? [...] and ** for any folders. Without a share, list the shares.

    \b
    Examples:
      smb3server client ls smb://alice@nas
      smb3server client ls smb://alice@nas/data
      smb3server client ls -lh 'smb://alice@nas/data/films/*.mkv'
      smb3server client ls -R --json //nas/data -U alice

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """

    def show(entry: Entry, name: str) -> None:
        if as_json:
            print(_json_text(facts(entry)))
        else:
            print(_line(entry, _name(entry, name), human) if long else _name(entry, name))

    def show_shares(found: list[ListedShare]) -> None:
        for share in found:
            if as_json:
                print(_json_text({"share": share.name, "type": share.kind, "remark": share.remark}))
            elif long:
                print(f"{share.kind:<8} {shown(share.name):<24} {shown(share.remark)}".rstrip())
            elif not share.hidden:
                print(f"{shown(share.name)}/")

    async def work(shares: Shares) -> int:
        for text in address:
            listed = await shares.of_server(text)
            if listed is not None:
                show_shares(listed)
                continue
            for share, path in await shares.expand(text):
                found = await share.stat(path)
                if not found.is_dir():
                    show(found, path)
                elif recursive:
                    async for _, folders, files in share.walk(path):
                        for entry in sorted([*folders, *files], key=lambda entry: entry.name):
                            show(entry, entry.path)
                else:
                    entries = [entry async for entry in share.scandir(path)]
                    for entry in sorted(entries, key=lambda entry: entry.name):
                        show(entry, entry.name)
        return shares.listed_all

    return run(take(options), work)


@click.command("tree")
@connection_options
@click.option("-L", "--depth", type=click.IntRange(1), metavar="N", help="Folders deep. Default: all.")
@click.argument("address", metavar=_URL)
def tree(address: str, depth: int | None, **options: Any) -> int:
    """Draw a folder and what is below it.

    \b
    Example:
      smb3server client tree -L 2 smb://alice@nas/data

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """
    counts = [0, 0]

    async def draw(share: Share, path: str, lead: str, left: int | None) -> None:
        entries = sorted([entry async for entry in share.scandir(path)], key=lambda entry: entry.name)
        for number, entry in enumerate(entries, 1):
            last = number == len(entries)
            counts[0 if entry.is_dir() else 1] += 1
            print(f"{lead}{'└── ' if last else '├── '}{_name(entry, entry.name)}")
            if entry.is_dir() and left != 1:
                await draw(share, entry.path, lead + ("    " if last else "│   "), left and left - 1)

    async def work(shares: Shares) -> int:
        for share, path in await shares.expand(address):
            print(shown(f"{share.address}/{path}".rstrip("/")))
            await draw(share, path, "", depth)
        print(f"{counts[0]} folders, {counts[1]} files")
        return shares.listed_all

    return run(take(options), work)


@click.command("stat")
@connection_options
@_json
@click.argument("address", nargs=-1, required=True, metavar=_URL)
def stat(address: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Show what is known of files and folders, and how the share is reached.

    \b
    Example:
      smb3server client stat smb://alice@nas/data/films/big.mkv

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """

    async def work(shares: Shares) -> None:
        for text in address:
            for share, path in await shares.expand(text):
                entry = await share.stat(path)
                if as_json:
                    transport = {"transport": share.transport, "why_not_rdma": share.why_not_rdma}
                    print(_json_text(facts(entry) | transport))
                    continue
                why = f"; no RDMA: {share.why_not_rdma}" if share.why_not_rdma else ""
                print(f"{_name(entry, entry.path or '.')}")
                print(f"  size        {entry.size} bytes ({amount(entry.size)}), {entry.allocated} on disk")
                print(f"  attributes  {entry.letters or '-'}")
                print(f"  modified    {entry.modified.astimezone().isoformat(sep=' ')}")
                print(f"  created     {entry.created.astimezone().isoformat(sep=' ')}")
                print(f"  reached by  {share.transport}{why}")

    return run(take(options), work)


@click.command("du")
@connection_options
@click.option("-s", "--summarize", is_flag=True, help="Only a line for each argument.")
@_human
@_json
@click.argument("address", nargs=-1, required=True, metavar=_URL)
def du(address: tuple[str, ...], summarize: bool, human: bool, as_json: bool, **options: Any) -> int:
    """Add up the sizes of the files in folders, and below them.

    \b
    Example:
      smb3server client du -sh 'smb://alice@nas/data/*'

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """

    def show(path: str, size: int, files: int) -> None:
        if as_json:
            print(_json_text({"path": path, "size": size, "files": files}))
        else:
            print(f"{amount(size) if human else size:>14}  {shown(path or '.')}")

    async def add(share: Share, path: str, top: bool) -> tuple[int, int]:
        size = files = 0
        async for entry in share.scandir(path):
            more = await add(share, entry.path, False) if entry.is_dir() else (entry.size, 1)
            size, files = size + more[0], files + more[1]
        if top or not summarize:
            show(path, size, files)
        return size, files

    async def work(shares: Shares) -> int:
        for text in address:
            for share, path in await shares.expand(text):
                entry = await share.stat(path)
                if entry.is_dir():
                    await add(share, path, True)
                else:
                    show(path, entry.size, 1)
        return shares.listed_all

    return run(take(options), work)


@click.command("cat")
@connection_options
@compress_option
@click.argument("address", nargs=-1, required=True, metavar=_URL)
def cat(address: tuple[str, ...], **options: Any) -> int:
    """Write files to stdout.

    \b
    Example:
      smb3server client cat smb://alice@nas/data/backup.tar.zst | zstd -d | tar x

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """

    async def work(shares: Shares) -> None:
        for text in address:
            for share, path in await shares.expand(text):
                async with await share.open(path) as file:
                    while data := await file.read(16 << 20):
                        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    return run(take(options), work, moves_data=True)


@click.command("watch")
@connection_options
@click.option("-r", "--recursive", is_flag=True, help="What is below the folder, too.")
@_json
@click.argument("address", metavar=_URL)
def watch(address: str, recursive: bool, as_json: bool, **options: Any) -> int:
    """Print the changes in a folder as they happen, until interrupted.

    The line "overflow" says that some changes were missed: more happened than the server could tell, or the connection
    was lost.

    \b
    Example:
      smb3server client watch -r smb://alice@nas/data/incoming

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """

    async def work(shares: Shares) -> None:
        (found,) = await shares.expand(address)
        share, path = found
        async for change in share.watch(path, recursive=recursive):
            if as_json:
                print(_json_text({"action": change.action, "path": change.path}), flush=True)
            else:
                print(f"{change.action:<13} {shown(change.path)}", flush=True)

    return run(take(options), work)
