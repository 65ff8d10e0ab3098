"""MPA: connection set-up frames and FPDU framing, with enhanced set-up. No I/O. [RFC 5044, RFC 6581]

Markers are not supported: a peer that requests them is rejected, as RFC 5044 section 7.1.1 allows.
"""

import enum
from typing import Annotated, NamedTuple

from crc32c import crc32c

from smbdirect.codec import Buffer, Codec
from smbdirect.errors import ProtocolError, ProviderError
from smbdirect.fields import Bytes, Int8ub, Int16ub, Int32ub

REQUEST_KEY = b"MPA ID Req Frame"
REPLY_KEY = b"MPA ID Rep Frame"
MAX_PRIVATE_DATA = 512
"""Most bytes of private data in one frame, including the four of enhanced set-up (RFC 5044 section 7.1.1)."""
MAX_ULPDU = 0xFFFF
"""Largest value of ULPDU_Length, bytes."""
FPDU_OVERHEAD = 6
"""Bytes of the length and CRC fields around a ULPDU, without up to three bytes of padding."""
NOT_NEGOTIATED = 0x3FFF
"""IRD/ORD value that leaves the negotiation to the upper layer (RFC 6581 section 6)."""
DEFAULT_READ_DEPTH = 16
"""RDMA Reads in flight that we offer in each direction."""
REVISION_1_ORD = 1
"""RDMA Reads in flight towards a revision 1 peer whose IRD is not known."""


class FrameFlag(enum.IntFlag):
    """Flags of the MPA request and reply frames. [RFC 5044 section 7.1.1, RFC 6581]"""

    MARKERS = 0x80
    CRC = 0x40
    REJECT = 0x20
    ENHANCED = 0x10


class IrdFlag(enum.IntFlag):
    """Flags that share the IRD word. [RFC 6581 section 6]"""

    PEER_TO_PEER = 0x8000
    ZERO_LENGTH_FPDU = 0x4000


class OrdFlag(enum.IntFlag):
    """Flags that share the ORD word. [RFC 6581 section 6]"""

    RDMA_WRITE = 0x8000
    RDMA_READ = 0x4000


class Rtr(enum.Enum):
    """The zero-length operation by which a peer-to-peer initiator indicates that it is ready. [RFC 6581 section 4]"""

    SEND = "zero-length FPDU"
    WRITE = "zero-length RDMA Write"
    READ = "zero-length RDMA Read"


class FrameHeader(NamedTuple):
    """The fixed part of a request or reply frame. [RFC 5044 section 7.1.1]"""

    key: Annotated[bytes, Bytes(16)]
    flags: Annotated[int, Int8ub]
    revision: Annotated[int, Int8ub]
    private_data_length: Annotated[int, Int16ub]


class ReadLimits(NamedTuple):
    """The first four bytes of private data in enhanced set-up: IRD and ORD with their flags. [RFC 6581 section 6]"""

    ird: Annotated[int, Int16ub]
    ord: Annotated[int, Int16ub]


class LegacyDepths(NamedTuple):
    """The IRD/ORD Negotiate Header: the first bytes of private data from a peer without RFC 6581. [MS-SMBD 6.1]"""

    ird: Annotated[int, Int32ub]
    ord: Annotated[int, Int32ub]


FRAME_HEADER = Codec(FrameHeader)
READ_LIMITS = Codec(ReadLimits)
LEGACY_DEPTHS = Codec(LegacyDepths)


class Frame(NamedTuple):
    """A complete request or reply frame. ``limits`` is None below revision 2 or without enhanced set-up."""

    flags: FrameFlag
    revision: int
    limits: ReadLimits | None
    private_data: bytes


class Parameters(NamedTuple):
    """The parameters that both sides agreed on, seen from one of them."""

    revision: int
    crc: bool
    ird: int
    """RDMA Reads that the peer may have in flight towards us."""
    ord: int
    """RDMA Reads that we may have in flight towards the peer."""
    rtr: Rtr | None = None


def decode_header(data: Buffer, key: bytes) -> FrameHeader:
    """Return the fixed part of a frame. Raise ``ProtocolError`` for a different key or too much private data."""
    header = FRAME_HEADER.unpack(data)
    if header.key != key:
        raise ProtocolError("not an MPA frame of the expected kind", "RFC 5044 7.1.1")
    if header.private_data_length > MAX_PRIVATE_DATA:
        raise ProtocolError(f"private data of {header.private_data_length} bytes", "RFC 5044 7.1.1")
    return header


