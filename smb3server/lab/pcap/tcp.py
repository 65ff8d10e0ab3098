"""TCP reassembly: the bytes of both directions, in order, interleaved as they became available in the capture.

Bytes that the capture does not have become a hole: zeros that are marked. The reader of the stream knows then which
messages it cannot judge, and does not lose its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from smb3server.lab.pcap.packets import ACK, FIN, RST, SYN, Address, TcpSegment

_LARGEST_HOLE = 1 << 24
"""Bytes of a hole that a message could span. [MS-SMB2 2.1]"""
_PATIENCE = 64
"""Segments of a connection after which bytes count as not captured if their receiver has acknowledged them."""
_MAX_PENDING = 4096
"""Segments behind a gap after which its bytes count as not captured, acknowledged or not."""
_ENDED_KEPT = 1024
"""Ended connections that are remembered, so that their last repeated segments begin no new ones."""


class Direction(IntEnum):
    """The direction of a segment; the client sends to the server."""

    TO_SERVER = 0
    TO_CLIENT = 1

    @property
    def arrow(self) -> str:
        """The direction in print."""
        return "->" if self is Direction.TO_SERVER else "<-"

    @property
    def sender(self) -> str:
        """Who sends in this direction."""
        return "client" if self is Direction.TO_SERVER else "server"

    @property
    def reverse(self) -> Direction:
        """The other direction."""
        return Direction(1 - self)


class Chunk(NamedTuple):
    """Bytes of one direction that became available together."""

    number: int
    """Frame that made these bytes available: the last missing one."""
    time: float
    direction: Direction
    data: bytes
    known: bool = True
    """Whether the capture has these bytes. If not, ``data`` is zeros, or nothing if even their number is no use."""


Receiver = Callable[[Chunk], None]


class _Piece(NamedTuple):
    """A captured segment that waits for the bytes before it."""

    data: bytes
    lost: int


@dataclass
class _Stream:
    next_sequence: int | None = None
    queue: deque[TcpSegment] = field(default_factory=deque)
    """Segments whose turn has not come: they acknowledge bytes that have not been seen."""
    pending: dict[int, _Piece] = field(default_factory=dict)
    """Segments behind a gap, by sequence number."""
    end: int = 0
    """Sequence number of the FIN."""
    waited: int = 0
    """Segments of the connection since the gap was acknowledged."""
    acknowledged: int | None = None
    finished: bool = False


@dataclass
class Conversation:
    """One TCP connection. ``client`` sent the SYN. If the capture starts later, the higher port is the client's."""

    client: Address
    server: Address
    saw_start: bool
    receive: Receiver | None = None
    """Takes the chunks. Set by the function that is called when the conversation begins."""
    end: Callable[[], None] | None = None
    """Called when the connection has ended."""
    empty: bool = True
    ended: bool = False
    refused: Direction | None = None
    """The direction whose receiver has reset the connection: what it was being sent was thrown away."""
    missing: int = 0
    """Bytes that the capture does not have."""
    last: tuple[int, float] = (0, 0.0)
    """Number and time of the last frame."""
    _streams: tuple[_Stream, _Stream] = field(default_factory=lambda: (_Stream(), _Stream()))

    def add(self, segment: TcpSegment) -> bool:
        """Add the next captured segment. Return whether the connection has ended."""
        direction = Direction.TO_SERVER if segment.source == self.client else Direction.TO_CLIENT
        stream = self._streams[direction]
        if segment.flags & SYN:
            segment = segment._replace(sequence=segment.sequence + 1 & 0xFFFFFFFF)
        if stream.next_sequence is None:
            stream.next_sequence = segment.sequence
        if segment.flags & ACK:
            self._streams[1 - direction].acknowledged = segment.acknowledged
        stream.queue.append(segment)
        self._run()
        if sum(len(one.queue) for one in self._streams) > _PATIENCE:
            self._skip_cause()
        for way in Direction:
            if self._streams[way].pending:
                self._give_up(self._streams[way], way)
        if segment.flags & RST:
            self.refused = direction.reverse
        if segment.flags & RST or (all(one.finished for one in self._streams) and not self._waiting):
            self.finish()
        return self.ended

    @property
    def _waiting(self) -> bool:
        return any(stream.pending or stream.queue for stream in self._streams)

    def _run(self) -> None:
        """Take the segments whose turn has come.

        A segment that acknowledges bytes of the other end comes after them, even if the capture has them in another
        order: captures of several queues of a network card do.
        """
        moved = True
        while moved:
            moved = False
            for direction in Direction:
                stream, other = self._streams[direction], self._streams[1 - direction]
                while stream.queue and not self._too_early(stream.queue[0], other):
                    self._take(stream, direction, stream.queue.popleft())
                    moved = True

    @staticmethod
    def _too_early(segment: TcpSegment, other: _Stream) -> bool:
        """Return whether a segment has data and acknowledges bytes that have not been seen."""
        if other.next_sequence is None or not segment.flags & ACK or not (segment.payload or segment.lost):
            return False
        return _distance(segment.acknowledged, other.next_sequence) > 0

    def _take(self, stream: _Stream, direction: Direction, segment: TcpSegment) -> None:
        self.last = segment.number, segment.time
        if segment.payload or segment.lost:
            self._place(stream, direction, segment.sequence, segment)
        if segment.flags & FIN:
            stream.finished = True
            stream.end = segment.sequence + len(segment.payload) + segment.lost & 0xFFFFFFFF
        if stream.finished and stream.next_sequence == stream.end:
            stream.next_sequence = stream.end + 1 & 0xFFFFFFFF  # The FIN has a number, too.

    def _skip_cause(self) -> None:
        """Go on without the bytes that the oldest waiting segment acknowledges: the capture does not have them."""
        direction = min(
            (way for way in Direction if self._streams[way].queue), key=lambda way: self._streams[way].queue[0].number
        )
        other = self._streams[direction.reverse]
        seen = self._streams[direction].queue[0].acknowledged
        while other.next_sequence is not None and _distance(seen, other.next_sequence) > 0:
            if other.pending:
                self._skip_gap(other, direction.reverse)
            else:
                self._hole(other, direction.reverse, _distance(seen, other.next_sequence))
        self._run()

    def finish(self) -> None:
        """Deliver what is left, with its holes, and end."""
        if self.ended:
            return
        while any(stream.queue for stream in self._streams):
            self._skip_cause()
        for direction in Direction:
            while self._streams[direction].pending:
                self._skip_gap(self._streams[direction], direction)
        self.ended = True
        if self.end is not None:
            self.end()

    def _deliver(self, direction: Direction, data: bytes, known: bool = True) -> None:
        self.empty = False
        if self.receive is not None:
            self.receive(Chunk(*self.last, direction, data, known))

    def _place(self, stream: _Stream, direction: Direction, sequence: int, segment: TcpSegment) -> None:
        assert stream.next_sequence is not None
        if sequence == stream.next_sequence and not stream.pending and not segment.lost:
            stream.next_sequence = sequence + len(segment.payload) & 0xFFFFFFFF
            self._deliver(direction, segment.payload)
            return
        if _distance(sequence, stream.next_sequence) + len(segment.payload) + segment.lost <= 0:
            return
        kept = stream.pending.get(sequence)
        if kept is None or len(kept.data) + kept.lost < len(segment.payload) + segment.lost:
            stream.pending[sequence] = _Piece(segment.payload, segment.lost)
        self._drain(stream, direction)

    def _drain(self, stream: _Stream, direction: Direction) -> None:
        """Deliver the pending segments that continue the stream."""
        assert stream.next_sequence is not None
        while ready := [start for start in stream.pending if _distance(start, stream.next_sequence) <= 0]:
            for start in sorted(ready, key=lambda s: _distance(s, stream.next_sequence or 0)):
                data, lost = stream.pending.pop(start)
                old = -_distance(start, stream.next_sequence)
                if fresh := data[old:]:
                    stream.next_sequence = stream.next_sequence + len(fresh) & 0xFFFFFFFF
                    self._deliver(direction, fresh)
                if (hole := lost - max(old - len(data), 0)) > 0:
                    self._hole(stream, direction, hole)

    def _hole(self, stream: _Stream, direction: Direction, size: int) -> None:
        assert stream.next_sequence is not None
        self.missing += size
        stream.next_sequence = stream.next_sequence + size & 0xFFFFFFFF
        self._deliver(direction, bytes(size) if size <= _LARGEST_HOLE else b"", known=False)

    def _give_up(self, stream: _Stream, direction: Direction) -> None:
        """Skip the gap that the stream waits for if its bytes will not come any more."""
        assert stream.next_sequence is not None
        if stream.acknowledged is not None and _distance(stream.acknowledged, stream.next_sequence) > 0:
            stream.waited += 1
        if stream.waited > _PATIENCE or len(stream.pending) > _MAX_PENDING:
            self._skip_gap(stream, direction)

    def _skip_gap(self, stream: _Stream, direction: Direction) -> None:
        expected = stream.next_sequence
        assert expected is not None
        stream.waited = 0
        first = min(stream.pending, key=lambda start: _distance(start, expected))
        self._hole(stream, direction, _distance(first, expected))
        self._drain(stream, direction)


