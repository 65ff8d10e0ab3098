"""The programs of the store: ``python examples/rstore --help``."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rstore import RegionGone, RegionLost, StoreRefused, bench, connect
from rstore.master import Master
from rstore.memory_server import MemoryServer
from smb3server.net.store_url import parse_url
from smb3server.persistence import etcd, sqlite
from smb3server.persistence.store import Store
from smbdirect.errors import SmbDirectError


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _size(text: str) -> int:
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1].upper()] if text[-1:].upper() in units else int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rstore", description="A store of named memory regions. See docs/rstore.md.")
    parser.add_argument("--fabric", default="iwarp", help="iwarp, roce or verbs")
    parser.add_argument("--master", type=_address, default=("127.0.0.1", 4100), help="HOST:PORT, 127.0.0.1:4100")
    parser.add_argument("--verbose", "-v", action="store_true")
    parser.add_argument("--until-eof", action="store_true", help="a server ends with its standard input")
    commands = parser.add_subparsers(dest="command", required=True)
    master = commands.add_parser("master", help="names and allocation")
    master.add_argument("--state", default="rstore.sqlite", help="an SQLite file, or etcd://HOST:PORT")
    serve = commands.add_parser("serve", help="lend this machine's memory")
    serve.add_argument("--address", type=_address, default=("127.0.0.1", 0), help="HOST:PORT for clients")
    serve.add_argument("--memory", type=_size, default=256 << 20, help="bytes; 512M, 4G. Default 256M")
    commands.add_parser("ls", help="list servers and regions")
    create = commands.add_parser("create", help="make a region")
    create.add_argument("name")
    create.add_argument("size", type=_size)
    create.add_argument("--copies", type=int, default=1)
    for command, text in (("put", "make a region of a file"), ("get", "write a region to a file")):
        one = commands.add_parser(command, help=text)
        one.add_argument("name")
        one.add_argument("file", type=Path)
        one.add_argument("--copies", type=int, default=1)
    commands.add_parser("rm", help="free a region").add_argument("name")
    bench.add_arguments(commands.add_parser("bench", help="compare with Redis and memcached"))
    return parser


async def _store(state: str) -> Store:
    if state.startswith(("etcd://", "http://", "https://")):
        return etcd.EtcdStore(parse_url(state))
    return await sqlite.SqliteStore.open(Path(state))


def _show(address: tuple[str, int]) -> None:
    print(f"master at {address[0]}:{address[1]}", flush=True)


async def _until_stopped(work: "asyncio.Task[None]", until_eof: bool) -> None:
    if until_eof:
        asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 1 << 16) or work.cancel())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    with suppress(asyncio.CancelledError):
        await work


async def _run(options: argparse.Namespace) -> None:
    if options.command == "master":
        store = await _store(options.state)
        try:
            master = Master(store)
            work = master.serve(options.fabric, options.master[0], options.master[1], _show)
            await _until_stopped(asyncio.create_task(work), options.until_eof)
        finally:
            await store.close()
        return
    if options.command == "serve":
        server = MemoryServer(options.fabric, options.memory)
        print(f"lending {server.capacity >> 20} MiB", flush=True)
        work = server.serve(options.address[0], options.address[1], options.master)
        await _until_stopped(asyncio.create_task(work), options.until_eof)
        return
    async with connect(options.fabric, *options.master) as client:
        if options.command == "ls":
            for entry in await client.servers():
                print(f"server {entry['server']} {entry['address'][0]}:{entry['address'][1]} "
                      f"{entry['used'] >> 20} of {entry['capacity'] >> 20} MiB")  # fmt: skip
            for entry in await client.regions():
                print(f"region {entry['name']} {entry['size']} bytes, {entry['columns']} columns, "
                      f"{entry['copies']} copies, {entry['state']}")  # fmt: skip
        elif options.command == "create":
            await client.create(options.name, options.size, copies=options.copies)
        elif options.command == "put":
            data = options.file.read_bytes()
            await (await client.create(options.name, len(data), copies=options.copies)).write(data)
        elif options.command == "get":
            region = await client.map(options.name)
            options.file.write_bytes(await region.read(0, len(region)))
        else:
            await client.free(options.name)


def main() -> int:
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, format="%(message)s")
    try:
        if options.command == "bench":
            bench.run(options)
        else:
            asyncio.run(_run(options))
    except (RegionGone, RegionLost, StoreRefused, FileExistsError, SmbDirectError, OSError, ValueError) as error:
        print(f"rstore: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
