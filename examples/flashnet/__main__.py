"""The programs: ``python examples/flashnet --help``."""

import argparse
import asyncio
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import benches

from flashnet import Lender, connect
from smbdirect import rdma
from smbdirect.errors import SmbDirectError

PIECE = 1 << 20


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flashnet", description="Files by one-sided RDMA. See docs/flashnet.md.")
    parser.add_argument("--fabric", default="iwarp", choices=("iwarp", "roce"))
    parser.add_argument("--address", type=_address, default=("127.0.0.1", 4200), help="HOST:PORT, 127.0.0.1:4200")
    parser.add_argument("--verbose", "-v", action="store_true")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="lend the files of a folder to everybody who can connect")
    serve.add_argument("folder", type=Path)
    serve.add_argument("--read-only", action="store_true")
    commands.add_parser("read", help="write a file of the server to stdout").add_argument("path")
    commands.add_parser("write", help="write stdin to a file of the server, and to its disk").add_argument("path")
    bench = commands.add_parser("bench", help="compare with sockets, SMB and SMB Direct")
    benches.add_arguments(bench, "flashnet")
    bench.add_argument("--seconds", type=float, default=1.0, help="for one way, size and round; default: %(default)s")
    bench.add_argument("--serve", nargs=2, metavar=("ROLE", "FOLDER"), help="be one of the servers")
    return parser


async def _serve(options: argparse.Namespace) -> None:
    lender = Lender(options.folder, options.read_only)
    try:
        async with rdma.listen(options.fabric, *options.address) as listener:
            print("lending at {}:{}".format(*listener.address), flush=True)
            await lender.serve(listener)
    finally:
        lender.close()


async def _read(options: argparse.Namespace) -> None:
    async with connect(options.fabric, *options.address) as client:
        file = await client.open(options.path)
        for offset in range(0, file.size, PIECE):
            sys.stdout.buffer.write(await file.read(offset, min(PIECE, file.size - offset)))
        sys.stdout.buffer.flush()


async def _write(options: argparse.Namespace) -> None:
    data = memoryview(sys.stdin.buffer.read())
    async with connect(options.fabric, *options.address) as client:
        file = await client.open(options.path, writable=True, size=len(data))
        if file.size > len(data):
            raise OSError(f"{options.path} is longer than what is written: remove it first")
        for offset in range(0, len(data), PIECE):
            await file.write(offset, data[offset : offset + PIECE])
        await file.flush()


async def _bench(options: argparse.Namespace) -> None:
    from flashnet import bench  # loads the SMB server and client

    if options.serve:
        await bench.serve(*options.serve)
    else:
        await bench.run(options)


async def _run(options: argparse.Namespace) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await {"serve": _serve, "read": _read, "write": _write, "bench": _bench}[options.command](options)


def main() -> None:
    """Run the command line."""
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING)
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(_run(options))
    except (OSError, SmbDirectError) as error:
        sys.exit(f"flashnet: {error}")


if __name__ == "__main__":
    main()
