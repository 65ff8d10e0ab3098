"""Opens that come back from the store act with the rights of their user on this server, whatever their record says."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.auth.users import Account, UserDatabase
from smb3server.backends.base import User
from smb3server.backends.local.backend import LocalBackend
from smb3server.persistence.journal import Domain, Persistence
from smb3server.persistence.records import key_of
from smb3server.persistence.restore import restore
from smb3server.persistence.sqlite import SqliteStore
from smb3server.persistence.store import Put
from smb3server.server.server import Server
from smb3server.settings.share import ShareRules
from smb3server.state.objects import Open
from smb3server.state.share import Share
from smb3server.wire.create import CreateAction

LONGEST_TURN = 0.1

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users takes root"),
    pytest.mark.root,
]

BOB = User(60001, 60001, (60001,))
READ, READ_WRITE, ALL = 0x120089, 0x12019F, 0x1F01FF
ID = 0x1234567890


class Setup:
    """A server with one share and the users bob (a uid of his own) and plain (the server's own user)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        users = UserDatabase()
        users.add(Account("bob", b"", BOB))
        users.add(Account("plain", b""))
        self.server = Server(users=users)
        self.share = Share(
            "data", backend=LocalBackend(folder), path=str(folder), rules=ShareRules(continuous_availability=True)
        )
        self.server.add_share(self.share)
        self.persistence = self.server.opens.persistence = Persistence()

    def file(self, name: str, owner: int = 0, mode: int = 0o600) -> Path:
        path = self.folder / name
        path.write_text("secret")
        path.chmod(mode)
        os.chown(path, owner, owner)
        return path

    def record(self, name: str, user: str = "bob", access: int = READ_WRITE, **more: Any) -> dict[str, Any]:
        """As a server of before this format wrote it, with root's credentials in it."""
        return {
            "format": 1, "id": ID, "share": "data", "path": [name], "stream": "",
            "inode": (self.folder / name).stat().st_ino, "directory": False, "create_guid": bytes(16).hex(),
            "client_guid": bytes(16).hex(), "identity": [user, "", False, False], "user": [0, 0, []],
            "timeout": 300.0, "access": [access, ALL, 7], "options": 0, "action": int(CreateAction.OPENED),
            "delete": [False, False], "caching": None, "locks": "", "sequences": [], "app": None,
            "app_version": None, **more,
        }  # fmt: skip

    async def restored(self, record: dict[str, Any]) -> Open | None:
        """The open that the record brings, if it does; a record that does not is removed."""
        store = await SqliteStore.open(self.folder.parent / "store.db")
        domain = Domain(store, "")
        self.persistence.serve(domain, [self.share])
        try:
            await store.commit([Put(key_of("", ID), json.dumps(record).encode())])
            count = await restore(self.server, domain, [self.share], is_there=is_there)
            assert (await store.get(key_of("", ID)) is not None) == bool(count)
        finally:
            await store.close()
        return self.server.opens.by_id.get(ID)


async def is_there(share: Share) -> bool:
    """The file system is never missing in these tests."""
    return True


def run(tmp_path: Path, body: Callable[[Setup], Awaitable[None]]) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    # pytest's folders are for root only.
    for path in (folder, *folder.parents):
        if path.is_relative_to(tmp_path.parents[2]) and path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o055)

    async def main() -> None:
        setup = Setup(folder)
        try:
            await body(setup)
        finally:
            setup.share.backend.close()

    asyncio.run(main())


def woken(setup: Setup, entry: Open | None) -> Open:
    assert entry is not None
    setup.server.opens.wake(entry)
    return entry


def test_root_is_nobody_in_a_record(tmp_path: Path) -> None:
    async def body(setup: Setup) -> None:
        setup.file("f")
        entry = await setup.restored(setup.record("f"))
        assert entry is not None and entry.session.user == BOB
        with pytest.raises(PermissionError):
            setup.server.opens.wake(entry)
        setup.server.opens.close(entry)
        assert (setup.folder / "f").read_text() == "secret"

    run(tmp_path, body)


def test_a_users_own_file_comes_back_with_what_was_granted(tmp_path: Path) -> None:
    async def body(setup: Setup) -> None:
        setup.file("f", BOB.uid)
        entry = woken(setup, await setup.restored(setup.record("f")))
        assert entry.granted_access == READ_WRITE and entry.descriptor is not None
        assert os.pread(entry.descriptor, 6, 0) == b"secret"
        setup.server.opens.close(entry)

    run(tmp_path, body)


@pytest.mark.parametrize(("mode", "access"), [(0o400, READ_WRITE), (0o444, ALL), (0o200, READ)])
def test_access_that_the_mode_does_not_give_any_more(tmp_path: Path, mode: int, access: int) -> None:
    async def body(setup: Setup) -> None:
        setup.file("f", BOB.uid, mode)
        entry = await setup.restored(setup.record("f", access=access))
        assert entry is not None
        with pytest.raises(PermissionError):
            setup.server.opens.wake(entry)
        setup.server.opens.close(entry)

    run(tmp_path, body)


