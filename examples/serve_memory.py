"""Serve a store of the program's own, here one in memory: ``python serve_memory.py PORT USER:PASSWORD``."""

from __future__ import annotations

import asyncio
import sys

from smb3server.backends.memory.backend import MemoryBackend
from smb3server.service import Service, User


async def main(port: str, account: str) -> None:
    name, _, password = account.partition(":")
    service = Service(users=[User(name, password=password)], listen=["127.0.0.1"], port=int(port))
    service.add_store("memory", MemoryBackend(capacity=64 << 20))
    async with service:
        print("serving at", *service.addresses(), flush=True)
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:3]))
