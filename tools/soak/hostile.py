"""Bad clients: half-open ones, slow readers, some killed in the middle of a message, RDMA peers that grant nothing."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from smb3server.client.protocol import Client, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.wire.create import CreateDisposition
from smbdirect.core.messages import DATA_TRANSFER_PADDED, NEGOTIATE_REQUEST, DataTransferPadded, NegotiateRequest
from smbdirect.providers.base import Endpoint, Send
from smbdirect.providers.iwarp.provider import IwarpProvider
from tools.soak.server import BAD_USER, PASSWORD, SHARE

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: ``close`` sends RST."""
_SAID = (b"", b"\0\0", b"\0\x00\x10\x00\xfeSMB" + bytes(3000), b"\0\x00\xff\xff\xfeSMB" + bytes(60000))
_PATIENCE = 20.0
"""Seconds after which a bad client leaves by itself, if the server has not ended it."""


class Place(NamedTuple):
    """Where the server is."""

    tcp: int
    rdma: int
    host: str = "127.0.0.1"


async def half_open(place: Place, chance: random.Random) -> None:
    """Say a part of a message, or nothing, and wait to be thrown out."""
    reader, writer = await asyncio.open_connection(place.host, place.tcp)
    try:
        writer.write(chance.choice(_SAID))
        async with asyncio.timeout(chance.uniform(1, _PATIENCE)):
            await reader.read()
    except TimeoutError:
        pass  # It leaves first.
    finally:
        writer.close()


async def killed(place: Place, chance: random.Random) -> None:
    """Log on, send a part of a large message, and end by RST, as a host does that has lost its process."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    try:
        await loop.sock_connect(sock, (place.host, place.tcp))
        length = chance.choice((200, 60_000, 65_000))
        await loop.sock_sendall(sock, length.to_bytes(4, "big") + b"\xfeSMB" + bytes(chance.randrange(length)))
        await asyncio.sleep(chance.uniform(0, 0.1))
    finally:
        sock.close()


async def killed_with_opens(place: Place, chance: random.Random) -> None:
    """Write a lot, and vanish while requests are on their way."""
    client = await Client.connect(await open_tcp(place.host, place.tcp, 60))
    try:
        tree = await (await client.log_on(BAD_USER, PASSWORD)).tree_connect(SHARE)
        file = await tree.create(f"killed-{chance.randrange(50)}", READ_WRITE, CreateDisposition.OPEN_IF)
        writes = [asyncio.ensure_future(tree.write(file, 0, bytes(700_000))) for _ in range(3)]
        await asyncio.sleep(chance.uniform(0, 0.05))
    finally:
        client.transport.abort("killed")
    await asyncio.gather(*writes, return_exceptions=True)


async def slow_reader(place: Place, chance: random.Random) -> None:
    """Ask for megabytes and do not take them."""
    client = await Client.connect(await open_tcp(place.host, place.tcp, 60))
    reads: list[asyncio.Future[bytes]] = []
    try:
        tree = await (await client.log_on(BAD_USER, PASSWORD)).tree_connect(SHARE)
        file = await tree.create("much", READ_WRITE, CreateDisposition.OPEN_IF)
        client.transport.pause_reading()
        reads = [asyncio.ensure_future(tree.read(file, 0, 1 << 20)) for _ in range(8)]
        await asyncio.sleep(chance.uniform(0.5, _PATIENCE / 2))
        if chance.random() < 0.5:
            client.transport.resume_reading()
            await asyncio.wait(reads, timeout=_PATIENCE)
    finally:
        client.transport.abort("slow")
    await asyncio.gather(*reads, return_exceptions=True)


async def no_credits(place: Place, chance: random.Random) -> None:
    """Connect by RDMA, negotiate, ask something and grant no credit for the answer. [MS-SMBD 3.1.5.1]"""
    ended = asyncio.get_running_loop().create_future()

    def prepare(endpoint: Endpoint) -> None:
        endpoint.on_closed = lambda reason: None if ended.done() else ended.set_result(None)
        for _ in range(4):
            endpoint.post_receive(memoryview(bytearray(8192)))

    endpoint = await IwarpProvider().connect(place.host, place.rdma, prepare, timeout=60)
    request = NegotiateRequest(0x0100, 0x0100, 0, 10, 1024, 8192, 131_072)
    endpoint.post([Send([NEGOTIATE_REQUEST.pack(request)])])
    await asyncio.sleep(0.2)
    smb = b"\xfeSMB" + bytes(chance.choice((60, 96)))
    header = DataTransferPadded(10, 0, 0, 0, 0, 24, len(smb), 0)
    endpoint.post([Send([DATA_TRANSFER_PADDED.pack(header), smb])])
    await asyncio.wait([ended], timeout=chance.uniform(1, _PATIENCE))
    endpoint.abort()


Bad = Callable[[Place, random.Random], Awaitable[None]]
KINDS: tuple[Bad, ...] = (half_open, killed, killed_with_opens, slow_reader, no_credits)
