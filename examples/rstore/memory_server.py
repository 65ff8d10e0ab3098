"""A memory server: lends its memory by extents. The data path never enters this program."""

from __future__ import annotations

import asyncio
import logging
import mmap
import secrets
from contextlib import suppress
from dataclasses import dataclass

from rstore.calls import MESSAGE_SIZE, RECEIVES, Answers, Calls, StoreRefused
from smbdirect import rdma

log = logging.getLogger(__name__)

PAGE = 4096
RETRY = 0.5
"""Seconds between two attempts to reach the master."""


@dataclass
class _Lent:
    offset: int
    length: int
    region: rdma.Region


class MemoryServer:
    """The memory of one server, and who has which part of it."""

    def __init__(self, fabric: rdma.endpoints.Fabric, capacity: int, private: bool = False) -> None:
        """``private``: only regions that name this server are placed here."""
        self.fabric = fabric
        self.private = private
        self.identity = secrets.token_hex(8)
        """Of this process: a server that starts again is another one, since its memory is empty."""
        self.capacity = capacity // PAGE * PAGE
        self.lent: dict[str, _Lent] = {}
        self.address = ("", 0)
        self._memory = memoryview(mmap.mmap(-1, self.capacity))
        self._free = [(0, self.capacity)]
        """(offset, length) of what is not lent. Invariant: ascending, and no two touch each other."""
        self._domain = rdma.domain(fabric)

    # -- what the master asks ---------------------------------------------------------------------------------

    async def lend(self, name: str, length: int) -> str:
        """Reserve an extent of zeros, and return its handle."""
        return self._lend(name, length).region.handle.pack().hex()

    def _lend(self, name: str, length: int) -> _Lent:
        if name in self.lent:
            raise StoreRefused("exists", f"extent {name} is there")
        size = -(-length // PAGE) * PAGE
        for index, (offset, room) in enumerate(self._free):
            if room >= size:
                self._free[index : index + 1] = [(offset + size, room - size)] if room > size else []
                break
        else:
            raise StoreRefused("full", f"no {length} bytes in one piece")
        # Whoever had these bytes before is not read by whoever has them now.
        self._memory[offset : offset + size] = bytes(size)
        self.lent[name] = made = _Lent(offset, size, self._register(offset, length))
        return made

    def _register(self, offset: int, length: int) -> rdma.Region:
        return self._domain.register(self._memory[offset : offset + length], readable=True, writable=True)

    async def take_back(self, name: str) -> None:
        """End all access to an extent, then reuse its memory. An unknown one is no error: a request may come twice."""
        lent = self.lent.pop(name, None)
        if lent is None:
            return
        lent.region.close()
        pieces = sorted([*self._free, (lent.offset, lent.length)])
        self._free = []
        for offset, length in pieces:
            if self._free and sum(self._free[-1]) == offset:
                start, before = self._free.pop()
                offset, length = start, before + length
            self._free.append((offset, length))

    async def renew(self, name: str) -> str:
        """Give an extent another handle. The old one is refused from now on: this fences whoever has it."""
        lent = self.lent.get(name)
        if lent is None:
            raise StoreRefused("gone", f"no extent {name}")
        length = len(lent.region.memory)
        lent.region.close()
        lent.region = self._register(lent.offset, length)
        return lent.region.handle.pack().hex()

    async def fetch(self, name: str, length: int, host: str, port: int, handle: str) -> str:
        """Reserve an extent, and fill it with a copy of another server's, which this one reads one-sided."""
        lent = self._lend(name, length)
        try:
            async with rdma.connect(self.fabric, host, port) as connection:
                await connection.read(rdma.Handle.unpack(bytes.fromhex(handle)), lent.region.memory)
        except (rdma.ConnectionLost, rdma.RdmaError) as error:
            await self.take_back(name)
            raise StoreRefused("lost", f"no copy from {host}:{port}: {error}") from error
        return lent.region.handle.pack().hex()

    async def keep_only(self, names: list[str]) -> None:
        """Take back every extent that the master does not know."""
        for name in set(self.lent) - set(names):
            await self.take_back(name)

    # -- running ----------------------------------------------------------------------------------------------

    async def serve(self, host: str, port: int, master: tuple[str, int]) -> None:
        """Serve until cancelled. Clients connect to ``host`` and ``port`` for the data path."""
        async with rdma.listen(self.fabric, host, port, domain=self._domain) as listener:
            self.address = listener.address
            joining = asyncio.create_task(self._stay_joined(master))
            try:
                # One-sided transfers need nothing of this loop but to keep the connections.
                connections = [connection async for connection in listener]
                del connections
            finally:
                joining.cancel()
                with suppress(asyncio.CancelledError):
                    await joining

    async def _stay_joined(self, master: tuple[str, int]) -> None:
        answers: Answers = {
            "lend": self.lend,
            "take_back": self.take_back,
            "renew": self.renew,
            "fetch": self.fetch,
            "keep_only": self.keep_only,
        }
        while True:
            try:
                async with rdma.connect(
                    self.fabric, *master, message_size=MESSAGE_SIZE, receives=RECEIVES
                ) as connection:
                    calls = Calls(connection, answers)
                    running = asyncio.create_task(calls.run())
                    try:
                        await calls.call(
                            "join", server=self.identity, address=self.address, capacity=self.capacity,
                            extents=list(self.lent), private=self.private,
                        )  # fmt: skip
                        log.info("joined %s:%d", *master)
                        await running
                    finally:
                        running.cancel()
                        with suppress(asyncio.CancelledError):
                            await running
                log.warning("the master is gone; trying again")
            except (rdma.ConnectionLost, rdma.ProviderError, StoreRefused, TimeoutError, OSError) as error:
                log.info("master %s:%d: %s; trying again", *master, error)
            await asyncio.sleep(RETRY)
