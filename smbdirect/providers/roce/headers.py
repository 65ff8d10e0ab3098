"""RoCEv2 packet headers: BTH and its extension headers, and the MAD that carries CM messages.

The source is the InfiniBand Architecture Specification (IBTA), volume 1: 9.2 (BTH), 9.3 (extension headers), 13.4
(MAD), Annex A17 (RoCEv2). All fields are big-endian. A 24-bit field shares a 32-bit word with its neighbour of eight
bits, the low part last.
"""

import enum
import struct
from typing import Annotated, NamedTuple

from smbdirect.codec import Codec
from smbdirect.fields import Int8ub, Int16ub, Int32ub, Int64ub

UDP_PORT = 4791
"""RoCEv2's UDP destination port (A17.5.2)."""
DEFAULT_PKEY = 0xFFFF
PSN_MASK = 0xFFFFFF
ACK_REQUEST = 1 << 31
"""AckReq bit, in ``Bth.psn``."""
BECN = 1 << 30
"""BECN bit, in ``Bth.destination``."""
SOLICITED = 0x80
MIGRATED = 0x40
ICRC_LENGTH = 4
PATH_MTUS = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""Path MTU codes (12.7.28), in bytes."""


class Opcode(enum.IntEnum):
    """BTH opcodes of reliable connections, of UD sends, and of A17's congestion notification. [IBTA 9.2.1]"""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_IMMEDIATE = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_IMMEDIATE = 0x05
    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMMEDIATE = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMMEDIATE = 0x0B
    READ_REQUEST = 0x0C
    READ_RESPONSE_FIRST = 0x0D
    READ_RESPONSE_MIDDLE = 0x0E
    READ_RESPONSE_LAST = 0x0F
    READ_RESPONSE_ONLY = 0x10
    ACKNOWLEDGE = 0x11
    ATOMIC_ACKNOWLEDGE = 0x12
    COMPARE_SWAP = 0x13
    FETCH_ADD = 0x14
    SEND_LAST_INVALIDATE = 0x16
    SEND_ONLY_INVALIDATE = 0x17
    UD_SEND_ONLY = 0x64
    CNP = 0x81


class Syndrome(enum.IntEnum):
    """AETH syndromes; an RNR NAK is ``RNR | timer code``. [IBTA 9.7.5.2.1]"""

    ACK = 0x1F
    """ACK without credits: end-to-end flow control is not used."""
    RNR = 0x20
    SEQUENCE_ERROR = 0x60
    INVALID_REQUEST = 0x61
    REMOTE_ACCESS = 0x62
    REMOTE_OPERATION = 0x63


class Bth(NamedTuple):
    """Base Transport Header."""

    opcode: Annotated[int, Int8ub]
    flags: Annotated[int, Int8ub] = MIGRATED
    """SE(1) MigReq(1) PadCnt(2) TVer(4)."""
    pkey: Annotated[int, Int16ub] = DEFAULT_PKEY
    destination: Annotated[int, Int32ub] = 0
    """FECN(1) BECN(1) reserved(6) DestQP(24)."""
    psn: Annotated[int, Int32ub] = 0
    """AckReq(1) reserved(7) PSN(24)."""


class Reth(NamedTuple):
    """RDMA Extended Transport Header."""

    address: Annotated[int, Int64ub]
    token: Annotated[int, Int32ub]
    length: Annotated[int, Int32ub]


class Aeth(NamedTuple):
    """ACK Extended Transport Header: syndrome(8) MSN(24)."""

    word: Annotated[int, Int32ub]


class AtomicEth(NamedTuple):
    """Atomic Extended Transport Header. [IBTA 9.3.4]"""

    address: Annotated[int, Int64ub]
    token: Annotated[int, Int32ub]
    operand: Annotated[int, Int64ub]
    """What is swapped in, or added."""
    compare: Annotated[int, Int64ub]
    """Not used by FetchAdd."""


class AtomicAckEth(NamedTuple):
    """Atomic ACK Extended Transport Header: what the memory had before. [IBTA 9.3.5.3]"""

    found: Annotated[int, Int64ub]


