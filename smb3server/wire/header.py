"""SMB2 packet header, command numbers, and the ids of opens. [MS-SMB2 2.2.1]"""

import enum
from typing import Annotated, NamedTuple

from smbdirect.codec import Codec
from smbdirect.fields import Bytes, Int16ul, Int32ul, Int64ul

PROTOCOL_ID = b"\xfeSMB"
HEADER_SIZE = 64
SIGNATURE_OFFSET = 48


class Command(enum.IntEnum):
    """Numbers of the commands. [MS-SMB2 2.2.1]"""

    NEGOTIATE = 0x00
    SESSION_SETUP = 0x01
    LOGOFF = 0x02
    TREE_CONNECT = 0x03
    TREE_DISCONNECT = 0x04
    CREATE = 0x05
    CLOSE = 0x06
    FLUSH = 0x07
    READ = 0x08
    WRITE = 0x09
    LOCK = 0x0A
    IOCTL = 0x0B
    CANCEL = 0x0C
    ECHO = 0x0D
    QUERY_DIRECTORY = 0x0E
    CHANGE_NOTIFY = 0x0F
    QUERY_INFO = 0x10
    SET_INFO = 0x11
    OPLOCK_BREAK = 0x12


class HeaderFlags(enum.IntEnum):
    """Flags of the header. [MS-SMB2 2.2.1]"""

    SERVER_TO_REDIR = 0x00000001
    ASYNC_COMMAND = 0x00000002
    RELATED_OPERATIONS = 0x00000004
    SIGNED = 0x00000008
    PRIORITY_MASK = 0x00000070
    DFS_OPERATIONS = 0x10000000
    REPLAY_OPERATION = 0x20000000


class Header(NamedTuple):
    """The synchronous layout. [MS-SMB2 2.2.1.2]

    In the asynchronous layout (2.2.1.1) the eight bytes at ``reserved`` and ``tree_id`` are the AsyncId: see
    ``async_id``.
    """

    protocol_id: Annotated[bytes, Bytes(4)] = PROTOCOL_ID
    structure_size: Annotated[int, Int16ul] = 64
    credit_charge: Annotated[int, Int16ul] = 0
    status: Annotated[int, Int32ul] = 0
    """In requests of 3.x the ChannelSequence, in the low half."""
    command: Annotated[int, Int16ul] = 0
    credits: Annotated[int, Int16ul] = 0
    """CreditRequest in requests, CreditResponse in responses."""
    flags: Annotated[int, Int32ul] = 0
    next_command: Annotated[int, Int32ul] = 0
    message_id: Annotated[int, Int64ul] = 0
    reserved: Annotated[int, Int32ul] = 0
    tree_id: Annotated[int, Int32ul] = 0
    session_id: Annotated[int, Int64ul] = 0
    signature: Annotated[bytes, Bytes(16)] = bytes(16)

    @property
    def async_id(self) -> int:
        """AsyncId of the asynchronous layout."""
        return self.reserved | self.tree_id << 32


HEADER = Codec(Header)


FileId = tuple[int, int]
"""SMB2_FILEID, the name of an open in messages: (persistent, volatile). [MS-SMB2 2.2.14.1]"""

RELATED_FILE_ID: FileId = (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""The open of the previous command in a compound. In an IOCTL it may also mean that there is no open.
[MS-SMB2 3.3.5.2.7.2]"""
