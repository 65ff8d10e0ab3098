"""How the client moves data: cut to what server and credits allow, by RDMA where it can; bad input is refused."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.client.protocol import Client, ServerError, Tree, connection
from smb3server.client.protocol.messages import Way
from smb3server.client.protocol.tree import READ, READ_WRITE, RemoteFile
from smb3server.net.tcp import TcpTransport
from smb3server.settings.server import Settings
from smb3server.wire.create import CreateDisposition
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus
from smbdirect.errors import ConnectionLost, ProtocolError
from smbdirect.message_transport import RemoteBuffer
from smbdirect.rdma.pool import BufferPool
from smbdirect.transport.smb_direct import SmbDirectTransport
from tests.lab.harness import WITHOUT_TRANSFORMS, Lab, lab

PATIENCE = 60
"""Seconds for what used to wait for ever."""


def run(root: Path, work: Callable[[Lab], Awaitable[None]], settings: Settings | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE), lab(root, settings) as made:
            await work(made)

    asyncio.run(main())


async def new_file(tree: Tree, name: str = "a.bin") -> RemoteFile:
    return await tree.create(name, READ_WRITE, CreateDisposition.CREATE)


def rdma_bytes(made: Lab) -> tuple[int, int]:
    """(read from clients, written to clients) by RDMA on the server's side."""
    counters = [
        entry.transport.counters
        for entry in made.server.connection_list
        if isinstance(entry.transport, SmbDirectTransport)
    ]
    return sum(c["bytes_rdma_read"] for c in counters), sum(c["bytes_rdma_written"] for c in counters)


@pytest.mark.parametrize("rdma", [False, True], ids=["tcp", "smbdirect"])
@pytest.mark.parametrize("dialect", [Dialect.SMB_2_0_2, Dialect.SMB_3_1_1])
def test_data_larger_than_one_request_and_than_all_credits(tmp_path: Path, dialect: Dialect, rdma: bool) -> None:
    data = os.urandom(1 << 20) * 20 + b"rest"

    async def work(made: Lab) -> None:
        async with made.session([dialect], rdma=rdma) as session:
            tree = await session.tree_connect("share")
            file = await new_file(tree)
            assert await tree.write(file, 3, data) == len(data)
            assert (tmp_path / "share" / "a.bin").read_bytes() == bytes(3) + data
            assert await tree.read(file, 3, len(data)) == data
            assert await tree.read(file, 3, 50_000_000) == data
            assert await tree.read(file, len(data) + 3, 50_000_000) == b""

    run(tmp_path, work)


def test_a_server_that_grants_few_credits_gets_small_requests(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)

    async def work(made: Lab) -> None:
        client = await Client.connect(await made.transport(), credits_wanted=4)
        session = await client.log_on("u", "pw")
        tree = await session.tree_connect("share")
        file = await new_file(tree)
        assert client.payload_limit == 4 * 65536
        assert await tree.write(file, 0, data) == len(data)
        assert await tree.read(file, 0, len(data)) == data
        with pytest.raises(ValueError, match="need 5 credits, and the client requests at most 4"):
            await tree.read_into(file, 0, [RemoteBuffer(0, 0, 1)], 5 * 65536)
        # A server that grants none of those that are asked for is named, not waited for.
        client.credits_wanted = 256
        client.credits = 4
        client._grant = lambda credits: None  # type: ignore[method-assign]
        with pytest.raises(ProtocolError, match=r"grants 3 credits, and a request needs 16"):
            await tree.call(8, [b"\0"], payload=1 << 20)
        client.transport.abort("test")

    run(tmp_path, work)


