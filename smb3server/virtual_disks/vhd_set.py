"""The file of a VHD set (.vhds): it names the image that is in use, and has the list of snapshots.

Its format is not published. What is here was read off a file that Windows made: a signature, two headers of which the
one with the greater sequence number counts, and behind them the name of the image. The list of snapshots follows in a
form of this server's, which Windows does not know. Each header has a name and a list of its own, so that the file has
the former ones until the last write.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass
from typing import Annotated, NamedTuple

from smb3server.backends.base import Handle
from smb3server.virtual_disks.checksum import crc32c
from smb3server.virtual_disks.layout import KIB, MIB
from smb3server.virtual_disks.reading import BadImage, is_plain_name, read_at
from smbdirect.codec import Codec
from smbdirect.fields import Bytes, Int32ul, Int64ul

_SIGNATURE = b"vhdsetv1"
_CREATOR = "smb3server"
_HEADERS = (64 * KIB, 128 * KIB)
_HEADER_SIZE = 4096
_NAME_AT = 256 * KIB
_NAME_SIZE = 4096
_SNAPSHOTS_AT = (2 * MIB, 4 * MIB)
_SNAPSHOT_MAGIC = b"smb3sns2"
_SINGLE_LIST_AT, _SINGLE_LIST_MAGIC = 260 * KIB, b"smb3snap"
"""A list that belongs to whatever header counts. It is read in files that have no other one."""
_MAX_NAME = 510
MAX_SNAPSHOTS = 1024
_MAX_LIST = 1 << 20
"""Bytes of the longest list of snapshots that is read."""


class SetHeader(NamedTuple):
    """A header of the file, as far as it is known."""

    signature: Annotated[bytes, Bytes(4)] = b"shdr"
    reserved: Annotated[int, Int32ul] = 0xFFFFE000
    sequence_number: Annotated[int, Int64ul] = 0
    version: Annotated[int, Int32ul] = 1
    checksum: Annotated[int, Int32ul] = 0
    """CRC-32C of the 4096 bytes, with this field 0."""
    flags: Annotated[int, Int32ul] = 7
    name_offset: Annotated[int, Int32ul] = _NAME_AT
    name_length: Annotated[int, Int32ul] = 0


SET_HEADER = Codec(SetHeader)
_CHECKSUM = slice(20, 24)


@dataclass(slots=True)
class Snapshot:
    """A snapshot of the set. [MS-RSVD 3.2.1.4]"""

    snapshot_id: str
    kind: int
    """A snapshot type. [MS-RSVD 2.2.6]"""
    created: int
    """Milliseconds since 1970."""
    change_tracking: bool
    image: str
    """The file with the disk as it was. Nobody writes it any more."""


def is_set_name(name: str) -> bool:
    """Return whether a file's name says that it is a VHD set."""
    return name.casefold().endswith(".vhds")


