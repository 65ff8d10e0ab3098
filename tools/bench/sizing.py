"""Measure what a server's memory is made of: connections, sessions, tree connects, opens, SMB Direct by credits.

    python -m tools.bench.sizing [--quick] [--json]

A server is started as a process of its own. After each step its memory is read from /proc/PID/smaps_rollup (what is no
file's), and its descriptors are counted. Memory does not depend on what else the machine does, so this needs no quiet
machine.
What a step has added, divided by its number, is the cost of one. Small steps would show the allocator instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from smb3server.client.protocol import Client, ClientSession, Tree, open_rdma, open_tcp
from smb3server.process import output
from smb3server.wire.create import CreateDisposition
from smbdirect.core.settings import Settings
from smbdirect.providers.make import make_provider
from tools.support import own_user
from tools.support.server_process import open_descriptors

CREDITS = (16, 64, 255)
"""Receive credits that a client asks of the server."""
DEPTHS = (1, 8, 32)
"""READs in flight."""
_TOGETHER = 20
_ROUNDS = 10
_BLOCK = 1 << 20
_RECEIVE_SIZE = 1364
_CONFIG = """[server]
listen = ["127.0.0.1"]
port = 0
rdma = "iwarp"
rdma_port = 0
state = "{folder}/state"

[limits]
max_opens = 40000
max_sessions_per_user = 100000
max_connections = 2500
max_unauthenticated = 500
max_user_share = 1.0

[[user]]
name = "u"
password = "pw"

