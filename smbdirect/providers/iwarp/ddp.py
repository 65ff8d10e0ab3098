"""DDP headers and segmentation. No I/O. [RFC 5041]

The records start with MPA's ULPDU_Length and contain RDMAP's control byte, as on the wire: one ``unpack`` per FPDU
reads all three layers.
"""

from typing import Annotated, NamedTuple

from smbdirect.codec import Codec
from smbdirect.fields import Int8ub, Int16ub, Int32ub, Int64ub

TAGGED = 0x80
LAST = 0x40
LAST_TAGGED = LAST << 40
"""``LAST`` in ``TaggedWords.kind``."""
VERSION = 1
VERSION_MASK = 0x03

SEND_QUEUE = 0
READ_QUEUE = 1
TERMINATE_QUEUE = 2

FIRST_MSN = 1
MSN_MASK = 0xFFFFFFFF
"""Message sequence numbers have 32 bits and wrap (RFC 5041 section 4.3)."""
TAGGED_HEADER_SIZE = 14
"""Bytes, without ULPDU_Length."""
UNTAGGED_HEADER_SIZE = 18
"""Bytes, without ULPDU_Length."""
SHORTEST_FPDU = 20
"""Bytes of the shortest FPDU that has a header, with its trailer."""


class TaggedHeader(NamedTuple):
    """ULPDU_Length and the header of a tagged segment. [RFC 5041 section 4.2]"""

    ulpdu_length: Annotated[int, Int16ub]
    control: Annotated[int, Int8ub]
    rdmap_control: Annotated[int, Int8ub]
    stag: Annotated[int, Int32ub]
    tagged_offset: Annotated[int, Int64ub]


class TaggedWords(NamedTuple):
    """The bytes of a ``TaggedHeader`` as two numbers, for messages of many segments: ``kind`` has everything but the
    offset. It is the same in all segments of a message that are equally long and not the last."""

    kind: Annotated[int, Int64ub]
    tagged_offset: Annotated[int, Int64ub]


class UntaggedHeader(NamedTuple):
    """ULPDU_Length and the header of an untagged segment. [RFC 5041 section 4.3]"""

    ulpdu_length: Annotated[int, Int16ub]
    control: Annotated[int, Int8ub]
    rdmap_control: Annotated[int, Int8ub]
    invalidate_stag: Annotated[int, Int32ub]
    queue: Annotated[int, Int32ub]
    msn: Annotated[int, Int32ub]
    message_offset: Annotated[int, Int32ub]


TAGGED_HEADER = Codec(TaggedHeader)
TAGGED_WORDS = Codec(TaggedWords)
UNTAGGED_HEADER = Codec(UntaggedHeader)
