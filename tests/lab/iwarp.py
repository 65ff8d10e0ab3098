"""All operations over a connected pair of iWARP endpoints."""

from __future__ import annotations

from typing import Any

from smbdirect.providers.base import (
    Access,
    CloseCause,
    Read,
    RemoteSegment,
    Send,
    Write,
)
from tests.lab.providers import Pair

RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE


def remote_of(region: Any) -> RemoteSegment:
    """Return the whole ``region`` as a remote segment."""
    return RemoteSegment(region.token, region.address, region.length)


async def every_operation(pair: Pair, size: int = 300_001) -> None:
    """Carry out a Send, a Write, a Read and a Send with Invalidate, and check the data."""
    client, server = pair.client.endpoint, pair.server.endpoint
    client.post([Send([b"hel", memoryview(b"lo")])])
    await pair.server.receives(1)
    assert bytes(pair.server_receives[0][:5]) == b"hello"
    memory = bytearray(size)
    region = client.register(memoryview(memory), RIGHTS)
    data = bytes(i * 7 & 255 for i in range(size))
    server.post(
        [Write([data[:5], data[5 : size // 2], data[size // 2 :]], remote_of(region), signalled=False), Send([b"w"])]
    )
    await pair.client.receives(1)
    assert memory == data
    sink = [memoryview(bytearray(size // 3)), memoryview(bytearray(1)), memoryview(bytearray(size - size // 3 - 1))]
    server.post([Read(sink, remote_of(region))])
    await pair.server.sends(2)
    assert b"".join(sink) == data
    server.post([Send([b"done"], invalidate=region.token)])
    received = await pair.client.receives(2)
    assert received[1].invalidated == region.token
    assert not region.valid


async def finish(pair: Pair) -> None:
    """Disconnect the client, and check how both ends end."""
    pair.client.endpoint.disconnect()
    assert (await pair.client.end()).cause is CloseCause.LOCAL
    assert (await pair.server.end()).cause is CloseCause.PEER