def test_metadata_access_is_checked_by_the_descriptor_although_the_system_opens_the_file(tmp_path: Path) -> None:
    """WRITE_DAC and WRITE_OWNER to root's file, no data access."""

    async def body(setup: Setup) -> None:
        setup.file("f", mode=0o644)
        entry = await setup.restored(setup.record("f", access=0xC0000 | 0x80))
        assert entry is not None
        with pytest.raises(PermissionError):
            setup.server.opens.wake(entry)
        setup.server.opens.close(entry)

    run(tmp_path, body)


def test_who_made_a_file_keeps_the_data_and_loses_what_its_descriptor_does_not_give(tmp_path: Path) -> None:
    async def body(setup: Setup) -> None:
        setup.file("f", mode=0o666)
        entry = woken(setup, await setup.restored(setup.record("f", access=ALL, action=int(CreateAction.CREATED))))
        assert entry.granted_access & READ_WRITE == READ_WRITE
        assert not entry.granted_access & 0xC0000, "WRITE_DAC and WRITE_OWNER"
        setup.server.opens.close(entry)

    run(tmp_path, body)


def test_a_file_marked_for_deletion_is_not_deleted_for_a_user_who_may_not(tmp_path: Path) -> None:
    async def body(setup: Setup) -> None:
        setup.file("f", mode=0o666)
        entry = await setup.restored(setup.record("f", access=0x10000 | READ, delete=[True, True]))
        assert entry is not None
        setup.server.opens.close(entry)
        assert (setup.folder / "f").read_text() == "secret"

    run(tmp_path, body)


@pytest.mark.parametrize("identity", [["mallory", "", False, False], ["", "", False, True], ["bob", "", True, False]])
def test_who_could_not_log_on_now_has_no_open(tmp_path: Path, identity: list[Any]) -> None:
    """There is no such account; anonymous users and guests are not let in to the share."""

    async def body(setup: Setup) -> None:
        setup.file("f", mode=0o666)
        assert await setup.restored(setup.record("f", identity=identity)) is None

    run(tmp_path, body)


def test_who_is_not_among_the_shares_users_has_no_open(tmp_path: Path) -> None:
    async def body(setup: Setup) -> None:
        setup.file("f", mode=0o666)
        setup.share.users = frozenset(["plain"])
        assert await setup.restored(setup.record("f")) is None

    run(tmp_path, body)


def test_a_folder_on_the_way_that_the_user_may_not_pass(tmp_path: Path) -> None:
    async def body(setup: Setup) -> None:
        (setup.folder / "d").mkdir(0o700)
        setup.file("d/f", mode=0o666)
        record = setup.record("d/f", path=["d", "f"])
        assert await setup.restored(record) is None

    run(tmp_path, body)


def test_opens_of_one_user_share_what_says_so(tmp_path: Path) -> None:
    """There may be tens of thousands: none has a session of its own."""

    async def body(setup: Setup) -> None:
        for name in ("f", "g"):
            setup.file(name, BOB.uid)
        records = [setup.record("f"), setup.record("g", id=ID + 1), setup.record("g", "", id=ID + 2)]
        records[2]["identity"] = ["", "", False, True]
        await setup.restored(records[0])
        store = await SqliteStore.open(setup.folder.parent / "more.db")
        puts = [Put(key_of("", record["id"]), json.dumps(record).encode()) for record in records[1:]]
        setup.persistence.serve(Domain(store, ""), [setup.share])
        await store.commit([*puts, Put(key_of("", ID + 3), json.dumps(setup.record("f", id=ID + 3)).encode())])
        assert await restore(setup.server, Domain(store, ""), [setup.share], is_there=is_there) == 2
        await store.close()
        first, second = (setup.server.opens.by_id[ID + number] for number in (1, 3))
        assert first.session is second.session and first.tree is second.tree
        assert setup.server.opens.by_id[ID].session is not first.session
        for opened in list(setup.server.opens.by_id.values()):
            setup.server.opens.abandon(opened)

    run(tmp_path, body)


@pytest.mark.parametrize(("options", "operator"), [(0x4000, True), (0x4000, False), (0, True)])
def test_an_open_for_backup_comes_back_while_its_user_is_a_backup_operator(
    tmp_path: Path, options: int, operator: bool
) -> None:
    async def body(setup: Setup) -> None:
        setup.server.settings.backup_operators = frozenset({"bob"} if operator else ())
        setup.file("f")
        entry = await setup.restored(setup.record("f", options=options))
        assert entry is not None
        if options and operator:
            assert os.pread(woken(setup, entry).descriptor or -1, 6, 0) == b"secret"
        else:
            with pytest.raises(PermissionError):
                setup.server.opens.wake(entry)
        setup.server.opens.close(entry)

    run(tmp_path, body)
