"""UNMAP: what it frees, what the disk says about it, and requests that are wrong. [SBC-3 5.28]"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.virtual_disks import making, scsi
from smb3server.virtual_disks.device import DeviceOpen
from smb3server.virtual_disks.layout import BlockState, ParameterFlags
from tests.lab.disks import SIZE, Folder, command, device_of, needs_qemu, new_disk, open_disk, qemu, read

BLOCK = making.BLOCK_SIZE
SECTORS = BLOCK // 512


def unmap(device: DeviceOpen, *ranges: tuple[int, int], cut: int = 0, flags: int = 0) -> tuple[int, int, int]:
    """Free ranges of sectors. Return the status, the sense key, and the additional sense code."""
    body = b"".join(struct.pack(">QI4x", *each) for each in ranges)
    data = struct.pack(">HH4x", len(body) + 6, len(body)) + body
    data = data[: len(data) - cut]
    status, sense, _ = command(device, struct.pack(">BB5xHx", 0x42, flags, len(data)), data)
    return status, sense[2], sense[12]


@pytest.fixture
def device() -> DeviceOpen:
    folder = Folder()
    return device_of(new_disk(folder), folder)


def test_what_is_freed_reads_as_zeros(device: DeviceOpen) -> None:
    disk = device.disk
    disk.write(b"d" * (3 * BLOCK), 0)
    assert unmap(device, (1, 2), (SECTORS, SECTORS), (3 * SECTORS, 5))[0] == scsi.GOOD
    expected = bytearray(b"d" * (3 * BLOCK))
    expected[512:1536] = bytes(1024)
    expected[BLOCK : 2 * BLOCK] = bytes(BLOCK)
    assert read(disk, 0, 3 * BLOCK) == expected
    assert disk.is_valid()
    disk.write(b"e" * 512, BLOCK)
    assert read(disk, BLOCK, 1024) == b"e" * 512 + bytes(512)
    assert unmap(device)[0] == scsi.GOOD


def test_a_block_of_the_parent_is_hidden() -> None:
    folder = Folder()
    disk = new_disk(folder, "base.vhdx")
    disk.write(b"p" * (2 * BLOCK), 0)
    parent = making.Parent("base.vhdx", disk.active.data_write_guid)
    disk.close()
    child = new_disk(folder, "child.vhdx", making.Shape(SIZE, parent=parent))
    # A block that the child has none of is freed as a whole or not at all.
    assert unmap(device_of(child, folder), (0, SECTORS), (SECTORS, 1))[0] == scsi.GOOD
    assert read(child, 0, 2 * BLOCK) == bytes(BLOCK) + b"p" * BLOCK
    assert child.active.entry(0) == (BlockState.ZERO, 0)
    child.write(b"c" * 512, 512)
    assert read(child, 0, 1536) == bytes(512) + b"c" * 512 + bytes(512)
    child.close()
    assert read(open_disk(folder, "base.vhdx"), 0, 512) == b"p" * 512


def page(device: DeviceOpen, number: int) -> bytes:
    return command(device, struct.pack(">BBBHB", 0x12, 1, number, 255, 0), room=255)[2]


def test_the_disk_says_what_it_frees(device: DeviceOpen) -> None:
    assert struct.unpack_from(">IIII", page(device, 0xB0), 20) == (
        scsi.MAX_UNMAP // 512,
        scsi.MAX_DESCRIPTORS,
        SECTORS,
        1 << 31,
    )
    assert page(device, 0xB2)[4:] == bytes((0, 0x84, 2, 0))
    assert command(device, b"\x9e\x10" + bytes(11) + b"\x20", room=32)[2][14] == 0xC0


def test_a_fixed_disk_frees_nothing(device: DeviceOpen) -> None:
    image = device.disk.active
    fixed = image.metadata.parameters._replace(flags=int(ParameterFlags.LEAVE_BLOCKS_ALLOCATED))
    image.metadata = image.metadata._replace(parameters=fixed)
    assert unmap(device, (0, 1)) == (scsi.CHECK_CONDITION, scsi.ILLEGAL_REQUEST, 0x20)
    assert page(device, 0xB0)[20:36] == bytes(16)
    assert page(device, 0xB2)[4:] == bytes(4)


def test_what_is_refused_changes_nothing(device: DeviceOpen) -> None:
    disk = device.disk
    disk.write(b"d" * 4096, 0)
    last = SIZE // 512
    invalid = scsi.CHECK_CONDITION, scsi.ILLEGAL_REQUEST
    assert unmap(device, (0, 1), (last, 1)) == (*invalid, 0x21)
    assert unmap(device, (0, 1), ((1 << 64) - 1, 1)) == (*invalid, 0x21)
    assert unmap(device, (0, 1), (0, scsi.MAX_UNMAP // 512)) == (*invalid, 0x26)
    assert unmap(device, *[(0, 1)] * (scsi.MAX_DESCRIPTORS + 1)) == (*invalid, 0x26)
    assert unmap(device, (0, 1), flags=1) == (*invalid, 0x24)
    assert unmap(device, (0, 1), cut=20) == (*invalid, 0x1A)
    # A descriptor that is not whole is none.
    assert unmap(device, (0, 1), cut=1)[0] == scsi.GOOD
    folder = Folder()
    assert unmap(device_of(disk, folder, may_write=False), (0, 1))[1] == scsi.DATA_PROTECT
    register = struct.pack(">BBBHI", 0x5F, 0, 0, 0, 24)
    command(device, register, bytes(8) + b"firstkey" + bytes(8))
    command(device, struct.pack(">BBBHI", 0x5F, 1, 1, 0, 24), b"firstkey" + bytes(16))
    assert unmap(device_of(disk, folder, b"o" * 16), (0, 1))[0] == scsi.RESERVATION_CONFLICT
    assert read(disk, 0, 4096) == b"d" * 4096


def data_in(path: Path) -> int:
    """Return how many bytes of a file are not in holes. Its blocks count the file system's own as well."""
    found, at, size = 0, 0, path.stat().st_size
    with path.open("rb") as file, contextlib.suppress(OSError):  # ENXIO: no more data.
        while at < size:
            start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            found += at - start
    return found


@needs_qemu
def test_the_host_gets_the_space_back(tmp_path: Path) -> None:
    image, raw = tmp_path / "disk.vhdx", tmp_path / "raw"
    memory = Folder()
    new_disk(memory).close()
    image.write_bytes(memory.get("disk.vhdx"))

    class Local(Folder):
        def __init__(self) -> None:
            self.backend = LocalBackend(str(tmp_path))  # type: ignore[assignment]

    folder = Local()
    disk = open_disk(folder)
    data = os.urandom(4 * BLOCK)
    disk.write(data, 0)
    disk.flush()
    taken = data_in(image)
    assert unmap(device_of(disk, folder), (SECTORS, 2 * SECTORS))[0] == scsi.GOOD
    disk.close()
    assert data_in(image) <= taken - 2 * BLOCK
    raw.write_bytes((data[:BLOCK] + bytes(2 * BLOCK) + data[3 * BLOCK :]).ljust(SIZE, b"\0"))
    assert "No errors" in qemu("check", "-f", "vhdx", image)
    qemu("compare", "-f", "vhdx", "-F", "raw", image, raw)
