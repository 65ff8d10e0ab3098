"""The records of a capture file: changed one by one, with the right lengths around them."""

from __future__ import annotations

import random
from collections.abc import Callable

_SECTION = b"\x0a\x0d\x0d\x0a"


def block(kind: int, body: bytes) -> bytes:
    """Return a block of pcapng."""
    body += bytes(-len(body) % 4)
    length = (len(body) + 12).to_bytes(4, "little")
    return kind.to_bytes(4, "little") + length + body + length


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
    return b"".join(block(int.from_bytes(record[:4], "little"), record[4:]) for record in records)


def mutate(data: bytes, size: int, chance: random.Random, change: Callable[[bytes], bytes]) -> bytes:
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
