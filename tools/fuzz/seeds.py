"""Valid messages for the fuzzer, out of the captures in ``pcaps/``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from smb3server.lab.pcap.connection import Connection
from smb3server.lab.pcap.judge import judge_capture
from smb3server.lab.pcap.rdma import Kind
from smb3server.lab.pcap.tcp import Direction
from smbdirect.errors import DecodeError

FOLDER = Path(__file__).parents[2] / "pcaps"


def paths() -> list[Path]:
    """Return the captures."""
    return sorted(FOLDER.glob("*.pcap"))


@cache
def connections() -> list[Connection]:
    """Return the connections in the captures."""
    return [found for path in paths() for found in judge_capture(str(path), record=True).connections]


def smb2_messages() -> Iterator[bytes]:
    """Yield the parts of all SMB2 messages in the clear, one of each kind and length."""
    known: set[tuple[int, bool, int]] = set()
    for connection in connections():
        for _, part in connection.smb2():
            kind = (part.command, part.is_response, len(part.data))
            if kind not in known:
                known.add(kind)
                yield part.data


def sends(of_server: bool) -> Iterator[list[bytes]]:
    """Yield the SMB Direct messages of one side of each connection, in order."""
    for connection in connections():
        if connection.wire is not None:
            wanted = Direction.TO_CLIENT if of_server else Direction.TO_SERVER
            messages = connection.wire.messages
            yield [found.payload for found in messages if found.kind is Kind.SEND and found.direction is wanted]


def conversations() -> Iterator[list[bytes]]:
    """Yield the requests of each connection in the clear, in order."""
    for connection in connections():
        yield [part.data for _, part in connection.smb2() if not part.is_response and len(part.data) < 1024]


def fitting(subjects: Sequence[Callable[[memoryview], object]]) -> Iterator[bytes]:
    """Yield each message for each of the subjects of ``target.choice`` that can decode it."""
    for message in smb2_messages():
        for number, subject in enumerate(subjects):
            try:
                subject(memoryview(message))
            except DecodeError:
                continue
            yield bytes((number,)) + message
