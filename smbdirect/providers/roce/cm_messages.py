"""Layouts of the connection management datagrams, without the MAD header. [IBTA volume 1, 12.6 and annex A11]

A field that is narrower than a byte or 24 bits wide shares an integer with its neighbours. The name is that of the
highest part; the comment gives all parts, the highest first.
"""

import enum
from typing import Annotated, NamedTuple

from smbdirect.codec import Codec
from smbdirect.fields import Bytes, Int8ub, Int16ub, Int32ub, Int64ub
from smbdirect.providers.roce.headers import DEFAULT_PKEY, MAD, Mad

MAD_LENGTH = 256


class Attribute(enum.IntEnum):
    """Attribute IDs of the communication management class. [IBTA 16.7.1]"""

    REQ = 0x10
    MRA = 0x11
    REJ = 0x12
    REP = 0x13
    RTU = 0x14
    DREQ = 0x15
    DREP = 0x16


class Reason(enum.IntEnum):
    """The rejection reasons that this side sends. [IBTA 12.6.7.2]"""

    TIMEOUT = 4
    UNSUPPORTED_REQUEST = 5
    INVALID_COMMUNICATION_ID = 6
    INVALID_SERVICE_ID = 8
    INVALID_TRANSPORT = 9
    INVALID_MTU = 26
    CONSUMER = 28


class Req(NamedTuple):
    """Request for Communication. [IBTA 12.6.5]"""

    local_id: Annotated[int, Int32ub]
    reserved: Annotated[int, Int32ub] = 0
    service_id: Annotated[int, Int64ub] = 0
    ca_guid: Annotated[int, Int64ub] = 0
    reserved2: Annotated[int, Int32ub] = 0
    queue_key: Annotated[int, Int32ub] = 0
    qpn: Annotated[int, Int32ub] = 0
    """QPN(24), responder resources(8)."""
    local_eecn: Annotated[int, Int32ub] = 0
    """Local EE context(24), initiator depth(8)."""
    remote_eecn: Annotated[int, Int32ub] = 20 << 3
    """Remote EE context(24), remote CM response timeout(5), transport service type(2), end-to-end flow control(1)."""
    psn: Annotated[int, Int32ub] = 0
    """Starting PSN(24), local CM response timeout(5), retry count(3)."""
    pkey: Annotated[int, Int16ub] = DEFAULT_PKEY
    path_mtu: Annotated[int, Int8ub] = 0
    """Path MTU(4), RDC exists(1), RNR retry count(3)."""
    cm_retries: Annotated[int, Int8ub] = 15 << 4
    """Max CM retries(4), SRQ(1), extended transport(3)."""
    local_lid: Annotated[int, Int16ub] = 0xFFFF
    remote_lid: Annotated[int, Int16ub] = 0xFFFF
    local_gid: Annotated[bytes, Bytes(16)] = bytes(16)
    remote_gid: Annotated[bytes, Bytes(16)] = bytes(16)
    flow_label: Annotated[int, Int32ub] = 0
    """Flow label(20), reserved(6), packet rate(6)."""
    traffic_class: Annotated[int, Int8ub] = 0
    hop_limit: Annotated[int, Int8ub] = 64
    service_level: Annotated[int, Int8ub] = 0
    """SL(4), subnet local(1), reserved(3)."""
    ack_timeout: Annotated[int, Int8ub] = 17 << 3
    """Local ACK timeout(5): 4.096 us * 2^n; reserved(3)."""
    alternate_path: Annotated[bytes, Bytes(44)] = bytes(44)
    private_data: Annotated[bytes, Bytes(92)] = bytes(92)


class Rep(NamedTuple):
    """Reply to a Request for Communication. [IBTA 12.6.8]"""

    local_id: Annotated[int, Int32ub]
    remote_id: Annotated[int, Int32ub]
    queue_key: Annotated[int, Int32ub] = 0
    qpn: Annotated[int, Int32ub] = 0
    """QPN(24), reserved(8)."""
    local_eecn: Annotated[int, Int32ub] = 0
    psn: Annotated[int, Int32ub] = 0
    """Starting PSN(24), reserved(8)."""
    responder_resources: Annotated[int, Int8ub] = 0
    initiator_depth: Annotated[int, Int8ub] = 0
    ack_delay: Annotated[int, Int8ub] = 0
    """Target ACK delay(5), failover accepted(2), end-to-end flow control(1)."""
    rnr_retry: Annotated[int, Int8ub] = 0
    """RNR retry count(3), SRQ(1), reserved(4)."""
    ca_guid: Annotated[int, Int64ub] = 0
    private_data: Annotated[bytes, Bytes(196)] = bytes(196)


class Rej(NamedTuple):
    """Reject. [IBTA 12.6.7]"""

    local_id: Annotated[int, Int32ub]
    remote_id: Annotated[int, Int32ub]
    message: Annotated[int, Int8ub] = 0
    """Message rejected(2): 0 REQ, 1 REP, 2 neither; reserved(6)."""
    information_length: Annotated[int, Int8ub] = 0
    reason: Annotated[int, Int16ub] = 0
    information: Annotated[bytes, Bytes(72)] = bytes(72)
    private_data: Annotated[bytes, Bytes(148)] = bytes(148)


class Dreq(NamedTuple):
    """Request for Communication Release. [IBTA 12.6.10]"""

    local_id: Annotated[int, Int32ub]
    remote_id: Annotated[int, Int32ub]
    remote_qpn: Annotated[int, Int32ub]
    """QPN or EECN of the receiver(24), reserved(8)."""
    private_data: Annotated[bytes, Bytes(220)] = bytes(220)


class Answer(NamedTuple):
    """RTU, DREP or MRA, which begin with the same fields. ``rest`` is private data, in an MRA after two bytes:
    message(2) reserved(6), service timeout(5) reserved(3). [IBTA 12.6.9, 12.6.11, 12.6.6]"""

    local_id: Annotated[int, Int32ub]
    remote_id: Annotated[int, Int32ub]
    rest: Annotated[bytes, Bytes(224)] = bytes(224)


class CmaHeader(NamedTuple):
    """Private data of the RDMA IP CM service, at the front of a REQ's private data. [IBTA A11.3]"""

    version: Annotated[int, Int8ub]
    ip_version: Annotated[int, Int8ub]
    """IP version(4), reserved(4)."""
    port: Annotated[int, Int16ub]
    source: Annotated[bytes, Bytes(16)]
    destination: Annotated[bytes, Bytes(16)]


REQ = Codec(Req)
REP = Codec(Rep)
REJ = Codec(Rej)
DREQ = Codec(Dreq)
ANSWER = Codec(Answer)
CMA = Codec(CmaHeader)
CMA_SIZE = CMA.size


def mad_bytes(attribute: Attribute, transaction_id: int, body: bytes) -> bytes:
    """Return a whole datagram."""
    return MAD.pack(Mad(transaction_id=transaction_id, attribute=attribute)) + body
