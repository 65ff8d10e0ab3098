"""The store as a dict of regions, for programs without asyncio: a thread runs the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

from rstore import client
from rstore.layout import UNIT


class BlockingRegion:
    """A region like a memoryview: ``region[10:20]`` reads, ``region[10:20] = data`` writes."""

    def __init__(self, store: Store, region: client.Region) -> None:
        self._store, self._region = store, region

    def __len__(self) -> int:
        return len(self._region)

    def __getitem__(self, part: slice) -> bytes:
        start, stop = self._range(part)
        found: bytes = self._store.wait(self._region.read(start, stop - start))
        return found

    def __setitem__(self, part: slice, data: Any) -> None:
        start, stop = self._range(part)
        if memoryview(data).nbytes != stop - start:
            raise ValueError(f"{memoryview(data).nbytes} bytes for a part of {stop - start}")
        self._store.wait(self._region.write(data, start))

    def _range(self, part: slice) -> tuple[int, int]:
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError("a part of a region has no step")
        return start, max(start, stop)

    def write(self, data: Any, offset: int = 0) -> None:
        """Write a buffer, such as a numpy array."""
        self._store.wait(self._region.write(data, offset))

    def read_into(self, into: Any, offset: int = 0) -> None:
        """Fill a buffer, such as a numpy array."""
        self._store.wait(self._region.read_into(into, offset))


Write = tuple[BlockingRegion, Any, int]
"""A region, a buffer, and the offset where it goes."""


class Store:
    """A dict of regions: ``store[name]``, ``del store[name]``, ``name in store``."""

    def __init__(self, fabric: str, host: str, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rstore", daemon=True)
        self._thread.start()
        self._client = client.Client(fabric, (host, port))

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run ``work`` on the store's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def create(
        self, name: str, size: int, *, copies: int = 1, unit: int = UNIT, columns: int = 0, keep: bool = True
    ) -> BlockingRegion:
        """See ``client.Client.create``."""
        made = self.wait(self._client.create(name, size, copies=copies, unit=unit, columns=columns, keep=keep))
        return BlockingRegion(self, made)

    def lend(self, name: str, size: int, host: str = "127.0.0.1") -> memoryview:
        """See ``client.Client.lend``."""
        lent: memoryview = self.wait(self._client.lend(name, size, host))
        return lent

    def write_all(self, chains: Iterable[Iterable[Write]]) -> None:
        """Write to many regions at the same time. The writes of a chain follow each other: each is in memory before the
        next begins. All is in memory when this returns."""
        self.wait(self._write_all(chains))

    async def _write_all(self, chains: Iterable[Iterable[Write]]) -> None:
        async def follow(chain: Iterable[Write]) -> None:
            for region, data, offset in chain:
                await region._region.write(data, offset)

        # All have ended before one failure is reported: the memory is quiet then.
        for result in await asyncio.gather(*map(follow, chains), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def servers(self) -> list[dict[str, Any]]:
        """Return the memory servers: identity, address, capacity and used bytes."""
        found: list[dict[str, Any]] = self.wait(self._client.servers())
        return found

    def __getitem__(self, name: str) -> BlockingRegion:
        return BlockingRegion(self, self.wait(self._client.map(name)))

    def __delitem__(self, name: str) -> None:
        self.wait(self._client.free(name))

    def __iter__(self) -> Iterator[str]:
        return iter([entry["name"] for entry in self.wait(self._client.regions())])

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def close(self) -> None:
        self.wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_store(host: str, port: int, fabric: str = "iwarp") -> Store:
    """Open the store whose master is at ``host`` and ``port``."""
    return Store(fabric, host, port)
