"""Virtual disks in a store in memory, and their images as files for qemu-img."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from smb3server.backends.base import Backend, Disposition, FileKey, Handle, OpenRequest
from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.virtual_disks import claims, making, meta, tunnel
from smb3server.virtual_disks.device import DeviceOpen
from smb3server.virtual_disks.disk import VirtualDisk
from smb3server.wire import svhdx as wire
from smb3server.wire.svhdx import Operation

INITIATOR = bytes(range(16))
SIZE = 64 << 20
assert meta
needs_qemu = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="qemu-img is not installed (qemu-utils)")


class Folder:
    """The root of a store as ``disk.Files``: in memory, or a folder of the host."""

    def __init__(self, root: Path | None = None) -> None:
        self.backend: Backend = MemoryBackend() if root is None else LocalBackend(root)

    def open(self, name: str, write: bool) -> Handle:
        return self.backend.open(OpenRequest((name,), read=True, write=write))

    def create(self, name: str) -> Handle:
        return self.backend.open(OpenRequest((name,), disposition=Disposition.CREATE, read=True, write=True))

    def remove(self, name: str) -> None:
        handle = self.backend.open(OpenRequest((name,)))
        handle.unlink()
        handle.close()

    def claim(self, handle: Handle, write: bool = True) -> None:
        claims.claim(handle, write)

    def put(self, name: str, data: bytes) -> None:
        handle = self.create(name)
        handle.write_from([data], 0)
        handle.close()

    def get(self, name: str) -> bytes:
        handle = self.open(name, write=False)
        data = bytearray(handle.info().end_of_file)
        handle.read_into([memoryview(data)], 0)
        handle.close()
        return bytes(data)

    def names(self) -> list[str]:
        handle = self.backend.open(OpenRequest((), directory=True))
        return sorted(entry.name for entry in handle.scan() if entry.name not in (".", ".."))


def new_disk(folder: Folder, name: str = "disk.vhdx", shape: making.Shape | None = None) -> VirtualDisk:
    """Make a disk and open it."""
    handle = folder.create(name)
    making.make(handle, shape or making.Shape(SIZE))
    handle.close()
    return open_disk(folder, name)


def open_disk(folder: Folder, name: str = "disk.vhdx", write: bool = True) -> VirtualDisk:
    """Open a disk of the folder."""
    disk = VirtualDisk(FileKey(1, 1), name)
    disk.open(folder, write)
    return disk


def read(disk: VirtualDisk, offset: int, length: int) -> bytes:
    """Return bytes of a disk."""
    data = bytearray(length)
    disk.read(memoryview(data), offset)
    return bytes(data)


def device_of(disk: VirtualDisk, folder: Folder, initiator: bytes = INITIATOR, may_write: bool = True) -> DeviceOpen:
    """Return an open of a disk."""
    context = wire.OpenDevice(has_initiator_id=1, initiator_id=initiator, originator_flags=1)
    return DeviceOpen(disk, context, folder, unbuffered=True, may_write=may_write)


def ask(device: DeviceOpen, code: int, body: bytes = b"", most: int = 65536) -> bytes:
    """Do an operation, and return what follows the header."""
    request = wire.TUNNEL_HEADER.pack(wire.TunnelHeader(code, request_id=7)) + body
    result = tunnel.run(tunnel.parse(device, request, most))
    if isinstance(result, bytes):
        return result
    while True:
        try:
            next(result)
        except StopIteration as end:
            return bytes(end.value)


def command(device: DeviceOpen, cdb: bytes, data: bytes = b"", room: int = 0) -> tuple[int, bytes, bytes]:
    """Execute a SCSI command, and return its status, its sense data and its data."""
    request = wire.ScsiRequest(
        cdb_length=16,
        sense_length=20,
        disposition=2,
        data_transfer_length=max(len(data), room),
        cdb=cdb.ljust(16, b"\0"),
    )
    answer = ask(device, Operation.SCSI, wire.SCSI_REQUEST.pack(request) + data)
    response = wire.SCSI_RESPONSE.unpack(answer)
    content = answer[wire.SCSI_RESPONSE.size :]
    assert response.length == 36
    assert response.data_transfer_length == len(content)
    return response.scsi_status, response.sense, content


def qemu(*arguments: str | Path) -> str:
    """Run qemu-img, and return its output."""
    done = subprocess.run(["qemu-img", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def replayed(image: Path) -> None:
    """Let qemu-img replay the log of an image, if it has one, and check that it finds no fault."""
    qemu("check", "-r", "all", "-f", "vhdx", image)
    assert "No errors" in qemu("check", "-f", "vhdx", image)
