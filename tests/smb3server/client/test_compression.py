"""The client compresses what it writes and has compressed what it reads, where the two sides agree on it. [MS-SMB2
3.1.4.4, 3.2.5.1.1.2, 3.2.5.2]"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.client import Share, connect
from smb3server.client.protocol import Client
from smb3server.client.protocol.negotiation import DIALECTS, Offer, parse
from smb3server.client.protocol.transports import open_tcp
from smb3server.compression.codecs import COMPRESSION
from smb3server.compression.transform import Agreement
from smb3server.wire.compression import CompressionAlgorithm, pack_compression
from smb3server.wire.header import HEADER_SIZE
from smb3server.wire.negotiate import NEGOTIATE_RESPONSE, ContextType, NegotiateResponse, pack_contexts
from smbdirect.errors import ConnectionLost, DecodeError, ProtocolError
from tests.lab.remote import PASSWORD, USER, Home, run

MIB = 1 << 20
TEXT = b"".join(b"line %d of a text that shrinks\n" % number for number in range(100_000))
LZ4, LZ77, PATTERN = CompressionAlgorithm.LZ4, CompressionAlgorithm.LZ77, CompressionAlgorithm.PATTERN_V1


def use(served: Home, work: Callable[[Share], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        given = {"password": PASSWORD, "rdma": "off", "rdma_port": served.rdma_port, "compress": True} | options
        async with connect(f"{served.url}/test", **given) as share:
            await work(share)

    run(main)


@pytest.mark.parametrize(
    "options", [{}, {"sign": False}, {"encrypt": True}, {"channels": 3}], ids=["signed", "clear", "encrypted", "three"]
)
def test_text_there_and_back(served: Home, folder: Path, options: dict[str, Any]) -> None:
    async def work(share: Share) -> None:
        assert "LZ4, Pattern_V1" in share.transport
        await share.write_bytes("text", TEXT)
        assert (folder / "text").read_bytes() == TEXT
        before, after = share.compressed
        assert before == len(TEXT) and after < before / 2
        assert await share.read_bytes("text") == TEXT
        whole, packed = share.compressed
        assert whole >= 2 * len(TEXT) and packed - after < (whole - before) / 2
        # What users are told of the amount of data does not change.
        assert share.moved["tcp"] == (len(TEXT), len(TEXT))

    use(served, work, **options)


@pytest.mark.parametrize("options", [{}, {"sign": False}, {"encrypt": True}], ids=["signed", "clear", "encrypted"])
def test_small_files_are_compressed_in_their_chains(
    served: Home, folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    small, noise = TEXT[:60_000], os.urandom(60_000)
    (tmp_path / "small").write_bytes(small)
    (tmp_path / "noise").write_bytes(noise)

    async def work(share: Share) -> None:
        for number in range(3):
            await share.upload(tmp_path / "small", f"small{number}")
        before, after = share.compressed
        assert 3 * len(small) < before < 3.1 * len(small) and after < before / 2
        for number in range(3):
            await share.upload(tmp_path / "noise", f"noise{number}")
        assert share.compressed == (before, after)
        for number in range(3):
            assert (folder / f"small{number}").read_bytes() == small
            assert (folder / f"noise{number}").read_bytes() == noise

    use(served, work, **options)


def test_data_that_does_not_shrink_is_tried_once(served: Home, folder: Path) -> None:
    noise = os.urandom(3 * MIB)

    async def work(share: Share) -> None:
        await share.write_bytes("noise", noise)
        assert await share.read_bytes("noise") == noise
        assert (folder / "noise").read_bytes() == noise
        assert share.compressed == (0, 0)

    use(served, work)


def test_nobody_compresses_unasked(served: Home, folder: Path) -> None:
    async def work(share: Share) -> None:
        await share.write_bytes("text", TEXT)
        assert await share.read_bytes("text") == TEXT
        assert share.compressed == (0, 0) and share.transport == "tcp"

    use(served, work, compress=False)


def test_what_moves_by_rdma_is_left_alone(served: Home, folder: Path) -> None:
    async def work(share: Share) -> None:
        await share.write_bytes("text", TEXT[: 2 * MIB])
        assert await share.read_bytes("text") == TEXT[: 2 * MIB]
        assert share.compressed == (0, 0) and share.uses_rdma

    use(served, work, rdma="iwarp")


@pytest.mark.parametrize("algorithm", COMPRESSION[:-1])
@pytest.mark.parametrize("sizes", [(100, 128, 4000, 4096), (131072, MIB)], ids=["at once", "on a thread"])
def test_every_algorithm(served: Home, folder: Path, algorithm: int, sizes: tuple[int, ...]) -> None:
    async def main() -> None:
        offer = Offer(compression=(algorithm, PATTERN))
        client = await Client.connect(await open_tcp("127.0.0.1", served.port), offer=offer)
        assert client.negotiated.compression == Agreement((algorithm, PATTERN), chained=True)
        session = await client.log_on(USER, PASSWORD, sign=True)
        tree = await session.tree_connect("share")
        for size in sizes:
            (folder / "a").write_bytes(TEXT[:size])
            file = await tree.create("test\\a", 0xC0000000)
            assert await tree.read(file, 0, size) == TEXT[:size]
            await tree.write(file, 0, TEXT[7 : size + 7])
            assert (folder / "a").read_bytes() == TEXT[7 : size + 7]
            await tree.close(file)
        assert client.compressed.sent >= sizes[-1] <= client.compressed.received
        await client.close()

    run(main)


# What servers may not do


def response(*contexts: tuple[int, bytes]) -> memoryview:
    offset = HEADER_SIZE + NEGOTIATE_RESPONSE.size
    offset += -offset & 7
    listed = [(ContextType.PREAUTH_INTEGRITY, struct.pack("<HHH", 1, 32, 1) + bytes(32)), *contexts]
    record = NegotiateResponse(dialect=0x0311, context_count=len(listed), context_offset=offset)
    message = bytes(HEADER_SIZE) + NEGOTIATE_RESPONSE.pack(record)
    return memoryview(message.ljust(offset, b"\0") + pack_contexts(listed))


def agreed(data: bytes, offer: tuple[int, ...] = (LZ4, LZ77, PATTERN)) -> Agreement | None:
    return parse(response((ContextType.COMPRESSION, data)), DIALECTS, Offer(compression=offer)).compression


def test_answers_to_the_offer() -> None:
    assert agreed(pack_compression((LZ77, PATTERN), True)) == Agreement((LZ77, PATTERN), True)
    assert agreed(pack_compression((LZ77,), False)) == Agreement((LZ77,), False)
    # Other servers than Windows repeat all.
    assert agreed(pack_compression((LZ4, LZ77, PATTERN), True)) == Agreement((LZ4, LZ77, PATTERN), True)
    assert agreed(pack_compression((0,), False)) is None
    assert parse(response(), DIALECTS, Offer(compression=(LZ4,))).compression is None


@pytest.mark.parametrize(
    "data",
    [
        pack_compression((), False),
        pack_compression((CompressionAlgorithm.LZNT1,), False),
        pack_compression((LZ4, LZ4), False),
        pack_compression((LZ4, 0), False),
        pack_compression((LZ4,), False)[:-1],
        bytes(7),
    ],
    ids=["none", "not offered", "twice", "with NONE", "cut off", "short"],
)
def test_answers_that_are_wrong(data: bytes) -> None:
    with pytest.raises((ProtocolError, DecodeError)):
        agreed(data)


def test_an_answer_to_no_offer() -> None:
    with pytest.raises(ProtocolError):
        agreed(pack_compression((0,), False), offer=())


BOMBS = {
    "declares too much": b"\xfcSMB" + struct.pack("<IHHI", 1 << 31, LZ4, 0, 0) + bytes(100),
    "short": b"\xfcSMB" + bytes(3),
    "malformed": b"\xfcSMB" + struct.pack("<IHHI", 4000, LZ77, 0, 0) + b"\xff" * 100,
    "malformed on a thread": b"\xfcSMB" + struct.pack("<IHHI", MIB, LZ4, 0, 0) + b"\xff" * 100,
    "repeated byte": b"\xfcSMB" + struct.pack("<IHHIBBHI", MIB, PATTERN, 1, 8, 0, 0, 0, MIB),
    "not negotiated": b"\xfcSMB" + struct.pack("<IHHI", 4000, CompressionAlgorithm.LZNT1, 0, 0) + bytes(100),
}


@pytest.mark.parametrize("what", BOMBS)
@pytest.mark.parametrize("offered", [True, False])
def test_bombs_end_the_connection(what: str, offered: bool) -> None:
    """Whether compression was agreed upon or not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        contexts = [(ContextType.COMPRESSION, pack_compression((LZ4, LZ77, PATTERN), True))] if offered else []
        answer = bytearray(response(*contexts))
        answer[:16] = struct.pack("<4sHHIHH", b"\xfeSMB", 64, 1, 0, 0, 10)
        answer[16:20] = struct.pack("<I", 1)
        writer.write(len(answer).to_bytes(4, "big") + answer)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        writer.write(len(BOMBS[what]).to_bytes(4, "big") + BOMBS[what])
        await reader.read()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            offer = Offer(compression=(LZ4, LZ77, PATTERN) if offered else ())
            client = await Client.connect(await open_tcp("127.0.0.1", port), offer=offer)
            async with asyncio.timeout(10):
                with pytest.raises(ConnectionLost):
                    await client.echo()
            await client.close()

    asyncio.run(main())
