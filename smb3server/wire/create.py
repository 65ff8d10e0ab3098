"""CREATE. Its contexts are in ``create_contexts``. [MS-SMB2 2.2.13, 2.2.14]"""

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from smb3server.wire.fields import Message, decode_name, tail
from smbdirect.errors import DecodeError
from smbdirect.fields import Int8ul, Int16ul, Int32ul, Int64ul

if TYPE_CHECKING:
    # Commands of the client send no contexts, and start sooner without the module.
    from smb3server.wire.create_contexts import RawContext


class CreateDisposition(enum.IntEnum):
    """What to do if the file exists or does not exist. [MS-SMB2 2.2.13]"""

    SUPERSEDE = 0
    OPEN = 1
    CREATE = 2
    OPEN_IF = 3
    OVERWRITE = 4
    OVERWRITE_IF = 5


class CreateAction(enum.IntEnum):
    """The action that was taken. [MS-SMB2 2.2.14]"""

    SUPERSEDED = 0
    OPENED = 1
    CREATED = 2
    OVERWRITTEN = 3


class CreateOptions(enum.IntEnum):
    """Options of a request. [MS-SMB2 2.2.13]"""

    DIRECTORY_FILE = 0x00000001
    WRITE_THROUGH = 0x00000002
    SEQUENTIAL_ONLY = 0x00000004
    NO_INTERMEDIATE_BUFFERING = 0x00000008
    SYNCHRONOUS_IO_ALERT = 0x00000010
    SYNCHRONOUS_IO_NONALERT = 0x00000020
    NON_DIRECTORY_FILE = 0x00000040
    CREATE_TREE_CONNECTION = 0x00000080
    COMPLETE_IF_OPLOCKED = 0x00000100
    NO_EA_KNOWLEDGE = 0x00000200
    OPEN_REMOTE_INSTANCE = 0x00000400
    RANDOM_ACCESS = 0x00000800
    DELETE_ON_CLOSE = 0x00001000
    OPEN_BY_FILE_ID = 0x00002000
    OPEN_FOR_BACKUP_INTENT = 0x00004000
    NO_COMPRESSION = 0x00008000
    OPEN_REQUIRING_OPLOCK = 0x00010000
    DISALLOW_EXCLUSIVE = 0x00020000
    RESERVE_OPFILTER = 0x00100000
    OPEN_REPARSE_POINT = 0x00200000
    OPEN_NO_RECALL = 0x00400000
    OPEN_FOR_FREE_SPACE_QUERY = 0x00800000


class ShareAccess(enum.IntEnum):
    """Access that other opens may have at the same time. [MS-SMB2 2.2.13]"""

    READ = 1
    WRITE = 2
    DELETE = 4


class Access(enum.IntEnum):
    """Rights of an access mask. [MS-SMB2 2.2.13.1]"""

    READ_DATA = 0x00000001
    WRITE_DATA = 0x00000002
    APPEND_DATA = 0x00000004
    READ_EA = 0x00000008
    WRITE_EA = 0x00000010
    EXECUTE = 0x00000020
    DELETE_CHILD = 0x00000040
    READ_ATTRIBUTES = 0x00000080
    WRITE_ATTRIBUTES = 0x00000100
    DELETE = 0x00010000
    READ_CONTROL = 0x00020000
    WRITE_DAC = 0x00040000
    WRITE_OWNER = 0x00080000
    SYNCHRONIZE = 0x00100000
    ACCESS_SYSTEM_SECURITY = 0x01000000
    MAXIMUM_ALLOWED = 0x02000000
    GENERIC_ALL = 0x10000000
    GENERIC_EXECUTE = 0x20000000
    GENERIC_WRITE = 0x40000000
    GENERIC_READ = 0x80000000


