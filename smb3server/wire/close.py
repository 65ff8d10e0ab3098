"""CLOSE. [MS-SMB2 2.2.15, 2.2.16]"""

from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smbdirect.fields import Int16ul, Int32ul, Int64ul

POSTQUERY_ATTRIB = 0x0001


class CloseRequest(NamedTuple):
    """A CLOSE request. [MS-SMB2 2.2.15]"""

    structure_size: Annotated[int, Int16ul] = 24
    flags: Annotated[int, Int16ul] = 0
    reserved: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0


class CloseResponse(NamedTuple):
    """A CLOSE response. [MS-SMB2 2.2.16]"""

    structure_size: Annotated[int, Int16ul] = 60
    flags: Annotated[int, Int16ul] = 0
    reserved: Annotated[int, Int32ul] = 0
    creation_time: Annotated[int, Int64ul] = 0
    last_access_time: Annotated[int, Int64ul] = 0
    last_write_time: Annotated[int, Int64ul] = 0
    change_time: Annotated[int, Int64ul] = 0
    allocation_size: Annotated[int, Int64ul] = 0
    end_of_file: Annotated[int, Int64ul] = 0
    file_attributes: Annotated[int, Int32ul] = 0


CLOSE_REQUEST = Message(CloseRequest)
CLOSE_RESPONSE = Message(CloseResponse)
parse_request = CLOSE_REQUEST.parse
parse_response = CLOSE_RESPONSE.parse
