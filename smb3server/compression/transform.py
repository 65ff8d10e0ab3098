"""Compressed messages, chained and not. Everything here may run on any thread. [MS-SMB2 2.2.42, 3.1.4.4, 3.1.5.3]

What leads a message, its header and the fixed part of its body, stays as it is: data can be compressed before the
header is known, and signed with it afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from smb3server.compression import codecs
from smb3server.compression.benefit import LONG
from smb3server.wire.compression import (
    CHAINED,
    COMPRESSION_PROTOCOL_ID,
    COMPRESSION_TRANSFORM,
    NAMES,
    PATTERN_PAYLOAD,
    PAYLOAD_HEADER,
    CompressionAlgorithm,
    CompressionTransformHeader,
    PatternPayload,
    PayloadHeader,
)
from smb3server.wire.header import HEADER_SIZE, PROTOCOL_ID
from smbdirect.codec import Buffer

ON_THREAD_FROM = 131072
"""Bytes of data from which a worker thread compresses and decompresses: more than the fastest algorithm compresses in
0.3 ms. Handing it over costs about 0.05 ms."""
COMPRESSED_FROM = 128
"""Bytes of data that are compressed. Fewer are hardly more than the headers."""
OVERHEAD = 256 + 16
"""Bytes by which a message may exceed the largest data. [MS-SMB2 3.3.5.2.1.2]"""
WORTH = 8
"""Data is sent compressed if that saves one part in so many. Less does not pay for the time of both sides. Short data
(``LONG``) need only be shorter."""
_HEADERS = COMPRESSION_TRANSFORM.size
_MOST_PAYLOADS = 256
"""Payloads of a chain that is accepted. Compressors make four: what leads, a pattern, the data, a pattern."""
_LEAST_REPETITIONS = 64
"""Repetitions of a byte that become a payload of their own, as in Microsoft's implementation for tests."""
_PIECE = 65536
_ORIGINAL_SIZE = struct.Struct("<I")
_PROTOCOL_AND_SIZE = struct.Struct("<4sI")
_NONE, _PATTERN = CompressionAlgorithm.NONE, CompressionAlgorithm.PATTERN_V1


class CompressionError(Exception):
    """A compressed message is malformed, or larger than allowed. The connection ends. [MS-SMB2 3.2.5.1.1.2,
    3.3.5.2.1.2]"""


class Packed(NamedTuple):
    """The compressed end of a message."""

    original: int
    """Bytes that it had."""
    algorithm: int
    """0 in a chain."""
    payloads: tuple[Buffer, ...]
    """What takes its place. In a chain: payloads with their headers."""
    size: int
    """Bytes of the payloads."""

    def message(self, lead: Sequence[Buffer]) -> list[Buffer]:
        """Return the message. ``lead``: the segments before the compressed end, as they are."""
        length = sum(map(len, lead))
        if self.algorithm:
            header = COMPRESSION_TRANSFORM.pack(
                CompressionTransformHeader(COMPRESSION_PROTOCOL_ID, self.original, self.algorithm, 0, length)
            )
        else:
            header = _PROTOCOL_AND_SIZE.pack(COMPRESSION_PROTOCOL_ID, length + self.original)
            header += PAYLOAD_HEADER.pack(PayloadHeader(_NONE, CHAINED, length))
        return [header, *lead, *self.payloads]


