"""``python -m tools.kernel_lab.holder HOST PORT``: a client of ours, over verbs, that wants to stay connected.

For cases in which a connection is cut: Linux 6.12's own client does not survive that over rxe. Prints a line when it is
connected, when the connection ended (with the reason), and when it is connected again; then ends.
"""

from __future__ import annotations

import asyncio
import sys

from smb3server.client import Client, open_rdma
from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.verbs.provider import VerbsProvider

PATIENCE = 120.0
"""Seconds for each step."""


async def connect(provider: VerbsProvider, host: str, port: int) -> Client:
    """Logs on and asks something. Tries until it works; raises ``TimeoutError``."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                client = await Client.connect(await open_rdma(provider, host, port))
                await (await client.log_on("u", "pw")).tree_connect("share")
            except (OSError, ConnectionLost, ProviderError):
                await asyncio.sleep(1.0)
            else:
                return client


async def hold(host: str, port: int) -> None:
    provider = VerbsProvider()
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    client = await connect(provider, host, port)
    client.on_closed = ended.set_result
    print("connected", flush=True)
    async with asyncio.timeout(PATIENCE):
        print(f"ended: {await ended}", flush=True)
    client = await connect(provider, host, port)
    print("connected again", flush=True)
    await asyncio.sleep(PATIENCE)
    await client.close()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], int(sys.argv[2])))