@pytest.mark.parametrize("rdma", [False, True], ids=["tcp", "smbdirect"])
@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ("text", TypeError),
        (None, TypeError),
        (5, TypeError),
        (memoryview(b"abcdef")[::2], TypeError),
    ],
    ids=["text", "none", "number", "holes"],
)
def test_data_that_is_not_bytes_harms_nobody(tmp_path: Path, argument: Any, error: type[Exception], rdma: bool) -> None:
    async def work(made: Lab) -> None:
        async with made.tree(rdma=rdma) as tree:
            file = await new_file(tree)
            credits = tree.client.credits
            with pytest.raises(error):
                await tree.write(file, 0, argument)
            with pytest.raises(error):
                await tree.call(9, [b"\0" * 48, argument], payload=1)
            assert tree.client.credits == credits
            assert await tree.write(file, 0, b"good") == 4
            assert await tree.read(file, 0, 10) == b"good"

    run(tmp_path, work)


def test_ranges_that_no_file_has_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def work(made: Lab) -> None:
        async with made.tree() as tree:
            file = await new_file(tree)
            for offset, length in ((-1, 1), (0, -1), ((1 << 63) - 2, 10)):
                with pytest.raises(ValueError, match="no file has"):
                    await tree.read(file, offset, length)
            with pytest.raises(ValueError, match="no file has"):
                await tree.write(file, -1, b"x")
            assert await tree.write(file, 0, array.array("I", [1, 2])) == 8
            assert (tmp_path / "share" / "a.bin").stat().st_size == 8

    run(tmp_path, work)


def test_a_message_that_cannot_be_sent_costs_no_credits(tmp_path: Path) -> None:
    async def work(made: Lab) -> None:
        async with made.tree(rdma=True) as tree:
            client = tree.client
            credits = client.credits
            with pytest.raises(ValueError, match="bytes"):
                await tree.call(9, [bytes(client.transport.max_outbound_message_size + 1)])
            assert client.credits == credits
            await client.echo()

    run(tmp_path, work)


def test_close_ends_although_the_server_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.2, raising=False)

    async def work() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        client = Client(TcpTransport(ours, BufferPool(), 1 << 20))
        client.transport.send([bytes(16 << 20)])
        async with asyncio.timeout(PATIENCE):
            await client.close()
        assert client.closed is not None
        with pytest.raises(ConnectionLost):
            await client.echo()
        listening.close()
        theirs.close()

    asyncio.run(work())


def test_read_and_write_use_rdma_by_themselves(tmp_path: Path) -> None:
    data = os.urandom(5 << 20)

    async def work(made: Lab) -> None:
        async with made.tree(rdma=True) as tree:
            assert tree.choice.way is Way.RDMA
            file = await new_file(tree)
            assert await tree.write(file, 0, data) == len(data)
            assert rdma_bytes(made) == (len(data), 0)
            assert await tree.read(file, 0, len(data)) == data
            assert rdma_bytes(made) == (len(data), len(data))
            # Little data is not worth it.
            assert await tree.read(file, 0, 100) == data[:100]
            assert await tree.write(file, 0, b"x" * 100) == 100
            assert rdma_bytes(made) == (len(data), len(data))

    run(tmp_path, work)


def test_registered_buffers_are_used_again(tmp_path: Path) -> None:
    async def work(made: Lab) -> None:
        async with made.tree(rdma=True) as tree:
            file = await new_file(tree)
            exposed = tree.client.exposed
            assert exposed is not None
            for number in range(20):
                data = bytes([number]) * (1 << 20)
                await tree.write(file, 0, data)
                assert await tree.read(file, 0, 1 << 20) == data
                assert await tree.read(file, 0, 70000) == data[:70000]
            assert exposed.registrations == 3
            parts = await asyncio.gather(*(tree.read(file, index << 16, 1 << 16) for index in range(16)))
            assert parts == [bytes([19]) * 65536] * 16
            assert exposed.registrations <= 3 + 16

    run(tmp_path, work)


def test_errors_by_rdma_leave_the_connection_of_use(tmp_path: Path) -> None:
    async def work(made: Lab) -> None:
        async with made.tree(rdma=True) as tree:
            file = await new_file(tree)
            await tree.write(file, 0, b"x" * 65536)
            reader = await tree.create("a.bin", READ)
            with pytest.raises(ServerError) as refused:
                await tree.write(reader, 0, bytes(65536))
            assert refused.value.status == NtStatus.ACCESS_DENIED
            assert await tree.read(file, 0, 1 << 20) == b"x" * 65536
            assert await tree.read(file, 65536, 1 << 20) == b""

    run(tmp_path, work)


