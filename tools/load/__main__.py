"""``python -m tools.load [--seconds N] [--operations N] [--clients N] [--seed N]``: random load with verified content.

A server in this process serves a temporary folder to clients of our own, over TCP and SMB Direct (software iWARP) in
turn. They read, write, truncate, zero, copy, rename, delete and list the same files. Every answer is compared with a
model, and at the end every byte. The seed is printed: the same seed chooses the same operations. Exit status 1 means a
mismatch.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.local.backend import LocalBackend
from smb3server.client.protocol import Client, open_rdma, open_tcp
from smb3server.commands import load as load_commands
from smb3server.net.listener import TcpListener
from smb3server.process import output
from smb3server.server.server import Server
from smb3server.settings.server import Settings
from smb3server.state.share import Share
from smbdirect.providers.iwarp.provider import IwarpProvider
from smbdirect.transport.listen import listen
from tools.load.worker import FOLDER, Ground, Mismatch, Worker

_DIALECTS = (0x0202, 0x0210, 0x0300, 0x0302, 0x0311)


async def load(folder: Path, clients: int, operations: int, seconds: float, seed: int, names: int = 8) -> Ground:
    """Run the load and return what was done. Raises ``Mismatch``."""
    users = UserDatabase()
    users.add(Account("load", nt_hash("load")))
    load_commands()
    server = Server(Settings(), users)
    server.add_share(Share("share", backend=LocalBackend(folder)))
    limit = server.settings.max_message_before_authentication
    listener = TcpListener("127.0.0.1", 0, server.buffers, server.accept, limit)
    rdma = await listen(IwarpProvider(), "127.0.0.1", 0, server.accept)
    connections: list[Client] = []
    ground = Ground(names)
    crew: list[Worker] = []
    try:
        for number in range(clients):
            if number % 2:
                transport = await open_rdma(IwarpProvider(), "127.0.0.1", rdma.address[1])
            else:
                transport = await open_tcp("127.0.0.1", listener.address[1])
            client = await Client.connect(transport, _DIALECTS)
            connections.append(client)
            tree = await (await client.log_on("load", "load")).tree_connect("share")
            kind = "iwarp" if number % 2 else "tcp"
            crew.append(Worker(f"client {number} ({kind})", tree, ground, seed + number))
        for worker in crew:
            worker.crew = crew
        await crew[0].tree.make_directory(FOLDER)
        deadline = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for worker in crew:
                group.create_task(worker.run(operations, deadline))
        for worker in crew:
            await worker.close()
            await worker.verify()
            await worker.close()
    finally:
        for client in connections:
            await client.close()
        await listener.close()
        await rdma.close()
        await server.shutdown(2)
    return ground


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.load", description="Random load with verified content.")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--operations", type=int, default=1 << 62, help="per client")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    ground: Ground | None = None
    try:
        with tempfile.TemporaryDirectory() as folder:
            work = load(Path(folder), options.clients, options.operations, options.seconds, options.seed)
            ground = asyncio.run(work)
    except* Mismatch as group:
        for error in group.exceptions:
            print(f"MISMATCH {error}")
    if ground is None:
        return 1
    total = sum(ground.done.values())
    print(f"{total} operations in {time.monotonic() - began:.0f} s, all content verified")
    print(", ".join(f"{name} {count}" for name, count in ground.done.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