[[share]]
name = "data"
path = "{folder}/data"
{user}
"""


class Counts(NamedTuple):
    """How many there are of each."""

    connections: int
    sessions: int
    opens: int
    rdma: int


FULL, QUICK = Counts(1000, 1000, 10_000, 50), Counts(60, 60, 300, 6)


class Row(NamedTuple):
    """What one step has added."""

    what: str
    number: int
    kib: float
    """For each."""
    descriptors: float
    """For each."""


class Measured:
    """A server as a process of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "data").mkdir()
        config = folder / "server.toml"
        config.touch(0o600)
        config.write_text(_CONFIG.format(folder=folder, user=own_user.LINE))
        self._log = (folder / "log").open("w")
        words = [sys.executable, "-m", "smb3server", "--config", str(config)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        ready = ""
        for line in self.process.stdout:
            if line.startswith("ready"):
                ready = line
                break
        ports = dict(re.findall(r"(tcp|iwarp) 127\.0\.0\.1:(\d+)", ready))
        if set(ports) != {"tcp", "iwarp"}:
            raise RuntimeError(f"the server did not start: {ready}{(folder / 'log').read_text()}")
        self.tcp, self.rdma = int(ports["tcp"]), int(ports["iwarp"])

    def memory(self) -> int:
        """Return the KiB of memory that is no file's: its own, and what it shares with a device or the kernel."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return sum(int(number) for number in re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", text, re.MULTILINE))

    def descriptors(self) -> int:
        """Return the number of open descriptors."""
        return open_descriptors(self.process.pid)

    def stop(self) -> None:
        """End the server."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


async def _each(count: int, make: Callable[[int], Awaitable[object]]) -> list[object]:
    """Make so many, some at a time."""
    made: list[object] = []
    for start in range(0, count, _TOGETHER):
        made += await asyncio.gather(*(make(number) for number in range(start, min(count, start + _TOGETHER))))
    return made


class Sizing:
    """The steps, and what each has added."""

    def __init__(self, server: Measured, folder: Path, counts: Counts) -> None:
        self._server = server
        self._data = folder / "data"
        self._counts = counts
        self._kept: list[object] = []
        self.rows: list[Row] = []

    async def _step(self, what: str, count: int, make: Callable[[int], Awaitable[object]]) -> list[object]:
        server = self._server
        memory, descriptors = server.memory(), server.descriptors()
        made = await _each(count, make)
        self._kept += made
        row = Row(
            what,
            count,
            round((server.memory() - memory) / count, 1),
            round((server.descriptors() - descriptors) / count, 2),
        )
        self.rows.append(row)
        return made

    async def _connect(self, number: int) -> ClientSession:
        client = await Client.connect(await open_tcp("127.0.0.1", self._server.tcp))
        return await client.log_on("u", "pw")

    async def run(self) -> None:
        """Take all steps. What was made stays until the end."""
        counts = self._counts
        # What the first of each brings is the server's, not theirs.
        first = await self._connect(0)
        tree = await first.tree_connect("data")
        warm = [await tree.create(f"warm{number}", disposition=CreateDisposition.OPEN_IF) for number in range(2)]
        self._kept += [first, tree, warm, await self._over_rdma(16)]
        self.rows.append(Row("the server itself", 1, float(self._server.memory()), float(self._server.descriptors())))
        connected = await self._step("a connection with a session (TCP)", counts.connections, self._connect)

        async def share(number: int) -> Tree:
            session = connected[number]
            assert isinstance(session, ClientSession)
            return await session.tree_connect("data")

        await self._step("a tree connect", counts.connections, share)

        async def one_more(number: int) -> ClientSession:
            session = connected[number % len(connected)]
            assert isinstance(session, ClientSession) and isinstance(session.client, Client)
            return await session.client.log_on("u", "pw")

        await self._step("a session on a connection that is there", counts.sessions, one_more)
        # The server keeps two descriptors for each open, and so many for connections.
        opens = min(counts.opens, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 6000) // 4)
        for number in range(opens):
            (self._data / f"f{number}").touch()
        await self._step("an open of a file of its own", opens, lambda number: tree.create(f"f{number}"))
        await self._step("an open of a file that is open", opens, lambda _: tree.create("f0"))
        for credits in CREDITS:
            name = f"an SMB Direct connection of {credits} credits (iWARP)"
            await self._step(name, counts.rdma, partial(self._with_credits, credits))
        with (self._data / "large").open("wb") as large:
            large.write(os.urandom(max(DEPTHS) * _BLOCK))
        for depth in DEPTHS:
            await self._under_load(await self._over_rdma(255), depth)

    async def _with_credits(self, credits: int, _: int) -> ClientSession:
        return await self._over_rdma(credits)

    async def _under_load(self, connection: ClientSession, depth: int) -> None:
        """Read with so many requests in flight by RDMA, and note the most memory meanwhile."""
        tree = await connection.tree_connect("data")
        file = await tree.create("large")
        before = most = self._server.memory()
        for _ in range(_ROUNDS):
            reads = [asyncio.ensure_future(tree.read(file, number * _BLOCK, _BLOCK)) for number in range(depth)]
            while not all(read.done() for read in reads):
                most = max(most, self._server.memory())
                await asyncio.sleep(0.001)
            await asyncio.gather(*reads)
        name = f"a READ of 1 MiB in flight by RDMA, queue depth {depth}"
        self.rows.append(Row(name, depth, round((most - before) / depth, 1), 0.0))

    async def _over_rdma(self, credits: int) -> ClientSession:
        settings = Settings(max_receive_size=_RECEIVE_SIZE, max_send_size=_RECEIVE_SIZE, send_credit_target=credits)
        provider = make_provider("iwarp")
        transport = await open_rdma(provider, "127.0.0.1", self._server.rdma, settings, timeout=60.0)
        self._kept.append(provider)
        return await (await Client.connect(transport)).log_on("u", "pw")


async def measure(counts: Counts) -> list[Row]:
    """Start a server, take all steps and stop it. Return what each has added."""
    with tempfile.TemporaryDirectory() as name:
        server = Measured(Path(name))
        try:
            sizing = Sizing(server, Path(name), counts)
            await sizing.run()
            return sizing.rows
        finally:
            server.stop()


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    lines = ["| what | measured with | KiB each | descriptors each |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.what} | {row.number:,} | {row.kib:,.1f} | {row.descriptors:g} |" for row in rows]
    return "\n".join(lines)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few of each: shows that it works, and no useful numbers")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(QUICK if arguments.quick else FULL))
    print(json.dumps([row._asdict() for row in rows], indent=2) if arguments.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
