"""Captures: pcap and pcapng, packets, streams, and the readers of every fabric above them."""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.lab.pcap.capture import CaptureError
from smb3server.lab.pcap.judge import judge_capture
from tools.fuzz import seeds
from tools.fuzz.capture_records import block, mutate
from tools.fuzz.memory_file import MemoryFile
from tools.fuzz.target import Target

FILE = MemoryFile()


def _run(data: bytes) -> None:
    judge_capture(str(FILE.write(data)))


def _seeds() -> Iterator[bytes]:
    for path in seeds.paths():
        with path.open("rb") as file:
            data = file.read(64 * 1024)
        yield data[:8192]
        first = data[40 : 40 + int.from_bytes(data[32:36], "little")]
        interface = block(1, b"\1\0\0\0\0\0\4\0" + b"\x09\0\1\0\6\0\0\0" + bytes(4))
        packet = bytes(12) + len(first).to_bytes(4, "little") * 2 + first
        section = block(0x0A0D0D0A, b"\x4d\x3c\x2b\x1a\1\0\0\0" + b"\xff" * 8)
        yield section + interface + block(6, packet) + block(3, len(first).to_bytes(4, "little") + first)


TARGET = Target(_run, _seeds, declared=(CaptureError,), mutate=mutate, max_input=8192)
