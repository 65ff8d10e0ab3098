"""Serve a folder from a Python program: ``python serve_a_folder.py FOLDER PORT USER:PASSWORD``."""

from __future__ import annotations

import asyncio
import sys

from smb3server.config.command_line.arguments import parse_arguments
from smb3server.service.service import Service


async def main(folder: str, port: str, user: str) -> None:
    options = ["--share", f"data={folder}", "--user", user, "--listen", "127.0.0.1", "--port", port]
    service = Service(parse_arguments(options))
    await service.start()
    print("serving at", *service.addresses(), flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await service.stop()


asyncio.run(main(*sys.argv[1:4]))
