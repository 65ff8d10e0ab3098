"""What status, metrics and log say of compression."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from msgspec import UNSET

from smb3server.cli.status.tables import render
from smb3server.client.protocol.negotiation import Offer
from smb3server.observing import metrics
from smb3server.status.report import collect
from smb3server.wire.compression import CompressionAlgorithm
from smb3server.wire.create import CreateDisposition
from tests.lab.scene import Scene, log_on, play

TEXT = b"".join(b"line %d of a text\n" % number for number in range(5000))
OFFER = Offer(compression=(CompressionAlgorithm.LZ77, CompressionAlgorithm.PATTERN_V1))


def test_what_was_agreed_and_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "smb3server")

    async def body(acted: Scene) -> None:
        server = acted.service.server
        plain = await acted.tcp()
        await log_on(plain)
        (channel,) = collect(server).channels
        assert channel.compression is UNSET
        assert "Compression" not in shown(server)
        client = await acted.tcp(offer=OFFER)
        tree = await (await log_on(client)).tree_connect("data")
        file = await tree.create("a", 0xC0000000, CreateDisposition.CREATE)
        await tree.write(file, 0, TEXT)
        assert await tree.read(file, 0, len(TEXT)) == TEXT
        found = collect(server).channels[-1].compression
        assert found and found.algorithm == "LZ77" and found.patterns and found.chained
        assert found.received >= len(TEXT) > 2 * found.received_compressed
        assert found.sent == len(TEXT) > 2 * found.sent_compressed
        assert "LZ77, patterns" in shown(server)
        text = metrics.text(metrics.registry(server)).decode()
        assert 'smb3server_compressing_connections{algorithm="LZ77"} 1.0' in text
        assert f'smb3server_compressed_bytes_total{{direction="sent"}} {float(len(TEXT))}' in text
        logons = [record.getMessage() for record in caplog.records if record.getMessage().startswith("logon: ")]
        assert "LZ77" not in logons[0] and ", LZ77, Pattern_V1, session" in logons[1]

    play(tmp_path, body)


def shown(server: object) -> str:
    return "\n".join(line.plain for line in render(collect(server), 200))  # type: ignore[arg-type]
