"""``python -m tools.kernel_lab.holder HOST PORT``: run a client of ours, over verbs, that stays connected.

It is for cases in which a connection is cut: Linux 6.12's own client then hangs over rxe. It prints a line when it is
connected, and one with the reason when the connection has ended.
"""

from __future__ import annotations

import asyncio
import sys

from smb3server.client.protocol import Client, open_rdma
from smbdirect.providers.verbs.provider import VerbsProvider

PATIENCE = 120.0
"""Seconds after which the holder gives up if the connection was not cut."""


async def hold(host: str, port: int) -> None:
    """Connect and wait until the connection ends."""
    provider = VerbsProvider()
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    client = await Client.connect(await open_rdma(provider, host, port))
    client.on_closed = ended.set_result
    await (await client.log_on("u", "pw")).tree_connect("share")
    print("connected", flush=True)
    async with asyncio.timeout(PATIENCE):
        print(f"ended: {await ended}", flush=True)


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], int(sys.argv[2])))
