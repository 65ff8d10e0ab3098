"""``python -m tools.kernel_lab.holder HOST PORT``: a client of ours, over verbs, that stays connected.

For cases in which a connection is cut: Linux 6.12's own client hangs then over rxe. Prints a line when it is connected
and one when the connection ended, with the reason.
"""

from __future__ import annotations

import asyncio
import sys

from smb3server.client import Client, open_rdma
from smbdirect.providers.verbs.provider import VerbsProvider

PATIENCE = 120.0
"""Seconds until somebody must have cut the connection."""


async def hold(host: str, port: int) -> None:
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