class VhdSet:
    """An open VHD set."""

    def __init__(self, handle: Handle) -> None:
        """Read the file. Raises ``OSError``, ``BadImage``. It closes the handle then."""
        self.handle = handle
        try:
            if self._read(0, 8) != _SIGNATURE:
                raise BadImage("no VHD set")
            self._header = self._newest()
            self.active = self._name()
            self.snapshots = self._list()
        except BaseException:
            handle.close()
            raise

    def _read(self, offset: int, length: int) -> bytes:
        return read_at(self.handle, offset, length)

    def _newest(self) -> SetHeader:
        found: list[SetHeader] = []
        for offset in _HEADERS:
            data = self._read(offset, _HEADER_SIZE)
            if len(data) < _HEADER_SIZE or data[:4] != b"shdr":
                continue
            header = SET_HEADER.unpack(data)
            if header.version == 1 and header.checksum == _checksum(data):
                found.append(header)
        if not found:
            raise BadImage("it has no valid header")
        return max(found, key=lambda header: header.sequence_number)

    def _name(self) -> str:
        header = self._header
        if not 0 < header.name_length <= _MAX_NAME:
            raise BadImage("the name of its image is too long")
        try:
            name = self._read(header.name_offset, header.name_length).decode("utf-16-le").rstrip("\0")
        except UnicodeDecodeError as error:
            raise BadImage("the name of its image is not valid") from error
        if not is_plain_name(name):
            raise BadImage("its image is not in the same folder")
        return name

    def _list(self) -> list[Snapshot]:
        where, magic = _SNAPSHOTS_AT[self._header.sequence_number % 2], _SNAPSHOT_MAGIC
        head = self._read(where, 16)
        if head[:8] != magic:
            where, magic = _SINGLE_LIST_AT, _SINGLE_LIST_MAGIC
            head = self._read(where, 16)
        if head[:8] != magic:
            return []
        length, checksum = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
        if length > _MAX_LIST:
            raise BadImage("its list of snapshots is too long")
        data = self._read(where + 16, length)
        if crc32c(data) != checksum:
            raise BadImage("its list of snapshots is damaged")
        try:
            found = [Snapshot(**entry) for entry in json.loads(data)]
            ids = {str(uuid.UUID(entry.snapshot_id)) for entry in found}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise BadImage("its list of snapshots is damaged") from error
        numbers = [number for entry in found for number in (entry.kind, entry.created)]
        if (
            len(ids) != len(found)
            or len(found) > MAX_SNAPSHOTS
            or not all(type(number) is int and 0 <= number < 1 << 32 for number in numbers[::2])
            or not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers[1::2])
            or not all(isinstance(entry.image, str) and is_plain_name(entry.image) for entry in found)
        ):
            raise BadImage("its list of snapshots is damaged")
        return found

    def find(self, snapshot_id: bytes, kind: int | None = None) -> Snapshot | None:
        """Return the snapshot with an id (and of a type). None: there is none."""
        wanted = str(uuid.UUID(bytes_le=snapshot_id))
        for snapshot in self.snapshots:
            if snapshot.snapshot_id == wanted and kind in (None, snapshot.kind):
                return snapshot
        return None

    def store(self, active: str, snapshots: list[Snapshot]) -> None:
        """Write another image and list of snapshots, and flush them. The file names the former image until the last
        write. Raises ``OSError``."""
        encoded = active.encode("utf-16-le") + b"\0\0"
        data = json.dumps([asdict(snapshot) for snapshot in snapshots]).encode()
        if len(encoded) > _MAX_NAME or len(data) > _MAX_LIST:
            raise OSError("the list of snapshots is too long")
        slot = (self._header.sequence_number + 1) % 2
        where = _NAME_AT if self._header.name_offset != _NAME_AT else _NAME_AT + _NAME_SIZE // 2
        head = _SNAPSHOT_MAGIC + len(data).to_bytes(4, "little") + int(crc32c(data)).to_bytes(4, "little")
        self.handle.write_from([head, data], _SNAPSHOTS_AT[slot])
        self.handle.write_from([encoded.ljust(_NAME_SIZE // 2, b"\0")], where)
        self.handle.flush()
        header = self._header._replace(
            sequence_number=self._header.sequence_number + 1, name_offset=where, name_length=len(encoded)
        )
        self.handle.write_from([_sealed(header)], _HEADERS[slot])
        # Before the next list takes the place of the former one, the file must not name that any more.
        self.handle.flush()
        self._header, self.active, self.snapshots = header, active, snapshots

    def close(self) -> None:
        """Close the file."""
        self.handle.close()


def make(handle: Handle, active: str) -> None:
    """Write a VHD set whose image is ``active``, a file of the same folder, into an empty file. Raises ``OSError``."""
    encoded = active.encode("utf-16-le") + b"\0\0"
    if len(encoded) > _MAX_NAME:
        raise OSError("the name is too long")
    handle.truncate(_NAME_AT + _NAME_SIZE)
    handle.write_from([_SIGNATURE + _CREATOR.encode("utf-16-le")], 0)
    handle.write_from([encoded], _NAME_AT)
    for number, offset in enumerate(_HEADERS):
        handle.write_from([_sealed(SetHeader(sequence_number=number, name_length=len(encoded)))], offset)


def new_snapshot(snapshot_id: bytes, kind: int, tracks: bool, image: str) -> Snapshot:
    """Return a snapshot that is made now."""
    return Snapshot(str(uuid.UUID(bytes_le=snapshot_id)), kind, int(time.time() * 1000), tracks, image)


def _checksum(data: bytes) -> int:
    return int(crc32c(data[:20] + bytes(4) + data[24:]))


def _sealed(header: SetHeader) -> bytes:
    data = bytearray(SET_HEADER.pack(header._replace(checksum=0)).ljust(_HEADER_SIZE, b"\0"))
    data[_CHECKSUM] = _checksum(bytes(data)).to_bytes(4, "little")
    return bytes(data)
