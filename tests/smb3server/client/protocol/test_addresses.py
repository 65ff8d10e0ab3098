"""A name with several addresses, and servers that do not speak SMB 2."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from smb3server.client.protocol import transports
from smb3server.client.protocol.transports import open_tcp, speaks_smb1

ANSWER = b"\xffSMB\x72" + bytes(27) + b"\x01"


@contextlib.asynccontextmanager
async def listening(answer: bytes = b"", host: str = "127.0.0.1") -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if answer:
            await reader.readexactly(4)
            writer.write(answer)

    async with await asyncio.start_server(accept, host, 0) as server:
        yield server.sockets[0].getsockname()[1]
        for writer in writers:
            writer.transport.abort()


def named(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Make ``both`` a name of these addresses."""

    async def getaddrinfo(self: Any, host: bytes, port: int, **_: Any) -> list[Any]:
        assert host == b"both"
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo)


def test_the_address_that_serves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "127.0.0.2", "127.0.0.1")

    async def test() -> None:
        async with listening() as port:
            transport = await open_tcp("both", port)
            assert transport.peer_address == ("127.0.0.1", port)
            transport.abort()

    asyncio.run(test())


def test_a_silent_address_costs_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "192.0.2.1", "127.0.0.1")
    original = asyncio.selector_events.BaseSelectorEventLoop.sock_connect
    silent: list[asyncio.Future[None]] = []

    async def sock_connect(self: Any, sock: socket.socket, address: Any) -> None:
        if address[0] == "192.0.2.1":
            silent.append(asyncio.get_running_loop().create_future())
            await silent[0]
        await original(self, sock, address)

    monkeypatch.setattr(asyncio.selector_events.BaseSelectorEventLoop, "sock_connect", sock_connect)

    async def test() -> None:
        async with listening() as port:
            began, before = time.monotonic(), len(os.listdir("/proc/self/fd"))
            transport = await open_tcp("both", port, timeout=30)
            assert transport.peer_address[0] == "127.0.0.1"
            assert time.monotonic() - began >= transports.ATTEMPT_DELAY
            assert silent[0].cancelled()
            transport.abort()
            silent.clear()
            with pytest.raises(TimeoutError):
                await open_tcp("both", 1, timeout=2 * transports.ATTEMPT_DELAY)
            await asyncio.sleep(0.1)
            # The listener's end of the connection may be open still.
            assert len(os.listdir("/proc/self/fd")) <= before + 1

    asyncio.run(test())


def test_the_most_telling_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "2001:db8::1", "127.0.0.1")

    async def test() -> None:
        with pytest.raises(ConnectionRefusedError):
            await open_tcp("both", 1)

    asyncio.run(test())


def test_families_take_turns_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "::1", "::2", "::3", "192.0.2.1", "192.0.2.2", *(f"192.0.2.{last}" for last in range(3, 200)))
    found = asyncio.run(transports.addresses_of("both", 445))
    assert [entry[4][0] for entry in found] == [
        "::1", "192.0.2.1", "::2", "192.0.2.2", "::3", "192.0.2.3", "192.0.2.4", "192.0.2.5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "found"),
    [(ANSWER + b"\0\0", True), (ANSWER + b"\xff\xff", False), (b"\xfeSMB" + bytes(60), False), (b"HTTP", False)],
    ids=["SMB 1", "another dialect", "SMB 2", "no SMB"],
)
def test_smb_1_is_recognized(body: bytes, found: bool) -> None:
    async def test() -> None:
        async with listening(len(body).to_bytes(4, "big") + body) as port:
            assert await speaks_smb1("127.0.0.1", port, 0.5) is found
        assert not await speaks_smb1("127.0.0.1", port, 0.5)

    asyncio.run(test())
