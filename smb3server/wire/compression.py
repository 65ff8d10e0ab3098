"""Compression of messages: its negotiation, and the headers of compressed messages. [MS-SMB2 2.2.3.1.3, 2.2.42]"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from smbdirect.codec import Codec
from smbdirect.fields import Bytes, Int8ul, Int16ul, Int32ul

COMPRESSION_PROTOCOL_ID = b"\xfcSMB"
CHAINED = 0x0001
"""In CompressionCapabilities: chains can be received. In a header: the message is a chain of payloads."""


class CompressionAlgorithm(enum.IntEnum):
    """Compression algorithms. NONE stands for data as it is. [MS-SMB2 2.2.3.1.3]"""

    NONE = 0
    LZNT1 = 1
    LZ77 = 2
    LZ77_HUFFMAN = 3
    PATTERN_V1 = 4
    LZ4 = 5


NAMES: dict[int, str] = {
    CompressionAlgorithm.LZ4: "LZ4",
    CompressionAlgorithm.LZ77: "LZ77",
    CompressionAlgorithm.LZ77_HUFFMAN: "LZ77+Huffman",
    CompressionAlgorithm.LZNT1: "LZNT1",
    CompressionAlgorithm.PATTERN_V1: "Pattern_V1",
}
"""Names of the algorithms that can be negotiated, as the specification writes them."""


class CompressionCapabilities(NamedTuple):
    """SMB2_COMPRESSION_CAPABILITIES, before the list of algorithms. [MS-SMB2 2.2.3.1.3]"""

    algorithm_count: Annotated[int, Int16ul] = 0
    padding: Annotated[int, Int16ul] = 0
    flags: Annotated[int, Int32ul] = 0


class CompressionTransformHeader(NamedTuple):
    """SMB2_COMPRESSION_TRANSFORM_HEADER_UNCHAINED. In a chain its second half is the first header of a payload.
    [MS-SMB2 2.2.42.1]"""

    protocol_id: Annotated[bytes, Bytes(4)] = COMPRESSION_PROTOCOL_ID
    original_size: Annotated[int, Int32ul] = 0
    """OriginalCompressedSegmentSize: bytes of what is compressed."""
    algorithm: Annotated[int, Int16ul] = 0
    flags: Annotated[int, Int16ul] = 0
    offset: Annotated[int, Int32ul] = 0
    """Bytes between this header and the compressed data, which stand as they are."""


class PayloadHeader(NamedTuple):
    """SMB2_COMPRESSION_CHAINED_PAYLOAD_HEADER, without OriginalPayloadSize. [MS-SMB2 2.2.42.2.1]"""

    algorithm: Annotated[int, Int16ul] = 0
    flags: Annotated[int, Int16ul] = 0
    length: Annotated[int, Int32ul] = 0
    """Bytes that follow, with OriginalPayloadSize if that is there."""


class PatternPayload(NamedTuple):
    """SMB2_COMPRESSION_PATTERN_PAYLOAD_V1: one byte, many times. [MS-SMB2 2.2.42.2.2]"""

    pattern: Annotated[int, Int8ul] = 0
    reserved1: Annotated[int, Int8ul] = 0
    reserved2: Annotated[int, Int16ul] = 0
    repetitions: Annotated[int, Int32ul] = 0


COMPRESSION_CAPABILITIES = Codec(CompressionCapabilities)
COMPRESSION_TRANSFORM = Codec(CompressionTransformHeader)
PAYLOAD_HEADER = Codec(PayloadHeader)
PATTERN_PAYLOAD = Codec(PatternPayload)


def pack_compression(algorithms: Sequence[int], chained: bool) -> bytes:
    """Return the data of a negotiate context. [MS-SMB2 2.2.3.1.3]"""
    fixed = CompressionCapabilities(len(algorithms), 0, CHAINED if chained else 0)
    return COMPRESSION_CAPABILITIES.pack(fixed) + struct.pack(f"<{len(algorithms)}H", *algorithms)
