"""Captures: pcap and pcapng, packets, streams, and the readers of every fabric above them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from smb3server.tools.pcap.capture import CaptureError
from smb3server.tools.pcap.judge import judge_capture
from tools.fuzz import seeds
from tools.fuzz.memory_file import MemoryFile
from tools.fuzz.target import Target

FILE = MemoryFile()
_SECTION = b"\x0a\x0d\x0d\x0a"


def _records(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the header of a pcap file, which is empty for pcapng, and the bodies of its records with their types."""
    at, found = 0 if data[:4] == _SECTION else 24, list[bytes]()
    start = data[:at]
    while at + 12 <= len(data):
        if start:
            size = int.from_bytes(data[at + 8 : at + 12], "little")
            found.append(data[at : at + 8] + data[at + 16 : at + 16 + size])
            at += 16 + size
        else:
            size = max(12, int.from_bytes(data[at + 4 : at + 8], "little"))
            found.append(data[at : at + 4] + data[at + 8 : at + size - 4])
            at += size
    return start, found


def _file(start: bytes, records: list[bytes]) -> bytes:
    if start:
        return start + b"".join(r[:8] + (len(r) - 8).to_bytes(4, "little") * 2 + r[8:] for r in records if len(r) >= 8)
    return b"".join(_block(int.from_bytes(record[:4], "little"), record[4:]) for record in records)


def _mutate(data: bytes, size: int, chance: random.Random, change: Callable[[bytes], bytes]) -> bytes:
    """Change one record, and keep the lengths right that are around it."""
    start, records = _records(data)
    if not records or chance.randrange(8) == 0:
        return change(data)
    at = chance.randrange(len(records))
    if chance.randrange(8) == 0:
        records.insert(at, records[chance.randrange(len(records))])
    else:
        records[at] = change(records[at]) if records[at] else b"\1\0\0\0"
    return _file(start, records)[:size]


def _run(data: bytes) -> None:
    judge_capture(str(FILE.write(data)))


def _block(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    length = (len(body) + 12).to_bytes(4, "little")
    return kind.to_bytes(4, "little") + length + body + length


def _seeds() -> Iterator[bytes]:
    for path in seeds.paths():
        with path.open("rb") as file:
            data = file.read(64 * 1024)
        yield data[:8192]
        first = data[40 : 40 + int.from_bytes(data[32:36], "little")]
        interface = _block(1, b"\1\0\0\0\0\0\4\0" + b"\x09\0\1\0\6\0\0\0" + bytes(4))
        packet = bytes(12) + len(first).to_bytes(4, "little") * 2 + first
        section = _block(0x0A0D0D0A, b"\x4d\x3c\x2b\x1a\1\0\0\0" + b"\xff" * 8)
        yield section + interface + _block(6, packet) + _block(3, len(first).to_bytes(4, "little") + first)


TARGET = Target(_run, _seeds, declared=(CaptureError,), mutate=_mutate, max_input=8192)
