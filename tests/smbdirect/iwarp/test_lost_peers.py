"""iWARP connections that end by an error while more bytes are awaited. The event loop of the server reports such an
error once, together with the data that came before it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Coroutine

import pytest

from smbdirect.providers.base import CloseCause, ConnectionRequest, Operation
from smbdirect.providers.iwarp import IwarpProvider, ddp, mpa
from smbdirect.providers.iwarp.ddp import TaggedHeader, UntaggedHeader
from smbdirect.providers.iwarp.linger import LINGER_TIMEOUT, Linger
from smbdirect.providers.iwarp.rdmap import CONTROL, Opcode
from tests.lab.fpdu import encode_fpdu
from tests.lab.iwarp import RIGHTS
from tests.lab.providers import Side
from tests.lab.witness import new_event_loop

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: ``close`` sends RST."""
SOON = 1.0
"""Seconds; every timer that would end the connection anyway is longer."""
REQUEST = mpa.encode_frame(mpa.REQUEST_KEY, mpa.request_frame(b"private", False))


def run(main: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection; the first one's ``close`` sends RST."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    ours.setblocking(False)
    return peer, ours


def send_then_reset(peer: socket.socket, data: bytes) -> None:
    """Send ``data``; the error is there before the other end reads it, because no turn of the loop lies between."""
    peer.sendall(data)
    peer.close()


@contextlib.asynccontextmanager
async def accepted() -> AsyncIterator[tuple[socket.socket, Side]]:
    """Yield a raw peer behind its MPA set-up, and our endpoint of the connection."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[Side] = loop.create_future()
    tasks: list[asyncio.Task[None]] = []

    async def accept(request: ConnectionRequest, side: Side) -> None:
        await request.accept()
        arrived.set_result(side)

    def on_request(request: ConnectionRequest) -> None:
        side = Side(request.prepare())
        side.post_receives(8)
        tasks.append(loop.create_task(accept(request, side)))

    listener = await IwarpProvider().listen("127.0.0.1", 0, on_request)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    try:
        peer.setblocking(False)
        await loop.sock_connect(peer, listener.address)
        await loop.sock_sendall(peer, REQUEST)
        await loop.sock_recv(peer, 1024)
        yield peer, await arrived
    finally:
        peer.close()
        await listener.close()


def send_fpdu(size: int, msn: int = ddp.FIRST_MSN) -> bytes:
    """Return a Send with ``size`` bytes of payload."""
    length = ddp.UNTAGGED_HEADER_SIZE + size
    header = UntaggedHeader(length, ddp.LAST | ddp.VERSION, CONTROL | Opcode.SEND, 0, ddp.SEND_QUEUE, msn, 0)
    return encode_fpdu(header, bytes(size), False)


@pytest.mark.parametrize("sent", [1, 10, 21, 500])
@pytest.mark.parametrize("before", [0, 1, 3], ids=lambda count: f"{count} whole")
@pytest.mark.parametrize("when", ["at once", "later"])
def test_an_error_behind_part_of_an_fpdu_ends_the_connection(before: int, sent: int, when: str) -> None:
    async def main() -> None:
        async with accepted() as (peer, side):
            whole = b"".join(send_fpdu(40, ddp.FIRST_MSN + number) for number in range(before))
            part = send_fpdu(1000, ddp.FIRST_MSN + before)[:sent]
            if when == "later":
                peer.sendall(whole + part)
                await asyncio.sleep(0.02)
            send_then_reset(peer, b"" if when == "later" else whole + part)
            async with asyncio.timeout(SOON):
                assert (await side.end()).cause is CloseCause.PEER
            received = [item for item in side.of(Operation.RECEIVE) if item.length]
            assert [item.length for item in received] == [40] * before

    run(main())


@pytest.mark.parametrize("rest", [0, 500], ids=["boundary", "part"])
def test_an_error_behind_more_than_one_turn_takes_ends_the_connection(rest: int) -> None:
    """A turn ends after 1 MiB, and the error was reported in the first one."""

    async def main() -> None:
        async with accepted() as (peer, side):
            memory = memoryview(bytearray(3 << 20))
            region = side.endpoint.register(memory, RIGHTS)
            size = 60_000
            fpdus = bytearray()
            for offset in range(0, len(memory) - size, size):
                header = TaggedHeader(
                    ddp.TAGGED_HEADER_SIZE + size,
                    ddp.TAGGED | ddp.LAST | ddp.VERSION,
                    CONTROL | Opcode.RDMA_WRITE,
                    region.token,
                    region.address + offset,
                )
                fpdus += encode_fpdu(header, b"x" * size, False)
            fpdus += send_fpdu(1000)[:rest]
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
            left = memoryview(fpdus)
            with contextlib.suppress(BlockingIOError):
                while left:
                    left = left[peer.send(left) :]
            peer.close()
            async with asyncio.timeout(SOON):
                assert (await side.end()).cause is CloseCause.PEER

    run(main())


def test_an_error_behind_a_whole_fpdu_ends_the_connection() -> None:
    async def main() -> None:
        async with accepted() as (peer, side):
            send_then_reset(peer, send_fpdu(40))
            async with asyncio.timeout(SOON):
                assert (await side.end()).cause is CloseCause.PEER

    run(main())


@pytest.mark.parametrize("sent", [1, 16, len(REQUEST) - 1])
def test_an_error_behind_part_of_the_mpa_request_ends_the_handshake(sent: int) -> None:
    async def main() -> None:
        provider = IwarpProvider()
        peer, ours = connected()
        provider.adopt(ours, lambda request: request.reject())
        send_then_reset(peer, REQUEST[:sent])
        async with asyncio.timeout(SOON):
            while provider.handshakes:
                await asyncio.sleep(0.005)
        assert ours.fileno() < 0

    run(main())


def test_an_error_behind_the_last_bytes_of_an_ended_connection_closes_its_socket() -> None:
    async def main() -> None:
        peer, ours = connected()
        began = asyncio.get_running_loop().time()
        Linger(asyncio.get_running_loop(), ours)
        send_then_reset(peer, b"late")
        async with asyncio.timeout(SOON):
            while ours.fileno() >= 0:
                await asyncio.sleep(0.005)
        assert asyncio.get_running_loop().time() - began < LINGER_TIMEOUT

    run(main())
