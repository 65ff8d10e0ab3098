"""QUERY_DIRECTORY. The response is ``query_info.OutputResponse``. [MS-SMB2 2.2.33, 2.2.34]"""

import enum
from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message, decode_name, encode_name
from smbdirect.fields import Int8ul, Int16ul, Int32ul, Int64ul


class QueryDirectoryFlags(enum.IntFlag):
    """Flags of a request. [MS-SMB2 2.2.33]"""

    RESTART_SCANS = 0x01
    RETURN_SINGLE_ENTRY = 0x02
    INDEX_SPECIFIED = 0x04
    REOPEN = 0x10


class QueryDirectoryRequest(NamedTuple):
    """The fixed part of a QUERY_DIRECTORY request. [MS-SMB2 2.2.33]"""

    structure_size: Annotated[int, Int16ul] = 33
    info_class: Annotated[int, Int8ul] = 0
    flags: Annotated[int, Int8ul] = 0
    file_index: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0
    file_name_offset: Annotated[int, Int16ul] = 96
    file_name_length: Annotated[int, Int16ul] = 0
    output_buffer_length: Annotated[int, Int32ul] = 0

    @property
    def file_id(self) -> tuple[int, int]:
        """The directory's open as (persistent, volatile)."""
        return self.persistent, self.volatile


QUERY_DIRECTORY_REQUEST = Message(QueryDirectoryRequest, ("file_name_offset", "file_name_length"), "FileName")


def parse_query_directory_request(message: memoryview) -> tuple[QueryDirectoryRequest, str]:
    """Decode a request and its search pattern, '' if it has none. Raises ``DecodeError``."""
    request, name = QUERY_DIRECTORY_REQUEST.parse_both(message)
    return request, decode_name(name)


def build_query_directory_request(request: QueryDirectoryRequest, pattern: str) -> bytes:
    """Encode a request with its search pattern."""
    return QUERY_DIRECTORY_REQUEST.build(request, encode_name(pattern))
