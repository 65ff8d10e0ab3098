"""Messages that end with data out of a file, on a TCP connection whose peer reads as the test wants."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.backends.local.mappings import MappedFile
from smb3server.net.tcp import MAX_FILES, TcpTransport
from smbdirect.message_transport import FileRange
from smbdirect.rdma.pool import BufferPool

SIZE = 3 << 20
"""More than the sockets' buffers take, as they are set here."""


class Peers:
    """A transport and the other end of its connection. ``content`` is in the file, which is mapped if ``maps``."""

    def __init__(self, path: Path, maps: bool) -> None:
        self.maps = maps
        self.mapped = MappedFile()
        self.content = random.Random(5).randbytes(SIZE)
        path.write_bytes(self.content)
        self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.peer = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.peer.setblocking(False)
        self.transport = TcpTransport(accepted, BufferPool(), SIZE)
        self.sent: list[str] = []
        self.ended: list[BaseException | None] = []
        self.transport.start(lambda message: message.release(), self.ended.append)

    def send(self, name: str, head: bytes, offset: int, length: int) -> None:
        memory = self.mapped.part(self.file, offset, length, SIZE) if self.maps else None
        data = FileRange(self.file, offset, length, memory)
        self.transport.send([head], None, lambda: self.sent.append(name), data)

    async def receive(self, length: int) -> bytes:
        received = bytearray()
        async with asyncio.timeout(10):
            while len(received) < length:
                part = await asyncio.get_running_loop().sock_recv(self.peer, length - len(received))
                assert part
                received += part
        return bytes(received)

    async def receive_all(self) -> bytes:
        received = bytearray()
        async with asyncio.timeout(10):
            while part := await asyncio.get_running_loop().sock_recv(self.peer, 65536):
                received += part
        return bytes(received)


def play(tmp_path: Path, test: Callable[[Peers], Awaitable[None]]) -> None:
    """Run ``test`` with data that is mapped, and with data that is not."""
    for maps in (True, False):
        asyncio.run(played(tmp_path, test, maps))


async def played(tmp_path: Path, test: Callable[[Peers], Awaitable[None]], maps: bool) -> None:
    peers = Peers(tmp_path / "file", maps)
    try:
        await test(peers)
    finally:
        peers.transport.abort()
        peers.peer.close()
        os.close(peers.file)
        peers.mapped.close()
        await asyncio.sleep(0)


def framed(*parts: bytes) -> bytes:
    message = b"".join(parts)
    return len(message).to_bytes(4, "big") + message


def test_files_and_memory_are_sent_in_their_order(tmp_path: Path) -> None:
    rng = random.Random(7)

    async def test(peers: Peers) -> None:
        expected = b""
        names = []
        for number in range(60):
            name, head = str(number), rng.randbytes(rng.randrange(1, 3000))
            if rng.random() < 0.5:
                peers.transport.send([head, b"more"], None, lambda name=name: peers.sent.append(name))
                expected += framed(head, b"more")
            else:
                offset = rng.randrange(SIZE - 1)
                length = rng.randrange(1, min(SIZE - offset, 300_000))
                peers.send(name, head, offset, length)
                expected += framed(head, peers.content[offset : offset + length])
            names.append(name)
        assert await peers.receive(len(expected)) == expected
        await asyncio.sleep(0.01)
        assert peers.sent == names
        assert peers.transport.pending_send_bytes == 0
        assert peers.transport.counters["bytes_sent"] == len(expected)
        peers.transport.send([b"last"])
        assert await peers.receive(8) == framed(b"last")

    play(tmp_path, test)


def test_what_was_cut_off_is_sent_as_zeros(tmp_path: Path) -> None:
    """The peer has been promised so many bytes: another length would make the rest of the stream unreadable."""

    async def test(peers: Peers) -> None:
        peers.send("whole", b"head", 0, SIZE)
        peers.transport.send([b"behind"])
        assert peers.sent == []
        os.ftruncate(peers.file, SIZE - 5000)
        expected = framed(b"head", peers.content[:-5000], bytes(5000)) + framed(b"behind")
        assert await peers.receive(len(expected)) == expected
        assert peers.sent == ["whole"]

    play(tmp_path, test)


def test_a_file_that_was_emptied_is_sent_as_zeros(tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        peers.send("first", b"head", 0, SIZE)
        peers.send("second", b"head", 0, 100_000)
        os.ftruncate(peers.file, 0)
        await peers.receive(SIZE + 8)
        assert await peers.receive(100_008) == framed(b"head", bytes(100_000))
        assert peers.sent == ["first", "second"]

    play(tmp_path, test)


def test_what_is_overwritten_before_it_is_sent_is_sent_new(tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        peers.send("whole", b"head", 0, SIZE)
        os.pwrite(peers.file, b"n" * 4096, SIZE - 4096)
        received = await peers.receive(SIZE + 8)
        assert received == framed(b"head", peers.content[:-4096], b"n" * 4096)

    play(tmp_path, test)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDONLY | os.O_DIRECTORY], ids=["write only", "a folder"])
def test_a_file_that_cannot_be_read_ends_the_connection(tmp_path: Path, flags: int) -> None:
    """The promised bytes cannot be sent, and others would be wrong."""

    async def test(peers: Peers) -> None:
        bad = os.open(tmp_path if flags & os.O_DIRECTORY else tmp_path / "file", flags | os.O_CLOEXEC)
        peers.transport.send([b"head"], None, lambda: peers.sent.append("bad"), FileRange(bad, 0, 4096))
        received = await peers.receive_all()
        assert received in (b"", framed(b"head", bytes(4096))[:8])
        assert peers.sent == ["bad"]
        await asyncio.sleep(0.01)
        assert isinstance(peers.ended[0], OSError)
        os.close(bad)

    play(tmp_path, test)


def test_close_sends_what_is_queued_and_abort_does_not(tmp_path: Path) -> None:
    async def closed(peers: Peers) -> None:
        peers.send("whole", b"head", 0, SIZE)
        peers.transport.close()
        peers.send("late", b"head", 0, SIZE)
        assert peers.sent == ["late"]
        assert await peers.receive_all() == framed(b"head", peers.content)
        assert peers.sent == ["late", "whole"]

    async def aborted(peers: Peers) -> None:
        peers.send("whole", b"head", 0, SIZE)
        peers.send("second", b"head", 0, SIZE)
        peers.transport.abort()
        assert peers.sent == ["whole", "second"]
        assert peers.transport.pending_send_bytes == 0

    play(tmp_path, closed)
    play(tmp_path, aborted)


def test_a_peer_that_reads_nothing_gets_few_files(tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        for number in range(MAX_FILES):
            assert peers.transport.takes_file
            peers.send(str(number), b"head", 0, SIZE)
        assert not peers.transport.takes_file
        await peers.receive(SIZE + 8)
        await asyncio.sleep(0.01)
        assert peers.transport.takes_file

    play(tmp_path, test)
