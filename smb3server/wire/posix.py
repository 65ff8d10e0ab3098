"""The POSIX extensions of SMB 3.1.1: negotiate and create context, and levels of information.

They are in no document of Microsoft's. The Samba team's are POSIX-SMB2 ("SMB3 POSIX Extensions") and POSIX-FSCC ("POSIX
Extensions to MS-FSCC"); Samba and Linux speak them. Times are FILETIMEs, sizes are bytes.
"""

import enum
import struct
from typing import Annotated, NamedTuple

from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Int32ul, Int64sl, Int64ul

EXTENSIONS_AVAILABLE = 0x0100
"""SMB2_POSIX_EXTENSIONS_AVAILABLE: the type of the negotiate context. [POSIX-SMB2 2.2.3.1.8]"""
VERSION = bytes.fromhex("93AD25509CB411E7B42383DE968BCD7C")
"""The one version of the extensions, in the negotiate context. It is also the name of the create context."""
LEVEL = 100
"""FilePosixInformation, for files and directories, and FileFsPosixInformation. [POSIX-FSCC 2.3.1.1, 2.3.2.1]"""
NO_MODE = 0xFFFF
"""What Linux sends as mode if it has none to give."""
PERMISSIONS = 0o7777
_TYPE_SHIFT = 12


class PosixType(enum.IntEnum):
    """Types of files in a mode on the wire. [POSIX-FSCC 2.1.1.2]"""

    FILE = 0
    DIRECTORY = 1
    SYMLINK = 2
    CHARACTER_DEVICE = 3
    BLOCK_DEVICE = 4
    FIFO = 5
    SOCKET = 6


class PosixInformation(NamedTuple):
    """FilePosixInformation up to the SIDs of owner and group. [POSIX-FSCC 2.3.1.1]"""

    creation_time: Annotated[int, Int64sl] = 0
    last_access_time: Annotated[int, Int64sl] = 0
    last_write_time: Annotated[int, Int64sl] = 0
    change_time: Annotated[int, Int64sl] = 0
    end_of_file: Annotated[int, Int64sl] = 0
    allocation_size: Annotated[int, Int64sl] = 0
    attributes: Annotated[int, Int32ul] = 0
    inode: Annotated[int, Int64ul] = 0
    device: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0
    links: Annotated[int, Int32ul] = 0
    reparse_tag: Annotated[int, Int32ul] = 0
    mode: Annotated[int, Int32ul] = 0


class PosixCreateResponse(NamedTuple):
    """The create context of a response up to the SIDs of owner and group. [POSIX-SMB2 2.2.14.2.16]"""

    links: Annotated[int, Int32ul] = 0
    reparse_tag: Annotated[int, Int32ul] = 0
    mode: Annotated[int, Int32ul] = 0


class PosixVolumeInformation(NamedTuple):
    """FileFsPosixInformation. All bits of a number that is not known are set. [POSIX-FSCC 2.3.2.1]"""

    optimal_transfer_size: Annotated[int, Int32ul] = 0
    block_size: Annotated[int, Int32ul] = 0
    total_blocks: Annotated[int, Int64ul] = 0
    free_blocks: Annotated[int, Int64ul] = 0
    available_blocks: Annotated[int, Int64ul] = 0
    """For users, without those that the file system keeps for root."""
    total_file_nodes: Annotated[int, Int64ul] = 0
    free_file_nodes: Annotated[int, Int64ul] = 0
    identifier: Annotated[int, Int64ul] = 0


POSIX_INFORMATION = Codec(PosixInformation)
POSIX_CREATE_RESPONSE = Codec(PosixCreateResponse)
POSIX_VOLUME_INFORMATION = Codec(PosixVolumeInformation)
_VERSION_SIZE = len(VERSION)
_MODE = struct.Struct("<I")


def names_version(data: Buffer) -> bool:
    """Return whether a negotiate context has ``VERSION`` among its versions. Raises ``DecodeError`` if it is no list of
    versions, of 16 bytes each. [POSIX-SMB2 2.2.3.1.8]"""
    if len(data) % _VERSION_SIZE:
        raise DecodeError("POSIX extensions: not a list of versions")
    return any(data[at : at + _VERSION_SIZE] == VERSION for at in range(0, len(data), _VERSION_SIZE))


def decode_mode(data: Buffer) -> int:
    """Return the mode of a request's create context. Raises ``DecodeError``. [POSIX-SMB2 2.2.13.2.16]"""
    if len(data) != _MODE.size:
        raise DecodeError("POSIX create context of another size than 4")
    return int(_MODE.unpack(data)[0])


def mode_of(kind: PosixType, permissions: int) -> int:
    """Return a mode on the wire. ``permissions``: the nine bits, set-user-ID, set-group-ID and sticky, as in a mode of
    POSIX. [POSIX-FSCC 2.1.1]"""
    return kind << _TYPE_SHIFT | permissions & PERMISSIONS
