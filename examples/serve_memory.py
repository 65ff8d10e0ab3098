"""Serve a store of the program's own, here one in memory: ``python serve_memory.py PORT USER:PASSWORD``."""

from __future__ import annotations

import asyncio
import sys
import tempfile

from smb3server.backends.memory.backend import MemoryBackend
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.service.service import Service


async def main(port: str, user: str) -> None:
    # A server without a folder takes a configuration file, which may be empty.
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        options = ["--config", file.name, "--user", user, "--listen", "127.0.0.1", "--port", port]
        service = Service(parse_arguments(options))
    await service.start()
    service.add_store("memory", MemoryBackend(capacity=64 << 20))
    print("serving at", *service.addresses(), flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await service.stop()


asyncio.run(main(*sys.argv[1:3]))
