"""Compressed messages, chained and not, and the data in them: in C and in Python. [MS-SMB2 2.2.42, MS-XCA]

A limit of 1 MiB is what a message may declare. What the module in C makes of data, the one in Python makes, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial

from smb3server.compression import codecs, lz77, lz77_huffman, lznt1
from smb3server.compression.transform import Agreement, CompressionError
from smb3server.wire.compression import CompressionAlgorithm
from tools.fuzz.target import Target, Wrong, choice

LIMIT = 1 << 20
_MOST = 4096
"""Bytes that data alone is decompressed to: Python is slow."""
_ALL = tuple(algorithm for algorithm in CompressionAlgorithm if algorithm)
_PATTERN = CompressionAlgorithm.PATTERN_V1
_IN_PYTHON = {
    CompressionAlgorithm.LZNT1: lznt1,
    CompressionAlgorithm.LZ77: lz77,
    CompressionAlgorithm.LZ77_HUFFMAN: lz77_huffman,
}
_LEAD = b"\xfeSMB" + bytes(76)


def _message(chained: bool, data: memoryview) -> None:
    plain = Agreement(_ALL, chained).unpack(data, LIMIT)
    if len(plain) > LIMIT or bytes(plain[:4]) != _LEAD[:4]:
        raise Wrong("a message that is larger than allowed, or none")


def _data(algorithm: CompressionAlgorithm, data: memoryview) -> None:
    """The first two bytes are the size."""
    if len(data) < 2:
        return
    size = int.from_bytes(data[:2], "little") % _MOST
    around = bytearray(b"\xee" * (size + 64))
    right = codecs.decompress(algorithm, bytes(data[2:]), memoryview(around)[32 : 32 + size])
    if around[:32] != around[32 + size :]:
        raise Wrong("written beyond the memory that was given")
    if algorithm in _IN_PYTHON:
        other = bytearray(size)
        if _IN_PYTHON[algorithm].decompress(data[2:], memoryview(other)) != right:
            raise Wrong("C and Python disagree whether it is well-formed")
        if right and other != around[32 : 32 + size]:
            raise Wrong("C and Python make different data of it")


def _round(algorithm: CompressionAlgorithm, data: memoryview) -> None:
    """What is compressed comes back as it was."""
    plain = bytes(data)
    for repeated in (plain, plain * 3, bytes(100) + plain + b"\xff" * 200):
        for agreed in (Agreement((algorithm,)), Agreement((algorithm, _PATTERN), chained=True)):
            packed = agreed.pack(memoryview(repeated))
            if packed is not None:
                message = b"".join(packed.message([_LEAD]))
                if agreed.unpack(memoryview(message), LIMIT) != _LEAD + repeated:
                    raise Wrong("another message than was compressed")


_CODECS = tuple(algorithm for algorithm in _ALL if algorithm is not _PATTERN)
SUBJECTS: tuple[Callable[[memoryview], object], ...] = (
    partial(_message, False),
    partial(_message, True),
    *(partial(subject, algorithm) for subject in (_data, _round) for algorithm in _CODECS),
)


def _seeds() -> Iterator[bytes]:
    text = b"".join(b"line %d of a text\n" % number for number in range(40))
    for number, algorithm in enumerate(_CODECS):
        data = codecs.compress(algorithm, text, len(text))
        assert data is not None
        yield bytes((2 + number,)) + struct.pack("<H", len(text)) + data
        yield bytes((2 + len(_CODECS) + number,)) + text
        for chained in (False, True):
            agreed = Agreement((algorithm, _PATTERN), chained)
            packed = agreed.pack(memoryview(bytes(300) + text + bytes(300)))
            assert packed is not None
            yield bytes((chained,)) + b"".join(packed.message([_LEAD]))
    bomb = struct.pack("<4sIHHIBBHI", b"\xfcSMB", LIMIT, _PATTERN, 1, 8, 0, 0, 0, LIMIT)
    yield b"\1" + bomb


TARGET = Target(choice(SUBJECTS), _seeds, declared=(CompressionError,), max_input=2048)
