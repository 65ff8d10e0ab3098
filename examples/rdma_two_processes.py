"""Move memory between two processes by RDMA, without hardware and without SMB.

``python rdma_two_processes.py server 127.0.0.1 5460``, and ``client`` in place of ``server`` in another terminal. The
client registers memory and sends its description; the server writes into it and reads it back.
"""

from __future__ import annotations

import asyncio
import struct
import sys

from smbdirect.message_transport import InboundMessage, MessageTransport, RemoteBuffer
from smbdirect.providers.make import make_provider
from smbdirect.transport.listen import connect, listen

LIMIT = 1 << 20
"""Bytes of the largest message."""
DESCRIPTION = struct.Struct("<QII")
"""Offset, token and length of the memory that the client offers."""


async def serve(host: str, port: int) -> None:
    done = asyncio.Event()

    def accept(transport: MessageTransport) -> None:
        def on_message(message: InboundMessage) -> None:
            remote = RemoteBuffer(*DESCRIPTION.unpack(message.view[: DESCRIPTION.size]))
            message.release()
            copy = bytearray(remote.length)

            def written(error: BaseException | None) -> None:
                assert transport.rdma is not None
                transport.rdma.read_from_peer([remote], [memoryview(copy)], read_back)

            def read_back(error: BaseException | None) -> None:
                print("server: read back", bytes(copy[:13]), error or "", flush=True)
                transport.send([b"done"])

            assert transport.rdma is not None
            data = b"hello by RDMA"
            transport.rdma.write_to_peer([remote], [memoryview(data.ljust(remote.length, b"\0"))], written)

        transport.start(on_message, lambda error: done.set())
        transport.trust(LIMIT)

    listener = await listen(make_provider("iwarp"), host, port, accept)
    print("server: listening at", *listener.address, flush=True)
    await done.wait()
    await listener.close()


async def ask(host: str, port: int) -> None:
    transport = await connect(make_provider("iwarp"), host, port)
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_message(message: InboundMessage) -> None:
        answer.set_result(bytes(message.view))
        message.release()

    transport.start(on_message, lambda error: None)
    transport.trust(LIMIT)
    assert transport.rdma is not None
    memory = bytearray(65536)
    offered = transport.rdma.register(memoryview(memory), readable=True, writable=True)
    (place,) = offered.descriptors
    transport.send([DESCRIPTION.pack(place.offset, place.token, place.length)])
    print("client:", await answer, bytes(memory[:13]))
    offered.deregister()
    transport.close()


role, address, number = sys.argv[1:4]
asyncio.run((serve if role == "server" else ask)(address, int(number)))
