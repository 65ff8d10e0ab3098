"""Tunnel operations of a shared virtual disk, and images that are no images. [MS-RSVD 2.2.4, MS-VHDX 2]"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from smb3server.backends.base import Disposition, FileKey, Handle, OpenRequest
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.virtual_disks import making, meta, tunnel, vhd_set
from smb3server.virtual_disks.device import DeviceOpen
from smb3server.virtual_disks.disk import VirtualDisk
from smb3server.virtual_disks.tunnel import DiskError
from smb3server.virtual_disks.vhdx import Image
from smb3server.wire import svhdx as wire
from smb3server.wire.status import StatusError
from smb3server.wire.svhdx import Operation
from smbdirect.codec import Codec
from tools.fuzz.target import Target, choice, each_choice

assert meta
_SIZE = 8 << 20
_INITIATOR = b"initiator of one"


class _Folder:
    """A store in memory with one VHD set."""

    def __init__(self) -> None:
        self._backend = MemoryBackend(capacity=64 << 20)
        making.make(self.create("disk.avhdx"), making.Shape(_SIZE))
        vhd_set.make(self.create("disk.vhds"), "disk.avhdx")

    def open(self, name: str, write: bool) -> Handle:
        return self._backend.open(OpenRequest((name,), read=True, write=write))

    def create(self, name: str) -> Handle:
        return self._backend.open(OpenRequest((name,), disposition=Disposition.CREATE, read=True, write=True))

    def claim(self, handle: Handle, write: bool = True) -> None:
        """Nobody else writes here."""

    def remove(self, name: str) -> None:
        handle = self._backend.open(OpenRequest((name,)))
        handle.unlink()
        handle.close()


def _tunnel(data: memoryview) -> None:
    folder = _Folder()
    disk = VirtualDisk(FileKey(1, 1), "disk.vhds")
    disk.open(folder, write=True)
    context = wire.OpenDevice(has_initiator_id=1, initiator_id=_INITIATOR, originator_flags=1)
    call = tunnel.parse(DeviceOpen(disk, context, folder, unbuffered=True, may_write=True), bytes(data), 4096)
    result = tunnel.run(call)
    if not isinstance(result, bytes):
        for _ in result:
            pass


def _overlaid(name: str, places: tuple[int, ...], data: memoryview) -> Handle:
    """Return a file of the folder with parts of the input in some places."""
    handle = _Folder().open(name, write=True)
    part = max(len(data) // len(places), 1)
    for number, place in enumerate(places):
        handle.write_from([data[number * part : (number + 1) * part]], place)
    return handle


def _image(data: memoryview) -> None:
    image = Image(_overlaid("disk.avhdx", (2 << 20, (2 << 20) + 65536, 3 << 20), data), "disk.avhdx", writable=True)
    for _ in image.runs(0, min(image.virtual_size, _SIZE)):
        pass


def _set(data: memoryview) -> None:
    vhd_set.VhdSet(_overlaid("disk.vhds", (256 << 10, 260 << 10, 4 << 20), data))


SUBJECTS = (_tunnel, _image, _set)


def _seeds() -> Iterator[bytes]:
    bodies = [value.pack(value.record()) for value in vars(wire).values() if isinstance(value, Codec)]
    requests = [wire.TUNNEL_HEADER.pack(wire.TunnelHeader(code)) + body for code in Operation for body in bodies[:24]]
    ranges = struct.pack(">HH4xQI4x", 22, 16, 0, 4096)
    scsi = wire.ScsiRequest(cdb_length=16, disposition=2, data_transfer_length=24, cdb=struct.pack(">B6xH7x", 0x42, 24))
    unmap = wire.TUNNEL_HEADER.pack(wire.TunnelHeader(Operation.SCSI)) + wire.SCSI_REQUEST.pack(scsi) + ranges
    yield from each_choice(
        SUBJECTS, [*requests[::7], unmap, b"smb3snap" + bytes(8), b"smb3sns2" + bytes(8), bytes(300)]
    )


TARGET = Target(choice(SUBJECTS), _seeds, declared=(DiskError, StatusError, OSError))
