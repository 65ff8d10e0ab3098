"""SCSI commands of a virtual disk. [SPC-3, SBC-2, MS-RSVD 3.2.5.5.5]"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from smb3server.virtual_disks.disk import VirtualDisk, too_large
from smb3server.virtual_disks.reservations import Attention, Conflict, InvalidField, NoResources

GOOD, CHECK_CONDITION, RESERVATION_CONFLICT = 0x00, 0x02, 0x18
_SENSE_LENGTH = 18
NOT_READY, MEDIUM_ERROR, ILLEGAL_REQUEST, UNIT_ATTENTION, DATA_PROTECT = 0x02, 0x03, 0x05, 0x06, 0x07
INVALID_OPCODE, LBA_OUT_OF_RANGE, INVALID_CDB, INVALID_LIST = 0x2000, 0x2100, 0x2400, 0x2600
INSUFFICIENT_REGISTRATION_RESOURCES = 0x5504
_LIST_LENGTH_ERROR, _UNRECOVERED_READ, _WRITE_ERROR, WRITE_PROTECTED = 0x1A00, 0x1100, 0x0C00, 0x2700
MAX_TRANSFER = 8 << 20
"""Bytes that one command may move. The block limits page says so."""
MAX_UNMAP = 4 << 30
"""Bytes that one UNMAP may free."""
MAX_DESCRIPTORS = 256
"""Ranges of one UNMAP."""
_UNMAP_HEAD, _UNMAP_RANGE = struct.Struct(">HH4x"), struct.Struct(">QI4x")
"""The parameter list of UNMAP. [SBC-3 5.28.2]"""
_LBPME, _LBPRZ = 0x80, 0x40
_VENDOR, _PRODUCT, _REVISION = b"SMB3SRV ", b"Virtual Disk    ", b"1.0 "


class Result(NamedTuple):
    """How a command has ended."""

    status: int = GOOD
    sense: bytes = b""
    data: bytes = b""


class CheckCondition(Exception):
    """Ends a command with sense data."""

    def __init__(self, key: int, code: int) -> None:
        """``code``: ASC and ASCQ."""
        super().__init__(key, code)
        self.sense = sense(key, code)


def sense(key: int, code: int) -> bytes:
    """Return fixed format sense data. [SPC-3 4.5.3]"""
    return struct.pack(">BxB4xB4xBB4x", 0x70, key, _SENSE_LENGTH - 8, code >> 8, code & 0xFF)


class Command(NamedTuple):
    """A command of an initiator."""

    disk: VirtualDisk
    initiator: bytes
    cdb: bytes
    """16 bytes."""
    data: bytes
    """What is sent to the disk."""
    may_write: bool
    may_persist: bool = False
    """Whether its reservations can outlive the server."""

    @property
    def blocks(self) -> tuple[int, int]:
        """The first block and the number of blocks of a READ or WRITE, whose layout the group of the code tells."""
        group = self.cdb[0] >> 5
        if group == 0:
            return int.from_bytes(self.cdb[1:4], "big") & 0x1FFFFF, self.cdb[4] or 256
        if group == 5:
            return int.from_bytes(self.cdb[2:6], "big"), int.from_bytes(self.cdb[6:10], "big")
        if group == 4:
            return int.from_bytes(self.cdb[2:10], "big"), int.from_bytes(self.cdb[10:14], "big")
        return int.from_bytes(self.cdb[2:6], "big"), int.from_bytes(self.cdb[7:9], "big")

    def range(self) -> tuple[int, int]:
        """Return offset and length in bytes of a READ or WRITE. Raises ``CheckCondition``."""
        first, count = self.blocks
        sector = self.disk.active.metadata.sector_size
        offset, length = first * sector, count * sector
        if too_large(offset, length, self.disk.size):
            raise CheckCondition(ILLEGAL_REQUEST, LBA_OUT_OF_RANGE)
        if length > MAX_TRANSFER:
            raise CheckCondition(ILLEGAL_REQUEST, INVALID_CDB)
        return offset, length


def execute(command: Command) -> Result:
    """Execute a command. It may read or write the disk, and flush it."""
    code = command.cdb[0]
    attention = None if code in _SPARED else command.disk.reservations.next_attention(command.initiator)
    if attention is not None:
        return Result(CHECK_CONDITION, sense(UNIT_ATTENTION, attention))
    handler = _COMMANDS.get(code)
    try:
        if handler is None:
            raise CheckCondition(ILLEGAL_REQUEST, INVALID_OPCODE)
        return Result(data=handler(command))
    except CheckCondition as error:
        return Result(CHECK_CONDITION, error.sense)
    except InvalidField as error:
        return Result(CHECK_CONDITION, sense(ILLEGAL_REQUEST, INVALID_LIST if error.in_list else INVALID_CDB))
    except NoResources:
        return Result(CHECK_CONDITION, sense(ILLEGAL_REQUEST, INSUFFICIENT_REGISTRATION_RESOURCES))
    except Conflict:
        return Result(RESERVATION_CONFLICT)


def _ready(command: Command) -> bytes:
    return b""


def _request_sense(command: Command) -> bytes:
    attention = command.disk.reservations.next_attention(command.initiator)
    found = sense(UNIT_ATTENTION, attention) if attention is not None else sense(0, 0)
    return found[: command.cdb[4]]


def _inquiry(command: Command) -> bytes:
    """[SPC-3 6.4, 7.6]"""
    vital, page = command.cdb[1] & 1, command.cdb[2]
    limit = int.from_bytes(command.cdb[3:5], "big")
    if not vital:
        if page:
            raise CheckCondition(ILLEGAL_REQUEST, INVALID_CDB)
        head = bytes((0, 0, 0x05, 0x12, 91, 0, 0, 0x02))
        return (head + _VENDOR + _PRODUCT + _REVISION).ljust(96, b"\0")[:limit]
    if page not in _PAGES:
        raise CheckCondition(ILLEGAL_REQUEST, INVALID_CDB)
    body = _PAGES[page](command.disk)
    return (struct.pack(">BBH", 0, page, len(body)) + body)[:limit]


def _device_id(disk: VirtualDisk) -> bytes:
    """Return page 83: an identifier of the vendor, and one by which clusters know the disk everywhere (NAA 6)."""
    own = disk.active.metadata.disk_id
    naa = bytes((0x60 | own[0] & 0x0F, *own[1:16]))
    return struct.pack(">BBxB", 1, 3, len(naa)) + naa + struct.pack(">BBxB", 2, 1, 24) + _VENDOR + own


def _block_limits(disk: VirtualDisk) -> bytes:
    """[SBC-3 6.6.4]"""
    image = disk.active
    sector = image.metadata.sector_size
    most = MAX_TRANSFER // sector
    limits = struct.pack(">BBHII", 0, 0, 1, most, most)
    if not image.is_fixed:
        # UGAVALID: blocks of the image begin with the disk.
        blocks = image.block_size // sector
        limits += struct.pack(">4xIIII", MAX_UNMAP // sector, MAX_DESCRIPTORS, blocks, 1 << 31)
    return limits.ljust(0x3C, b"\0")


def _provisioning(disk: VirtualDisk) -> bytes:
    """Say that UNMAP frees (LBPU), that zeros are read then (LBPRZ), and that the disk is thin. [SBC-3 6.6.7]"""
    return bytes((0, 0, 0, 0)) if disk.active.is_fixed else bytes((0, 0x84, 2, 0))


_PAGES: dict[int, Callable[[VirtualDisk], bytes]] = {
    0x00: lambda disk: bytes(sorted(_PAGES)),
    0x80: lambda disk: disk.active.metadata.disk_id.hex().encode(),
    0x83: _device_id,
    0xB0: _block_limits,
    0xB1: lambda disk: bytes(0x3C),
    0xB2: _provisioning,
}


def _mode_sense(command: Command) -> bytes:
    """Return a header and the caching page: writes are cached until SYNCHRONIZE CACHE. [SPC-3 6.9, SBC-2 6.3.3]"""
    long = command.cdb[0] == 0x5A
    page = command.cdb[2] & 0x3F
    body = b""
    if page in (0x08, 0x3F):
        body = struct.pack(">BBB17x", 0x08, 18, 0x04)
    elif page not in (0x0A, 0x1C):
        raise CheckCondition(ILLEGAL_REQUEST, INVALID_CDB)
    parameter = 0x00 if command.may_write else 0x80
    if long:
        limit = int.from_bytes(command.cdb[7:9], "big")
        return (struct.pack(">HBB4x", 6 + len(body), 0, parameter) + body)[:limit]
    return (struct.pack(">BBBB", 3 + len(body), 0, parameter, 0) + body)[: command.cdb[4]]


def _read_capacity(command: Command) -> bytes:
    """[SBC-2 5.12]"""
    sector = command.disk.active.metadata.sector_size
    return struct.pack(">II", min(command.disk.size // sector - 1, 0xFFFFFFFF), sector)


def _service_action_in(command: Command) -> bytes:
    """READ CAPACITY (16). [SBC-3 5.16]"""
    if command.cdb[1] & 0x1F != 0x10:
        raise CheckCondition(ILLEGAL_REQUEST, INVALID_CDB)
    metadata = command.disk.active.metadata
    exponent = (metadata.physical_sector_size // metadata.sector_size).bit_length() - 1
    last = command.disk.size // metadata.sector_size - 1
    thin = 0 if command.disk.active.is_fixed else _LBPME | _LBPRZ
    data = struct.pack(">QIBBB17x", last, metadata.sector_size, 0, exponent, thin)
    return data[: int.from_bytes(command.cdb[10:14], "big")]


def _read(command: Command) -> bytes:
    offset, length = command.range()
    command.disk.reservations.check(command.initiator, writes=False)
    data = bytearray(length)
    try:
        command.disk.read(memoryview(data), offset)
    except OSError:
        raise CheckCondition(MEDIUM_ERROR, _UNRECOVERED_READ) from None
    return bytes(data)


def _write(command: Command) -> bytes:
    offset, length = command.range()
    command.disk.reservations.check(command.initiator, writes=True)
    if not command.may_write:
        raise CheckCondition(DATA_PROTECT, WRITE_PROTECTED)
    if len(command.data) != length:
        raise CheckCondition(ILLEGAL_REQUEST, _LIST_LENGTH_ERROR)
    force_unit_access = command.cdb[0] != 0x0A and command.cdb[1] & 0x08
    try:
        command.disk.write(command.data, offset)
        if force_unit_access:
            command.disk.flush()
    except OSError:
        raise CheckCondition(MEDIUM_ERROR, _WRITE_ERROR) from None
    return b""


def _unmap(command: Command) -> bytes:
    """Free ranges of the disk, if it is not fixed. [SBC-3 5.28]"""
    if command.disk.active.is_fixed:
        raise CheckCondition(ILLEGAL_REQUEST, INVALID_OPCODE)
    length = int.from_bytes(command.cdb[7:9], "big")
    if command.cdb[1] & 1:
        # ANCHOR: nothing is anchored here.
        raise CheckCondition(ILLEGAL_REQUEST, INVALID_CDB)
    if len(command.data) != length or 0 < length < _UNMAP_HEAD.size:
        raise CheckCondition(ILLEGAL_REQUEST, _LIST_LENGTH_ERROR)
    command.disk.reservations.check(command.initiator, writes=True)
    if not command.may_write:
        raise CheckCondition(DATA_PROTECT, WRITE_PROTECTED)
    ranges = _unmap_ranges(command)
    try:
        for offset, size in ranges:
            command.disk.unmap(offset, size)
    except OSError:
        raise CheckCondition(MEDIUM_ERROR, _WRITE_ERROR) from None
    return b""


def _unmap_ranges(command: Command) -> list[tuple[int, int]]:
    """Return offset and length in bytes of what an UNMAP frees. Raises ``CheckCondition``."""
    if not command.data:
        return []
    _, descriptors = _UNMAP_HEAD.unpack_from(command.data)
    described = command.data[_UNMAP_HEAD.size :][:descriptors]
    described = described[: len(described) // _UNMAP_RANGE.size * _UNMAP_RANGE.size]
    sector = command.disk.active.metadata.sector_size
    ranges = [(first * sector, count * sector) for first, count in _UNMAP_RANGE.iter_unpack(described)]
    if len(ranges) > MAX_DESCRIPTORS or sum(size for _, size in ranges) > MAX_UNMAP:
        raise CheckCondition(ILLEGAL_REQUEST, INVALID_LIST)
    if any(too_large(offset, size, command.disk.size) for offset, size in ranges):
        raise CheckCondition(ILLEGAL_REQUEST, LBA_OUT_OF_RANGE)
    return ranges


def _verify(command: Command) -> bytes:
    command.range()
    command.disk.reservations.check(command.initiator, writes=False)
    if command.cdb[1] & 0x06:
        raise CheckCondition(ILLEGAL_REQUEST, INVALID_CDB)
    return b""


def _synchronize(command: Command) -> bytes:
    command.disk.reservations.check(command.initiator, writes=True)
    try:
        command.disk.flush()
    except OSError:
        raise CheckCondition(MEDIUM_ERROR, _WRITE_ERROR) from None
    return b""


def _report_luns(command: Command) -> bytes:
    limit = int.from_bytes(command.cdb[6:10], "big")
    return struct.pack(">I4x8x", 8)[:limit]


def _reserve_in(command: Command) -> bytes:
    limit = int.from_bytes(command.cdb[7:9], "big")
    return command.disk.reservations.read(command.cdb[1] & 0x1F, command.may_persist)[:limit]


def _reserve_out(command: Command) -> bytes:
    if int.from_bytes(command.cdb[5:9], "big") != len(command.data):
        raise CheckCondition(ILLEGAL_REQUEST, _LIST_LENGTH_ERROR)
    if not command.may_write:
        raise CheckCondition(DATA_PROTECT, WRITE_PROTECTED)
    action, scope_and_type = command.cdb[1] & 0x1F, command.cdb[2]
    command.disk.reservations.change(command.initiator, action, scope_and_type, command.data, command.may_persist)
    return b""


_READS, _WRITES = (0x08, 0x28, 0xA8, 0x88), (0x0A, 0x2A, 0xAA, 0x8A)
_COMMANDS: dict[int, Callable[[Command], bytes]] = {
    0x00: _ready,
    0x03: _request_sense,
    0x12: _inquiry,
    0x1A: _mode_sense,
    0x1B: _ready,
    0x25: _read_capacity,
    0x2F: _verify,
    0x35: _synchronize,
    0x42: _unmap,
    0x5A: _mode_sense,
    0x5E: _reserve_in,
    0x5F: _reserve_out,
    0x8F: _verify,
    0x91: _synchronize,
    0x9E: _service_action_in,
    0xA0: _report_luns,
    0xAF: _verify,
    **dict.fromkeys(_READS, _read),
    **dict.fromkeys(_WRITES, _write),
}
_SPARED = frozenset((0x03, 0x12, 0xA0))
"""Commands that succeed in spite of a unit attention condition. [SAM-3 5.8.7]"""
SLOW = frozenset((*_READS, *_WRITES, 0x35, 0x42, 0x91))
"""Commands that wait for the disk."""

ATTENTION_STATUS = {
    Attention.CAPACITY_CHANGED: 0xC05CFF02,
    Attention.RESERVATIONS_PREEMPTED: 0xC05CFF03,
    Attention.RESERVATIONS_RELEASED: 0xC05CFF04,
    Attention.REGISTRATIONS_PREEMPTED: 0xC05CFF05,
}
"""The status by which READ and WRITE report a unit attention condition. [MS-RSVD 2.2.3]"""
