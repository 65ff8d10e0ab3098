"""Serve a folder from a Python program: ``python serve_a_folder.py FOLDER PORT USER:PASSWORD``."""

from __future__ import annotations

import asyncio
import getpass
import sys

from smb3server.service import Service, Share, User


async def main(folder: str, port: str, account: str) -> None:
    name, _, password = account.partition(":")
    async with Service(
        # Clients act as the user who runs this program.
        shares=[Share("data", folder, force_user=getpass.getuser())],
        users=[User(name, password=password)],
        listen=["127.0.0.1"],
        port=int(port),
    ) as service:
        print("serving at", *service.addresses(), flush=True)
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:4]))
