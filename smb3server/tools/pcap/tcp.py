"""TCP reassembly: the bytes of both directions, in order, interleaved as they became available in the capture."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from smb3server.tools.pcap.packets import FIN, RST, SYN, Address, TcpSegment


class Direction(IntEnum):
    """The direction of a segment; the client sends to the server."""

    TO_SERVER = 0
    TO_CLIENT = 1

    @property
    def arrow(self) -> str:
        """The direction in print."""
        return "->" if self is Direction.TO_SERVER else "<-"


class Chunk(NamedTuple):
    """Bytes of one direction that became available together."""

    number: int
    """Frame that made these bytes available: the last missing one."""
    time: float
    direction: Direction
    data: bytes


@dataclass
class _Stream:
    next_sequence: int | None = None
    pending: dict[int, tuple[int, float, bytes]] = field(default_factory=dict)
    """Segments behind a gap, by relative sequence number."""


@dataclass
class Conversation:
    """One TCP connection. ``client`` sent the SYN. If the capture starts later, the higher port is the client's."""

    client: Address
    server: Address
    chunks: list[Chunk] = field(default_factory=list)
    saw_start: bool = False
    finished: bool = False
    reset: bool = False
    _streams: tuple[_Stream, _Stream] = field(default_factory=lambda: (_Stream(), _Stream()))

    @property
    def missing(self) -> bool:
        """Whether some bytes were never captured although later ones were."""
        return any(stream.pending for stream in self._streams)

    def add(self, segment: TcpSegment) -> None:
        """Add the next captured segment."""
        direction = Direction.TO_SERVER if segment.source == self.client else Direction.TO_CLIENT
        stream = self._streams[direction]
        sequence = segment.sequence
        if segment.flags & SYN:
            sequence += 1
            stream.next_sequence = sequence & 0xFFFFFFFF
        if stream.next_sequence is None:
            stream.next_sequence = sequence
        if segment.payload:
            self._place(stream, direction, sequence & 0xFFFFFFFF, segment)
        if segment.flags & FIN:
            self.finished = True
        if segment.flags & RST:
            self.reset = True

    def _place(self, stream: _Stream, direction: Direction, sequence: int, segment: TcpSegment) -> None:
        assert stream.next_sequence is not None
        ahead = _distance(sequence, stream.next_sequence)
        if ahead + len(segment.payload) <= 0:
            return
        kept = stream.pending.get(sequence)
        if kept is None or len(kept[2]) < len(segment.payload):
            stream.pending[sequence] = (segment.number, segment.time, segment.payload)
        while True:
            ready = [s for s in stream.pending if _distance(s, stream.next_sequence) <= 0]
            if not ready:
                return
            for start in ready:
                _, _, data = stream.pending.pop(start)
                fresh = data[-_distance(start, stream.next_sequence) :]
                if fresh:
                    self.chunks.append(Chunk(segment.number, segment.time, direction, fresh))
                    stream.next_sequence = (stream.next_sequence + len(fresh)) & 0xFFFFFFFF


def _distance(a: int, b: int) -> int:
    """Return a - b modulo 2**32 as a signed number."""
    return (a - b + 0x80000000 & 0xFFFFFFFF) - 0x80000000


class Reassembler:
    """All TCP connections of a capture, in order of their first segment."""

    def __init__(self) -> None:
        self.conversations: list[Conversation] = []
        self._open: dict[tuple[Address, Address], Conversation] = {}

    def add(self, segment: TcpSegment) -> None:
        """Add the next captured segment to its connection."""
        key = (min(segment.source, segment.destination), max(segment.source, segment.destination))
        conversation = self._open.get(key)
        opening = segment.flags & SYN
        if conversation is None or (opening and segment.source == conversation.client and conversation.chunks):
            from_client = segment.source[1] > segment.destination[1]
            if opening:
                from_client = not segment.flags & 0x10  # A SYN without ACK.
            ends = (segment.source, segment.destination)
            conversation = Conversation(*(ends if from_client else ends[::-1]), saw_start=bool(opening))
            self._open[key] = conversation
            self.conversations.append(conversation)
        conversation.add(segment)
