"""``smb3server client bench``: how fast a share is written and read, and what carries the data."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from smb3server.cli.client.options import (
    Shares,
    address_of,
    compress_option,
    connection_options,
    run,
    shown,
    take,
)
from smb3server.process import words


@click.command("bench")
@connection_options
@compress_option
@click.option(
    "--size", type=click.IntRange(1), default=256, show_default=True, metavar="MIB", help="Of the file, in MiB."
)
@click.option("--json", "as_json", is_flag=True, help="JSON.")
@click.argument("address", metavar="smb://[USER@]HOST[:PORT]/SHARE/FOLDER")
def bench(address: str, size: int, as_json: bool, **options: Any) -> int:
    """Write a temporary file, read it and remove it; say how fast that was and over which fabric the bytes went.

    \b
    Examples:
      smb3server client bench smb://alice@nas/data
      smb3server client bench --rdma=off smb://alice@nas/data --size 1024
      smb3server client bench --compress smb://alice@nas/data

    The data is random. With --compress half of it shrinks, so that there is something to compress.

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
    """

    compress = options["compress"]

    async def work(shares: Shares) -> None:
        import os
        import secrets

        from smb3server.wire.attributes import TEMPORARY

        where = address_of(address)
        began = time.monotonic()
        share = await shares.at(where)
        connected = time.monotonic() - began
        name = f"{where.path}/.smb3server-bench-{secrets.token_hex(8)}.tmp".lstrip("/")
        # Random data cannot be compressed by what is between here and the disk; 16 MiB of it are enough for that.
        # With compression every other KiB is one line again and again.
        block = os.urandom(16 << 20)
        if compress:
            block = b"".join(os.urandom(1024) + os.urandom(64) * 16 for _ in range(8 << 10))
        amount = size << 20
        figures: dict[str, float] = {}
        try:
            async with await share.open(name, "xb") as file:
                # A share's recycle folder does not keep such a file.
                await share.set_attributes(name, TEMPORARY)
                began = time.monotonic()
                for at in range(0, amount, len(block)):
                    await file.write(memoryview(block)[: amount - at])
                figures["write"] = amount / (time.monotonic() - began)
            async with await share.open(name) as file:
                began = time.monotonic()
                while await file.read(len(block)):
                    pass
                figures["read"] = amount / (time.monotonic() - began)
            began = time.monotonic()
            for _ in range(100):
                await share.stat(name)
            figures["stat"] = 100 / (time.monotonic() - began)
        finally:
            await share.remove(name)
        if as_json:
            moved = {kind: {"written": written, "read": read} for kind, (written, read) in share.moved.items()}
            found = {
                "transport": share.transport,
                "why_not_rdma": share.why_not_rdma,
                "bytes": amount,
                "connect_seconds": connected,
                "write_bytes_per_second": figures["write"],
                "read_bytes_per_second": figures["read"],
                "stats_per_second": figures["stat"],
                "compressed": dict(zip(("bytes", "as"), share.compressed, strict=True)),
                "moved": moved,
            }
            print(json.dumps(found))
            return
        print(f"reached by  {share.transport}, in {connected * 1000:.0f} ms")
        if share.why_not_rdma:
            print(f"no RDMA     {shown(share.why_not_rdma)}")
        print(f"write       {words.amount(figures['write'])}/s")
        print(f"read        {words.amount(figures['read'])}/s")
        print(f"stat        {figures['stat']:.0f}/s, one after the other")
        before, after = share.compressed
        if before:
            print(f"compressed  {words.amount(before)} travelled as {words.amount(after)}")
        for kind, (written, read) in share.moved.items():
            if not written and not read:
                continue
            carrier = {"tcp": "TCP", "messages": "messages over SMB Direct"}.get(kind, f"RDMA ({kind})")
            print(f"carried by  {carrier}: {words.amount(written)} written, {words.amount(read)} read")

    return run(take(options), work, moves_data=True)
