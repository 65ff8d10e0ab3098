"""What a listener sees of data that moves by RDMA: nothing that is on an encrypted share."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.lab.transform_client import Offer
from tests.lab.transform_lab import Setup, TransformLab, play
from tests.lab.transform_rules import Way

pytestmark = [
    pytest.mark.interop,
    pytest.mark.root,
    pytest.mark.skipif(not shutil.which("tcpdump"), reason="tcpdump is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="capturing needs root"),
]

HOST = f"127.78.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
"""An address of our own: other traffic on the loopback interface must not fill the capture buffer."""
SECRET = b"not for everybody"
DATA = SECRET * 4000
END = b"the capture may end here"


async def until(dump: subprocess.Popen[bytes], capture: Path, content: bytes) -> None:
    """Wait until tcpdump has written ``content``."""
    while not capture.exists() or content not in capture.read_bytes():
        assert dump.poll() is None, "tcpdump does not record"
        await asyncio.sleep(0.02)


async def transfer(lab: TransformLab, way: Way) -> None:
    client = await lab.client(Offer(ids=(1, 2) if way is not Way.CLEAR else None))
    await client.log_on()
    client.signs = client.signs and way is not Way.CLEAR
    assert client.way is way
    assert (await client.write(DATA)).status == 0
    assert lab.path.read_bytes() == DATA
    assert await client.read(len(DATA)) == DATA


@pytest.mark.parametrize("fabric", ["iwarp", "roce"])
@pytest.mark.parametrize("way", [Way.CLEAR, Way.SIGNED, Way.ENCRYPTED], ids=lambda way: way.name)
def test_search_for_a_secret(fabric: str, way: Way, tmp_path: Path) -> None:
    """What is only signed shows that the search finds what is there."""
    capture = tmp_path / "wire.pcap"

    async def work(lab: TransformLab) -> None:
        command = ["tcpdump", "-i", "lo", "-s", "0", "-B", "32768", "-U", "--immediate-mode", "-w", str(capture)]
        dump = subprocess.Popen([*command, f"host {HOST}"], stderr=subprocess.PIPE)
        try:
            await until(dump, capture, b"")
            await transfer(lab, way)
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                sock.sendto(END, (HOST, 9))
                await until(dump, capture, END)
        finally:
            dump.terminate()
            _, errors = dump.communicate(timeout=10)
        assert b"0 packets dropped by kernel" in errors, errors

    play(work, Setup(fabric, host=HOST, share_encrypts=way is Way.ENCRYPTED))
    recorded = capture.read_bytes()
    assert len(recorded) > 2 * len(DATA)
    assert (SECRET in recorded) == (way is not Way.ENCRYPTED)
