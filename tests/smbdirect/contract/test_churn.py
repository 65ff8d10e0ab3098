"""Connections that come and go leave nothing behind: descriptors, tasks, timers, regions, memory."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from smbdirect.providers.base import Access, Provider, RemoteSegment, Send, Write
from smbdirect.providers.memory import Region
from smbdirect.providers.verbs.memory import Domain, Registration
from tests.lab.providers import Entry, connect

RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE
AT_ONCE = 20
TEN_THOUSAND = int(os.environ.get("CHURN_CONNECTIONS", "10000"))
"""In emulated guests fewer may have to do."""
GROWTH = 6 << 20
"""Bytes of resident memory that the allocator may keep; 10,000 leaked connections would be ten times that."""


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """Bytes, without what the allocator keeps of memory that was given back."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def regions() -> int:
    """Regions, protection domains and registrations of a device among them."""
    return sum(isinstance(item, Region | Registration | Domain) for item in gc.get_objects())


async def one(provider: Provider, host: str, index: int) -> None:
    """Connect, move something (or not), and end it in one of the ways there are."""
    pair = await connect(provider, host, receives=2)
    pair.client.endpoint.register(memoryview(bytearray(64)), RIGHTS)
    region = pair.server.endpoint.register(memoryview(bytearray(64)), RIGHTS)
    if index % 4:
        target = RemoteSegment(region.token, region.address, 64)
        pair.client.endpoint.post([Write([bytes(64)], target), Send([b"x"])])
        await pair.server.receives(1)
    ends: list[Coroutine[Any, Any, Any]] = [pair.client.end(), pair.server.end()]
    if index % 3 == 0:
        pair.client.endpoint.abort()
    elif index % 3 == 1:
        pair.server.endpoint.disconnect()
    else:
        pair.client.endpoint.disconnect()
    await asyncio.gather(*ends)


async def many(provider: Provider, host: str, count: int) -> None:
    for start in range(0, count, AT_ONCE):
        await asyncio.gather(*(one(provider, host, index) for index in range(start, start + AT_ONCE)))


async def settled(descriptors: int) -> None:
    """Both ends of closing connections have seen each other's end. Fails, by its time-out, if that never comes."""
    async with asyncio.timeout(15):
        while open_descriptors() > descriptors or len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)
    gc.collect()


def churn(entry: Entry, count: int) -> None:
    async def main() -> None:
        # Descriptors of tests before this one are not closed while this one counts.
        gc.collect()
        provider = entry.make()
        before = open_descriptors()
        if provider.capabilities.requires_registration:
            # A device that was opened stays open; both ends have closed theirs once they have seen the end.
            await one(provider, entry.host, 0)
            before = open_descriptors()
        await many(provider, entry.host, count // 5)  # caches and free lists fill
        await settled(before)
        warm, memory = regions(), resident()
        await many(provider, entry.host, count)
        await settled(before)
        assert open_descriptors() == before
        assert len(asyncio.all_tasks()) == 1
        assert regions() == warm
        assert resident() - memory < GROWTH

    asyncio.run(main())


def test_connections_leave_nothing_behind(entry: Entry) -> None:
    churn(entry, 200)


@pytest.mark.long
def test_ten_thousand_connections_leave_nothing_behind(entry: Entry) -> None:
    churn(entry, TEN_THOUSAND)
