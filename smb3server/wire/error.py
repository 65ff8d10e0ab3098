"""ERROR response. [MS-SMB2 2.2.2]"""

from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message, tail
from smbdirect.fields import Int8ul, Int16ul, Int32ul


class ErrorResponse(NamedTuple):
    """The fixed part. ``byte_count`` bytes of error data follow, in 3.1.1 as ``error_context_count`` contexts.
    [MS-SMB2 2.2.2]"""

    structure_size: Annotated[int, Int16ul] = 9
    error_context_count: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int8ul] = 0
    byte_count: Annotated[int, Int32ul] = 0


ERROR_RESPONSE = Message(ErrorResponse)


def parse_response(message: memoryview) -> tuple[ErrorResponse, memoryview]:
    """Decode a response and its error data. Raises ``DecodeError``."""
    record = ERROR_RESPONSE.parse(message)
    start = ERROR_RESPONSE.end
    return record, tail(message, start, record.byte_count, start)
