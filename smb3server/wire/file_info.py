"""File information levels, except those for directories (``directory_info``). [MS-FSCC 2.4]

Levels of fixed size are records in ``FIXED_LEVELS``. Each level with a name or a list has an encoder and a decoder.
Times are FILETIMEs, sizes are bytes. Decoders raise ``DecodeError``.
"""

import enum
import struct
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

from smb3server.wire.fields import decode_name, encode_name
from smb3server.wire.info_class import FileInfoClass as FileInfoClass  # noqa: PLC0414
from smb3server.wire.info_class import TooManyEntriesError as TooManyEntriesError  # noqa: PLC0414
from smb3server.wire.info_class import chain as chain  # noqa: PLC0414
from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int8ul, Int16ul, Int32ul, Int64sl, Int64ul


class DispositionFlags(enum.IntFlag):
    """Flags of FileDispositionInformationEx. [MS-FSCC 2.4.11.2]"""

    DELETE = 0x01
    POSIX_SEMANTICS = 0x02
    FORCE_IMAGE_SECTION_CHECK = 0x04
    ON_CLOSE = 0x08
    IGNORE_READONLY_ATTRIBUTE = 0x10


class RenameFlags(enum.IntFlag):
    """Flags of FileRenameInformationEx and FileLinkInformationEx. [MS-FSCC 2.4.42.2]"""

    REPLACE_IF_EXISTS = 0x01
    POSIX_SEMANTICS = 0x02
    IGNORE_READONLY_ATTRIBUTE = 0x40


class BasicInformation(NamedTuple):
    """FileBasicInformation. [MS-FSCC 2.4.7]

    In a SET_INFO request a time of 0 means unchanged. -1 stops and -2 restarts updates of the time by this handle.
    """

    creation_time: Annotated[int, Int64sl] = 0
    last_access_time: Annotated[int, Int64sl] = 0
    last_write_time: Annotated[int, Int64sl] = 0
    change_time: Annotated[int, Int64sl] = 0
    attributes: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class StandardInformation(NamedTuple):
    """FileStandardInformation. [MS-FSCC 2.4.41]"""

    allocation_size: Annotated[int, Int64sl] = 0
    end_of_file: Annotated[int, Int64sl] = 0
    number_of_links: Annotated[int, Int32ul] = 0
    delete_pending: Annotated[int, Int8ul] = 0
    directory: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int16ul] = 0


class InternalInformation(NamedTuple):
    """FileInternalInformation: the file's number."""

    index_number: Annotated[int, Int64ul] = 0


class EaInformation(NamedTuple):
    """FileEaInformation: bytes of the file's extended attributes."""

    ea_size: Annotated[int, Int32ul] = 0


class AccessInformation(NamedTuple):
    """FileAccessInformation: the access of the handle."""

    access_flags: Annotated[int, Int32ul] = 0


class PositionInformation(NamedTuple):
    """FilePositionInformation."""

    current_byte_offset: Annotated[int, Int64sl] = 0


class ModeInformation(NamedTuple):
    """FileModeInformation."""

    mode: Annotated[int, Int32ul] = 0


class AlignmentInformation(NamedTuple):
    """FileAlignmentInformation."""

    alignment_requirement: Annotated[int, Int32ul] = 0


class CompressionInformation(NamedTuple):
    """FileCompressionInformation."""

    compressed_file_size: Annotated[int, Int64sl] = 0
    compression_format: Annotated[int, Int16ul] = 0
    compression_unit_shift: Annotated[int, Int8ul] = 0
    chunk_shift: Annotated[int, Int8ul] = 0
    cluster_shift: Annotated[int, Int8ul] = 0
    reserved: Annotated[bytes, Bytes(3)] = bytes(3)


class NetworkOpenInformation(NamedTuple):
    """FileNetworkOpenInformation."""

    creation_time: Annotated[int, Int64sl] = 0
    last_access_time: Annotated[int, Int64sl] = 0
    last_write_time: Annotated[int, Int64sl] = 0
    change_time: Annotated[int, Int64sl] = 0
    allocation_size: Annotated[int, Int64sl] = 0
    end_of_file: Annotated[int, Int64sl] = 0
    attributes: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class AttributeTagInformation(NamedTuple):
    """FileAttributeTagInformation."""

    attributes: Annotated[int, Int32ul] = 0
    reparse_tag: Annotated[int, Int32ul] = 0


