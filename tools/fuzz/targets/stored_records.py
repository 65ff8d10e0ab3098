"""What a crashed server, another node or a user of the host may have written: records of opens, lists of connections,
values of the cluster, extended attributes with metadata."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from ipaddress import ip_address

from smb3server.backends.local import metadata
from smb3server.cluster import peers, view
from smb3server.persistence import records
from smb3server.persistence.seal import Seal, SealError
from smb3server.virtual_disks import stored
from smb3server.virtual_disks.reservations import Type
from smb3server.wire import svhdx
from tools.fuzz.target import Target, choice, each_choice

SEAL = Seal(b"secret", "cluster")


def _with_bytes(subject: Callable[[bytes], object]) -> Callable[[memoryview], object]:
    return lambda data: subject(bytes(data))


SUBJECTS = (
    _with_bytes(records.parse),
    _with_bytes(peers.parse),
    _with_bytes(view.decode),
    _with_bytes(lambda data: metadata.unpack(data, 7).pack(7)),
    _with_bytes(lambda data: SEAL.open("key", data)),
    stored.unpack,
)
RECORD = {
    "format": 2, "id": 1, "share": "s", "path": ["a", "b"], "stream": "", "inode": 5, "directory": False,
    "create_guid": "00" * 16, "client_guid": "11" * 16, "identity": ["u", "", False, False], "timeout": 60.0,
    "access": [1, 2, 3], "options": 0, "action": 1, "delete": [False, False], "locks": "", "sequences": [[1, 2]],
    "caching": [7, False, 7, 0, 255, "22" * 16, "33" * 16, 2, 1, ""], "app": None, "app_version": [1, 2],
}  # fmt: skip


DISK = (
    svhdx.OPEN_DEVICE.pack(svhdx.OpenDevice(has_initiator_id=1, initiator_id=b"i" * 16))
    + svhdx.OF_SNAPSHOT.pack(svhdx.OfSnapshot())
    + struct.pack("<QIBB16sHH", 3, 2, Type.WRITE_EXCLUSIVE, 1, b"i" * 16, 1, 1)
    + struct.pack("<16s8s16sH", b"i" * 16, b"a key   ", b"i" * 16, 0x2A03)
)


def _seeds() -> Iterator[bytes]:
    peer = peers.Peer(ip_address("10.0.0.1"), 445, ip_address("10.0.0.2"), 50000)
    yield from each_choice(
        SUBJECTS,
        [
            json.dumps(RECORD).encode(),
            json.dumps({**RECORD, "caching": None, "app": "44" * 16}).encode(),
            peers.pack([peer]),
            metadata.Metadata(1, 2, 3, 4, 5, 6).pack(7),
            SEAL.close("key", b"content"),
            DISK,
        ],
    )


TARGET = Target(choice(SUBJECTS), _seeds, declared=(ValueError, SealError))