class Agreement(NamedTuple):
    """What the two sides of a connection have agreed upon. [MS-SMB2 3.2.1.2, 3.3.1.7]"""

    algorithms: tuple[int, ...]
    """Connection.CompressionIds: not empty, best first."""
    chained: bool = False
    """Connection.SupportsChainedCompression."""

    @property
    def algorithm(self) -> int:
        """The algorithm to compress with; 0 if patterns alone are agreed upon."""
        return next((algorithm for algorithm in self.algorithms if algorithm != _PATTERN), 0)

    @property
    def patterns(self) -> bool:
        """Whether repeated bytes become payloads of their own: there must be chains for that."""
        return self.chained and _PATTERN in self.algorithms

    @property
    def name(self) -> str:
        """What is agreed upon, for people, such as "LZ77, Pattern_V1"."""
        shown = [NAMES[self.algorithm]] if self.algorithm else []
        return ", ".join([*shown, *([NAMES[_PATTERN]] if self.patterns else [])]) or "nothing that can be used"

    def pack(self, data: Buffer) -> Packed | None:
        """Compress the end of a message. None: it is not worth it. [MS-SMB2 3.1.4.4]"""
        length = len(data)
        room = length - length // WORTH if length >= LONG else length - 1
        packed = self._chain(memoryview(data)) if self.chained else self._one(data, room - _HEADERS)
        return packed if packed is not None and packed.size + _HEADERS <= room else None

    def _one(self, data: Buffer, room: int) -> Packed | None:
        packed = codecs.compress(self.algorithm, data, room) if self.algorithm and room > 0 else None
        return Packed(len(data), self.algorithm, (packed,), len(packed)) if packed is not None else None

    def _chain(self, data: memoryview) -> Packed:
        """Cut repeated bytes off both ends, and compress what is between."""
        front = _repetitions(data, from_end=False) if self.patterns else 0
        back = _repetitions(data[front:], from_end=True) if self.patterns else 0
        middle = data[front : len(data) - back]
        payloads: list[Buffer] = []
        if front:
            payloads.append(_pattern(data[0], front))
        if len(middle):
            room = len(middle) - len(middle) // WORTH
            packed = codecs.compress(self.algorithm, middle, room) if self.algorithm else None
            if packed is None:
                payloads += (PAYLOAD_HEADER.pack(PayloadHeader(_NONE, 0, len(middle))), middle)
            else:
                header = PayloadHeader(self.algorithm, 0, len(packed) + _ORIGINAL_SIZE.size)
                payloads += (PAYLOAD_HEADER.pack(header) + _ORIGINAL_SIZE.pack(len(middle)), packed)
        if back:
            payloads.append(_pattern(data[-1], back))
        return Packed(len(data), 0, tuple(payloads), sum(map(len, payloads)))

    def unpack(self, message: memoryview, limit: int) -> memoryview:
        """Return the message that was compressed. It has at most ``limit`` bytes, and is writable.

        No more memory is taken than the message declares, after that was compared with ``limit``. Raises
        ``CompressionError``. [MS-SMB2 3.2.5.1.1.2, 3.3.5.2.1.2]"""
        if len(message) < _HEADERS:
            raise CompressionError("compressed message shorter than its header")
        _, original, algorithm, flags, offset = COMPRESSION_TRANSFORM.fields_from(message)
        if flags == CHAINED and self.chained:
            plain = self._unpack_chain(message, _room(original, limit))
        elif not flags:
            if algorithm not in self.algorithms or algorithm == _PATTERN:
                raise CompressionError(f"compressed by algorithm {algorithm}, which was not negotiated")
            if offset > len(message) - _HEADERS:
                raise CompressionError("compressed message shorter than its Offset")
            plain = _room(original + offset, limit)
            plain[:offset] = message[_HEADERS : _HEADERS + offset]
            if not codecs.decompress(algorithm, message[_HEADERS + offset :], plain[offset:]):
                raise CompressionError(f"malformed data of algorithm {algorithm}")
        else:
            raise CompressionError(f"compressed message with flags {flags:#x}")
        if len(plain) < HEADER_SIZE or plain[:4] != PROTOCOL_ID:
            raise CompressionError("compressed message is not an SMB2 message")
        return plain

    def _unpack_chain(self, message: memoryview, plain: memoryview) -> memoryview:
        """Decompress a chain of payloads to ``plain``. [MS-SMB2 3.1.5.3]"""
        at, done = _PROTOCOL_AND_SIZE.size, 0
        for _ in range(_MOST_PAYLOADS):
            if at == len(message):
                break
            if len(message) - at < PAYLOAD_HEADER.size:
                raise CompressionError("chain ends in the middle of a header")
            algorithm, _, length = PAYLOAD_HEADER.fields_from(message, at)
            at += PAYLOAD_HEADER.size
            if length > len(message) - at:
                raise CompressionError("chain shorter than a payload")
            done += self._unpack_payload(algorithm, message[at : at + length], plain[done:])
            at += length
        if at != len(message):
            raise CompressionError("chain of too many payloads")
        if done != len(plain):
            raise CompressionError("chain of another size than declared")
        return plain

    def _unpack_payload(self, algorithm: int, payload: memoryview, room: memoryview) -> int:
        """Decompress one payload to the beginning of ``room``. Return how many bytes that are."""
        if algorithm == _NONE:
            if len(payload) > len(room):
                raise CompressionError("payload exceeds the declared size")
            room[: len(payload)] = payload
            return len(payload)
        if algorithm not in self.algorithms:
            raise CompressionError(f"payload of algorithm {algorithm}, which was not negotiated")
        if algorithm == _PATTERN:
            if len(payload) != PATTERN_PAYLOAD.size:
                raise CompressionError("pattern of a wrong length")
            pattern, _, _, count = PATTERN_PAYLOAD.fields_from(payload)
            if count > len(room):
                raise CompressionError("pattern exceeds the declared size")
            if pattern:
                # Piece by piece: the whole of it at once would be as much memory again.
                piece = bytes((pattern,)) * min(count, _PIECE)
                for at in range(0, count, _PIECE):
                    end = min(at + _PIECE, count)
                    room[at:end] = piece[: end - at]
            return int(count)
        if len(payload) < _ORIGINAL_SIZE.size:
            raise CompressionError("payload without its size")
        size = int(_ORIGINAL_SIZE.unpack_from(payload)[0])
        if size > len(room):
            raise CompressionError("payload exceeds the declared size")
        if not codecs.decompress(algorithm, payload[_ORIGINAL_SIZE.size :], room[:size]):
            raise CompressionError(f"malformed payload of algorithm {algorithm}")
        return size


