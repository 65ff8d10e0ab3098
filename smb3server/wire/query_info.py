"""QUERY_INFO. [MS-SMB2 2.2.37, 2.2.38]"""

import enum
from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smbdirect.fields import Int8ul, Int16ul, Int32ul, Int64ul


class InfoType(enum.IntEnum):
    """Kinds of information. [MS-SMB2 2.2.37]"""

    FILE = 1
    FILESYSTEM = 2
    SECURITY = 3
    QUOTA = 4


class SecurityInformation(enum.IntFlag):
    """AdditionalInformation for InfoType SECURITY. [MS-SMB2 2.2.37]"""

    OWNER = 0x00000001
    GROUP = 0x00000002
    DACL = 0x00000004
    SACL = 0x00000008
    LABEL = 0x00000010
    ATTRIBUTE = 0x00000020
    SCOPE = 0x00000040
    BACKUP = 0x00010000


class QueryInfoFlags(enum.IntFlag):
    """Flags of a query for extended attributes. [MS-SMB2 2.2.37]"""

    RESTART_SCAN = 1
    RETURN_SINGLE_ENTRY = 2
    INDEX_SPECIFIED = 4


class QueryInfoRequest(NamedTuple):
    """The fixed part of a QUERY_INFO request. [MS-SMB2 2.2.37]"""

    structure_size: Annotated[int, Int16ul] = 41
    info_type: Annotated[int, Int8ul] = 0
    info_class: Annotated[int, Int8ul] = 0
    output_buffer_length: Annotated[int, Int32ul] = 0
    input_buffer_offset: Annotated[int, Int16ul] = 0
    reserved: Annotated[int, Int16ul] = 0
    input_buffer_length: Annotated[int, Int32ul] = 0
    additional_information: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0

    @property
    def file_id(self) -> tuple[int, int]:
        """The open as (persistent, volatile)."""
        return self.persistent, self.volatile


QUERY_INFO_REQUEST = Message(QueryInfoRequest, ("input_buffer_offset", "input_buffer_length"), "InputBuffer")
parse_query_info_request = QUERY_INFO_REQUEST.parse_both
build_query_info_request = QUERY_INFO_REQUEST.build


class OutputResponse(NamedTuple):
    """The fixed part of QUERY_INFO, QUERY_DIRECTORY and CHANGE_NOTIFY responses. [MS-SMB2 2.2.38, 2.2.34, 2.2.36]"""

    structure_size: Annotated[int, Int16ul] = 9
    output_buffer_offset: Annotated[int, Int16ul] = 72
    output_buffer_length: Annotated[int, Int32ul] = 0


OUTPUT_RESPONSE = Message(OutputResponse, ("output_buffer_offset", "output_buffer_length"), "OutputBuffer")


def parse_output_response(message: memoryview) -> memoryview:
    """Return the output buffer of a QUERY_INFO, QUERY_DIRECTORY or CHANGE_NOTIFY response. Raises ``DecodeError``."""
    return OUTPUT_RESPONSE.parse_both(message)[1]


def build_output_response(length: int) -> bytes:
    """Encode the fixed part of a response. The caller appends ``length`` bytes of output."""
    return OUTPUT_RESPONSE.pack_fields(9, OUTPUT_RESPONSE.end, length)