def test_requests_that_are_given_up_leave_the_connection_of_use(tmp_path: Path) -> None:
    """The server may write to the buffer until it has answered, and nobody else gets the buffer before."""

    async def work(made: Lab) -> None:
        async with made.tree(rdma=True) as tree:
            file = await new_file(tree)
            await tree.write(file, 0, b"x" * 65536)
            exposed = tree.client.exposed
            assert exposed is not None
            ended: list[object] = []
            give_back, drop = exposed.give_back, exposed.drop
            exposed.give_back = lambda buffer: (ended.append(buffer), give_back(buffer))[1]  # type: ignore[method-assign]
            exposed.drop = lambda buffer: (ended.append("dropped"), drop(buffer))[1]  # type: ignore[method-assign]
            for request in (tree.read(file, 0, 65536), tree.write(file, 0, b"x" * 65536)):
                given_up = asyncio.ensure_future(request)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                given_up.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await given_up
                assert ended == []
                await tree.client.echo()
                while not ended:
                    await asyncio.sleep(0.01)
                assert ended != ["dropped"]
                ended.clear()
            assert await tree.read(file, 0, 65536) == b"x" * 65536
            registrations = exposed.registrations
            # The end of a connection is no answer.
            given_up = asyncio.ensure_future(tree.read(file, 0, 65536))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ended.clear()
            tree.client.transport.abort("test")
            with pytest.raises(ConnectionLost):
                await given_up
            assert ended == ["dropped"]
            assert exposed.registrations == registrations

    run(tmp_path, work)


@pytest.mark.parametrize("protection", ["sign", "encrypt"])
def test_protected_data_without_transforms_goes_inline_and_the_tree_says_so(tmp_path: Path, protection: str) -> None:
    data = os.urandom(2 << 20)

    async def work(made: Lab) -> None:
        sign, encrypt = protection == "sign", protection == "encrypt"
        async with made.session(rdma=True, sign=sign, encrypt=encrypt, offer=WITHOUT_TRANSFORMS) as session:
            tree = await session.tree_connect("share")
            assert ("signed" if sign else "encrypted") in tree.choice.why_inline
            file = await new_file(tree)
            assert await tree.write(file, 0, data) == len(data)
            assert await tree.read(file, 0, len(data)) == data
            assert rdma_bytes(made) == (0, 0)

    run(tmp_path, work)


def test_other_reasons_for_inline_data(tmp_path: Path) -> None:
    async def work(made: Lab) -> None:
        async with made.tree() as tree:
            assert tree.choice.why_inline == "the transport has no RDMA"
            assert tree.client.exposed is None
        async with made.session([Dialect.SMB_2_1], rdma=True) as session:
            assert (await session.tree_connect("share")).choice.why_inline == "RDMA needs dialect 3.0"
        async with made.tree("IPC$", rdma=True) as tree:
            assert tree.choice.why_inline == "pipes have no RDMA"

    run(tmp_path, work)


def test_the_typed_interface_of_a_transport_has_register(tmp_path: Path) -> None:
    """What an application with strict types writes; ``mypy`` judges this text."""
    script = tmp_path / "script.py"
    script.write_text(
        "from smbdirect.message_transport import MessageTransport, RemoteBuffer\n"
        "def expose(transport: MessageTransport) -> tuple[RemoteBuffer, ...]:\n"
        "    assert transport.rdma is not None\n"
        "    memory = transport.rdma.register(memoryview(bytearray(4096)), writable=True)\n"
        "    memory.deregister()\n"
        "    return memory.descriptors\n"
    )
    words = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(script)]
    # In this process mypy would change the garbage collector's thresholds for all tests that follow.
    judged = subprocess.run([sys.executable, "-m", "mypy", *words], check=False, capture_output=True, text=True)
    assert judged.returncode == 0, judged.stdout + judged.stderr
