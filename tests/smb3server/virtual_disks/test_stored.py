"""What is stored of an open of a disk: it comes back as it was, and what is damaged is refused or harmless."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest

from smb3server.virtual_disks import scsi, stored
from smb3server.virtual_disks.reservations import (
    MAX_REGISTRATIONS,
    Attention,
    Conflict,
    InvalidField,
    NoResources,
    ReadAction,
    Reservations,
    Type,
)
from smb3server.wire.svhdx import OfSnapshot
from tests.lab.disks import INITIATOR, Folder, command, device_of, new_disk

OTHER = b"other initiator."


def changed(
    found: Reservations, initiator: bytes, action: int, key: bytes, new: bytes = bytes(8), flags: int = 0
) -> None:
    found.change(initiator, action, int(Type.WRITE_EXCLUSIVE), key + new + struct.pack(">4xB3x", flags), True)


def some() -> Reservations:
    """Return reservations of two initiators, of which one was told something."""
    found = Reservations()
    changed(found, INITIATOR, 0, bytes(8), b"first   ", flags=1)
    changed(found, OTHER, 0, bytes(8), b"second  ", flags=1)
    changed(found, OTHER, 1, b"second  ")
    found.establish({INITIATOR, OTHER}, Attention.CAPACITY_CHANGED, OTHER)
    return found


def test_an_open_comes_back_as_it_was() -> None:
    folder = Folder()
    device = device_of(new_disk(folder), folder)
    device.disk.reservations = some()
    device.specifier = OfSnapshot(1, bytes(range(16)))
    found = stored.unpack(stored.pack(device))
    assert found.context == device.context
    assert found.specifier == device.specifier
    assert vars(found.reservations) == vars(device.disk.reservations)
    assert found.reservations.read(ReadAction.REPORT_CAPABILITIES, True)[2:4] == b"\x01\x81"


def test_the_newer_reservations_count() -> None:
    disk = new_disk(Folder())
    older, newer = some(), some()
    changed(newer, OTHER, 2, b"second  ")
    disk.initiators[OTHER] = 1
    for stored_one in (newer, older):
        disk.continue_with(stored_one)
    assert disk.reservations is newer
    disk.settle()
    assert disk.reservations is newer
    del disk.initiators[OTHER]
    disk.settle()
    # Nobody who is registered has come back. What is stored of the others is older from now on.
    assert not disk.reservations.keys
    disk.continue_with(newer)
    assert not disk.reservations.keys


def test_the_largest_one_is_taken() -> None:
    folder = Folder()
    device = device_of(new_disk(folder), folder)
    found = device.disk.reservations
    for number in range(MAX_REGISTRATIONS):
        initiator = number.to_bytes(16, "big")
        changed(found, initiator, 0, bytes(8), b"a key   ")
        for attention in Attention:
            found.establish({initiator}, attention, b"")
    with pytest.raises(NoResources):
        changed(found, OTHER, 0, bytes(8), b"a key   ")
    register = b"\x5f\0\0\0\0\0\0\0\x18\0"
    status, sense, _ = command(device, register, bytes(8) + b"a key   " + bytes(8))
    assert (status, sense[2], sense[12], sense[13]) == (scsi.CHECK_CONDITION, scsi.ILLEGAL_REQUEST, 0x55, 0x04)
    data = stored.pack(device)
    assert len(data) <= stored.MAX_SIZE
    assert vars(stored.unpack(data).reservations) == vars(found)


def test_what_no_server_has_written_is_refused() -> None:
    folder = Folder()
    device = device_of(new_disk(folder), folder)
    device.disk.reservations = some()
    data = stored.pack(device)
    for length in range(len(data)):
        with pytest.raises(ValueError):
            stored.unpack(data[:length])
    source = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(source.randrange(1, 4)):
            damaged[source.randrange(len(data))] = source.randrange(256)
        try:
            found = stored.unpack(damaged).reservations
        except ValueError:
            continue
        for action in ReadAction:
            found.read(action)
        with contextlib.suppress(Conflict):
            found.check(INITIATOR, writes=True)


def test_aptpl_needs_an_open_that_outlives_the_server() -> None:
    found = Reservations()
    parameters = bytes(8) + b"a key   " + struct.pack(">4xB3x", 1)
    with pytest.raises(InvalidField):
        found.change(INITIATOR, 0, 0, parameters)
    assert not found.keys and not found.changes
    for flags in (4, 8, 9):
        with pytest.raises(InvalidField):
            found.change(INITIATOR, 0, 0, parameters[:20] + bytes((flags,)) + bytes(3), True)
    assert found.read(ReadAction.REPORT_CAPABILITIES)[2:4] == b"\0\x80"
