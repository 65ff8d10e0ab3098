"""SESSION_SETUP, LOGOFF, TREE_CONNECT, TREE_DISCONNECT, ECHO. [MS-SMB2 2.2.5 to 2.2.12, 2.2.28, 2.2.29]"""

import enum
from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smbdirect.fields import Int8ul, Int16ul, Int32ul, Int64ul

BINDING = 0x01
"""SMB2_SESSION_FLAG_BINDING."""


class SessionFlags(enum.IntFlag):
    """Flags of a SESSION_SETUP response. [MS-SMB2 2.2.6]"""

    IS_GUEST = 1
    IS_NULL = 2
    ENCRYPT_DATA = 4


class SessionSetupRequest(NamedTuple):
    """The fixed part of a SESSION_SETUP request. [MS-SMB2 2.2.5]"""

    structure_size: Annotated[int, Int16ul] = 25
    flags: Annotated[int, Int8ul] = 0
    security_mode: Annotated[int, Int8ul] = 0
    capabilities: Annotated[int, Int32ul] = 0
    channel: Annotated[int, Int32ul] = 0
    security_buffer_offset: Annotated[int, Int16ul] = 0
    security_buffer_length: Annotated[int, Int16ul] = 0
    previous_session_id: Annotated[int, Int64ul] = 0


class SessionSetupResponse(NamedTuple):
    """The fixed part of a SESSION_SETUP response. [MS-SMB2 2.2.6]"""

    structure_size: Annotated[int, Int16ul] = 9
    session_flags: Annotated[int, Int16ul] = 0
    security_buffer_offset: Annotated[int, Int16ul] = 72
    security_buffer_length: Annotated[int, Int16ul] = 0


class TreeConnectRequest(NamedTuple):
    """The fixed part of a TREE_CONNECT request. [MS-SMB2 2.2.9]"""

    structure_size: Annotated[int, Int16ul] = 9
    flags: Annotated[int, Int16ul] = 0
    path_offset: Annotated[int, Int16ul] = 0
    path_length: Annotated[int, Int16ul] = 0


class TreeConnectResponse(NamedTuple):
    """A TREE_CONNECT response. [MS-SMB2 2.2.10]"""

    structure_size: Annotated[int, Int16ul] = 16
    share_type: Annotated[int, Int8ul] = 1
    reserved: Annotated[int, Int8ul] = 0
    share_flags: Annotated[int, Int32ul] = 0
    capabilities: Annotated[int, Int32ul] = 0
    maximal_access: Annotated[int, Int32ul] = 0


class Empty(NamedTuple):
    """LOGOFF, TREE_DISCONNECT and ECHO, requests and responses.
    [MS-SMB2 2.2.7, 2.2.8, 2.2.11, 2.2.12, 2.2.28, 2.2.29]"""

    structure_size: Annotated[int, Int16ul] = 4
    reserved: Annotated[int, Int16ul] = 0


SESSION_SETUP_REQUEST = Message(SessionSetupRequest, ("security_buffer_offset", "security_buffer_length"))
SESSION_SETUP_RESPONSE = Message(
    SessionSetupResponse, ("security_buffer_offset", "security_buffer_length"), "SecurityBuffer"
)
TREE_CONNECT_REQUEST = Message(TreeConnectRequest, ("path_offset", "path_length"), "path")
TREE_CONNECT_RESPONSE = Message(TreeConnectResponse)
EMPTY = Message(Empty)
