"""STORAGE_QOS_CONTROL_REQUEST and its response. [MS-SQOS 2.2]"""

import enum
from typing import Annotated, NamedTuple

from smbdirect.codec import Codec
from smbdirect.fields import Bytes, Int16ul, Int32ul, Int64ul

VERSION_1_0, VERSION_1_1 = 0x0100, 0x0101
MAX_NAME = 0x200
"""STORAGE_QOS_INITIATOR_NAME_SIZE in bytes."""
MAX_RATE = 1_000_000_000
"""The greatest limit that Windows accepts. [MS-SQOS 3.2.5.1.2]"""
BASE_IO_SIZE = 8192
"""Bytes of a normalized operation. [MS-SQOS 3.2.5.1.4]"""


class Options(enum.IntFlag):
    """What is asked for. [MS-SQOS 2.2.2.2]"""

    SET_LOGICAL_FLOW_ID = 0x01
    SET_POLICY = 0x02
    PROBE_POLICY = 0x04
    GET_STATUS = 0x08
    UPDATE_COUNTERS = 0x10


class FlowStatus(enum.IntEnum):
    """[MS-SQOS 2.2.2.1]"""

    OK = 0
    INSUFFICIENT_THROUGHPUT = 1
    UNKNOWN_POLICY_ID = 2


class QosRequest(NamedTuple):
    """The fixed part of a request of version 1.0. [MS-SQOS 2.2.2.2]"""

    version: Annotated[int, Int16ul] = VERSION_1_0
    reserved: Annotated[int, Int16ul] = 0
    options: Annotated[int, Int32ul] = 0
    logical_flow_id: Annotated[bytes, Bytes(16)] = bytes(16)
    policy_id: Annotated[bytes, Bytes(16)] = bytes(16)
    initiator_id: Annotated[bytes, Bytes(16)] = bytes(16)
    limit: Annotated[int, Int64ul] = 0
    reservation: Annotated[int, Int64ul] = 0
    name_offset: Annotated[int, Int16ul] = 0
    name_length: Annotated[int, Int16ul] = 0
    node_offset: Annotated[int, Int16ul] = 0
    node_length: Annotated[int, Int16ul] = 0
    operations: Annotated[int, Int64ul] = 0
    normalized_operations: Annotated[int, Int64ul] = 0
    latency: Annotated[int, Int64ul] = 0
    lower_latency: Annotated[int, Int64ul] = 0


class Bandwidth(NamedTuple):
    """What a request of version 1.1 has behind that. [MS-SQOS 2.2.2.2]"""

    limit: Annotated[int, Int64ul] = 0
    """KiB per second."""
    kilobytes: Annotated[int, Int64ul] = 0


class QosResponse(NamedTuple):
    """A response of version 1.0. In version 1.1 a MaximumBandwidth of 8 bytes follows. [MS-SQOS 2.2.2.3]"""

    version: Annotated[int, Int16ul] = VERSION_1_0
    reserved: Annotated[int, Int16ul] = 0
    options: Annotated[int, Int32ul] = 0
    logical_flow_id: Annotated[bytes, Bytes(16)] = bytes(16)
    policy_id: Annotated[bytes, Bytes(16)] = bytes(16)
    initiator_id: Annotated[bytes, Bytes(16)] = bytes(16)
    time_to_live: Annotated[int, Int32ul] = 0
    """Milliseconds."""
    status: Annotated[int, Int32ul] = FlowStatus.OK
    maximum_io_rate: Annotated[int, Int64ul] = 0
    minimum_io_rate: Annotated[int, Int64ul] = 0
    base_io_size: Annotated[int, Int32ul] = BASE_IO_SIZE
    reserved2: Annotated[int, Int32ul] = 0


QOS_REQUEST = Codec(QosRequest)
BANDWIDTH = Codec(Bandwidth)
QOS_RESPONSE = Codec(QosResponse)
SMALLEST_OFFSET = 104
"""The least offset of a name in a request of version 1.0. [MS-SQOS 3.2.5.1.2]"""
