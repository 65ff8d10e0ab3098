"""Two users of the host at one folder of it, for tests in which the kernel has a say, too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.auth.users import Account, nt_hash
from smb3server.backends.base import User
from smb3server.backends.local.backend import LocalBackend
from tests.lab.rights import Actor
from tests.lab.shares import share_of
from tests.lab.wire_client import running

ALICE, BOB = User(54321, 54321, (54323,)), User(54322, 54322)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")


def run(folder: Path, test: Callable[[Actor, Actor, LocalBackend], Awaitable[None]], **share: Any) -> None:
    """``test`` gets Alice and Bob, both in the share's root, and its store."""
    for above in (folder, *folder.parents):
        if above != Path("/"):
            above.chmod(above.stat().st_mode | 0o755)
    folder.chmod(0o777)

    async def body() -> None:
        async with running() as harness:
            backend = LocalBackend(folder)
            harness.server.add_share(share_of("disk", backend, **share))
            actors = []
            for name, user in (("alice", ALICE), ("bob", BOB)):
                harness.server.users.add(Account(name, nt_hash("pw"), user))
                client = await harness.connect()
                await client.negotiate()
                assert (await client.session_setup(name)).status == 0
                assert (await client.tree_connect("disk")).status == 0
                actors.append(Actor(client, ""))
            try:
                await test(actors[0], actors[1], backend)
            finally:
                for entry in list(harness.server.opens.by_id.values()):
                    harness.server.opens.close(entry)
                backend.close()

    asyncio.run(body())
