"""WRITEs whose data comes by RDMA, message by message."""

from __future__ import annotations

import asyncio

from smb3server.client.protocol import RemoteFile, Tree


async def ask_write_by_rdma(tree: Tree, file: RemoteFile, data: bytes) -> asyncio.Task[int]:
    """The WRITE is sent when this returns; the server has yet to fetch the data."""
    rdma = tree.client.transport.rdma
    assert rdma is not None
    region = rdma.register(memoryview(bytearray(data)), readable=True)
    task = asyncio.create_task(tree.write_from(file, 0, region.descriptors, len(data)))
    await asyncio.sleep(0)
    return task
