"""``python -m tools.soak.crowd``: some hundred clients in one process. Its input says what to do, as JSON."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

from smb3server.client.protocol import Client, open_rdma, open_tcp
from smb3server.process import output
from smb3server.wire.status import StatusError
from smbdirect.errors import SmbDirectError
from smbdirect.providers.iwarp.provider import IwarpProvider
from tools.soak import hostile
from tools.soak.hostile import Place
from tools.soak.jobs import Worker, Wrong
from tools.soak.limits import raise_descriptor_limit
from tools.soak.server import PASSWORD, SHARE, USER

BAD = 0.06
"""The share of clients that behave badly."""
RDMA = 0.1
"""The share of good clients that use SMB Direct."""
JOBS = (3, 25)
"""Jobs of one connection."""
PATIENCE = 120.0
"""Seconds for one job, on a machine that is busy with all others."""
EXPECTED = (OSError, TimeoutError, SmbDirectError, StatusError)
"""How a bad client may end."""


@dataclass
class Orders:
    """The orders of a crowd."""

    tcp: int
    rdma: int
    first: int
    clients: int
    seconds: float
    think: float
    """Mean seconds between two jobs of a client."""
    seed: int


class Crowd:
    """The clients and what they have seen."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.place = Place(orders.tcp, orders.rdma)
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.end = time.monotonic() + orders.seconds

    async def run(self) -> None:
        """Let all clients come, one after the other, and work until the time is over."""
        orders = self.orders
        async with asyncio.TaskGroup() as group:
            for number in range(orders.first, orders.first + orders.clients):
                chance = random.Random(f"{orders.seed}/{number}")
                group.create_task(self._be(number, chance))

    async def _be(self, number: int, chance: random.Random) -> None:
        orders = self.orders
        await asyncio.sleep(chance.uniform(0, min(orders.seconds / 3, orders.clients / 40)))
        bad = chance.random() < BAD
        while time.monotonic() < self.end:
            if bad:
                await self._misbehave(chance)
            else:
                await self._come(number, chance)
            await self._think(chance)

    async def _think(self, chance: random.Random) -> None:
        """Wait until the next job, or until the time is over."""
        left = max(0.0, self.end - time.monotonic())
        await asyncio.sleep(min(left, chance.expovariate(1 / self.orders.think)))

    async def _misbehave(self, chance: random.Random) -> None:
        kind = chance.choice(hostile.KINDS)
        try:
            async with asyncio.timeout(PATIENCE):
                await kind(self.place, chance)
        except EXPECTED:
            self.done[f"{kind.__name__}, ended by the server"] += 1
        self.done[kind.__name__] += 1

    async def _come(self, number: int, chance: random.Random) -> None:
        """Connect, work, and leave in one of several ways."""
        client: Client | None = None
        try:
            began = time.monotonic()
            async with asyncio.timeout(PATIENCE):
                if chance.random() < RDMA:
                    transport = await open_rdma(IwarpProvider(), self.place.host, self.place.rdma, timeout=PATIENCE)
                else:
                    transport = await open_tcp(self.place.host, self.place.tcp, PATIENCE)
                client = await Client.connect(transport)
                session = await client.log_on(USER, PASSWORD, sign=chance.random() < 0.2, encrypt=chance.random() < 0.1)
                tree = await session.tree_connect(SHARE)
            self.times["logon"].append(time.monotonic() - began)
            worker = Worker(tree, number, chance)
            for _ in range(chance.randint(*JOBS)):
                if time.monotonic() > self.end:
                    break
                job = worker.choose()
                began = time.monotonic()
                async with asyncio.timeout(PATIENCE):
                    await job()
                self.times[job.__name__].append(time.monotonic() - began)
                await self._think(chance)
            if chance.random() < 0.5:
                await session.log_off()
        except (OSError, TimeoutError, SmbDirectError, StatusError, Wrong) as error:
            self.errors[f"{type(error).__name__}: {error}"[:120]] += 1
        finally:
            if client is not None and chance.random() < 0.3:
                client.transport.abort("vanishes")
            elif client is not None:
                await client.close()


def main() -> None:
    """Obey the one line of input, and print what was seen as one line."""
    raise_descriptor_limit()
    crowd = Crowd(Orders(**json.loads(sys.stdin.readline())))
    asyncio.run(crowd.run())
    print(json.dumps({"times": crowd.times, "done": crowd.done, "errors": crowd.errors}), flush=True)


if __name__ == "__main__":
    sys.exit(output.run(main))
