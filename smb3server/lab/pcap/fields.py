"""Fields of SMB2 with a closed set of values, and those that the sender must set to 0.

Only fields whose section says MUST are here, and whose meaning does not depend on the dialect. What a receiver only has
to ignore is not here: Windows and Samba leave such bytes as they find them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.smb2 import (
    CANCEL,
    CHANGE_NOTIFY,
    CLOSE,
    CREATE,
    ECHO,
    FLUSH,
    IOCTL,
    LOCK,
    LOGOFF,
    NEGOTIATE,
    OPLOCK_BREAK,
    QUERY_DIRECTORY,
    QUERY_INFO,
    READ,
    SESSION_SETUP,
    SET_INFO,
    TREE_CONNECT,
    TREE_DISCONNECT,
    UNSOLICITED,
    WRITE,
    Smb2Message,
)
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts

_HEADER_FLAGS = 0x3000007F
"""SERVER_TO_REDIR, ASYNC_COMMAND, RELATED_OPERATIONS, SIGNED, PRIORITY_MASK, DFS_OPERATIONS, REPLAY_OPERATION.

[MS-SMB2 2.2.1.2]
"""
_OPLOCKS = frozenset((0, 1, 8, 9, 0xFF))
_LOWERED = frozenset((0, 1, 8))
_LOCKS = frozenset((0x01, 0x02, 0x04, 0x11, 0x12))
"""What Flags of a lock may be: shared or exclusive, each also FAIL_IMMEDIATELY, or unlock. [MS-SMB2 2.2.26.1]"""
_BOOLEAN = frozenset((0, 1))
_OPLOCK_SIZE, _LEASE_SIZE, _LEASE_BREAK_SIZE = 24, 36, 44
"""StructureSizes of oplock breaks of any kind, of lease acknowledgments, and of lease break notifications."""


class Values(NamedTuple):
    """A field that has one of some values."""

    name: str
    section: str
    layout: str
    at: int
    """Place in the body."""
    values: frozenset[int] = frozenset()
    """What it may be."""
    mask: int = 0
    """Without ``values``: the bits that it may have."""

    def allows(self, value: int) -> bool:
        """Return whether the field may be ``value``."""
        return value in self.values if self.values else not value & ~self.mask


_REQUEST_VALUES: dict[int, tuple[Values, ...]] = {
    NEGOTIATE: (Values("SecurityMode", "2.2.3", "<H", 4, mask=3),),
    SESSION_SETUP: (
        Values("Flags", "2.2.5", "<B", 2, mask=1),
        Values("SecurityMode", "2.2.5", "<B", 3, mask=3),
    ),
    CREATE: (
        Values("RequestedOplockLevel", "2.2.13", "<B", 3, _OPLOCKS),
        Values("ImpersonationLevel", "2.2.13", "<I", 4, frozenset(range(4))),
        Values("ShareAccess", "2.2.13", "<I", 32, mask=7),
        Values("CreateDisposition", "2.2.13", "<I", 36, frozenset(range(6))),
    ),
    CLOSE: (Values("Flags", "2.2.15", "<H", 2, _BOOLEAN),),
    READ: (Values("Channel", "2.2.19", "<I", 36, frozenset(range(4))),),
    WRITE: (Values("Channel", "2.2.21", "<I", 32, frozenset(range(4))),),
    IOCTL: (Values("Flags", "2.2.31", "<I", 48, _BOOLEAN),),
    QUERY_DIRECTORY: (Values("Flags", "2.2.33", "<B", 3, mask=0x17),),
    CHANGE_NOTIFY: (Values("Flags", "2.2.35", "<H", 2, _BOOLEAN),),
    QUERY_INFO: (Values("InfoType", "2.2.37", "<B", 2, frozenset((1, 2, 3, 4))),),
    SET_INFO: (Values("InfoType", "2.2.39", "<B", 2, frozenset((1, 2, 3, 4))),),
}
_RESPONSE_VALUES: dict[int, tuple[Values, ...]] = {
    NEGOTIATE: (Values("SecurityMode", "2.2.4", "<H", 2, mask=3),),
    SESSION_SETUP: (Values("SessionFlags", "2.2.6", "<H", 2, mask=7),),
    TREE_CONNECT: (Values("ShareType", "2.2.10", "<B", 2, frozenset((1, 2, 3))),),
    CREATE: (
        Values("OplockLevel", "2.2.14", "<B", 2, _OPLOCKS),
        Values("Flags", "2.2.14", "<B", 3, _BOOLEAN),
        Values("CreateAction", "2.2.14", "<I", 4, frozenset(range(4))),
    ),
    CLOSE: (Values("Flags", "2.2.16", "<H", 2, _BOOLEAN),),
    READ: (Values("Flags", "2.2.20", "<I", 12, _BOOLEAN),),
}
_OPLOCK_ACKNOWLEDGED = (Values("OplockLevel", "2.2.24.1, 2.2.25.1", "<B", 2, _LOWERED),)
_OPLOCK_BREAK = (Values("OplockLevel", "2.2.23.1", "<B", 2, frozenset((0, 1))),)
_LEASE_ACKNOWLEDGED = (Values("LeaseState", "2.2.24.2, 2.2.25.2", "<I", 24, mask=7),)
_LEASE_BREAK = (
    Values("Flags", "2.2.23.2", "<I", 4, _BOOLEAN),
    Values("CurrentLeaseState", "2.2.23.2", "<I", 24, mask=7),
    Values("NewLeaseState", "2.2.23.2", "<I", 28, mask=7),
)


class Reserved(NamedTuple):
    """A field that its sender sets to 0."""

    name: str
    section: str
    layout: str
    at: int


_REQUEST_RESERVED: dict[int, tuple[Reserved, ...]] = {
    NEGOTIATE: (Reserved("Reserved", "2.2.3", "<H", 6),),
    SESSION_SETUP: (Reserved("Channel", "2.2.5", "<I", 8),),
    LOGOFF: (Reserved("Reserved", "2.2.7", "<H", 2),),
    TREE_DISCONNECT: (Reserved("Reserved", "2.2.11", "<H", 2),),
    CREATE: (Reserved("SecurityFlags", "2.2.13", "<B", 2),),
    CLOSE: (Reserved("Reserved", "2.2.15", "<I", 4),),
    FLUSH: (Reserved("Reserved1", "2.2.17", "<H", 2), Reserved("Reserved2", "2.2.17", "<I", 4)),
    IOCTL: (Reserved("Reserved", "2.2.31", "<H", 2), Reserved("Reserved2", "2.2.31", "<I", 52)),
    ECHO: (Reserved("Reserved", "2.2.28", "<H", 2),),
    CANCEL: (Reserved("Reserved", "2.2.30", "<H", 2),),
    CHANGE_NOTIFY: (Reserved("Reserved", "2.2.35", "<I", 28),),
    QUERY_INFO: (Reserved("Reserved", "2.2.37", "<H", 10),),
    SET_INFO: (Reserved("Reserved", "2.2.39", "<H", 10),),
}
_RESPONSE_RESERVED: dict[int, tuple[Reserved, ...]] = {
    LOGOFF: (Reserved("Reserved", "2.2.8", "<H", 2),),
    TREE_CONNECT: (Reserved("Reserved", "2.2.10", "<B", 3),),
    TREE_DISCONNECT: (Reserved("Reserved", "2.2.12", "<H", 2),),
    CLOSE: (Reserved("Reserved", "2.2.16", "<I", 4),),
    FLUSH: (Reserved("Reserved", "2.2.18", "<H", 2),),
    READ: (Reserved("Reserved", "2.2.20", "<B", 3),),
    WRITE: (
        Reserved("Reserved", "2.2.22", "<H", 2),
        Reserved("Remaining", "2.2.22", "<I", 8),
        Reserved("WriteChannelInfoOffset", "2.2.22", "<H", 12),
        Reserved("WriteChannelInfoLength", "2.2.22", "<H", 14),
    ),
    LOCK: (Reserved("Reserved", "2.2.27", "<H", 2),),
    IOCTL: (
        Reserved("Reserved", "2.2.32", "<H", 2),
        Reserved("Flags", "2.2.32", "<I", 40),
        Reserved("Reserved2", "2.2.32", "<I", 44),
    ),
    ECHO: (Reserved("Reserved", "2.2.29", "<H", 2),),
}
_ERROR_RESERVED = (Reserved("Reserved", "2.2.2", "<B", 3),)
_OPLOCK_RESERVED = (Reserved("Reserved", "2.2.23.1 to 2.2.25.1", "<B", 3), Reserved("Reserved2", "same", "<I", 4))
_LEASE_RESERVED = (
    Reserved("Reserved", "2.2.24.2, 2.2.25.2", "<H", 2),
    Reserved("Flags", "2.2.24.2, 2.2.25.2", "<I", 4),
    Reserved("LeaseDuration", "2.2.24.2, 2.2.25.2", "<Q", 28),
)
_LEASE_BREAK_RESERVED = (
    Reserved("BreakReason", "2.2.23.2", "<I", 32),
    Reserved("AccessMaskHint", "2.2.23.2", "<I", 36),
    Reserved("ShareMaskHint", "2.2.23.2", "<I", 40),
)


def judge_fields(part: Smb2Message, number: int, way: Direction, verdicts: Verdicts) -> None:
    """Judge the values of a message whose StructureSize is right. [MS-SMB2 2.2]"""
    check, text = verdicts.check, "{} of {} is {:#x} [MS-SMB2 {}]"
    unknown = part.flags & ~_HEADER_FLAGS
    check(rules.SMB2_VALUE, not unknown, number, way, "Flags of {} have {:#x} [MS-SMB2 2.2.1.2]", part.name, unknown)
    values, reserved = _fields_of(part)
    for one in values:
        for value in part.fields(one.layout, one.at) or ():
            check(rules.SMB2_VALUE, one.allows(value), number, way, text, one.name, part.name, value, one.section)
    for zero in reserved:
        for value in part.fields(zero.layout, zero.at) or ():
            check(rules.SMB2_RESERVED, not value, number, way, text, zero.name, part.name, value, zero.section)
    if part.command == LOCK and not part.is_response:
        for flags, rest in _locks(part):
            section = "2.2.26.1"
            check(rules.SMB2_VALUE, flags in _LOCKS, number, way, text, "Flags", "a lock", flags, section)
            check(rules.SMB2_RESERVED, not rest, number, way, text, "Reserved", "a lock", rest, section)


def _fields_of(part: Smb2Message) -> tuple[tuple[Values, ...], tuple[Reserved, ...]]:
    """Return the fields of a body that are judged."""
    if part.failed:
        return (), _ERROR_RESERVED
    if part.command == OPLOCK_BREAK:
        if part.body_size == _OPLOCK_SIZE:
            return _OPLOCK_BREAK if part.message_id == UNSOLICITED else _OPLOCK_ACKNOWLEDGED, _OPLOCK_RESERVED
        if part.body_size == _LEASE_SIZE:
            return _LEASE_ACKNOWLEDGED, _LEASE_RESERVED
        return (_LEASE_BREAK, _LEASE_BREAK_RESERVED) if part.body_size == _LEASE_BREAK_SIZE else ((), ())
    if part.is_response:
        return _RESPONSE_VALUES.get(part.command, ()), _RESPONSE_RESERVED.get(part.command, ())
    return _REQUEST_VALUES.get(part.command, ()), _REQUEST_RESERVED.get(part.command, ())


def _locks(part: Smb2Message) -> list[tuple[int, int]]:
    """Return Flags and Reserved of the locks of a LOCK request that were captured. [MS-SMB2 2.2.26]"""
    (count,) = part.fields("<H", 2) or (0,)
    data = part.bytes_at(24, 24 * count)
    whole = memoryview(data)[: len(data) // 24 * 24]
    return [(flags, reserved) for flags, reserved in struct.iter_unpack("<16xII", whole)]