def decode_frame(data: Buffer, key: bytes) -> Frame:
    """Return a whole frame. Raise ``ProtocolError`` if it is malformed. Whether it is acceptable is not checked."""
    header = decode_header(data, key)
    private_data = bytes(data[FRAME_HEADER.size :])
    if len(private_data) != header.private_data_length:
        raise ProtocolError("frame and private data length disagree", "RFC 5044 7.1.1")
    flags = FrameFlag(header.flags)
    limits = None
    if header.revision >= 2 and FrameFlag.ENHANCED in flags:
        limits = READ_LIMITS.unpack(private_data)
        private_data = private_data[READ_LIMITS.size :]
    return Frame(flags, header.revision, limits, private_data)


def encode_frame(key: bytes, frame: Frame) -> bytes:
    """Return the bytes of a frame. Raise ``ProviderError`` for too much private data."""
    tail = (READ_LIMITS.pack(frame.limits) if frame.limits is not None else b"") + frame.private_data
    if len(tail) > MAX_PRIVATE_DATA:
        raise ProviderError(f"private data of {len(frame.private_data)} bytes")
    return FRAME_HEADER.pack(FrameHeader(key, frame.flags, frame.revision, len(tail))) + tail


def request_frame(private_data: bytes, crc: bool, revision: int = 2, peer_to_peer: Rtr | None = None) -> Frame:
    """Return the initiator's request. ``peer_to_peer`` offers one kind of ready-to-receive operation. Below revision 2,
    IRD and ORD are the private data unless the upper layer has some of its own. [MS-SMBD 6.1]"""
    flags = FrameFlag.CRC if crc else FrameFlag(0)
    if revision < 2:
        depths = LEGACY_DEPTHS.pack(LegacyDepths(DEFAULT_READ_DEPTH, DEFAULT_READ_DEPTH))
        return Frame(flags, revision, None, private_data or depths)
    ird, ord_ = _rtr_flags(peer_to_peer)
    limits = ReadLimits(DEFAULT_READ_DEPTH | ird, DEFAULT_READ_DEPTH | ord_)
    return Frame(flags | FrameFlag.ENHANCED, revision, limits, private_data)


def check_request(request: Frame) -> None:
    """Raise ``ProtocolError`` for a request that must be rejected."""
    if request.revision not in (1, 2):
        raise ProtocolError(f"MPA revision {request.revision}", "RFC 5044 7.1.1")
    if FrameFlag.MARKERS in request.flags:
        raise ProtocolError("peer requires markers", "RFC 5044 7.1.1")


def legacy_depths(private_data: bytes) -> LegacyDepths | None:
    """Return IRD and ORD from the private data of a peer without RFC 6581, or None if it has none. [MS-SMBD 6.1]

    Older Linux (6.12) sends them in its machine's byte order instead of the network's. Depths are small numbers other
    than 0: this distinguishes the two byte orders, and both from other private data.
    """
    if len(private_data) < LEGACY_DEPTHS.size:
        return None
    found = LEGACY_DEPTHS.unpack(private_data)
    swapped = LegacyDepths(*(int.from_bytes(value.to_bytes(4), "little") for value in found))
    for depths in (found, swapped):
        if min(depths) > 0 and max(depths) < NOT_NEGOTIATED:
            return depths
    return None


def accept_frame(request: Frame, private_data: bytes, crc: bool) -> tuple[Frame, Parameters]:
    """Return the responder's reply to an acceptable request, and the parameters that are agreed by it."""
    use_crc = crc or FrameFlag.CRC in request.flags
    flags = FrameFlag.CRC if use_crc else FrameFlag(0)
    if request.limits is None:
        # Revision 2 without enhanced set-up gets such a reply, too: it has no IRD and ORD to agree on.
        depths = legacy_depths(request.private_data)
        depth = REVISION_1_ORD
        if depths is not None:
            depth = min(DEFAULT_READ_DEPTH, depths.ird)
            private_data = private_data or LEGACY_DEPTHS.pack(LegacyDepths(DEFAULT_READ_DEPTH, depth))
        return Frame(flags, request.revision, None, private_data), Parameters(
            request.revision, use_crc, DEFAULT_READ_DEPTH, depth
        )
    rtr = _choose_rtr(request.limits)
    ird_flags, ord_flags = _rtr_flags(rtr)
    # Linux siw sizes its inbound read queue by our ORD: with 0 it would answer our first Read with a Terminate.
    ord_ = min(DEFAULT_READ_DEPTH, request.limits.ird & NOT_NEGOTIATED)
    reply = Frame(
        flags | FrameFlag.ENHANCED,
        request.revision,
        ReadLimits(DEFAULT_READ_DEPTH | ird_flags, ord_ | ord_flags),
        private_data,
    )
    return reply, Parameters(request.revision, use_crc, DEFAULT_READ_DEPTH, ord_, rtr)


