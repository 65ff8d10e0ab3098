"""Images that this server makes and writes, judged by qemu-img; its images, read here; files that are no images."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from smb3server.virtual_disks import making
from smb3server.virtual_disks.reading import BadImage
from smb3server.virtual_disks.vhdx import Image
from tests.lab.disks import SIZE, Folder, needs_qemu, new_disk, open_disk, qemu, read

MIB = 1 << 20


def _content(disk_size: int = SIZE) -> dict[int, bytes]:
    random.seed(7)
    places = (0, 512, MIB - 4096, 3 * MIB + 512, disk_size - 8192)
    return {place: random.randbytes(8192) for place in places}


def _raw(content: dict[int, bytes], path: Path) -> None:
    with path.open("wb") as raw:
        raw.truncate(SIZE)
        for offset, data in content.items():
            raw.seek(offset)
            raw.write(data)


@needs_qemu
def test_qemu_finds_what_was_written(tmp_path: Path) -> None:
    folder = Folder()
    disk = new_disk(folder)
    content = _content()
    for offset, data in content.items():
        disk.write(data, offset)
    assert disk.is_valid()
    disk.close()
    image, raw = tmp_path / "disk.vhdx", tmp_path / "raw"
    image.write_bytes(folder.get("disk.vhdx"))
    _raw(content, raw)
    assert "No errors" in qemu("check", "-f", "vhdx", image)
    qemu("compare", "-f", "vhdx", "-F", "raw", image, raw)


@needs_qemu
@pytest.mark.parametrize("options", ["subformat=dynamic", "subformat=fixed", "subformat=dynamic,block_size=1048576"])
def test_images_of_qemu_are_read_and_written(tmp_path: Path, options: str) -> None:
    raw, image = tmp_path / "raw", tmp_path / "disk.vhdx"
    content = _content()
    _raw(content, raw)
    qemu("convert", "-f", "raw", "-O", "vhdx", "-o", options, raw, image)
    folder = Folder()
    folder.put("disk.vhdx", image.read_bytes())
    disk = open_disk(folder)
    assert read(disk, 0, SIZE) == raw.read_bytes()
    content[5 * MIB] = b"new" * 1024
    disk.write(content[5 * MIB], 5 * MIB)
    disk.close()
    _raw(content, raw)
    image.write_bytes(folder.get("disk.vhdx"))
    assert "No errors" in qemu("check", "-f", "vhdx", image)
    qemu("compare", "-f", "vhdx", "-F", "raw", image, raw)


def test_zeros_take_no_block() -> None:
    folder = Folder()
    disk = new_disk(folder)
    before = disk.allocated()
    disk.write(bytes(MIB), 0)
    assert disk.allocated() == before
    disk.write(b"x" * 512, 0)
    disk.write(bytes(512), 0)
    assert read(disk, 0, 1024) == bytes(1024)


def test_the_size_changes_within_the_table() -> None:
    folder = Folder()
    disk = new_disk(folder)
    disk.write(b"x" * 512, 4 * MIB)
    assert disk.active.safe_size() == 6 * MIB
    disk.resize(2 * SIZE)
    assert open_disk(folder).size == 2 * SIZE
    with pytest.raises(OSError, match="no room"):
        disk.resize(1 << 45)
    with pytest.raises(OSError, match="not a size"):
        disk.resize(513)


def test_a_damaged_header_gives_way_to_the_other_one() -> None:
    folder = Folder()
    disk = new_disk(folder)
    disk.write(b"x" * 512, 0)
    disk.close()
    data = bytearray(folder.get("disk.vhdx"))
    for header in (64 << 10, 128 << 10):
        damaged = Folder()
        data[header + 100] ^= 1
        damaged.put("disk.vhdx", bytes(data))
        if header == 64 << 10:
            open_disk(damaged)
        else:
            with pytest.raises(BadImage, match="no valid header"):
                open_disk(damaged)


def test_damaged_images_are_refused_or_read_within_the_file() -> None:
    folder = Folder()
    disk = new_disk(folder)
    disk.write(b"x" * 512, 0)
    disk.close()
    whole = folder.get("disk.vhdx")
    random.seed(11)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        # Metadata table, its items, and the block allocation table.
        place = random.choice((2 * MIB, 2 * MIB + 65536, 3 * MIB)) + random.randrange(256)
        data[place : place + 4] = random.randbytes(4)
        damaged = Folder()
        damaged.put("disk.vhdx", bytes(data))
        handle = damaged.open("disk.vhdx", write=True)
        try:
            image = Image(handle, "disk.vhdx", writable=True)
            assert sum(run.length for run in image.runs(0, min(MIB, image.virtual_size)))
        except OSError:
            refused += 1
    assert refused > 50


def test_a_chain_that_leads_to_itself_is_refused() -> None:
    folder = Folder()
    parent = making.Parent("disk.vhdx", bytes(16))
    with pytest.raises(BadImage, match="its own"):
        new_disk(folder, shape=making.Shape(SIZE, parent=parent))
    outside = making.Parent("..\\disk.vhdx", bytes(16))
    with pytest.raises(BadImage, match="same folder"):
        new_disk(folder, "other.vhdx", making.Shape(SIZE, parent=outside))
