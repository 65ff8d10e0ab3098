"""Compressing and decompressing, by algorithm. All functions may run on any thread.

LZ4 is the library of that name. The algorithms of MS-XCA are here: in C, and where that is not built in Python, which
takes a hundred times as long.
"""

from __future__ import annotations

from smb3server.wire.compression import CompressionAlgorithm
from smbdirect import native
from smbdirect.codec import Buffer

MODULE = "smb3server.compression._xca"
LARGEST = 1 << 31
"""Bytes from which nothing is compressed: the library for LZ4 takes fewer."""

if native.available(MODULE):
    from smb3server.compression._xca import compress as _pack
    from smb3server.compression._xca import decompress as _unpack

    QUICK = frozenset(CompressionAlgorithm) - {CompressionAlgorithm.NONE}
    """What may be negotiated. What Python alone does is too slow to be done for others: a message of 8 MiB, which a
    client sends in some kilobytes, would take seconds, during which nothing else is done."""
else:
    from smb3server.compression import lz77, lz77_huffman, lznt1

    _IN_PYTHON = {
        int(CompressionAlgorithm.LZNT1): lznt1,
        int(CompressionAlgorithm.LZ77): lz77,
        int(CompressionAlgorithm.LZ77_HUFFMAN): lz77_huffman,
    }
    QUICK = frozenset((CompressionAlgorithm.LZ4, CompressionAlgorithm.PATTERN_V1))

    def _pack(algorithm: int, data: Buffer, room: int, /) -> bytes | None:
        packed = _IN_PYTHON[algorithm].compress(bytes(data))
        return packed if len(packed) <= room else None

    def _unpack(algorithm: int, data: Buffer, into: memoryview, /) -> bool:
        return bool(_IN_PYTHON[algorithm].decompress(memoryview(data), into))


COMPRESSION = tuple(
    algorithm
    for algorithm in (
        CompressionAlgorithm.LZ4,
        CompressionAlgorithm.LZ77,
        CompressionAlgorithm.LZ77_HUFFMAN,
        CompressionAlgorithm.LZNT1,
        CompressionAlgorithm.PATTERN_V1,
    )
    if algorithm in QUICK
)
"""What a client offers that wants messages compressed: the quickest algorithm first."""


def compress(algorithm: int, data: Buffer, room: int) -> bytes | None:
    """Return the compressed data, or None if it takes more than ``room`` bytes. ``algorithm``: any but NONE and
    PATTERN_V1."""
    if not len(data) or len(data) >= LARGEST:
        return None
    if algorithm == CompressionAlgorithm.LZ4:
        # Few connections compress.
        import lz4.block

        packed: bytes = lz4.block.compress(data, store_size=False)
        return packed if len(packed) <= room else None
    return _pack(algorithm, data, room)


def decompress(algorithm: int, data: Buffer, into: memoryview) -> bool:
    """Decompress ``data`` to ``into``. Return whether it is well-formed and has that length. ``algorithm``: as
    ``compress``. No more memory is taken than ``into`` has."""
    if algorithm == CompressionAlgorithm.LZ4:
        if not len(into) or len(into) >= LARGEST:
            return False
        import lz4.block

        try:
            plain = lz4.block.decompress(data, uncompressed_size=len(into))
        except (lz4.block.LZ4BlockError, ValueError):
            return False
        if len(plain) != len(into):
            return False
        into[:] = plain
        return True
    return _unpack(algorithm, data, into)