def reject_frame(request: Frame | None, private_data: bytes = b"") -> Frame:
    """Return the rejection of ``request``. None means that the request was malformed."""
    if request is not None and request.limits is not None and request.revision == 2:
        limits = ReadLimits(DEFAULT_READ_DEPTH, min(DEFAULT_READ_DEPTH, request.limits.ird & NOT_NEGOTIATED))
        return Frame(FrameFlag.REJECT | FrameFlag.ENHANCED, 2, limits, private_data)
    return Frame(FrameFlag.REJECT, 1, None, private_data)


def complete_request(request: Frame, reply: Frame) -> Parameters:
    """Return the parameters that the initiator and the replying responder agreed on. Raise ``ProtocolError`` if the
    reply is not acceptable."""
    if FrameFlag.REJECT in reply.flags:
        raise ProtocolError("the peer rejected the connection", "RFC 5044 7.1.1")
    if FrameFlag.MARKERS in reply.flags:
        raise ProtocolError("peer requires markers", "RFC 5044 7.1.1")
    if reply.revision != request.revision:
        raise ProtocolError(f"reply of MPA revision {reply.revision}", "RFC 5044 7.1.1")
    crc = FrameFlag.CRC in request.flags or FrameFlag.CRC in reply.flags
    if request.limits is None:
        depths = legacy_depths(reply.private_data)
        ord_ = REVISION_1_ORD if depths is None else min(DEFAULT_READ_DEPTH, depths.ird)
        return Parameters(request.revision, crc, DEFAULT_READ_DEPTH, ord_)
    if reply.limits is None:
        raise ProtocolError("reply without enhanced set-up", "RFC 6581 4")
    ord_ = min(DEFAULT_READ_DEPTH, reply.limits.ird & NOT_NEGOTIATED)
    rtr = None
    if request.limits.ird & IrdFlag.PEER_TO_PEER and reply.limits.ird & IrdFlag.PEER_TO_PEER:
        rtr = _choose_rtr(
            ReadLimits(request.limits.ird & reply.limits.ird, request.limits.ord & reply.limits.ord), required=True
        )
    return Parameters(request.revision, crc, DEFAULT_READ_DEPTH, ord_, rtr)


_RTR_BITS = {
    Rtr.WRITE: (0, int(OrdFlag.RDMA_WRITE)),
    Rtr.READ: (0, int(OrdFlag.RDMA_READ)),
    Rtr.SEND: (int(IrdFlag.ZERO_LENGTH_FPDU), 0),
}
"""The IRD and ORD flags of each ready-to-receive operation. The first that is offered is chosen."""


def _choose_rtr(limits: ReadLimits, required: bool = False) -> Rtr | None:
    """Choose one of the offered ready-to-receive operations, or None. Raise ``ProtocolError`` if one is ``required``.
    [RFC 6581 section 4]"""
    if limits.ird & IrdFlag.PEER_TO_PEER:
        for rtr, (ird, ord_) in _RTR_BITS.items():
            if limits.ird & ird or limits.ord & ord_:
                return rtr
        if required:
            raise ProtocolError("no ready-to-receive operation in common", "RFC 6581 4")
    return None


def _rtr_flags(rtr: Rtr | None) -> tuple[int, int]:
    """Return the IRD and ORD flags that name ``rtr``."""
    if rtr is None:
        return 0, 0
    ird, ord_ = _RTR_BITS[rtr]
    return IrdFlag.PEER_TO_PEER | ird, ord_


def fpdu_size(ulpdu_length: int) -> int:
    """Return the bytes of the FPDU around a ULPDU: length field, padding to a multiple of four, CRC field."""
    return (ulpdu_length + 9) & ~3


def ulpdu_for_segment(mss: int) -> int:
    """Return the largest ULPDU whose FPDU fits one TCP segment of ``mss`` bytes without padding.
    [RFC 5044 section 4.5]"""
    return max(128, min(mss & ~3, 0xFFF8) - FPDU_OVERHEAD)


ZERO_TRAILERS = tuple(bytes(pad + 4) for pad in range(4))
"""Padding and a zero CRC field, by number of padding bytes: the field exists even if CRC is off."""

_PADDING = tuple(bytes(pad) for pad in range(4))


def trailer(ulpdu_length: int, crc: int | None) -> bytes:
    """Return padding and CRC field of an FPDU. ``crc`` covers the length field and the ULPDU, but not the padding; None
    means that CRC is off."""
    pad = -(ulpdu_length + 2) & 3
    if crc is None:
        return ZERO_TRAILERS[pad]
    return _PADDING[pad] + int(crc32c(_PADDING[pad], crc)).to_bytes(4, "little")


def is_intact(view: memoryview, start: int, end: int) -> bool:
    """Return whether the CRC field of the FPDU ``view[start:end]`` is right."""
    return bool(crc32c(view[start : end - 4]) == int.from_bytes(view[end - 4 : end], "little"))
