"""A store that takes everything."""

from __future__ import annotations

import asyncio

from smb3server.persistence.store import Put


class FakeStore:
    """Takes everything."""

    def __init__(self) -> None:
        self.put: list[Put] = []

    def submit(self, operations: list[Put]) -> asyncio.Future[int]:
        self.put += operations
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(1)
        return done
