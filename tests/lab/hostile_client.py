"""Clients in a process of their own, to be killed, cut off or simply ignored by the tests of robustness.

``transfer tcp|rdma HOST PORT MIB``: write that much and read it back, compared, sixteen requests at a time; says
``moving`` when the first round is through. ``hold KIND HOST PORT COUNT``: says ``ready`` and waits for
a line; then it connects that often, says what KIND says and nothing more, reports ``up``, and stays until its standard
input ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from smb3server.client.protocol import Client, RemoteFile, Tree, open_rdma, open_tcp
from smb3server.wire.create import CreateDisposition
from smbdirect.core.messages import DATA_TRANSFER_PADDED, DataTransferPadded, OutgoingSend
from smbdirect.message_transport import RemoteBuffer
from smbdirect.providers.base import Access
from smbdirect.providers.iwarp.provider import IwarpProvider
from smbdirect.transport.listen import connect
from smbdirect.transport.smb_direct import SmbDirectTransport

BLOCK = 1 << 18
DEPTH = 16
READ_WRITE = 0xC0010000
MPA_REQUEST = b"MPA ID Req Frame"

SAID = {
    "nothing": b"",
    "half a length": b"\0\0",
    "half a message": b"\0\x00\x10\x00" + b"\xfeSMB" + bytes(3000),
    "half of a long token": b"\0\x00\xff\xff" + b"\xfeSMB" + bytes(60000),
    "half an MPA request": MPA_REQUEST[:10],
    "an MPA request without its data": MPA_REQUEST + b"\x10\x02\x02\x00" + bytes(500),
}
"""KINDs that are bytes on a TCP connection."""
OVER_SMB_DIRECT = ("SMB Direct", "SMB Direct and half a message", "SMB Direct and NEGOTIATE")
"""KINDs that have negotiated SMB Direct."""


class Mover:
    """Moves blocks of one file, by RDMA where there is."""

    def __init__(self, tree: Tree, file: RemoteFile) -> None:
        self.tree = tree
        self.file = file
        self.transport = tree.client.transport

    async def round(self, number: int) -> None:
        jobs = [self._block(number * DEPTH + index) for index in range(DEPTH)]
        await asyncio.gather(*jobs)

    async def _block(self, number: int) -> None:
        data = bytearray(number.to_bytes(4, "little") * (BLOCK // 4))
        offset = number * BLOCK
        if not isinstance(self.transport, SmbDirectTransport):
            assert await self.tree.write(self.file, offset, data) == BLOCK
            assert await self.tree.read(self.file, offset, BLOCK) == data
            return
        region = self.transport.endpoint.register(memoryview(data), Access.REMOTE_READ)
        await self.tree.write_from(self.file, offset, [RemoteBuffer(region.address, region.token, BLOCK)], BLOCK)
        region.deregister()
        back = bytearray(BLOCK)
        region = self.transport.endpoint.register(memoryview(back), Access.REMOTE_WRITE | Access.LOCAL_WRITE)
        assert (
            await self.tree.read_into(self.file, offset, [RemoteBuffer(region.address, region.token, BLOCK)], BLOCK)
            == BLOCK
        )
        region.deregister()
        assert back == data


async def transfer(kind: str, host: str, port: int, mebibytes: int) -> None:
    transport = await (open_tcp(host, port) if kind == "tcp" else open_rdma(IwarpProvider(), host, port))
    client = await Client.connect(transport)
    session = await client.log_on("u", "pw")
    tree = await session.tree_connect("share")
    file = await tree.create(f"moved-{os.getpid()}", READ_WRITE, CreateDisposition.OPEN_IF)
    mover = Mover(tree, file)
    for number in range(mebibytes * (1 << 20) // (BLOCK * DEPTH)):
        await mover.round(number)
        if number == 0:
            print("moving", flush=True)
    await tree.close(file)
    await client.close()
    print("done", flush=True)


async def _over_smb_direct(kind: str, host: str, port: int) -> object:
    transport = await connect(IwarpProvider(), host, port, timeout=30)
    if kind == "SMB Direct and NEGOTIATE":
        transport.trust(1 << 20)
        return await Client.connect(transport)
    if kind == "SMB Direct and half a message":
        half = DataTransferPadded(255, 200, 0, 0, 60000 - 1000, 24, 1000, 0)
        transport._queue_sends([OutgoingSend([DATA_TRANSFER_PADDED.pack(half), bytes(1000)], None, None)])
        transport.rdma.work.post()
    return transport


async def hold(kind: str, host: str, port: int, count: int) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    held: list[object] = []
    for _ in range(count):
        if kind in OVER_SMB_DIRECT:
            held.append(await _over_smb_direct(kind, host, port))
        elif kind == "NEGOTIATE":
            held.append(await Client.connect(await open_tcp(host, port)))
        else:
            sock = socket.create_connection((host, port))
            sock.sendall(SAID[kind])
            held.append(sock)
    print("up", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    # Abruptly: a process that is gone says no good-bye.
    os._exit(0)


if __name__ == "__main__":
    what = {"transfer": transfer, "hold": hold}[sys.argv[1]]
    asyncio.run(what(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
