"""Connections over TCP that end by an error while the rest of a message is awaited. The event loop of the server
reports such an error once, together with the data that came before it."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from smb3server.net.arrived import PAYLOAD_FROM, Pipe
from smb3server.net.tcp import TcpTransport
from smbdirect.message_transport import InboundMessage, Payload
from smbdirect.rdma.pool import BufferPool
from tests.lab.witness import new_event_loop

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: ``close`` sends RST."""


class Taker:
    head_size = 112

    def wants_payload(self, head: memoryview, length: int) -> bool:
        return True

    def take_payload(self, head: InboundMessage, payload: Payload) -> bool:
        raise AssertionError("an incomplete message is not executed")


@pytest.mark.parametrize("offered", [False, True])
@pytest.mark.parametrize(
    ("length", "sent"), [(1000, 2), (1000, 500), (PAYLOAD_FROM, 500), (PAYLOAD_FROM, 90_000), (4 << 20, 200_000)]
)
@pytest.mark.parametrize("when", ["at once", "later"])
def test_an_error_behind_part_of_a_message_ends_the_connection(
    length: int, sent: int, when: str, offered: bool
) -> None:
    async def main() -> BaseException | None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            peer = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        transport = TcpTransport(accepted, BufferPool(), 8 << 20, pipe=Pipe())
        transport.trust(8 << 20)
        if offered:
            transport.offer_payloads(Taker())
        ended: asyncio.Future[BaseException | None] = loop.create_future()

        def take(message: InboundMessage) -> None:
            raise AssertionError("an incomplete message was delivered")

        try:
            if when == "later":
                transport.start(take, ended.set_result)
            peer.sendall((length.to_bytes(4, "big") + bytes(sent))[: sent + 4])
            if when == "later":
                await asyncio.sleep(0.05)
            peer.close()
            if when == "at once":
                transport.start(take, ended.set_result)
            return await asyncio.wait_for(ended, 5)
        finally:
            transport.abort()
            peer.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert isinstance(runner.run(main()), ConnectionResetError)


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("trusted", [False, True])
def test_an_error_behind_whole_messages_ends_the_connection(answered: bool, trusted: bool) -> None:
    """A CANCEL gets no answer, whose sending would meet the error."""

    async def main() -> tuple[BaseException | None, list[bytes]]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            peer = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        transport = TcpTransport(accepted, BufferPool(), 65536)
        if trusted:
            transport.trust(65536)
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        taken: list[bytes] = []

        def take(message: InboundMessage) -> None:
            taken.append(bytes(message.view))
            if answered:
                transport.send((b"answer",))
            message.release()

        try:
            peer.sendall(b"\0\0\0\4one!\0\0\0\4two!")
            peer.close()
            transport.start(take, ended.set_result)
            return await asyncio.wait_for(ended, 5), taken
        finally:
            transport.abort()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        error, taken = runner.run(main())
    assert isinstance(error, ConnectionError)
    assert taken == [b"one!", b"two!"]
