"""Direct TCP framing: a zero byte and a 24-bit length before each message. [MS-SMB2 2.1]"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.byte_stream import ByteStream
from smb3server.lab.pcap.tcp import Chunk, Direction
from smb3server.lab.pcap.verdicts import Verdicts

_START = re.compile(rb"\x00[\x00-\xff]{3}[\xfc-\xff]SMB")


class UpperMessage(NamedTuple):
    """One message of the upper layer, whichever transport carried it."""

    number: int
    time: float
    direction: Direction
    data: bytes
    known: int = -1
    """Bytes up to the first that was not captured; -1: all."""
    invalidated: int | None = None
    """Token that the Send which ended the message invalidates."""


class DirectTcpReader:
    """Reads the messages of one TCP connection from its chunks."""

    def __init__(
        self,
        verdicts: Verdicts,
        saw_start: bool,
        forward: Callable[[UpperMessage], None],
        lost: Callable[[Direction, int], None],
    ) -> None:
        self._verdicts, self._forward, self._lost = verdicts, forward, lost
        self._streams = (ByteStream(), ByteStream())
        for stream in self._streams:
            stream.lost_place = not saw_start

    def receive(self, chunk: Chunk) -> None:
        """Take the next bytes."""
        stream, way = self._streams[chunk.direction], chunk.direction
        if not chunk.known:
            self._verdicts.lost(chunk.number, "bytes of the TCP stream are missing")
        if stream.lost_place:
            found = _START.search(chunk.data) if chunk.known else None
            if found is None:
                return
            stream.lost_place = False
            chunk = chunk._replace(data=chunk.data[found.start() :])
        stream.append(chunk)
        while len(stream) >= 4:
            head = stream.peek(4)
            if head is None:
                self._lose(stream, chunk)
                return
            if not self._verdicts.check(
                rules.SMB2_FRAME, head[0] == 0, chunk.number, way, "frame begins with {:#04x}", head[0]
            ):
                self._lose(stream, chunk)
                return
            size = 4 + int.from_bytes(head[1:], "big")
            if len(stream) < size:
                return
            data, known = stream.take(size)
            self._forward(
                UpperMessage(chunk.number, chunk.time, way, data[4:], -1 if known == size else max(known - 4, 0))
            )
        if stream.lost_place:
            self._lost(way, chunk.number)

    def _lose(self, stream: ByteStream, chunk: Chunk) -> None:
        stream.lose_place()
        self._lost(chunk.direction, chunk.number)

    def finish(self, number: int, refused: Direction | None) -> None:
        """Note what is left when the connection has ended. Nothing can be missing in the direction ``refused``, whose
        receiver has reset the connection."""
        for direction in Direction:
            if direction is not refused and (left := len(self._streams[direction])):
                self._verdicts.unjudged(number, f"{left} bytes {direction.arrow} are no whole message")