class StandardLinkInformation(NamedTuple):
    """FileStandardLinkInformation."""

    accessible_links: Annotated[int, Int32ul] = 0
    total_links: Annotated[int, Int32ul] = 0
    delete_pending: Annotated[int, Int8ul] = 0
    directory: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int16ul] = 0


class IdInformation(NamedTuple):
    """FileIdInformation. The file's number has 128 bits."""

    volume_serial_number: Annotated[int, Int64ul] = 0
    file_id_low: Annotated[int, Int64ul] = 0
    file_id_high: Annotated[int, Int64ul] = 0


class PipeInformation(NamedTuple):
    """FilePipeInformation."""

    read_mode: Annotated[int, Int32ul] = 0
    completion_mode: Annotated[int, Int32ul] = 0


class PipeLocalInformation(NamedTuple):
    """FilePipeLocalInformation."""

    named_pipe_type: Annotated[int, Int32ul] = 0
    named_pipe_configuration: Annotated[int, Int32ul] = 0
    maximum_instances: Annotated[int, Int32ul] = 0
    current_instances: Annotated[int, Int32ul] = 0
    inbound_quota: Annotated[int, Int32ul] = 0
    read_data_available: Annotated[int, Int32ul] = 0
    outbound_quota: Annotated[int, Int32ul] = 0
    write_quota_available: Annotated[int, Int32ul] = 0
    named_pipe_state: Annotated[int, Int32ul] = 0
    named_pipe_end: Annotated[int, Int32ul] = 0


class PipeRemoteInformation(NamedTuple):
    """FilePipeRemoteInformation."""

    collect_data_time: Annotated[int, Int64ul] = 0
    maximum_collection_count: Annotated[int, Int32ul] = 0
    padding: Annotated[int, Int32ul] = 0


class DispositionInformation(NamedTuple):
    """FileDispositionInformation."""

    delete_pending: Annotated[int, Int8ul] = 0


class DispositionInformationEx(NamedTuple):
    """FileDispositionInformationEx. The flags are ``DispositionFlags``."""

    flags: Annotated[int, Int32ul] = 0


class EndOfFileInformation(NamedTuple):
    """FileEndOfFileInformation."""

    end_of_file: Annotated[int, Int64sl] = 0


class AllocationInformation(NamedTuple):
    """FileAllocationInformation."""

    allocation_size: Annotated[int, Int64sl] = 0


class ValidDataLengthInformation(NamedTuple):
    """FileValidDataLengthInformation."""

    valid_data_length: Annotated[int, Int64sl] = 0


class AllFixed(NamedTuple):
    """FileAllInformation up to its name: the levels it is made of, one after the other. [MS-FSCC 2.4.2]"""

    creation_time: Annotated[int, Int64sl] = 0
    last_access_time: Annotated[int, Int64sl] = 0
    last_write_time: Annotated[int, Int64sl] = 0
    change_time: Annotated[int, Int64sl] = 0
    attributes: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0
    allocation_size: Annotated[int, Int64sl] = 0
    end_of_file: Annotated[int, Int64sl] = 0
    number_of_links: Annotated[int, Int32ul] = 0
    delete_pending: Annotated[int, Int8ul] = 0
    directory: Annotated[int, Int8ul] = 0
    reserved2: Annotated[int, Int16ul] = 0
    index_number: Annotated[int, Int64ul] = 0
    ea_size: Annotated[int, Int32ul] = 0
    access_flags: Annotated[int, Int32ul] = 0
    current_byte_offset: Annotated[int, Int64sl] = 0
    mode: Annotated[int, Int32ul] = 0
    alignment_requirement: Annotated[int, Int32ul] = 0