class Ieth(NamedTuple):
    """Invalidate Extended Transport Header."""

    token: Annotated[int, Int32ub]


class Deth(NamedTuple):
    """Datagram Extended Transport Header."""

    queue_key: Annotated[int, Int32ub]
    source: Annotated[int, Int32ub]
    """reserved(8) SrcQP(24)."""


class Mad(NamedTuple):
    """Management datagram header. [IBTA 13.4.3]"""

    base_version: Annotated[int, Int8ub] = 1
    management_class: Annotated[int, Int8ub] = 7
    class_version: Annotated[int, Int8ub] = 2
    method: Annotated[int, Int8ub] = 3
    status: Annotated[int, Int16ub] = 0
    class_specific: Annotated[int, Int16ub] = 0
    transaction_id: Annotated[int, Int64ub] = 0
    attribute: Annotated[int, Int16ub] = 0
    reserved: Annotated[int, Int16ub] = 0
    modifier: Annotated[int, Int32ub] = 0


BTH = Codec(Bth)
RETH = Codec(Reth)
AETH = Codec(Aeth)
ATOMIC_ETH = Codec(AtomicEth)
ATOMIC_ACK_ETH = Codec(AtomicAckEth)
IETH = Codec(Ieth)
DETH = Codec(Deth)
MAD = Codec(Mad)

BTH_STRUCT = struct.Struct(">BBHII")
"""The layout of ``BTH`` for the packet paths, where even the time for a NamedTuple matters."""
HEAD = struct.Struct(">BBHI")
"""The part of a BTH in front of the word with the PSN. It is the same in all middle packets of a message."""

EXTENSION_LENGTH: dict[int, int] = {
    **dict.fromkeys((Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST, Opcode.SEND_ONLY), 0),
    **dict.fromkeys((Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST, Opcode.READ_RESPONSE_MIDDLE), 0),
    **dict.fromkeys((Opcode.WRITE_FIRST, Opcode.WRITE_ONLY, Opcode.READ_REQUEST), RETH.size),
    **dict.fromkeys((Opcode.READ_RESPONSE_FIRST, Opcode.READ_RESPONSE_LAST, Opcode.READ_RESPONSE_ONLY), AETH.size),
    **dict.fromkeys((Opcode.SEND_LAST_IMMEDIATE, Opcode.SEND_ONLY_IMMEDIATE, Opcode.WRITE_LAST_IMMEDIATE), 4),
    **dict.fromkeys((Opcode.SEND_LAST_INVALIDATE, Opcode.SEND_ONLY_INVALIDATE), IETH.size),
    **dict.fromkeys((Opcode.COMPARE_SWAP, Opcode.FETCH_ADD), ATOMIC_ETH.size),
    Opcode.WRITE_ONLY_IMMEDIATE: RETH.size + 4,
    Opcode.ACKNOWLEDGE: AETH.size,
    Opcode.ATOMIC_ACKNOWLEDGE: AETH.size + ATOMIC_ACK_ETH.size,
    Opcode.UD_SEND_ONLY: DETH.size,
    Opcode.CNP: 16,
}
"""Bytes between the BTH and the payload."""

RNR_DELAYS = (
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
    2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
)  # fmt: skip
"""RNR NAK timer codes (9.7.5.2.8), in milliseconds."""


def extend_psn(psn: int, near: int) -> int:
    """Return the full-width number nearest to ``near`` whose low 24 bits are ``psn``. Numbers that do not wrap inside
    allow ordinary comparisons."""
    return near + ((psn - near + 0x800000) & PSN_MASK) - 0x800000


def path_mtu(interface_mtu: int, ipv6: bool = False) -> int:
    """Return the largest payload size in bytes whose packets fit an interface's MTU; 0 if none does. [IBTA A17.5]"""
    overhead = (40 if ipv6 else 20) + 8 + BTH.size + RETH.size + IETH.size + ICRC_LENGTH
    return max((size for size in PATH_MTUS.values() if size + overhead <= interface_mtu), default=0)
