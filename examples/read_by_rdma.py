"""Read a file of a share by RDMA, and say what carried it: ``python read_by_rdma.py smb://alice@nas/data/big.bin``."""

from __future__ import annotations

import asyncio
import sys
import time

from smb3server.client import connect


async def main(url: str) -> None:
    folder, _, name = url.rpartition("/")
    async with connect(folder, rdma="prefer", channels=2) as share:
        began = time.monotonic()
        data = await share.read_bytes(name)
        seconds = time.monotonic() - began
        print(f"{len(data)} bytes in {seconds:.3f} s by {share.transport}")
        if not share.uses_rdma:
            print(f"not by RDMA: {share.why_not_rdma}")


asyncio.run(main(sys.argv[1]))