def _room(size: int, limit: int) -> memoryview:
    """Return memory for a message. Raises ``CompressionError`` if it is larger than allowed."""
    if size > limit:
        raise CompressionError(f"compressed message of {size} bytes, and {limit} are allowed")
    return memoryview(bytearray(size))


def _pattern(value: int, count: int) -> bytes:
    header = PAYLOAD_HEADER.pack(PayloadHeader(_PATTERN, 0, PATTERN_PAYLOAD.size))
    return header + PATTERN_PAYLOAD.pack(PatternPayload(value, repetitions=count))


def _repetitions(data: memoryview, from_end: bool) -> int:
    """Return how often the first or last byte is repeated there; 0 if that is not worth a payload of its own."""
    edge = bytes(data[-_LEAST_REPETITIONS:] if from_end else data[:_LEAST_REPETITIONS])
    if len(edge) < _LEAST_REPETITIONS or edge.count(edge[0]) < len(edge):
        return 0
    # Comparing pieces is twenty times as fast as stripping all of the data.
    length, count, same = len(data), 0, edge[:1] * _PIECE
    while count < length:
        piece = bytes(data[max(length - count - _PIECE, 0) : length - count] if from_end else data[count:][:_PIECE])
        if piece != same:
            return count + len(piece) - len(piece.rstrip(edge[:1]) if from_end else piece.lstrip(edge[:1]))
        count += _PIECE
    return count


def largest_plain(sizes: Sequence[int]) -> int:
    """Return how long a message may be that was compressed. ``sizes``: MaxReadSize, MaxWriteSize and MaxTransactSize.
    [MS-SMB2 3.2.5.1.1.2, 3.3.5.2.1.2]"""
    return OVERHEAD + max(sizes)


def agree(offered: Sequence[int], allowed: Sequence[int], chained: bool) -> Agreement | None:
    """Return what a server agrees to: the first algorithm that both have, and patterns if the client can receive
    chains. None: there is none. [MS-SMB2 3.3.5.4]

    Windows chooses one algorithm, too. Linux 6.12: takes an answer with one only."""
    allowed = [algorithm for algorithm in allowed if algorithm in codecs.QUICK]
    first = [algorithm for algorithm in offered if algorithm in allowed and algorithm != _PATTERN][:1]
    pattern = [_PATTERN] if _PATTERN in offered and _PATTERN in allowed else []
    return Agreement((*first, *pattern), chained) if first or pattern else None
