"""Quotas of users by QUERY_INFO and SET_INFO. [MS-SMB2 3.3.5.20.4, 3.3.5.21.4, MS-FSA 2.1.5.21, 2.1.5.22]"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smb3server.access.descriptor import Sid
from smb3server.access.posix import user_sid
from smb3server.auth.users import Account
from smb3server.backends.base import Quota, User
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import Tree
from smb3server.service.service import Service
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.fs_info import CONTROL, FULL_SIZE, SIZE, FsInfoClass
from smb3server.wire.query_info import InfoType
from smb3server.wire.quota import QuotaEntry, decode_entries, encode_entries
from smb3server.wire.status import NtStatus
from tests.lab.quotas import Table
from tests.lab.serving import READ, serving, tree_of

ALICE, BOB, ROOT = 4001, 4002, 0
MIB = 1 << 20
NAME = "$Extend\\$Quota:$Q:$INDEX_ALLOCATION"
USERS = "".join(f'[[user]]\nname = "{name}"\npassword = "pw"\n' for name in ("alice", "bob", "boss", "carol"))
Body = Callable[[Service, Table], Awaitable[None]]


def play(tmp_path: Path, body: Body, table: Table | None = None) -> None:
    """alice and bob are users of the host; carol is not, and boss, who administers the server, is not either."""
    kept = table or Table(Quota(ALICE, 3 * MIB, 4 * MIB, 5 * MIB), Quota(BOB, 7 * MIB, 0, 0))

    async def main() -> None:
        (tmp_path / "share").mkdir()
        (tmp_path / "share").chmod(0o777)
        text = f'[server]\nadmins = ["boss"]\n[[share]]\nname = "data"\npath = "share"\n{USERS}'
        async with serving(tmp_path, text) as service:
            share = service.shares.find("data")
            assert share is not None
            assert share.backend is not None
            share.backend.quotas = kept
            for name, uid in (("alice", ALICE), ("bob", BOB)):
                found = service.server.users.find(name)
                assert found is not None
                service.server.users.add(Account(name, found.nt_hash, User(uid, uid)))
            await body(service, kept)

    asyncio.run(main())


@asynccontextmanager
async def quota_file(service: Service, user: str) -> AsyncIterator[tuple[Tree, Callable[..., Awaitable[bytes]]]]:
    async with tree_of(service, user, "data") as tree:
        file = await tree.create(NAME, READ, CreateDisposition.OPEN)

        async def ask(data: bytes, size: int = 4096) -> bytes:
            return await tree.query_info(file, 0, InfoType.QUOTA, size=size, data=data)

        yield tree, ask


def query(*sids: Sid, start: bytes = b"", single: bool = False, restart: bool = True) -> bytes:
    listed = b""
    for number, sid in enumerate(sids, 1):
        size = -(-(8 + sid.size) // 4) * 4
        entry = struct.pack("<II", 0 if number == len(sids) else size, sid.size) + sid.pack()
        listed += entry.ljust(size, b"\0")
    return struct.pack("<BBHIII", single, restart, 0, len(listed), len(start), 0) + listed + start


async def status_of(work: Awaitable[object]) -> int:
    try:
        await work
    except ServerError as error:
        return error.status
    return 0


def entry(uid: int, used: int, soft: int, hard: int) -> QuotaEntry:
    return QuotaEntry(user_sid(uid).pack(), used, soft, hard)


OF_ALICE, OF_BOB = entry(ALICE, 3 * MIB, 4 * MIB, 5 * MIB), entry(BOB, 7 * MIB, -1, -1)


def test_listing(tmp_path: Path) -> None:
    async def body(service: Service, table: Table) -> None:
        async with quota_file(service, "boss") as (_, ask):
            assert decode_entries(await ask(query())) == [OF_ALICE, OF_BOB]
            assert await status_of(ask(query(restart=False))) == NtStatus.NO_MORE_ENTRIES
            assert decode_entries(await ask(query(single=True))) == [OF_ALICE]
            assert decode_entries(await ask(query(single=True, restart=False))) == [OF_BOB]
            assert decode_entries(await ask(query(start=user_sid(ALICE + 1).pack()))) == [OF_BOB]
            assert decode_entries(await ask(query(), 60)) == [OF_ALICE], "as many as there is room for"
            assert decode_entries(await ask(query(restart=False))) == [OF_BOB]
            assert await status_of(ask(query(), 55)) == NtStatus.BUFFER_TOO_SMALL
            assert await status_of(ask(query(user_sid(BOB)), 55)) == NtStatus.BUFFER_TOO_SMALL

    play(tmp_path, body)


def test_a_list_of_users(tmp_path: Path) -> None:
    """By the SID of the user of the host, and by that of the account. Whom the host does not know has nothing."""

    async def body(service: Service, table: Table) -> None:
        accounts = service.server.accounts
        async with quota_file(service, "boss") as (_, ask):
            own, carol = accounts.account_sid("alice"), accounts.account_sid("carol")
            found = decode_entries(await ask(query(user_sid(BOB), own, carol)))
            assert found == [OF_BOB, OF_ALICE._replace(sid=own.pack()), QuotaEntry(carol.pack(), 0, -1, -1)]

    play(tmp_path, body)


def test_everybody_sees_the_own_quota_and_no_other(tmp_path: Path) -> None:
    async def body(service: Service, table: Table) -> None:
        async with quota_file(service, "alice") as (tree, ask):
            assert decode_entries(await ask(query(user_sid(ALICE)))) == [OF_ALICE]
            for asked in (query(user_sid(BOB)), query(user_sid(ALICE), user_sid(BOB)), query(), query(user_sid(ROOT))):
                assert await status_of(ask(asked)) == NtStatus.ACCESS_DENIED
            file = await tree.create("", READ)
            change = encode_entries([entry(ALICE, 0, -1, -1)], 4096)[0]
            assert await status_of(tree.set_info(file, 0, change, InfoType.QUOTA)) == NtStatus.ACCESS_DENIED
            assert table.get(ALICE).hard == 5 * MIB

    play(tmp_path, body)


def test_setting(tmp_path: Path) -> None:
    async def body(service: Service, table: Table) -> None:
        async with tree_of(service, "boss", "data") as tree:
            file = await tree.create("", READ, CreateDisposition.OPEN, CreateOptions.DIRECTORY_FILE)

            async def put(*entries: QuotaEntry) -> int:
                return await status_of(tree.set_info(file, 0, encode_entries(entries, 65536)[0], InfoType.QUOTA))

            alice = service.server.accounts.account_sid("alice").pack()
            assert await put(entry(BOB, 0, MIB, 2 * MIB), QuotaEntry(alice, 0, -1, 9 * MIB)) == 0
            assert table.get(BOB) == Quota(BOB, 7 * MIB, MIB, 2 * MIB)
            assert table.get(ALICE) == Quota(ALICE, 3 * MIB, 0, 9 * MIB)
            assert await put(entry(BOB, 0, -1, -2)) == 0
            assert table.get(BOB) == Quota(BOB, 7 * MIB, 0, 0)
            assert await put(entry(4999, 0, -1, -2)) == NtStatus.NO_MATCH
            administrators = Sid(5, (32, 544)).pack()
            assert await put(QuotaEntry(administrators, 0, -1, -1)) == 0
            assert await put(QuotaEntry(administrators, 0, -1, MIB)) == NtStatus.ACCESS_DENIED
            assert await put(entry(ROOT, 0, -1, MIB)) == NtStatus.ACCESS_DENIED
            carol = service.server.accounts.account_sid("carol").pack()
            before = dict(table.known)
            assert await put(entry(ALICE, 0, 1, 1), QuotaEntry(carol, 0, -1, MIB)) == NtStatus.NONE_MAPPED
            assert await put(entry(ALICE, 0, 1, -3)) == NtStatus.INVALID_PARAMETER
            assert await put(entry(ALICE, 0, -2, 1)) == NtStatus.INVALID_PARAMETER
            assert await put() == NtStatus.INVALID_PARAMETER
            assert table.known == before, "one bad entry, and none is set"

    play(tmp_path, body)


@pytest.mark.parametrize("damage", [b"", b"\0" * 15, query(user_sid(BOB))[:-1], query(start=b"\1\xff" + bytes(20))])
def test_malformed_queries(tmp_path: Path, damage: bytes) -> None:
    async def body(service: Service, table: Table) -> None:
        async with quota_file(service, "boss") as (_, ask):
            assert await status_of(ask(damage)) == NtStatus.INVALID_PARAMETER

    play(tmp_path, body)


def test_free_space_is_what_the_quota_leaves(tmp_path: Path) -> None:
    async def body(service: Service, table: Table) -> None:
        async with tree_of(service, "alice", "data") as tree:
            file = await tree.create("", READ)
            full = FULL_SIZE.unpack(await tree.query_info(file, FsInfoClass.FULL_SIZE, InfoType.FILESYSTEM))
            size = SIZE.unpack(await tree.query_info(file, FsInfoClass.SIZE, InfoType.FILESYSTEM))
            unit = full.sectors_per_unit * full.bytes_per_sector
            assert (full.total_units * unit, full.caller_available_units * unit) == (5 * MIB, 2 * MIB)
            assert (size.total_units * unit, size.available_units * unit) == (5 * MIB, 2 * MIB)
            assert full.actual_available_units * unit > 5 * MIB
            table.known[ALICE] = Quota(ALICE, 6 * MIB, 0, 5 * MIB)
            full = FULL_SIZE.unpack(await tree.query_info(file, FsInfoClass.FULL_SIZE, InfoType.FILESYSTEM))
            assert full.caller_available_units == 0
        async with tree_of(service, "bob", "data") as tree:
            file = await tree.create("", READ)
            full = FULL_SIZE.unpack(await tree.query_info(file, FsInfoClass.FULL_SIZE, InfoType.FILESYSTEM))
            assert full.caller_available_units * unit > 7 * MIB

    play(tmp_path, body)


@pytest.mark.parametrize(("enforced", "flags"), [(True, 2), (False, 1)])
def test_what_the_volume_says(tmp_path: Path, enforced: bool, flags: int) -> None:
    async def body(service: Service, table: Table) -> None:
        async with tree_of(service, "alice", "data") as tree:
            file = await tree.create("", READ)
            control = CONTROL.unpack(await tree.query_info(file, FsInfoClass.CONTROL, InfoType.FILESYSTEM))
            assert control.flags == flags
            attributes = await tree.query_info(file, FsInfoClass.ATTRIBUTE, InfoType.FILESYSTEM)
            assert attributes[0] & 0x20

    play(tmp_path, body, Table(enforced=enforced))


def test_a_store_without_quotas(tmp_path: Path) -> None:
    """The volume does not claim them, and there is no such file."""

    async def body(service: Service, table: Table) -> None:
        share = service.shares.find("data")
        assert share is not None
        assert share.backend is not None
        share.backend.quotas = None
        async with tree_of(service, "boss", "data") as tree:
            file = await tree.create("", READ)
            attributes = await tree.query_info(file, FsInfoClass.ATTRIBUTE, InfoType.FILESYSTEM)
            assert not attributes[0] & 0x20
            asked = tree.query_info(file, 0, InfoType.QUOTA, data=query())
            assert await status_of(asked) == NtStatus.NOT_SUPPORTED
            change = encode_entries([entry(ALICE, 0, -1, -1)], 4096)[0]
            assert await status_of(tree.set_info(file, 0, change, InfoType.QUOTA)) == NtStatus.NOT_SUPPORTED
            assert await status_of(tree.create(NAME, READ)) != 0

    play(tmp_path, body)


def test_the_quota_file_gives_no_rights(tmp_path: Path) -> None:
    """It is opened with the rights that the user has on the root, whatever was asked."""

    async def body(service: Service, table: Table) -> None:
        (tmp_path / "share").chmod(0o755)
        async with tree_of(service, "alice", "data") as tree:
            file = await tree.create(NAME, 0x001F01FF, CreateDisposition.OPEN)
            (opened,) = service.server.opens.by_id.values()
            assert not opened.granted_access & 0x000D0156, "no right to write or to delete"
            assert opened.is_directory
            await tree.close(file)

    play(tmp_path, body)
