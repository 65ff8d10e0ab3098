"""WRITEs whose data goes from the socket to the file: which ones do, and what becomes of those that fail midway."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.handle import LocalHandle
from smb3server.net import arrived
from smb3server.net.tcp import TcpTransport
from smb3server.state.audit import ShareAudit
from smb3server.state.share import Share
from smb3server.wire import lock
from smb3server.wire.create import CreateOptions
from smb3server.wire.header import Command
from smb3server.wire.read_write import WRITE_REQUEST, WriteFlags, WriteRequest
from smb3server.wire.status import NtStatus
from smbdirect.message_transport import Payload
from tests.lab.wire_client import ECHO, Client, Harness, Reply, compound, running

SIZE = 1 << 20
CONTENT = random.Random(11).randbytes(SIZE)
OLD = b"o" * (2 * SIZE)


class Writer:
    """A client with an open file that it has written to before, and what the server has taken from its socket."""

    def __init__(self, harness: Harness, client: Client, path: Path, taken: list[int]) -> None:
        self.harness = harness
        self.client = client
        self.path = path
        self.taken = taken
        self.file_id = b""

    async def open(self, name: str = "f", access: int = 0x0012019F, options: int = 0) -> None:
        reply = await self.client.open(name, access=access, options=options)
        assert reply.status == 0
        self.file_id = reply.body[64:80]

    def request(self, data: bytes, offset: int = 0, charge: int | None = None, **fields: Any) -> bytes:
        persistent, volatile = struct.unpack("<QQ", self.file_id)
        values: dict[str, Any] = {"data_offset": 112, "length": len(data), "offset": offset}
        record = WriteRequest(**{**values, **fields}, persistent=persistent, volatile=volatile)
        charge = (len(data) - 1) // 65536 + 1 if charge is None else charge
        body = WRITE_REQUEST.pack(record) + bytes(record.data_offset - 112) + data
        return self.client.build(Command.WRITE, body, credit_charge=charge, credits=512)

    async def write(self, data: bytes, offset: int = 0, **fields: Any) -> Reply:
        message = self.request(data, offset, **fields)
        if self.client.encrypt:
            message = self.client.sealed(message)
        elif self.client.sign:
            message = self.client.signed(message)
        await self.client.frame(message)
        return await self.final()

    async def final(self) -> Reply:
        reply = await self.client.receive()
        while reply.status == NtStatus.PENDING:
            reply = await self.client.receive()
        return reply

    async def begin(self, data: bytes, sent: int) -> bytes:
        """Send ``sent`` bytes of a WRITE, and wait until the server has looked at them. Return the rest."""
        message = self.request(data)
        framed = len(message).to_bytes(4, "big") + message
        await self.client.raw(framed[:sent])
        await asyncio.sleep(0.1)
        return framed[sent:]

    async def in_step(self) -> None:
        """The server still finds the beginnings of messages."""
        assert (await self.client.call(Command.ECHO, ECHO)).status == 0

    @property
    def transport(self) -> TcpTransport:
        (connection,) = self.harness.server.connection_list
        transport = connection.transport
        assert isinstance(transport, TcpTransport)
        return transport

    def content(self) -> bytes:
        return (self.path / "f").read_bytes()


def play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: Callable[[Writer], Awaitable[None]], share: str = "disk"
) -> None:
    taken: list[int] = []
    take_in = LocalHandle.take_in

    def noting(handle: LocalHandle, payload: Payload, offset: int) -> None:
        taken.append(payload.length)
        take_in(handle, payload, offset)

    monkeypatch.setattr(LocalHandle, "take_in", noting)

    async def main() -> None:
        async with running() as harness:
            folder = tmp_path / "disk"
            folder.mkdir()
            harness.server.add_share(Share("disk", backend=LocalBackend(folder), path=str(folder)))
            (folder / "f").write_bytes(OLD)
            client = await harness.connect()
            await client.login(share=share)
            client.sign = False
            for _ in range(4):
                await client.call(Command.ECHO, ECHO, credits=512)
            writer = Writer(harness, client, folder, taken)
            await writer.open()
            while not taken and share == "disk":
                # The kernel makes room for large messages when it has seen some.
                assert (await writer.write(OLD)).status == 0
            taken.clear()
            await test(writer)
            client.writer.close()
            await harness.settled()
            assert not harness.server.opens.by_id
            assert harness.server.buffers.lent == 0

    asyncio.run(main())


def test_large_writes_go_from_the_socket_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(writer: Writer) -> None:
        expected = bytearray(OLD)
        sizes = [arrived.PAYLOAD_FROM, 131_073, 300_001, SIZE, SIZE + 1, 2 * SIZE]
        for size, offset in zip(sizes, (0, 1, 4095, 4096, 77_777, 2 * SIZE - 5), strict=True):
            data = random.Random(size).randbytes(size)
            reply = await writer.write(data, offset)
            assert reply.status == 0
            assert struct.unpack_from("<I", reply.body, 4) == (size,)
            expected[offset : offset + size] = data
            assert writer.content() == expected
            await writer.in_step()
        assert writer.taken == sizes
        (opened,) = writer.harness.server.opens.by_id.values()
        assert opened.position == 4 * SIZE - 5

    play(tmp_path, monkeypatch, test)


def test_many_at_once_and_other_requests_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(writer: Writer) -> None:
        rng = random.Random(1)
        expected = bytearray(OLD)
        stream = b""
        count = 24
        for number in range(count):
            size = rng.choice((100, 20_000, 65_536, 200_000, 400_000)) + rng.randrange(50)
            offset = rng.randrange(SIZE)
            data = rng.randbytes(size)
            expected[offset : offset + size] = data
            message = writer.request(data, offset)
            stream += len(message).to_bytes(4, "big") + message
            if number % 3 == 0:
                echo = writer.client.build(Command.ECHO, ECHO)
                stream += len(echo).to_bytes(4, "big") + echo

        async def send() -> None:
            position = 0
            while position < len(stream):
                step = rng.choice((10, 116, 5000, 1 << 20))
                await writer.client.raw(stream[position : position + step])
                position += step
                if step < 1000:
                    await asyncio.sleep(0.001)

        sending = asyncio.create_task(send())
        for _ in range(count + count // 3):
            assert (await writer.final()).status == 0
        await sending
        assert writer.content() == expected

    play(tmp_path, monkeypatch, test)


def _unusual() -> dict[str, Callable[[Writer], Awaitable[Reply]]]:
    async def signed(writer: Writer) -> Reply:
        writer.client.sign = True
        return await writer.write(CONTENT)

    async def encrypted(writer: Writer) -> Reply:
        writer.client.encrypt = True
        return await writer.write(CONTENT)

    async def related(writer: Writer) -> Reply:
        await writer.client.frame(compound(writer.client, writer.request(CONTENT), writer.request(b"next", SIZE)))
        first, second = await writer.client.receive_compound()
        assert second.status == 0
        return first

    async def through(writer: Writer) -> Reply:
        return await writer.write(CONTENT, flags=int(WriteFlags.WRITE_THROUGH))

    async def opened_through(writer: Writer) -> Reply:
        await writer.open(options=int(CreateOptions.WRITE_THROUGH))
        await writer.write(b"first")
        return await writer.write(CONTENT)

    async def first_and_recorded(writer: Writer) -> Reply:
        server = writer.harness.server
        for share in server.share_list.values():
            share.audit = ShareAudit(frozenset(), server.events)  # type: ignore[arg-type]
        await writer.open()
        return await writer.write(CONTENT)

    async def data_behind_a_gap(writer: Writer) -> Reply:
        return await writer.write(CONTENT, data_offset=120)

    async def less_than_was_sent(writer: Writer) -> Reply:
        return await writer.write(CONTENT + b"not data", length=SIZE)

    return {name: case for name, case in locals().items() if callable(case)}


@pytest.mark.parametrize("case", _unusual().values(), ids=_unusual())
def test_unusual_ones_are_received_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Callable[[Writer], Awaitable[Reply]]
) -> None:
    async def test(writer: Writer) -> None:
        assert (await case(writer)).status == 0
        assert writer.content()[:SIZE] == CONTENT
        assert writer.taken == []
        await writer.in_step()

    play(tmp_path, monkeypatch, test)


def _refused() -> dict[str, tuple[int, Callable[[Writer], Awaitable[Reply]]]]:
    async def read_only(writer: Writer) -> Reply:
        await writer.open(access=0x00120089)
        return await writer.write(CONTENT)

    async def no_such_open(writer: Writer) -> Reply:
        writer.file_id = bytes(16)
        return await writer.write(CONTENT)

    async def too_few_credits(writer: Writer) -> Reply:
        return await writer.write(CONTENT, charge=15)

    async def beyond_all_offsets(writer: Writer) -> Reply:
        return await writer.write(CONTENT, (1 << 63) - 10)

    async def by_rdma(writer: Writer) -> Reply:
        return await writer.write(CONTENT, channel=1)

    async def longer_than_the_message(writer: Writer) -> Reply:
        return await writer.write(CONTENT, length=SIZE + 1)

    return {
        "read only": (NtStatus.ACCESS_DENIED, read_only),
        "no such open": (NtStatus.FILE_CLOSED, no_such_open),
        "too few credits": (NtStatus.INVALID_PARAMETER, too_few_credits),
        "beyond all offsets": (NtStatus.INVALID_PARAMETER, beyond_all_offsets),
        "by RDMA": (NtStatus.INVALID_PARAMETER, by_rdma),
        "longer than the message": (NtStatus.INVALID_PARAMETER, longer_than_the_message),
    }


@pytest.mark.parametrize(("status", "case"), _refused().values(), ids=_refused())
def test_refused_ones_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, case: Callable[[Writer], Awaitable[Reply]]
) -> None:
    async def test(writer: Writer) -> None:
        assert (await case(writer)).status == status
        assert writer.content() == OLD
        assert writer.taken == []
        await writer.in_step()

    play(tmp_path, monkeypatch, test)


def test_a_store_in_memory_gets_it_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(writer: Writer) -> None:
        assert (await writer.write(CONTENT)).status == 0
        assert writer.taken == []
        await writer.in_step()

    play(tmp_path, monkeypatch, test, share="share")


@pytest.mark.parametrize("sent", [60, 116, 5000, SIZE // 2, SIZE + 115])
def test_a_slow_writer_has_changed_nothing_and_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """The WRITE is executed when it is complete. Until then another client may lock the range, and it is refused."""

    async def test(writer: Writer) -> None:
        rest = await writer.begin(CONTENT, sent)
        assert writer.content() == OLD
        other = await writer.harness.connect()
        await other.login(share="disk")
        opened = await other.open("f")
        locks = lock.LOCK_REQUEST.pack(
            lock.LockRequest(lock_count=1, **dict(zip(("persistent", "volatile"), _ids(opened), strict=True)))
        ) + lock.LOCK_ELEMENT.pack(lock.LockElement(offset=5, length=10, flags=int(lock.LockFlags.EXCLUSIVE_LOCK)))
        assert (await other.call(Command.LOCK, locks)).status == 0
        await writer.client.raw(rest)
        assert (await writer.final()).status == NtStatus.FILE_LOCK_CONFLICT
        assert writer.content() == OLD
        await writer.in_step()
        other.writer.close()

    play(tmp_path, monkeypatch, test)


def _ids(opened: Reply) -> tuple[int, int]:
    persistent, volatile = struct.unpack_from("<QQ", opened.body, 64)
    return persistent, volatile


def test_a_waiting_write_needs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(writer: Writer) -> None:
        rest = await writer.begin(CONTENT, SIZE // 2)
        assert writer.harness.server.buffers.lent == 0
        # Pausing and going on meanwhile does not make it one that was woken early.
        writer.transport.pause_reading()
        writer.transport.resume_reading()
        await asyncio.sleep(0.05)
        await writer.client.raw(rest)
        assert (await writer.final()).status == 0
        assert writer.taken == [SIZE]
        assert writer.content()[:SIZE] == CONTENT

    play(tmp_path, monkeypatch, test)


def test_a_writer_that_dies_midway_has_changed_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(writer: Writer) -> None:
        await writer.begin(CONTENT, SIZE // 2)
        writer.client.writer.close()
        await writer.harness.settled()
        assert writer.content() == OLD
        assert writer.taken == []

    play(tmp_path, monkeypatch, test)


def test_a_close_behind_it_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(writer: Writer) -> None:
        rest = await writer.begin(CONTENT, SIZE // 2)
        close = writer.client.build(Command.CLOSE, struct.pack("<HHI", 24, 0, 0) + writer.file_id)
        await writer.client.raw(rest + len(close).to_bytes(4, "big") + close)
        assert [(await writer.final()).status for _ in range(2)] == [0, 0]
        assert writer.content()[:SIZE] == CONTENT
        assert writer.taken == [SIZE]

    play(tmp_path, monkeypatch, test)


class Expired:
    def expired(self) -> bool:
        return True


def test_a_fenced_node_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(writer: Writer) -> None:
        rest = await writer.begin(CONTENT, SIZE // 2)
        server = writer.harness.server
        monkeypatch.setattr(server, "guid_of_address", lambda address: bytes(16))
        server.fence = Expired()
        await writer.client.raw(rest)
        assert await writer.client.closed()
        assert writer.content() == OLD
        assert writer.taken == []

    play(tmp_path, monkeypatch, test)


def test_a_full_disk_fails_the_write_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = arrived.Pipe.empty

    def full(pipe: arrived.Pipe, descriptor: int, offset: int, length: int) -> None:
        """Room for the first byte only."""
        splice = os.splice

        def one(source: int, target: int, count: int, **rest: Any) -> int:
            if rest.get("offset_dst") != offset:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return splice(source, target, 1, **rest)

        with monkeypatch.context() as patched:
            patched.setattr(os, "splice", one)
            empty(pipe, descriptor, offset, length)

    async def test(writer: Writer) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(arrived.Pipe, "empty", full)
            assert (await writer.write(CONTENT)).status == NtStatus.DISK_FULL
        await writer.in_step()
        assert writer.content()[SIZE:] == OLD[SIZE:]
        assert (await writer.write(CONTENT)).status == 0
        assert writer.content()[:SIZE] == CONTENT, "nothing of the failed one is left in the pipe"

    play(tmp_path, monkeypatch, test)


def test_a_file_system_that_cannot_splice_gets_the_data_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splice = os.splice

    def into_pipes_only(source: int, target: int, count: int, **rest: Any) -> int:
        if "offset_dst" in rest:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return splice(source, target, count, **rest)

    async def test(writer: Writer) -> None:
        monkeypatch.setattr(os, "splice", into_pipes_only)
        assert (await writer.write(CONTENT, 33)).status == 0
        assert writer.content()[33 : SIZE + 33] == CONTENT
        assert writer.taken == [SIZE]

    play(tmp_path, monkeypatch, test)


def test_a_pipe_of_the_smallest_size_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrived, "_PIPE_SIZE", 4096)

    async def test(writer: Writer) -> None:
        assert (await writer.write(CONTENT, 3)).status == 0
        assert writer.content()[3 : SIZE + 3] == CONTENT
        assert writer.taken == [SIZE]

    play(tmp_path, monkeypatch, test)


def test_a_socket_without_room_is_received_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports what is there when no more fits. After some such messages no further one waits."""

    async def test(writer: Writer) -> None:
        writer.transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        for number in range(arrived.MAX_WOKEN_EARLY + 2):
            data = bytes([number]) * SIZE
            assert (await writer.write(data)).status == 0
            assert writer.content()[:SIZE] == data
        assert writer.taken == []
        payloads = writer.transport._payloads
        assert payloads is not None and payloads.taker is None

    play(tmp_path, monkeypatch, test)


def test_urgent_data_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes an urgent byte out of the stream: what follows cannot be told apart any more."""

    async def test(writer: Writer) -> None:
        message = writer.request(CONTENT)
        framed = len(message).to_bytes(4, "big") + message
        sock = writer.client.writer.get_extra_info("socket")
        await writer.client.raw(framed[: SIZE // 2])
        await asyncio.sleep(0.05)
        raw = socket.socket(fileno=os.dup(sock.fileno()))
        raw.send(b"!", socket.MSG_OOB)
        raw.close()
        await writer.client.raw(framed[SIZE // 2 : -1])
        await asyncio.sleep(0.1)
        writer.client.writer.close()
        await writer.harness.settled()
        assert len(writer.content()) == len(OLD)

    play(tmp_path, monkeypatch, test)
