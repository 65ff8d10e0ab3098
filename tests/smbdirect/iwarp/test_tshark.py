"""tshark as judge of the bytes our two roles exchange over loopback."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from smbdirect.providers.base import Access, CloseCause, RemoteSegment, Send, Write
from smbdirect.providers.iwarp import IwarpProvider
from smbdirect.providers.iwarp.mpa import Rtr
from tests.lab.iwarp import every_operation, finish
from tests.lab.providers import connect

pytestmark = [
    pytest.mark.interop,
    pytest.mark.root,
    pytest.mark.skipif(not shutil.which("tcpdump"), reason="tcpdump is not installed"),
    pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="capturing needs root"),
]

HOST = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
"""An address of our own: other traffic on the loopback interface must not fill the capture buffer."""
MARKER = b"the capture may end here"

PROVIDERS = {
    "large": lambda: IwarpProvider(large_fpdus=True),
    "crc": lambda: IwarpProvider(crc=True),
    "revision-1": lambda: IwarpProvider(revision=1),
    "rtr-write": lambda: IwarpProvider(peer_to_peer=Rtr.WRITE),
    "rtr-read": lambda: IwarpProvider(peer_to_peer=Rtr.READ, crc=True),
}


async def session(provider: IwarpProvider) -> int:
    """Every operation, an orderly end; then a connection that a Terminate ends. Returns the number of FPDUs."""
    fpdus = 0
    pair = await connect(provider, HOST)
    await every_operation(pair, 100_001)
    await finish(pair)
    fpdus += sum(side.endpoint.counters["fpdus_sent"] for side in (pair.client, pair.server))
    pair = await connect(provider, HOST)
    region = pair.client.endpoint.register(memoryview(bytearray(64)), Access.REMOTE_READ)
    pair.client.endpoint.post([Send([b"hello"])])
    await pair.server.receives(1)
    pair.server.endpoint.post([Write([b"x"], RemoteSegment(region.token, region.address, 1))])
    assert (await pair.client.end()).cause is CloseCause.REMOTE_ACCESS
    await pair.server.end()
    sent = sum(side.endpoint.counters["fpdus_sent"] for side in (pair.client, pair.server))
    return fpdus + sent + pair.client.endpoint.counters["terminates_sent"]


def tshark(capture: Path, *arguments: str) -> list[list[str]]:
    """Fields of the matching frames. Upper-layer dissectors that guess at our test messages are switched off."""
    command = ["tshark", "-n", "-o", "tcp.try_heuristic_first:TRUE", "-r", str(capture)]
    for protocol in ("artemis", "rpcordma", "iser", "smb_direct"):
        command += ["--disable-protocol", protocol]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def send_marker() -> None:
    with (
        socket.create_server((HOST, 0)) as server,
        socket.create_connection(server.getsockname()) as sock,
    ):
        sock.sendall(MARKER)


def record(path: Path, provider: IwarpProvider) -> int:
    """Run ``session`` under tcpdump. The capture is complete: it ends with a message sent afterwards."""
    dump = subprocess.Popen(
        ["tcpdump", "-i", "lo", "-s", "0", "-B", "32768", "-U", "-w", path, f"tcp and host {HOST}"],
        stderr=subprocess.PIPE,
    )

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline and dump.poll() is None, "tcpdump does not record"
            time.sleep(0.02)

    try:
        wait_for(lambda: path.exists() and path.stat().st_size >= 24)
        fpdus = asyncio.run(session(provider))
        send_marker()
        wait_for(lambda: MARKER in path.read_bytes())
    finally:
        dump.terminate()
        _, errors = dump.communicate(timeout=10)
    assert b"0 packets dropped by kernel" in errors, errors
    return fpdus


@pytest.mark.parametrize("name", PROVIDERS)
def test_tshark_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    capture = tmp_path / "session.pcap"
    fpdus = record(capture, PROVIDERS[name]())
    assert struct.unpack("<I", capture.read_bytes()[:4])[0] in (0xA1B2C3D4, 0xA1B23C4D)
    faults = tshark(
        capture, "-Y", "(_ws.malformed || _ws.expert) && iwarp_mpa", "-T", "fields", "-e", "_ws.expert.message"
    )
    # Remarks on TCP itself (window full, connection finish) are not about our bytes.
    messages = {message for fault in faults for message in fault[0].split(",")}
    assert {message for message in messages if not message.startswith(("TCP ", "Connection "))} == set()
    frames = tshark(capture, "-Y", "iwarp_mpa.key.req || iwarp_mpa.key.rep", "-T", "fields", "-e", "frame.number")
    assert len(frames) == 4
    seen = tshark(capture, "-Y", "iwarp_ddp", "-T", "fields", "-e", "iwarp_rdma.opcode")
    opcodes = [opcode for row in seen for opcode in row[0].split(",")]
    assert len(opcodes) == fpdus
    assert opcodes.count("0x07") == 1
    assert {"0x00", "0x01", "0x02", "0x03", "0x04", "0x07"} == set(opcodes)
    if PROVIDERS[name]().crc:
        lines = [row[0] for row in tshark(capture, "-V", "-Y", "iwarp_mpa") if "CRC check" in row[0]]
        assert len(lines) == fpdus
        assert all("Good" in line for line in lines)
