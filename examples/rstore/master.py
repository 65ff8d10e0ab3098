"""The master: names, allocation and repair. It holds no data, and no transfer passes it.

Every decision is a record in a store (SQLite, or etcd) before it takes effect, so a new master goes on where the last
one stopped. A region is made in three steps: the record, the extents, the record with their handles. A record that was
left in the middle is undone by the next master.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rstore.calls import MESSAGE_SIZE, RECEIVES, Answers, Calls, StoreRefused
from rstore.layout import CREATING, FREEING, LOST, READY, UNIT, Extent, Layout
from smb3server.persistence.store import ABSENT, Condition, ConditionFailed, Delete, Put, Store
from smbdirect import rdma

log = logging.getLogger(__name__)

PREFIX = "rstore/regions/"
RETURN = 5.0
"""Seconds for which a new master waits for servers before it takes those that are missing for dead."""
_GONE = (rdma.ConnectionLost, StoreRefused, TimeoutError)


@dataclass
class _Server:
    identity: str
    address: tuple[str, int]
    capacity: int
    calls: Calls
    extents: set[str] = field(default_factory=set)
    private: bool = False
    """Only regions that name this server are placed on it."""


class Master:
    """The name space and the servers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._servers: dict[str, _Server] = {}
        self._regions: dict[str, tuple[Layout, int]] = {}
        """The layout of each region, and the version of its record."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._expected: set[str] = set()
        """Servers that had extents when this master began, and have not joined yet."""

    async def load(self) -> None:
        """Read the records of the last master."""
        for entry in await self._store.scan(PREFIX):
            layout = Layout.unpack(entry.value)
            self._regions[layout.name] = layout, entry.version
            self._expected |= {extent.server for copies in layout.columns for extent in copies}
        self._spawn(self._settle())

    async def _settle(self) -> None:
        """Finish what the last master left in the middle, once its servers had time to come back."""
        deadline = asyncio.get_running_loop().time() + RETURN
        while self._expected - self._servers.keys() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        missing, self._expected = self._expected - self._servers.keys(), set()
        for name, (layout, _) in list(self._regions.items()):
            if layout.state in (CREATING, FREEING):
                async with self._lock(name):
                    await self._remove(name)
        for server in missing:
            await self._server_died(server)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("the master failed: %r", task.exception())

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _record(self, layout: Layout, version: int) -> None:
        """Store a layout. Raise ``ConditionFailed`` if another master has changed it."""
        key = PREFIX + layout.name
        made = await self._store.commit([Put(key, layout.pack())], [Condition(key, version)])
        self._regions[layout.name] = layout, made
        async with self._changed:
            self._changed.notify_all()

    # -- servers ----------------------------------------------------------------------------------------------

    async def join(
        self, calls: Calls, server: str, address: list[Any], capacity: int, extents: list[str], private: bool = False
    ) -> None:
        """Take in a memory server. It forgets the extents that no region has."""
        host, port = str(address[0]), int(address[1])
        if host in ("0.0.0.0", "::"):
            host = calls.connection.peer_address[0]
        known = {
            extent.name
            for layout, _ in self._regions.values() for copies in layout.columns for extent in copies
            if extent.server == server
        }  # fmt: skip
        made = self._servers[server] = _Server(server, (host, port), capacity, calls, private=private)
        made.extents = set(extents) & known
        if set(extents) - known:
            self._spawn(self._ignore(calls.call("keep_only", names=sorted(known))))
        log.info("server %s at %s:%d joined with %d extents", server, host, port, len(extents))

    async def _ignore(self, asked: Any) -> None:
        try:
            await asked
        except _GONE as error:
            log.info("a server did not answer: %s", error)

    async def left(self, calls: Calls) -> None:
        """Note that a control connection has ended."""
        for server in [entry for entry in self._servers.values() if entry.calls is calls]:
            del self._servers[server.identity]
            log.warning("server %s at %s:%d is gone", server.identity, *server.address)
            await self._server_died(server.identity)

    async def _server_died(self, identity: str) -> None:
        for name, (layout, _) in list(self._regions.items()):
            if any(extent.server == identity for copies in layout.columns for extent in copies):
                self._spawn(self._repair(name))

    async def _repair(self, name: str) -> None:
        """Bring a region that has lost extents to a layout without them, copied from what is left."""
        async with self._lock(name):
            if name not in self._regions:
                return
            layout, version = self._regions[name]
            alive = self._servers.keys() | self._expected
            if layout.state != READY or all(e.server in alive for copies in layout.columns for e in copies):
                return
            columns = []
            for number, copies in enumerate(layout.columns):
                left = [extent for extent in copies if extent.server in self._servers]
                if not left:
                    log.error("region %s is lost: no copy of column %d is left", name, number)
                    await self._record(_next(layout, state=LOST), version)
                    return
                columns.append(left if len(left) == len(copies) else await self._mend(layout, left, len(copies)))
            await self._record(_next(layout, columns=columns), version)
            log.info("region %s is repaired", name)
        if any(e.server not in self._servers for copies in self._regions[name][0].columns for e in copies):
            self._spawn(self._repair(name))

    async def _mend(self, layout: Layout, left: list[Extent], wanted: int) -> list[Extent]:
        """Return the copies of a column: those that are left, with new handles, and new ones where there is room.

        The new handles come first: whoever writes by the old layout is refused from then on, so a copy is not older
        than what was written while it was made."""
        made: list[Extent] = []
        for extent in left:
            try:
                handle = await self._servers[extent.server].calls.call("renew", name=extent.name)
                made.append(Extent(extent.server, extent.name, handle))
            except (*_GONE, KeyError) as error:
                log.warning("extent %s: %s", extent.name, error)
        for server in self._by_room({extent.server for extent in made}):
            if not made or len(made) >= wanted:
                break
            source = made[0]
            host, port = self._servers[source.server].address
            name = f"{layout.name}#{secrets.token_hex(4)}"
            try:
                handle = await server.calls.call(
                    "fetch", 120.0, name=name, length=layout.extent_size, host=host, port=port, handle=source.handle
                )
                made.append(Extent(server.identity, name, handle))
            except _GONE as error:
                log.warning("no copy of %s on %s: %s", layout.name, server.identity, error)
        if len(made) < wanted:
            log.warning(
                "region %s has %d copies in place of %d: no other server has room", layout.name, len(made), wanted
            )
        return made or left

    def _by_room(self, without: Iterable[str] = ()) -> list[_Server]:
        servers = [s for s in self._servers.values() if not s.private and s.identity not in without]
        used = self._used()
        return sorted(servers, key=lambda server: used[server.identity] - server.capacity)

    def _used(self) -> Counter[str]:
        """Return the bytes of each server's extents."""
        used: Counter[str] = Counter()
        for layout, _ in self._regions.values():
            for extent in [extent for copies in layout.columns for extent in copies]:
                used[extent.server] += layout.extent_size
        return used

    # -- what clients ask -------------------------------------------------------------------------------------

    async def create(
        self, name: str, size: int, copies: int = 1, unit: int = UNIT, columns: int = 0, server: str = ""
    ) -> dict[str, Any]:
        """Make a region of zeros. ``columns``: the servers that it is striped over; 0 means all. ``server``: the only
        one that has it."""
        if not name or not size > 0 or copies < 1 or unit < 1 or columns < 0:
            raise StoreRefused("bad", "a region has a name, and a size, copies and units of at least 1")
        async with self._lock(name):
            if name in self._regions:
                raise StoreRefused("exists", f"region {name} is there already")
            every = [s for s in self._servers.values() if s.identity == server] if server else self._by_room()
            servers = every[: columns or None]
            if len(every) < copies or not servers:
                raise StoreRefused("full", f"{len(every)} memory servers for {copies} copies")
            layout = Layout(name, size, unit, columns=[[] for _ in servers])
            for number in range(len(servers)):
                layout.columns[number] = [
                    Extent(every[(number + copy) % len(every)].identity, f"{name}#{secrets.token_hex(4)}")
                    for copy in range(copies)
                ]
            try:
                await self._record(layout, ABSENT)
            except ConditionFailed:
                raise StoreRefused("exists", f"region {name} is there already") from None
            try:
                for extent in [extent for column in layout.columns for extent in column]:
                    calls = self._servers[extent.server].calls
                    extent.handle = await calls.call("lend", name=extent.name, length=layout.extent_size)
            except (*_GONE, KeyError) as error:
                await self._remove(name)
                raise StoreRefused("full", f"region {name}: {error}") from error
            await self._record(_next(layout, state=READY), self._regions[name][1])
            return self._shown(name)

    async def look(self, name: str, newer: int = 0) -> dict[str, Any]:
        """Return a region's layout. ``newer``: wait a moment for one of a later generation than this."""
        async with self._changed:
            try:
                async with asyncio.timeout(2.0 if newer else 0.0):
                    await self._changed.wait_for(lambda: self._is_newer(name, newer))
            except TimeoutError:
                log.debug("region %s: nothing newer than %d", name, newer)
        return self._shown(name)

    def _is_newer(self, name: str, generation: int) -> bool:
        found = self._regions.get(name)
        return found is None or found[0].generation > generation

    def _shown(self, name: str) -> dict[str, Any]:
        found = self._regions.get(name)
        if found is None or found[0].state in (CREATING, FREEING):
            raise StoreRefused("gone", f"no region {name}")
        layout = found[0]
        if layout.state == LOST:
            raise StoreRefused("lost", f"region {name} is lost: a server with its only copy died; free it")
        servers = {extent.server for copies in layout.columns for extent in copies}
        layout.addresses = {s: self._servers[s].address for s in servers if s in self._servers}
        return {"layout": layout.pack().decode()}

    async def free(self, name: str) -> None:
        """Remove a region. No handle to it is good for anything when this is answered."""
        async with self._lock(name):
            if name not in self._regions:
                raise StoreRefused("gone", f"no region {name}")
            layout, version = self._regions[name]
            await self._record(_next(layout, state=FREEING), version)
            await self._remove(name)

    async def _remove(self, name: str) -> None:
        layout, version = self._regions[name]
        for extent in [extent for copies in layout.columns for extent in copies]:
            server = self._servers.get(extent.server)
            if server is not None:
                try:
                    await server.calls.call("take_back", name=extent.name)
                except _GONE as error:
                    # It is taken back when the server joins again: no region has it.
                    log.info("extent %s: %s", extent.name, error)
        key = PREFIX + name
        await self._store.commit([Delete(key)], [Condition(key, version)])
        del self._regions[name]
        async with self._changed:
            self._changed.notify_all()

    async def regions(self) -> list[dict[str, Any]]:
        """List the regions."""
        return [
            {"name": layout.name, "size": layout.size, "state": layout.state, "columns": len(layout.columns),
             "copies": min(map(len, layout.columns), default=0)}
            for layout, _ in self._regions.values()
        ]  # fmt: skip

    async def servers(self) -> list[dict[str, Any]]:
        """List the memory servers."""
        used = self._used()
        return [
            {
                "server": server.identity,
                "address": server.address,
                "capacity": server.capacity,
                "used": used[server.identity],
            }
            for server in self._servers.values()
        ]

    # -- running ----------------------------------------------------------------------------------------------

    async def _attend(self, connection: rdma.Connection) -> None:
        temporary: set[str] = set()

        async def create(name: str, keep: bool = True, **fields: Any) -> dict[str, Any]:
            made = await self.create(name, **fields)
            if not keep:
                temporary.add(name)
            return made

        async def free(name: str) -> None:
            await self.free(name)
            temporary.discard(name)

        async def join(**fields: Any) -> None:
            await self.join(calls, **fields)

        answers: Answers = {"create": create, "look": self.look, "free": free, "regions": self.regions,
                            "servers": self.servers, "join": join}  # fmt: skip
        calls = Calls(connection, answers)
        await calls.run()
        await self.left(calls)
        for name in temporary:
            try:
                await self.free(name)
            except StoreRefused as error:
                log.debug("temporary region: %s", error)

    async def serve(self, fabric: str, host: str, port: int, ready: Any = None) -> None:
        """Serve until cancelled. ``ready`` is called with the address."""
        await self.load()
        async with rdma.listen(fabric, host, port, message_size=MESSAGE_SIZE, receives=RECEIVES) as listener:
            if ready is not None:
                ready(listener.address)
            async for connection in listener:
                self._spawn(self._attend(connection))


def _next(layout: Layout, **changes: Any) -> Layout:
    """Return the layout of the next generation."""
    return replace(layout, generation=layout.generation + 1, **changes)
