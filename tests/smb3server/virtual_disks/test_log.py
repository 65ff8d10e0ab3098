"""The log of VHDX: logs of QEMU replayed here, logs of this server replayed by QEMU, and logs that are damaged."""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import uuid
from pathlib import Path

import pytest

from smb3server.backends.base import FileKey
from smb3server.virtual_disks import layout, making
from smb3server.virtual_disks.checksum import sealed
from smb3server.virtual_disks.disk import VirtualDisk
from smb3server.virtual_disks.layout import LOG_SECTOR, MIB, BlockState, Header
from smb3server.virtual_disks.log_replay import Replayed, active_sequence
from smb3server.virtual_disks.log_writing import Log
from smb3server.virtual_disks.reading import BadImage, read_at
from smb3server.virtual_disks.vhdx import Image
from tests.lab.disks import Folder, needs_qemu, new_disk, open_disk, qemu, read, replayed
from tests.lab.power_loss import PowerLost, Storage

SIZE = 16 * MIB
GUID = uuid.UUID(int=77).bytes_le
LOG_AT, TARGET = MIB, 4 * MIB


# What QEMU leaves


def _writes_of_qemu(tmp_path: Path) -> tuple[bytes, int, list[tuple[int, bytes]]]:
    """Let QEMU write to a new image. Return the image before, its size afterwards, and the writes in their order."""
    image, recorded = tmp_path / "disk.vhdx", tmp_path / "recorded"
    qemu("create", "-f", "vhdx", "-o", "subformat=dynamic,block_size=1048576", image, str(SIZE))
    before = image.read_bytes()
    recorded.touch()
    options = {
        "driver": "vhdx",
        "file.driver": "blklogwrites",
        "file.file.driver": "file",
        "file.file.filename": image,
        "file.log.driver": "file",
        "file.log.filename": recorded,
    }
    subprocess.run(
        [
            "qemu-io",
            "-c",
            "write -P 65 0 64k",
            "-c",
            "write -P 66 3M 64k",
            "-c",
            "write -P 67 9M 64k",
            "--image-opts",
            ",".join(f"{key}={value}" for key, value in options.items()),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    data = recorded.read_bytes()
    _, _, count, sector = struct.unpack_from("<QQQI", data)
    at, writes = sector, []
    for _ in range(count):
        where, length, flags, _ = struct.unpack_from("<QQQQ", data, at)
        at += sector
        if length and not flags & 4:
            writes.append((where * sector, data[at : at + length * sector]))
            at += length * sector
    return before, image.stat().st_size, writes


def _killed_after(before: bytes, size: int, writes: list[tuple[int, bytes]]) -> bytes:
    data = bytearray(before.ljust(size, b"\0"))
    for offset, content in writes:
        data[offset : offset + len(content)] = content
    return bytes(data)


@needs_qemu
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_logs_of_qemu_are_replayed(tmp_path: Path, write: bool) -> None:
    before, size, writes = _writes_of_qemu(tmp_path)
    with_log = 0
    for last in range(len(writes) + 1):
        data = _killed_after(before, size, writes[:last])
        folder = Folder()
        folder.put("disk.vhdx", data)
        image, raw = tmp_path / "copy.vhdx", tmp_path / "raw"
        image.write_bytes(data)
        qemu("check", "-r", "all", "-f", "vhdx", image)
        qemu("convert", "-f", "vhdx", "-O", "raw", image, raw)
        try:
            disk = open_disk(folder, write=write)
        except BadImage as error:
            # QEMU names a log before it writes it. By the specification such a file is corrupt.
            assert "no valid sequence" in str(error)
            assert writes[last][1][:4] in (b"head", b"loge", b"data")
            continue
        with_log += isinstance(disk.active.handle, Replayed)
        assert read(disk, 0, SIZE) == raw.read_bytes()
        assert folder.get("disk.vhdx") == data
        if write:
            disk.write(b"x" * 512, 5 * MIB)
        disk.close()
        if write:
            image.write_bytes(folder.get("disk.vhdx"))
            assert "No errors" in qemu("check", "-f", "vhdx", image)
            with raw.open("r+b") as file:
                file.seek(5 * MIB)
                file.write(b"x" * 512)
            qemu("compare", "-f", "vhdx", "-F", "raw", image, raw)
        else:
            assert folder.get("disk.vhdx") == data
    assert with_log >= 6


# What this server leaves


@needs_qemu
def test_qemu_replays_a_log_that_has_gone_around(tmp_path: Path) -> None:
    folder = Folder()
    parts = 64
    disk = new_disk(folder, shape=making.Shape(parts * MIB, block_size=MIB))
    disk.write(b"x" * 512, 0)
    image = disk.active
    source = random.Random(3)
    states = [BlockState.NOT_PRESENT, BlockState.ZERO, BlockState.UNMAPPED]
    expected = [int(BlockState.NOT_PRESENT)] * parts
    for number in range(700):
        block = source.randrange(1, parts)
        expected[block] = int(source.choice(states))
        image.set_entry(block, expected[block], 0)
        if number % 97 == 0:
            disk.flush()
    copy = tmp_path / "disk.vhdx"
    copy.write_bytes(folder.get("disk.vhdx"))
    replayed(copy)
    folder.put("copy.vhdx", copy.read_bytes())
    found = open_disk(folder, "copy.vhdx").active
    assert not isinstance(found.handle, Replayed)
    assert [found.entry(block)[0] for block in range(1, parts)] == expected[1:]
    disk.close()


def test_a_closed_image_has_no_log_and_both_headers() -> None:
    folder = Folder()
    disk = new_disk(folder)
    before = disk.active._header
    disk.write(b"x" * 512, 0)
    opened = disk.active._header
    assert opened.log_guid != bytes(16)
    assert opened.file_write_guid != before.file_write_guid
    assert opened.data_write_guid != before.data_write_guid
    disk.close()
    data = folder.get("disk.vhdx")
    headers = [layout.HEADER.unpack(data, offset) for offset in layout.HEADER_OFFSETS]
    for header in headers:
        assert header.log_guid == bytes(16)
        assert header.data_write_guid == opened.data_write_guid
    assert abs(headers[0].sequence_number - headers[1].sequence_number) == 1


def test_payload_is_not_in_the_log() -> None:
    folder = Folder()
    new_disk(folder).close()
    storage = Storage(folder, 1000)
    disk = VirtualDisk(FileKey(1, 1), "disk.vhdx")
    disk.open(storage, write=True)
    assert not disk.is_quick(0, 512)
    disk.write(b"x" * 512, 0)
    assert disk.is_quick(4096, MIB)
    assert not disk.is_quick(0, 3 * MIB)
    before = storage.count
    disk.write(b"y" * MIB, 4096)
    assert storage.count == before + 1


# The ring, with any subset of the unflushed writes


def test_a_replay_gives_a_state_since_the_last_flush() -> None:
    source = random.Random(5)
    for life in range(40):
        folder = Folder()
        folder.put("file", bytes(TARGET + 8 * LOG_SECTOR))
        storage = Storage(folder, source.randrange(20, 1500))
        log = Log(storage.open("file", write=True), LOG_AT, MIB)
        sectors = [bytes(LOG_SECTOR)] * 8
        states = [list(sectors)]
        sure = 0
        with contextlib.suppress(PowerLost):
            while True:
                changed = source.sample(range(8), source.choice((1, 1, 2)))
                for index in changed:
                    sectors[index] = source.randbytes(LOG_SECTOR)
                states.append(list(sectors))
                log.append({TARGET + index * LOG_SECTOR: sectors[index] for index in changed})
                if source.random() < 0.02 or len(states) == 2:
                    log.flush()
                    sure = len(states) - 1
        if not sure:
            continue
        left = storage.left(source).open("file", write=False)
        header = Header(log_length=MIB, log_offset=LOG_AT, log_guid=log.guid)
        view = Replayed(left, active_sequence(left, header))
        found = [read_at(view, TARGET + index * LOG_SECTOR, LOG_SECTOR) for index in range(8)]
        assert found in states[sure:], life


# Damage


def _with_log() -> tuple[Folder, bytes, int]:
    """Return a folder with an image that was not closed, and where its log is."""
    folder = Folder()
    disk = new_disk(folder, shape=making.Shape(SIZE, block_size=MIB))
    for block in range(3):
        disk.write(bytes((65 + block,)) * 512, block * MIB)
    return folder, folder.get("disk.vhdx"), disk.active._header.log_offset


def _open(data: bytes, write: bool = True) -> tuple[Folder, Image]:
    folder = Folder()
    folder.put("disk.vhdx", data)
    return folder, Image(folder.open("disk.vhdx", write=write), "disk.vhdx", writable=write)


def _changed(data: bytes, at: int, field: int, value: bytes) -> bytes:
    """Return an image with a field of the first entry of its log changed, and with its checksum right."""
    log = bytearray(data[at : at + 2 * LOG_SECTOR])
    log[field : field + len(value)] = value
    return data[:at] + sealed(bytes(log)) + data[at + 2 * LOG_SECTOR :]


_HEADER_FIELDS = [
    ("signature", 0, b"lage"),
    ("length of zero", 8, bytes(4)),
    ("length that is no multiple", 8, struct.pack("<I", 8193)),
    ("length beyond the log", 8, struct.pack("<I", 2 * MIB)),
    ("length below the descriptors", 8, struct.pack("<I", 4096)),
    ("tail that is no multiple", 12, struct.pack("<I", 5)),
    ("tail beyond the log", 12, struct.pack("<I", MIB)),
    ("number of zero", 16, bytes(8)),
    ("number that is not that of the descriptors", 16, struct.pack("<Q", 9)),
    ("too many descriptors", 24, struct.pack("<I", 2)),
    ("very many descriptors", 24, b"\xff\xff\xff\xff"),
    ("GUID", 32, GUID),
    ("FlushedFileOffset that is no multiple", 48, struct.pack("<Q", 4097)),
    ("LastFileOffset that is no multiple", 56, struct.pack("<Q", 4097)),
    ("descriptor's signature", 64, b"dusc"),
    ("place that is no multiple", 80, struct.pack("<Q", 3 * MIB + 8)),
    ("place in the headers", 80, struct.pack("<Q", 64 << 10)),
    ("place beyond all files", 80, struct.pack("<Q", 1 << 60)),
    ("descriptor's number", 88, struct.pack("<Q", 2)),
    ("sector's signature", 4096, b"dato"),
    ("sector's SequenceHigh", 4100, b"\1\0\0\0"),
    ("sector's SequenceLow", 8188, b"\2\0\0\0"),
]


@pytest.mark.parametrize(("field", "value"), [case[1:] for case in _HEADER_FIELDS], ids=[c[0] for c in _HEADER_FIELDS])
def test_an_entry_that_is_wrong_is_not_valid(field: int, value: bytes) -> None:
    _, data, at = _with_log()
    # The entries after the first one have it as their tail, so without it none of them is part of a valid sequence.
    damaged = _changed(data, at, field, value)
    folder = Folder()
    folder.put("disk.vhdx", damaged)
    for write in (False, True):
        with pytest.raises(BadImage, match="no valid sequence"):
            Image(folder.open("disk.vhdx", write=write), "disk.vhdx", writable=write)
    assert folder.get("disk.vhdx") == damaged


def test_the_checksum_of_an_entry_counts() -> None:
    _, data, at = _with_log()
    entries = [at + 2 * LOG_SECTOR * number for number in range(3)]
    for number, entry in enumerate(entries):
        damaged = bytearray(data)
        damaged[entry + 4096 + 2000] ^= 1
        if number:
            # What comes before the entry is a valid sequence.
            _, image = _open(bytes(damaged))
            assert [image.place_of(block) is not None for block in range(3)] == [block < number for block in range(3)]
        else:
            with pytest.raises(BadImage, match="damaged"):
                _open(bytes(damaged))


def test_a_truncated_image_is_refused() -> None:
    folder = Folder()
    disk = new_disk(folder, shape=making.Shape(SIZE, block_size=MIB))
    disk.write(b"x" * 512, 0)
    disk.flush()
    disk.write(b"x" * 512, MIB)
    data = folder.get("disk.vhdx")
    assert len(data) == 6 * MIB
    _, image = _open(data[: 5 * MIB])
    assert image.handle.info().end_of_file == 6 * MIB
    with pytest.raises(BadImage, match="truncated"):
        _open(data[: 5 * MIB - 1])
    with pytest.raises(BadImage, match="ends before its log"):
        _open(data[: MIB + 4096])


def test_zeros_and_sectors_beyond_the_file_are_replayed() -> None:
    _, data, at = _with_log()
    zeros = 3 * MIB
    head = layout.LogEntryHeader(
        entry_length=2 * LOG_SECTOR, sequence_number=5, descriptor_count=2, log_guid=_open(data)[1]._header.log_guid
    )._replace(last_file_offset=12 * MIB)
    content = bytes(range(256)) * 16
    entry = layout.LOG_ENTRY_HEADER.pack(head)
    entry += layout.LOG_DESCRIPTOR.pack(layout.LogDescriptor(b"desc", content[-4:], content[:8], 10 * MIB, 5))
    entry += layout.LOG_DESCRIPTOR.pack(
        layout.LogDescriptor(b"zero", bytes(4), struct.pack("<Q", LOG_SECTOR), zeros, 5)
    )
    number = struct.pack("<I", 5)
    entry = entry.ljust(LOG_SECTOR, b"\0") + b"data" + bytes(4) + content[8:-4] + number
    data = data[:at] + sealed(entry) + data[at + len(entry) :]
    folder, image = _open(data)
    assert image.entry(0)[0] == BlockState.NOT_PRESENT
    assert read_at(image.handle, 10 * MIB, LOG_SECTOR) == content
    assert folder.get("disk.vhdx") == data
    image.data_changes()
    image.close()
    after = folder.get("disk.vhdx")
    assert len(after) == 12 * MIB
    assert after[10 * MIB : 10 * MIB + LOG_SECTOR] == content
    assert after[zeros : zeros + LOG_SECTOR] == bytes(LOG_SECTOR)


def test_a_log_that_cannot_be_replayed_is_refused() -> None:
    _, data, _ = _with_log()
    for change, reason in (({"log_version": 1}, "version"), ({"log_length": 17 * MIB}, "too long")):
        damaged = bytearray(data)
        for at in layout.HEADER_OFFSETS:
            header = layout.HEADER.unpack(data, at)._replace(**change)
            damaged[at : at + 4096] = sealed(layout.HEADER.pack(header).ljust(4096, b"\0"))
        with pytest.raises(BadImage, match=reason):
            _open(bytes(damaged))


def test_a_log_of_random_bytes_is_refused_or_read() -> None:
    folder, data, at = _with_log()
    source = random.Random(12)
    refused = 0
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(source.randrange(1, 4)):
            place = at + source.choice((0, 4096, 8192, 12288)) + source.randrange(96)
            damaged[place : place + 4] = source.randbytes(4)
        try:
            _open(bytes(damaged))
        except BadImage:
            refused += 1
    assert refused > 30
    assert folder.names() == ["disk.vhdx"]
