"""SET_INFO. [MS-SMB2 2.2.39, 2.2.40]"""

from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smbdirect.fields import Int8ul, Int16ul, Int32ul, Int64ul


class SetInfoRequest(NamedTuple):
    """The fixed part of a SET_INFO request. [MS-SMB2 2.2.39]"""

    structure_size: Annotated[int, Int16ul] = 33
    info_type: Annotated[int, Int8ul] = 0
    info_class: Annotated[int, Int8ul] = 0
    buffer_length: Annotated[int, Int32ul] = 0
    buffer_offset: Annotated[int, Int16ul] = 96
    reserved: Annotated[int, Int16ul] = 0
    additional_information: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0

    @property
    def file_id(self) -> tuple[int, int]:
        """The open as (persistent, volatile)."""
        return self.persistent, self.volatile


SET_INFO_REQUEST = Message(SetInfoRequest, ("buffer_offset", "buffer_length"), "Buffer")
parse_set_info_request = SET_INFO_REQUEST.parse_both
build_set_info_request = SET_INFO_REQUEST.build


class SetInfoResponse(NamedTuple):
    """A SET_INFO response. [MS-SMB2 2.2.40]"""

    structure_size: Annotated[int, Int16ul] = 2


SET_INFO_RESPONSE = Message(SetInfoResponse)
