"""The functions of ``lznt1``, ``lz77`` and ``lz77_huffman``, in C. See ``smbdirect.native``."""

from smbdirect.codec import Buffer

SOURCE: str

def compress(algorithm: int, data: Buffer, room: int, /) -> bytes | None: ...
def decompress(algorithm: int, data: Buffer, into: memoryview, /) -> bool: ...
