"""What a transport that has ended keeps: its error, and no message."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref

from smb3server.net.tcp import TcpTransport
from smbdirect.message_transport import InboundMessage
from smbdirect.rdma.pool import BufferPool


class Megabytes(bytearray):
    """Memory whose end can be seen."""


def test_an_error_keeps_no_message_that_was_in_flight() -> None:
    """The traceback of the error has a frame of whoever was answering a message. The garbage collector is not asked."""
    memory: list[weakref.ref[Megabytes]] = []
    errors: list[BaseException | None] = []

    async def main() -> TcpTransport:
        listener = socket.create_server(("127.0.0.1", 0))
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        transport = TcpTransport(ours, BufferPool(), 1 << 20)

        def answer() -> None:
            plain = Megabytes(1 << 20)
            memory.append(weakref.ref(plain))
            transport.send((bytes(plain),))

        def receive(message: InboundMessage) -> None:
            message.release()
            ours.shutdown(socket.SHUT_WR)  # The next send fails: EPIPE.
            asyncio.get_running_loop().call_soon(answer)

        transport.start(receive, errors.append)
        theirs.sendall(b"\0\0\0\4ping")
        for _ in range(200):
            if errors:
                break
            await asyncio.sleep(0.01)
        theirs.close()
        listener.close()
        return transport

    gc.disable()
    try:
        transport = asyncio.run(main())
        assert isinstance(errors[0], BrokenPipeError)
        assert len(memory) == 1 and memory[0]() is None
        del transport
    finally:
        gc.enable()
