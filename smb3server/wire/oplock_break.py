"""OPLOCK_BREAK: notifications, acknowledgments and responses. [MS-SMB2 2.2.23, 2.2.24, 2.2.25]

The forms for oplocks have StructureSize 24, the forms for leases 44 (notification) or 36.
"""

import enum
from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smb3server.wire.header import HEADER_SIZE
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int8ul, Int16ul, Int32ul, Int64ul


class OplockLevel(enum.IntEnum):
    """Oplock levels. [MS-SMB2 2.2.13]"""

    NONE = 0x00
    II = 0x01
    EXCLUSIVE = 0x08
    BATCH = 0x09
    LEASE = 0xFF


class LeaseState(enum.IntEnum):
    """Bits of a lease state. [MS-SMB2 2.2.13.2.8]"""

    NONE = 0
    READ = 1
    HANDLE = 2
    WRITE = 4


ACK_REQUIRED = 0x01
"""SMB2_NOTIFY_BREAK_LEASE_FLAG_ACK_REQUIRED."""


class OplockBreak(NamedTuple):
    """An oplock break notification, acknowledgment or response. [MS-SMB2 2.2.23.1, 2.2.24.1, 2.2.25.1]"""

    structure_size: Annotated[int, Int16ul] = 24
    oplock_level: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int8ul] = 0
    reserved2: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0


class LeaseBreakNotification(NamedTuple):
    """A lease break notification. [MS-SMB2 2.2.23.2]"""

    structure_size: Annotated[int, Int16ul] = 44
    new_epoch: Annotated[int, Int16ul] = 0
    flags: Annotated[int, Int32ul] = 0
    lease_key: Annotated[bytes, Bytes(16)] = bytes(16)
    current_lease_state: Annotated[int, Int32ul] = 0
    new_lease_state: Annotated[int, Int32ul] = 0
    break_reason: Annotated[int, Int32ul] = 0
    access_mask_hint: Annotated[int, Int32ul] = 0
    share_mask_hint: Annotated[int, Int32ul] = 0


class LeaseBreak(NamedTuple):
    """A lease break acknowledgment or response. [MS-SMB2 2.2.24.2, 2.2.25.2]"""

    structure_size: Annotated[int, Int16ul] = 36
    reserved: Annotated[int, Int16ul] = 0
    flags: Annotated[int, Int32ul] = 0
    lease_key: Annotated[bytes, Bytes(16)] = bytes(16)
    lease_state: Annotated[int, Int32ul] = 0
    lease_duration: Annotated[int, Int64ul] = 0


OPLOCK_BREAK = Message(OplockBreak)
LEASE_BREAK_NOTIFICATION = Message(LeaseBreakNotification)
LEASE_BREAK = Message(LeaseBreak)


def _structure_size(message: memoryview) -> int:
    if len(message) < HEADER_SIZE + 2:
        raise DecodeError("oplock break without StructureSize")
    return message[HEADER_SIZE] | message[HEADER_SIZE + 1] << 8


def parse_acknowledgment(message: memoryview) -> OplockBreak | LeaseBreak:
    """Decode an acknowledgment, or a response, which has the same two layouts. Raises ``DecodeError``."""
    if _structure_size(message) == 36:
        return LEASE_BREAK.parse(message)
    return OPLOCK_BREAK.parse(message)


def parse_notification(message: memoryview) -> OplockBreak | LeaseBreakNotification:
    """Decode a notification. Raises ``DecodeError``."""
    if _structure_size(message) == 44:
        return LEASE_BREAK_NOTIFICATION.parse(message)
    return OPLOCK_BREAK.parse(message)
