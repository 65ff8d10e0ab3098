"""Messages that our client and our server compress, read by tshark, and by the judge of captures. [MS-SMB2 2.2.42]"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from smb3server.client.protocol import Client
from smb3server.client.protocol.negotiation import Offer
from smb3server.lab.pcap.judge import judge_capture
from smb3server.observing.trace import Traces, Wanted, parse_client
from smb3server.wire.compression import CompressionAlgorithm
from smb3server.wire.create import CreateDisposition
from tests.lab.harness import lab
from tests.lab.process import PASSWORD, USER

pytestmark = pytest.mark.interop

ALGORITHMS = (CompressionAlgorithm.LZ77, CompressionAlgorithm.LZ77_HUFFMAN, CompressionAlgorithm.LZNT1)
TEXT = b"".join(b"line %d of a text that shrinks\n" % number for number in range(10_000))
READ, WRITE = 8, 9


def transfer(folder: Path, offer: Offer, data: bytes) -> Path:
    """Write data and read it, both compressed. Return the trace of that."""
    path = folder / "trace.pcapng"

    async def run() -> None:
        async with lab(folder) as scene:
            traces = Traces(scene.server)
            traces.begin(Wanted(parse_client("127.0.0.1"), path))
            client = await Client.connect(await scene.transport(), offer=offer)
            tree = await (await client.log_on(USER, PASSWORD, sign=True)).tree_connect("share")
            file = await tree.create("f", 0xC0000000, CreateDisposition.OPEN_IF)
            assert await tree.write(file, 0, data) == len(data)
            assert await tree.read(file, 0, len(data)) == data
            assert client.compressed.sent == len(data) <= client.compressed.received
            await client.close()
            traces.end_all()

    asyncio.run(run())
    return path


def tshark(path: Path, wanted: str, *fields: str) -> list[list[str]]:
    command = ["tshark", "-n", "-r", str(path), "-Y", wanted, "-T", "fields", *(f"-e{name}" for name in fields)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [line.split("\t") for line in found.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("chained", [False, True], ids=["one", "chained"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tshark_decompresses_what_we_send(tmp_path: Path, algorithm: CompressionAlgorithm, chained: bool) -> None:
    offer = Offer(compression=(algorithm, *([CompressionAlgorithm.PATTERN_V1] if chained else [])), chained=chained)
    # tshark 4.0 reads one block of LZ77+Huffman. Microsoft's suite has files of several.
    text = TEXT[:65536] if algorithm is CompressionAlgorithm.LZ77_HUFFMAN else TEXT
    path = transfer(tmp_path, offer, bytes(5000) + text + b"\xff" * 5000 if chained else text)
    size = str(len(text) + 10_000 * chained)
    found = tshark(path, "smb2.header.comp_transform.original_size", "smb2.cmd", "smb2.write_length")
    # The response to READ, and the request to WRITE: their fields are there only if they were decompressed.
    assert sorted(map(tuple, found)) == [(str(READ), ""), (str(WRITE), size)]
    assert not tshark(path, "_ws.malformed", "frame.number")
    judged = judge_capture(str(path))
    assert not judged.breaches and all(gap.secret for gap in judged.gaps)


def test_lz4_is_read_by_the_judge(tmp_path: Path) -> None:
    """tshark 4.0 does not know LZ4."""
    offer = Offer(compression=(CompressionAlgorithm.LZ4, CompressionAlgorithm.PATTERN_V1))
    judged = judge_capture(str(transfer(tmp_path, offer, TEXT)), record=True)
    assert not judged.breaches and all(gap.secret for gap in judged.gaps)
    (connection,) = judged.connections
    assert {part.command for _, part in connection.smb2()} >= {READ, WRITE}
