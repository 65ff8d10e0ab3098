"""FLUSH. [MS-SMB2 2.2.17, 2.2.18]"""

from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smbdirect.fields import Int16ul, Int32ul, Int64ul


class FlushRequest(NamedTuple):
    """A FLUSH request. [MS-SMB2 2.2.17]"""

    structure_size: Annotated[int, Int16ul] = 24
    reserved1: Annotated[int, Int16ul] = 0
    reserved2: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0


class FlushResponse(NamedTuple):
    """A FLUSH response. [MS-SMB2 2.2.18]"""

    structure_size: Annotated[int, Int16ul] = 4
    reserved: Annotated[int, Int16ul] = 0


FLUSH_REQUEST = Message(FlushRequest)
FLUSH_RESPONSE = Message(FlushResponse)
parse_request = FLUSH_REQUEST.parse
parse_response = FLUSH_RESPONSE.parse
