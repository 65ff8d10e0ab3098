"""RDMAP operations, Read Request and Terminate messages, error codes. No I/O. [RFC 5040]"""

import enum
from typing import Annotated, NamedTuple

from smbdirect.codec import Buffer, Codec
from smbdirect.errors import ProtocolError
from smbdirect.fields import Int8ub, Int16ub, Int32ub, Int64ub
from smbdirect.providers.base import CloseCause

VERSION = 1
OPCODE_MASK = 0x0F
CONTROL = VERSION << 6
"""RDMAP control byte without the opcode."""


class Opcode(enum.IntEnum):
    RDMA_WRITE = 0
    READ_REQUEST = 1
    READ_RESPONSE = 2
    SEND = 3
    SEND_INVALIDATE = 4
    SEND_SE = 5
    SEND_SE_INVALIDATE = 6
    TERMINATE = 7


class ReadRequest(NamedTuple):
    """The payload of a Read Request. [RFC 5040 section 4.4]"""

    sink_stag: Annotated[int, Int32ub]
    sink_offset: Annotated[int, Int64ub]
    length: Annotated[int, Int32ub]
    source_stag: Annotated[int, Int32ub]
    source_offset: Annotated[int, Int64ub]


class WholeReadRequest(NamedTuple):
    """ULPDU_Length, header and payload of a Read Request, which is always one FPDU. [RFC 5041 section 4.3, RFC 5040
    section 4.4]"""

    ulpdu_length: Annotated[int, Int16ub]
    control: Annotated[int, Int8ub]
    rdmap_control: Annotated[int, Int8ub]
    invalidate_stag: Annotated[int, Int32ub]
    queue: Annotated[int, Int32ub]
    msn: Annotated[int, Int32ub]
    message_offset: Annotated[int, Int32ub]
    sink_stag: Annotated[int, Int32ub]
    sink_offset: Annotated[int, Int64ub]
    length: Annotated[int, Int32ub]
    source_stag: Annotated[int, Int32ub]
    source_offset: Annotated[int, Int64ub]


class TerminateControl(NamedTuple):
    """The Terminate control field: layer and error type share a byte; three header bits. [RFC 5040 section 4.8]"""

    layer_and_type: Annotated[int, Int8ub]
    code: Annotated[int, Int8ub]
    header_bits: Annotated[int, Int8ub]
    reserved: Annotated[int, Int8ub] = 0


class SegmentLength(NamedTuple):
    """The DDP segment length of the terminated message."""

    length: Annotated[int, Int16ub]


READ_REQUEST = Codec(ReadRequest)
WHOLE_READ_REQUEST = Codec(WholeReadRequest)
TERMINATE_CONTROL = Codec(TerminateControl)
SEGMENT_LENGTH = Codec(SegmentLength)
MAX_TERMINATE = TERMINATE_CONTROL.size + SEGMENT_LENGTH.size + 18 + READ_REQUEST.size
"""Bytes of the longest Terminate message."""

_LENGTH_VALID = 0x80
_DDP_HEADER = 0x40
_RDMAP_HEADER = 0x20


class Fault(enum.Enum):
    """A fault of the peer: layer and error type, error code, and the cause that is reported to the owner.
    [RFC 5040 section 4.8, RFC 5041 section 8, RFC 5044 section 8]"""

    INVALID_STAG = (0x01, 0x00, CloseCause.REMOTE_ACCESS)
    BOUNDS = (0x01, 0x01, CloseCause.REMOTE_ACCESS)
    ACCESS_RIGHTS = (0x01, 0x02, CloseCause.REMOTE_ACCESS)
    OFFSET_WRAP = (0x01, 0x04, CloseCause.REMOTE_ACCESS)
    CANNOT_INVALIDATE = (0x01, 0x09, CloseCause.REMOTE_ACCESS)
    RDMAP_VERSION = (0x02, 0x05, CloseCause.PROTOCOL)
    UNEXPECTED_OPCODE = (0x02, 0x06, CloseCause.PROTOCOL)
    UNSPECIFIED_OPERATION = (0x02, 0xFF, CloseCause.PROTOCOL)
    TAGGED_INVALID_STAG = (0x11, 0x00, CloseCause.REMOTE_ACCESS)
    TAGGED_BOUNDS = (0x11, 0x01, CloseCause.REMOTE_ACCESS)
    TAGGED_OFFSET_WRAP = (0x11, 0x03, CloseCause.REMOTE_ACCESS)
    TAGGED_VERSION = (0x11, 0x04, CloseCause.PROTOCOL)
    INVALID_QUEUE = (0x12, 0x01, CloseCause.PROTOCOL)
    NO_BUFFER = (0x12, 0x02, CloseCause.NO_RECEIVE)
    MSN_RANGE = (0x12, 0x03, CloseCause.PROTOCOL)
    MESSAGE_OFFSET = (0x12, 0x04, CloseCause.PROTOCOL)
    MESSAGE_TOO_LONG = (0x12, 0x05, CloseCause.PROTOCOL)
    UNTAGGED_VERSION = (0x12, 0x06, CloseCause.PROTOCOL)
    CRC = (0x20, 0x02, CloseCause.CRC)
    ULPDU_LENGTH = (0x20, 0x03, CloseCause.PROTOCOL)

    @property
    def cause(self) -> CloseCause:
        return self.value[2]


class TerminateError(ProtocolError):
    """The peer's FPDU ends the connection; ``message`` is the Terminate payload that reports the reason to the peer."""

    def __init__(self, fault: Fault, detail: str = "") -> None:
        super().__init__(detail or fault.name.lower().replace("_", " "), f"RFC 5040 4.8 {fault.name}")
        self.fault = fault
        self.header: bytes = b""
        """ULPDU_Length, DDP header and, for a Read Request, RDMAP header of the offending FPDU; empty if not known."""

    @property
    def message(self) -> bytes:
        """The Terminate payload. [RFC 5040 section 4.8]"""
        layer_and_type, code, _ = self.fault.value
        if not self.header:
            return TERMINATE_CONTROL.pack(TerminateControl(layer_and_type, code, 0))
        bits = _LENGTH_VALID | _DDP_HEADER
        if len(self.header) > 20:
            bits |= _RDMAP_HEADER
        return TERMINATE_CONTROL.pack(TerminateControl(layer_and_type, code, bits)) + self.header


def describe_terminate(payload: Buffer) -> str:
    """Return a Terminate message as text for the log. The numbers are raw: Linux siw swaps the nibbles of the first
    byte, so no decision may depend on the layer and error type."""
    if len(payload) < TERMINATE_CONTROL.size:
        return f"terminate message of {len(payload)} bytes"
    control = TERMINATE_CONTROL.unpack(payload)
    return f"terminate 0x{control.layer_and_type:02x} code 0x{control.code:02x}"