def _distance(a: int, b: int) -> int:
    """Return a - b modulo 2**32 as a signed number."""
    return (a - b + 0x80000000 & 0xFFFFFFFF) - 0x80000000


class Reassembler:
    """All TCP connections of a capture. ``begun`` is called with each when its first bytes come."""

    def __init__(self, begun: Callable[[Conversation], None]) -> None:
        self._begun = begun
        self._open: dict[tuple[Address, Address], Conversation] = {}
        self._ended: deque[tuple[Address, Address]] = deque()

    def add(self, segment: TcpSegment) -> None:
        """Add the next captured segment to its connection."""
        source, destination = segment.source, segment.destination
        key = (source, destination) if source < destination else (destination, source)
        conversation = self._open.get(key)
        opening = segment.flags & SYN
        if conversation is None or (opening and not segment.flags & ACK and not conversation.empty):
            if conversation is not None:
                conversation.finish()
            conversation = self._open[key] = self._make(segment)
        if conversation.ended:
            return
        if conversation.receive is None and (segment.payload or segment.lost):
            self._begun(conversation)
        if conversation.add(segment):
            self._ended.append(key)
            if len(self._ended) > _ENDED_KEPT:
                old = self._ended.popleft()
                if old in self._open and self._open[old].ended:
                    del self._open[old]

    @staticmethod
    def _make(segment: TcpSegment) -> Conversation:
        from_client = segment.source[1] > segment.destination[1]
        if segment.flags & SYN:
            from_client = not segment.flags & ACK
        ends = (segment.source, segment.destination)
        return Conversation(*(ends if from_client else ends[::-1]), saw_start=bool(segment.flags & SYN))

    def finish(self) -> None:
        """End all connections: the capture has ended."""
        for conversation in self._open.values():
            conversation.finish()