class CreateRequest(NamedTuple):
    """The fixed part of a CREATE request. [MS-SMB2 2.2.13]"""

    structure_size: Annotated[int, Int16ul] = 57
    security_flags: Annotated[int, Int8ul] = 0
    requested_oplock_level: Annotated[int, Int8ul] = 0
    impersonation_level: Annotated[int, Int32ul] = 2
    smb_create_flags: Annotated[int, Int64ul] = 0
    reserved: Annotated[int, Int64ul] = 0
    desired_access: Annotated[int, Int32ul] = 0
    file_attributes: Annotated[int, Int32ul] = 0
    share_access: Annotated[int, Int32ul] = 0
    create_disposition: Annotated[int, Int32ul] = 0
    create_options: Annotated[int, Int32ul] = 0
    name_offset: Annotated[int, Int16ul] = 0
    name_length: Annotated[int, Int16ul] = 0
    create_contexts_offset: Annotated[int, Int32ul] = 0
    create_contexts_length: Annotated[int, Int32ul] = 0


CREATE_FLAG_REPARSEPOINT = 0x01
"""Value of CreateResponse.flags in dialects from 3.0 on: the last component of the path is a reparse point."""


class CreateResponse(NamedTuple):
    """The fixed part of a CREATE response. [MS-SMB2 2.2.14]"""

    structure_size: Annotated[int, Int16ul] = 89
    oplock_level: Annotated[int, Int8ul] = 0
    flags: Annotated[int, Int8ul] = 0
    create_action: Annotated[int, Int32ul] = 0
    creation_time: Annotated[int, Int64ul] = 0
    last_access_time: Annotated[int, Int64ul] = 0
    last_write_time: Annotated[int, Int64ul] = 0
    change_time: Annotated[int, Int64ul] = 0
    allocation_size: Annotated[int, Int64ul] = 0
    end_of_file: Annotated[int, Int64ul] = 0
    file_attributes: Annotated[int, Int32ul] = 0
    reserved2: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0
    create_contexts_offset: Annotated[int, Int32ul] = 0
    create_contexts_length: Annotated[int, Int32ul] = 0


CREATE_REQUEST = Message(CreateRequest)
CREATE_RESPONSE = Message(CreateResponse, ("create_contexts_offset", "create_contexts_length"))


def parse_request(message: memoryview) -> tuple[CreateRequest, str, list["RawContext"]]:
    """Decode the fixed part, the name as sent, and the contexts in their order. Raises ``DecodeError``."""
    record = CREATE_REQUEST.parse(message)
    start = CREATE_REQUEST.end
    name = decode_name(tail(message, record.name_offset, record.name_length, start))
    contexts: list[RawContext] = []
    if record.create_contexts_length:
        from smb3server.wire.create_contexts import parse_contexts

        if record.create_contexts_offset % 8:
            raise DecodeError("create contexts not aligned to eight bytes")
        contexts = parse_contexts(tail(message, record.create_contexts_offset, record.create_contexts_length, start))
    return record, name, contexts


def pack_request(record: CreateRequest, name: str, contexts: Sequence["RawContext"] = ()) -> bytes:
    """Encode a request with its name and contexts."""
    raw = name.encode("utf-16-le", "surrogatepass")
    start = CREATE_REQUEST.end
    # The buffer must have at least one byte. Windows and Linux pad an empty name to eight.
    area = bytearray(raw or bytes(8))
    contexts_offset = contexts_length = 0
    if contexts:
        from smb3server.wire.create_contexts import pack_contexts

        area += bytes(-(start + len(area)) % 8)
        contexts_offset = start + len(area)
        packed = pack_contexts(contexts)
        contexts_length = len(packed)
        area += packed
    # The last four fields say where name and contexts are.
    return CREATE_REQUEST.pack_fields(*record[:-4], start, len(raw), contexts_offset, contexts_length) + bytes(area)


def parse_response(message: memoryview) -> tuple[CreateResponse, list["RawContext"]]:
    """Decode a response and its contexts. Raises ``DecodeError``."""
    record, area = CREATE_RESPONSE.parse_both(message)
    if not area:
        return record, []
    from smb3server.wire.create_contexts import parse_contexts

    return record, parse_contexts(area)


def pack_response(record: CreateResponse, contexts: Sequence["RawContext"] = ()) -> bytes:
    """Encode a response with its contexts."""
    if not contexts:
        return CREATE_RESPONSE.pack_fields(*record)
    from smb3server.wire.create_contexts import pack_contexts

    packed = pack_contexts(contexts)
    return CREATE_RESPONSE.build(record, packed)
