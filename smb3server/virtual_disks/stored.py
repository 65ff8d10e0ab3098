"""What is stored of a persistent open of a disk, so that another run of the server continues it: how it was opened, and
the reservations of the disk as they were at its last change."""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from smb3server.virtual_disks.device import DeviceOpen
from smb3server.virtual_disks.reservations import (
    ALL_REGISTRANTS,
    MAX_REGISTRATIONS,
    MOST_ATTENTIONS,
    Attention,
    Reservations,
    Type,
)
from smb3server.wire import svhdx as wire
from smbdirect.codec import Buffer

_HEAD = struct.Struct("<QIBB16sHH")
"""Changes, generation, type, PTPL_A, holder, number of registrations, number of unit attention conditions."""
_REGISTRATION = struct.Struct("<16s8s")
_ATTENTION = struct.Struct("<16sH")
_OPEN_SIZE = wire.OPEN_DEVICE.size + wire.OF_SNAPSHOT.size
_NO_SNAPSHOT = wire.OfSnapshot()
_MAX_CONDITIONS = MAX_REGISTRATIONS * MOST_ATTENTIONS
MAX_SIZE = _OPEN_SIZE + _HEAD.size + MAX_REGISTRATIONS * _REGISTRATION.size + _MAX_CONDITIONS * _ATTENTION.size
"""Bytes."""


class StoredOpen(NamedTuple):
    """A persistent open of a disk."""

    context: wire.OpenDevice
    specifier: wire.OfSnapshot | None
    reservations: Reservations


def pack(device: DeviceOpen) -> bytes:
    """Return what is stored of an open."""
    found = device.disk.reservations
    conditions = [
        _ATTENTION.pack(initiator, attention)
        for initiator, attentions in found.attentions.items()
        for attention in attentions
    ][:_MAX_CONDITIONS]
    head = _HEAD.pack(
        found.changes,
        found.generation & 0xFFFFFFFF,
        found.type,
        found.persists,
        found.holder,
        len(found.keys),
        len(conditions),
    )
    registrations = [_REGISTRATION.pack(*pair) for pair in found.keys.items()]
    opened = wire.OPEN_DEVICE.pack(device.context) + wire.OF_SNAPSHOT.pack(device.specifier or _NO_SNAPSHOT)
    return b"".join((opened, head, *registrations, *conditions))


def unpack(data: Buffer) -> StoredOpen:
    """Decode what was stored. Raises ``ValueError`` for what no server can have written."""
    view = memoryview(data)
    if not _OPEN_SIZE + _HEAD.size <= len(view) <= MAX_SIZE:
        raise ValueError("not an open of a virtual disk")
    specifier = wire.OF_SNAPSHOT.unpack(view, wire.OPEN_DEVICE.size)
    changes, generation, kind, persists, holder, keys, conditions = _HEAD.unpack_from(view, _OPEN_SIZE)
    begin = _OPEN_SIZE + _HEAD.size
    middle = begin + keys * _REGISTRATION.size
    if len(view) != middle + conditions * _ATTENTION.size:
        raise ValueError("not an open of a virtual disk")
    found = Reservations(changes)
    found.generation, found.type, found.persists = generation, Type(kind), bool(persists)
    found.keys = dict(_REGISTRATION.iter_unpack(view[begin:middle]))
    found.holder = holder if found.type is not Type.NONE else b""
    if found.type not in (Type.NONE, *ALL_REGISTRANTS) and holder not in found.keys:
        raise ValueError("a reservation without a holder")
    for initiator, attention in _ATTENTION.iter_unpack(view[middle:]):
        queue = found.attentions.setdefault(initiator, deque(maxlen=MOST_ATTENTIONS))
        queue.append(Attention(attention))
    context = wire.OPEN_DEVICE.unpack(view)
    return StoredOpen(context, specifier if specifier != _NO_SNAPSHOT else None, found)
