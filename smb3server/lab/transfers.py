"""Check over SMB Direct that messages and data arrive unchanged, as the owner of an RDMA NIC needs to know first."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from smbdirect.errors import ConnectionLost, ProtocolError, ProviderError
from smbdirect.message_transport import InboundMessage, MessageTransport
from smbdirect.providers.base import Provider
from smbdirect.transport.listen import connect, listen

LENGTHS = (1, 4096, 130_000)
"""Bytes of the messages sent; the longest takes several SMB Direct packets."""
AMOUNT = 1 << 20
"""Bytes moved by RDMA in each direction."""
TIMEOUT = 10.0
"""Seconds for each check."""


class _Side:
    """One end of the connection."""

    def __init__(self, transport: MessageTransport) -> None:
        self.transport = transport
        self.messages: asyncio.Queue[bytes | BaseException] = asyncio.Queue()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport.start(self._take, self._ended)
        transport.trust(AMOUNT)

    def _take(self, message: InboundMessage) -> None:
        self.messages.put_nowait(bytes(message.view))
        message.release()

    def _ended(self, error: BaseException | None) -> None:
        self.messages.put_nowait(error or ConnectionLost("closed"))
        self.closed.set_result(None)

    async def next(self) -> bytes:
        """Wait for a message and return it. Raises the error that ended the connection."""
        found = await self.messages.get()
        if isinstance(found, BaseException):
            raise found
        return found


async def _messages(sender: _Side, receiver: _Side) -> str:
    for length in LENGTHS:
        sent = os.urandom(length)
        sender.transport.send([sent])
        if await receiver.next() != sent:
            return f"a message of {length} bytes was changed on the way"
    return ""


async def _rdma_write(writer: _Side, owner: _Side) -> str:
    """Let the owner expose memory, and check that a message sent after an RDMA Write arrives once the data is there."""
    here, there = writer.transport.rdma, owner.transport.rdma
    assert here is not None and there is not None
    memory = memoryview(bytearray(AMOUNT))
    exposed = there.register(memory, writable=True)
    buffer = writer.transport.acquire(AMOUNT)
    done = asyncio.get_running_loop().create_future()
    try:
        buffer.view[:AMOUNT] = os.urandom(AMOUNT)
        here.write_to_peer(exposed.descriptors, [buffer.view[:AMOUNT]], done.set_result)
        writer.transport.send([b"written"])
        await owner.next()
        arrived = memory == buffer.view[:AMOUNT]
        error = await done
    finally:
        exposed.deregister()
        buffer.release()
    return str(error) if error else "" if arrived else "the data that arrived is not the data written"


async def _rdma_read(reader: _Side, owner: _Side) -> str:
    here, there = reader.transport.rdma, owner.transport.rdma
    assert here is not None and there is not None
    memory = memoryview(bytearray(os.urandom(AMOUNT)))
    exposed = there.register(memory, readable=True)
    buffer = reader.transport.acquire(AMOUNT)
    done = asyncio.get_running_loop().create_future()
    try:
        here.read_from_peer(exposed.descriptors, [buffer.view[:AMOUNT]], done.set_result)
        error = await done
        arrived = memory == buffer.view[:AMOUNT]
    finally:
        exposed.deregister()
        buffer.release()
    return str(error) if error else "" if arrived else "the data read is not the data exposed"


CHECKS: dict[str, Callable[[_Side, _Side], Awaitable[str]]] = {
    "messages to the server": _messages,
    "messages to the client": lambda client, server: _messages(server, client),
    "RDMA Write": lambda client, server: _rdma_write(server, client),
    "RDMA Read": lambda client, server: _rdma_read(server, client),
}
"""The checks by name. Each returns what is wrong, or an empty string."""


async def check_transfers(provider: Provider, address: str) -> dict[str, str]:
    """Connect ``address`` to itself by SMB Direct and return the verdict of each check: "ok" or "FAILED: why".

    Raises ``OSError``, ``ProviderError``, ``ProtocolError`` or ``ConnectionLost`` if there is no connection.
    """
    accepted: asyncio.Future[MessageTransport] = asyncio.get_running_loop().create_future()
    listener = await listen(provider, address, 0, accepted.set_result)
    sides: list[_Side] = []
    verdicts: dict[str, str] = {}
    try:
        client = await connect(provider, address, listener.address[1])
        async with asyncio.timeout(TIMEOUT):
            sides += [_Side(client), _Side(await accepted)]
        for name, check in CHECKS.items():
            try:
                async with asyncio.timeout(TIMEOUT):
                    wrong = await check(*sides)
            except (TimeoutError, ConnectionLost, ProtocolError, ProviderError) as error:
                wrong = str(error) or f"nothing arrives in {TIMEOUT:g} s"
            verdicts[name] = f"FAILED: {wrong}" if wrong else "ok"
    finally:
        for side in sides:
            side.transport.abort("the check is over")
        await asyncio.gather(*(side.closed for side in sides))
        await listener.close()
    return verdicts