BASIC = Codec(BasicInformation)
STANDARD = Codec(StandardInformation)
INTERNAL = Codec(InternalInformation)
EA = Codec(EaInformation)
ACCESS = Codec(AccessInformation)
POSITION = Codec(PositionInformation)
MODE = Codec(ModeInformation)
ALIGNMENT = Codec(AlignmentInformation)
COMPRESSION = Codec(CompressionInformation)
NETWORK_OPEN = Codec(NetworkOpenInformation)
ATTRIBUTE_TAG = Codec(AttributeTagInformation)
STANDARD_LINK = Codec(StandardLinkInformation)
ID = Codec(IdInformation)
PIPE = Codec(PipeInformation)
PIPE_LOCAL = Codec(PipeLocalInformation)
PIPE_REMOTE = Codec(PipeRemoteInformation)
DISPOSITION = Codec(DispositionInformation)
DISPOSITION_EX = Codec(DispositionInformationEx)
END_OF_FILE = Codec(EndOfFileInformation)
ALLOCATION = Codec(AllocationInformation)
VALID_DATA_LENGTH = Codec(ValidDataLengthInformation)
ALL_FIXED = Codec(AllFixed)

FIXED_LEVELS: dict[int, Codec[Any]] = {
    FileInfoClass.BASIC: BASIC,
    FileInfoClass.STANDARD: STANDARD,
    FileInfoClass.INTERNAL: INTERNAL,
    FileInfoClass.EA: EA,
    FileInfoClass.ACCESS: ACCESS,
    FileInfoClass.POSITION: POSITION,
    FileInfoClass.MODE: MODE,
    FileInfoClass.ALIGNMENT: ALIGNMENT,
    FileInfoClass.COMPRESSION: COMPRESSION,
    FileInfoClass.NETWORK_OPEN: NETWORK_OPEN,
    FileInfoClass.ATTRIBUTE_TAG: ATTRIBUTE_TAG,
    FileInfoClass.STANDARD_LINK: STANDARD_LINK,
    FileInfoClass.ID: ID,
    FileInfoClass.PIPE: PIPE,
    FileInfoClass.PIPE_LOCAL: PIPE_LOCAL,
    FileInfoClass.PIPE_REMOTE: PIPE_REMOTE,
    FileInfoClass.DISPOSITION: DISPOSITION,
    FileInfoClass.DISPOSITION_EX: DISPOSITION_EX,
    FileInfoClass.END_OF_FILE: END_OF_FILE,
    FileInfoClass.ALLOCATION: ALLOCATION,
    FileInfoClass.VALID_DATA_LENGTH: VALID_DATA_LENGTH,
}

_LENGTH = struct.Struct("<I")
_STREAM = struct.Struct("<IIqq")
_FULL_EA = struct.Struct("<IBBH")
_GET_EA = struct.Struct("<IB")
_RENAME = struct.Struct("<IIQI")


def encode_name_information(name: str) -> bytes:
    """Encode FileNameInformation, or another level that is a length and a name. [MS-FSCC 2.1.7]"""
    data = name.encode("utf-16-le", "surrogatepass")
    return _LENGTH.pack(len(data)) + data


def decode_name_information(data: Buffer) -> str:
    """Decode a length and a name. Raises ``DecodeError``."""
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        raise DecodeError("name information cut short")
    (length,) = _LENGTH.unpack_from(view)
    if length > len(view) - _LENGTH.size:
        raise DecodeError("name longer than its buffer")
    return decode_name(view[_LENGTH.size : _LENGTH.size + length])


def decode_all(data: Buffer) -> tuple[AllFixed, str]:
    """Decode FileAllInformation. Raises ``DecodeError``."""
    return ALL_FIXED.unpack(data), decode_name_information(memoryview(data)[ALL_FIXED.size :])


class StreamEntry(NamedTuple):
    """One stream of a file."""

    name: str
    """The name as sent: '::$DATA', ':stream:$DATA'."""
    size: int
    allocation_size: int


def encode_streams(streams: Iterable[StreamEntry]) -> list[bytes]:
    """Encode FileStreamInformation, one element per entry. All but the last are padded to 8 bytes. [MS-FSCC 2.4.43]"""
    entries = [(encode_name(name), size, allocation) for name, size, allocation in streams]
    parts: list[bytes] = []
    for number, (name, size, allocation) in enumerate(entries, 1):
        last = number == len(entries)
        length = _STREAM.size + len(name)
        padding = 0 if last else -length % 8
        parts.append(_STREAM.pack(0 if last else length + padding, len(name), size, allocation) + name + bytes(padding))
    return parts


