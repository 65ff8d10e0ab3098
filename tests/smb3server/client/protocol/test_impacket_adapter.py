"""impacket's client over our transports: SMB Direct on the iWARP provider, and direct TCP."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from impacket.smbconnection import SessionError

from smb3server.client.protocol import open_rdma, open_tcp
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.iwarp.provider import IwarpProvider
from smbdirect.transport.listen import listen
from tests.lab.harness import lab
from tests.lab.impacket_adapter import connect

Opener = Callable[[], Awaitable[MessageTransport]]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, Opener]]:
    """A server on a thread of its own; ways to reach it."""
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    ports: dict[str, int] = {}

    async def serve() -> None:
        async with lab(tmp_path) as made:
            iwarp = await listen(IwarpProvider(), "127.0.0.1", 0, made.server.accept)
            ports.update(tcp=made.tcp_port, iwarp=iwarp.address[1])
            ready.set()
            await stop.wait()
            await iwarp.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    yield {
        "tcp": lambda: open_tcp("127.0.0.1", ports["tcp"]),
        "iwarp": lambda: open_rdma(IwarpProvider(), "127.0.0.1", ports["iwarp"]),
    }
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.mark.interop
@pytest.mark.parametrize("fabric", ["tcp", "iwarp"])
@pytest.mark.parametrize("dialect", [0x0202, 0x0210, 0x0300, 0x0302, 0x0311])
def test_impacket_puts_gets_lists_and_deletes(servers: dict[str, Opener], fabric: str, dialect: int) -> None:
    connection = connect(servers[fabric], "127.0.0.1", dialect)
    try:
        assert connection.getDialect() == dialect
        connection.login("u", "pw")
        data = os.urandom(300_000)
        connection.putFile("share", "a.bin", io.BytesIO(data).read)
        received = io.BytesIO()
        connection.getFile("share", "a.bin", received.write)
        assert received.getvalue() == data
        assert {entry.get_longname() for entry in connection.listPath("share", "*")} == {".", "..", "a.bin"}
        connection.deleteFile("share", "a.bin")
        with pytest.raises(SessionError):
            connection.listPath("share", "a.bin")
        assert {share["shi1_netname"].rstrip("\0") for share in connection.listShares()} >= {"share", "other"}
        connection.logoff()
    finally:
        connection.close()
