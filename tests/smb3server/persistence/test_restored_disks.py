"""Persistent opens of shared virtual disks that come back from their records."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.auth.users import Account, UserDatabase
from smb3server.backends.local.backend import LocalBackend
from smb3server.persistence.journal import Domain, Persistence
from smb3server.persistence.records import key_of, parse, snapshot
from smb3server.persistence.restore import restore
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import Put
from smb3server.server.server import Server
from smb3server.settings.share import ShareRules
from smb3server.state.objects import Open
from smb3server.state.share import Share
from smb3server.virtual_disks import snapshots, stored, vhd_set
from smb3server.virtual_disks.reservations import Reservations, Type
from smb3server.wire.create import CreateAction, CreateOptions
from smb3server.wire.svhdx import OfSnapshot, SnapshotType
from tests.lab.disks import INITIATOR, Folder, device_of, new_disk, open_disk

READ_WRITE, ALL = 0x12019F, 0x1F01FF
OTHER = b"another guest .."
SNAPSHOT = uuid.UUID(int=5).bytes_le
Check = Callable[[Server, list[Open]], None]


def packed(initiator: bytes, reservations: Reservations, specifier: OfSnapshot | None = None) -> str:
    """Return what a server has stored of an open."""
    folder = Folder()
    device = device_of(new_disk(folder), folder, initiator)
    device.disk.reservations, device.specifier = reservations, specifier
    return base64.b64encode(stored.pack(device)).decode()


def reserved(*initiators: bytes, changes: int = 0) -> Reservations:
    """Return reservations whose first initiator holds a write exclusive one."""
    found = Reservations(changes)
    for initiator in initiators:
        found.change(initiator, 0, 0, bytes(8) + b"key of 1" + bytes(8))
    found.change(initiators[0], 1, int(Type.WRITE_EXCLUSIVE), b"key of 1" + bytes(16))
    return found


def put_set(folder: Path) -> None:
    """Make a VHD set with a snapshot: its first sector is of "o" there, and of "n" in the disk."""
    memory = Folder()
    new_disk(memory, "base.avhdx").close()
    handle = memory.create("disk.vhds")
    vhd_set.make(handle, "base.avhdx")
    handle.close()
    disk = open_disk(memory, "disk.vhds")
    disk.write(b"o" * 512, 0)
    for _ in snapshots.create(disk, memory, SNAPSHOT, int(SnapshotType.VM), False):
        pass
    disk.write(b"n" * 512, 0)
    disk.close()
    for name in memory.names():
        (folder / name).write_bytes(memory.get(name))


def restored(folder: Path, disks: list[Any], check: Check) -> list[str]:
    """Restore opens of the disk, whose records have ``disks``. Return the keys of the records that are left."""

    async def main() -> list[str]:
        users = UserDatabase()
        users.add(Account("plain", b""))
        server = Server(users=users)
        data = folder / "data"
        rules = ShareRules(continuous_availability=True, shared_virtual_disks=True)
        share = Share("data", backend=LocalBackend(data), path=str(data), rules=rules)
        server.add_share(share)
        server.opens.persistence = Persistence()
        store = await SqliteStore.open(folder / "store.db")
        domain = Domain(store, "")
        server.opens.persistence.serve(domain, [share])
        for number, disk in enumerate(disks, 1):
            record = {
                "format": 2, "id": number, "share": "data", "path": ["disk.vhds"], "stream": "",
                "inode": (data / "disk.vhds").stat().st_ino, "directory": False, "create_guid": bytes(16).hex(),
                "client_guid": bytes(16).hex(), "identity": ["plain", "", False, False], "timeout": 300.0,
                "access": [READ_WRITE, ALL, 7], "options": int(CreateOptions.NO_INTERMEDIATE_BUFFERING),
                "action": int(CreateAction.OPENED), "delete": [False, False], "caching": None, "locks": "",
                "sequences": [], "app": None, "app_version": None, "virtual_disk": disk,
            }  # fmt: skip
            await store.commit([Put(key_of("", number), json.dumps(record).encode())])

        async def is_there(share: Share) -> bool:
            return True

        try:
            await restore(server, domain, [share], is_there=is_there)
            check(server, [server.opens.by_id[number] for number in sorted(server.opens.by_id)])
            for opened in list(server.opens.by_id.values()):
                server.opens.abandon(opened)
            assert not server.virtual_disks.by_key
            return [entry.key for entry in await store.scan("opens/")]
        finally:
            server.opens.persistence.close()
            await store.close()
            share.backend.close()

    return asyncio.run(main())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    put_set(tmp_path / "data")
    return tmp_path


def first_sector(opened: Open) -> bytes:
    data = bytearray(512)
    assert opened.handle is not None
    opened.handle.read_into([memoryview(data)], 0)
    return bytes(data)


def test_the_newest_reservations_come_back_with_any_order_of_opens(folder: Path) -> None:
    older, newer = reserved(OTHER), reserved(INITIATOR, OTHER, changes=5)

    def check(server: Server, opens: list[Open]) -> None:
        assert [opened.virtual_disk is not None for opened in opens] == [True, True, True]
        (disk,) = server.virtual_disks.by_key.values()
        assert disk.reservations.holder == INITIATOR
        assert set(disk.reservations.keys) == {INITIATOR, OTHER}
        assert disk.users == 3 and disk.initiators == {INITIATOR: 2, OTHER: 1}
        assert first_sector(opens[0]) == b"n" * 512
        # What is stored of them from now on has all of it.
        found = parse(snapshot(opens[1])).virtual_disk
        assert found and vars(stored.unpack(found).reservations) == vars(newer)

    records = [packed(OTHER, older), packed(INITIATOR, newer), packed(INITIATOR, Reservations())]
    assert len(restored(folder, records, check)) == 3


def test_reservations_without_a_registered_guest_are_gone(folder: Path) -> None:
    def check(server: Server, opens: list[Open]) -> None:
        (disk,) = server.virtual_disks.by_key.values()
        assert disk.reservations.type is Type.NONE and not disk.reservations.keys

    restored(folder, [packed(OTHER, reserved(INITIATOR))], check)


def test_an_open_of_a_snapshot_is_one_again(folder: Path) -> None:
    def check(server: Server, opens: list[Open]) -> None:
        assert first_sector(opens[0]) == b"o" * 512

    specifier = OfSnapshot(int(SnapshotType.VM), SNAPSHOT)
    assert restored(folder, [packed(INITIATOR, Reservations(), specifier)], check)


@pytest.mark.parametrize("disk", [True, base64.b64encode(bytes(50)).decode()], ids=["of before", "damaged"])
def test_what_does_not_say_how_the_disk_was_opened_is_no_open(folder: Path, disk: Any) -> None:
    def check(server: Server, opens: list[Open]) -> None:
        assert not opens and not server.virtual_disks.by_key

    # As an open of the file it would write between the disk's data.
    assert restored(folder, [disk], check) == []


@pytest.mark.parametrize("lost", ["base.avhdx", "a snapshot"])
def test_a_disk_without_its_images_does_not_come_back(folder: Path, lost: str) -> None:
    data = folder / "data"
    specifier = OfSnapshot(int(SnapshotType.VM), uuid.UUID(int=9).bytes_le if lost == "a snapshot" else SNAPSHOT)
    if lost == "base.avhdx":
        shutil.move(data / lost, folder / "elsewhere")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def check(server: Server, opens: list[Open]) -> None:
        assert not opens and not server.virtual_disks.by_key

    assert restored(folder, [packed(INITIATOR, reserved(INITIATOR), specifier)], check) == []
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before + 1