MAX_EAS = 1024
"""Maximum number of extended attributes in one list from the peer. All EAs of a file have at most 64 KiB (MS-FSA
2.1.5.15.6)."""


NEED_EA = 0x80
"""FILE_NEED_EA: a program that does not know extended attributes must not open the file. [MS-FSCC 2.4.16]"""


class EaEntry(NamedTuple):
    """One extended attribute."""

    name: bytes
    value: bytes
    flags: int = 0
    """0 or ``NEED_EA``."""


def encode_eas(entries: Iterable[EaEntry]) -> list[bytes]:
    """Encode FileFullEaInformation, one element per entry. All but the last are padded to 4 bytes. [MS-FSCC 2.4.15]"""
    listed = list(entries)
    parts: list[bytes] = []
    for number, (name, value, flags) in enumerate(listed, 1):
        last = number == len(listed)
        length = _FULL_EA.size + len(name) + 1 + len(value)
        padding = 0 if last else -length % 4
        head = _FULL_EA.pack(0 if last else length + padding, flags, len(name), len(value))
        parts.append(head + name + b"\0" + value + bytes(padding))
    return parts


def decode_eas(data: Buffer) -> list[EaEntry]:
    """Decode FileFullEaInformation. [MS-FSCC 2.4.15]

    Raises ``DecodeError`` for an incomplete or misaligned entry, a name without its NUL, or more than ``MAX_EAS``
    entries.
    """
    view = memoryview(data)
    found: list[EaEntry] = []
    for start, end in chain(view, _FULL_EA.size, MAX_EAS):
        if start % 4:
            raise DecodeError("EA entry not aligned to 4")
        _, flags, name_length, value_length = _FULL_EA.unpack_from(view, start)
        at = start + _FULL_EA.size
        if name_length + 1 + value_length > end - at:
            raise DecodeError("EA outside its entry")
        if view[at + name_length] != 0:
            raise DecodeError("EA name without its terminating NUL")
        value = bytes(view[at + name_length + 1 : at + name_length + 1 + value_length])
        found.append(EaEntry(bytes(view[at : at + name_length]), value, flags))
    return found


def decode_get_eas(data: Buffer) -> list[bytes]:
    """Decode FileGetEaInformation. Raises ``DecodeError``, also for more than ``MAX_EAS`` names. [MS-FSCC 2.4.15.1]"""
    view = memoryview(data)
    found: list[bytes] = []
    for start, end in chain(view, _GET_EA.size, MAX_EAS):
        _, length = _GET_EA.unpack_from(view, start)
        if length + 1 > end - start - _GET_EA.size:
            raise DecodeError("EA name outside its entry")
        found.append(bytes(view[start + _GET_EA.size : start + _GET_EA.size + length]))
    return found


class RenameInformation(NamedTuple):
    """FileRenameInformation(Ex) or FileLinkInformation in the form that SMB2 uses. [MS-FSCC 2.4.42.2, 2.4.27.2]"""

    flags: int
    """Bit 0 is ReplaceIfExists in all levels. Only the -Ex levels have more bits."""
    root_directory: int
    name: str


def encode_rename(record: RenameInformation) -> bytes:
    """Encode at least 24 bytes, because Windows refuses shorter buffers."""
    name = encode_name(record.name)
    return (_RENAME.pack(record.flags, 0, record.root_directory, len(name)) + name).ljust(24, b"\0")


def decode_rename(data: Buffer, extended: bool = False) -> RenameInformation:
    """Decode the target of a rename or a link. Raises ``DecodeError``.

    ``extended`` is for the -Ex levels, whose flags have 32 bits. Otherwise only the first byte counts.
    """
    view = memoryview(data)
    if len(view) < _RENAME.size:
        raise DecodeError("rename information cut short")
    flags, _, root, length = _RENAME.unpack_from(view)
    if length > len(view) - _RENAME.size:
        raise DecodeError("rename target outside its buffer")
    name = decode_name(view[_RENAME.size : _RENAME.size + length])
    return RenameInformation(flags if extended else flags & 0xFF, root, name)
