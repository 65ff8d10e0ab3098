"""Who is spared, and what a break of a directory's lease is: rows K2, K4, K5, B1 to B7 and P39 of docs/caching.md."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path

import pytest

from smb3server.backends.names import PRIVATE_NAME
from smb3server.wire import create_contexts, oplock_break
from smb3server.wire.create import CreateAction, CreateOptions, ShareAccess
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command, Header, HeaderFlags
from smb3server.wire.oplock_break import LeaseBreakNotification, OplockLevel
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import (
    ALL,
    RH,
    RWH,
    FileId,
    Ground,
    Made,
    Peer,
    R,
    act,
    durable,
    ground,
    key,
    lease,
    rename_to,
    set_info_body,
)
from tests.lab.rule_scene import reconnect as back_to

FOLDER, ON_CLOSE = int(CreateOptions.DIRECTORY_FILE), int(CreateOptions.DELETE_ON_CLOSE)
D, FILE, WRONG = 1, 2, 3
"""Lease keys: of the folder, of a file, and one that no lease has."""


async def hold(peer: Peer, state: int = RH, share: int = 7) -> FileId:
    """Lease the folder ``d``, which is made if needed."""
    made = await peer.make("d", lease(D, state), desired_access=0x00120089, share_access=share, create_options=FOLDER)
    assert made.state == state
    return made.file


async def change(peer: Peer, file: FileId, size: int) -> int:
    return await peer.set_info(file, FileInfoClass.END_OF_FILE, size.to_bytes(8, "little"))


def last(peer: Peer) -> tuple[Header, LeaseBreakNotification]:
    """The notification that came last."""
    reply = peer.notifications[-1]
    note = oplock_break.parse_notification(memoryview(reply.message))
    assert isinstance(note, LeaseBreakNotification)
    return reply.header, note


# Who is spared


def test_k2_without_the_flag_or_the_lease_level_there_is_no_key(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        await other.make("d", create_options=FOLDER)
        unflagged = create_contexts.LEASE_V2_CODEC.pack(create_contexts.LeaseV2(key(FILE), R, 0, 0, key(D)))
        for name, contexts, level in (
            ("flag", [create_contexts.RawContext(create_contexts.REQUEST_LEASE, unflagged)], 255),
            ("level", [lease(FILE, R, D)], 0),
        ):
            file = await hold(holder)
            assert (await other.create(f"d\\{name}", *contexts, requested_oplock_level=level)).status == 0
            assert await holder.told() == [(D, RH, 0)]
            assert await holder.close(file) == 0

    act(tmp_path, scene)


def test_k4_the_key_belongs_to_the_open(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        await other.make("d", create_options=FOLDER)
        first = await other.make("d\\f", lease(FILE, RWH, D))
        second = await other.make("d\\f", lease(FILE, RWH, WRONG))
        for made in (first, second):
            assert made.lease is not None and made.lease.parent_lease_key == key(D), "that of the first CREATE"
        await hold(holder)
        assert await change(other, first.file, 5) == 0
        assert await holder.told() == []
        assert await change(other, second.file, 6) == 0
        assert await holder.told() == [(D, RH, 0)]

    act(tmp_path, scene)


def test_k5_an_open_that_reconnects_keeps_its_key(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        await other.make("d", create_options=FOLDER)
        made = await other.make("d\\f", lease(FILE, RWH, D), durable(9))
        await hold(holder)
        other = await ground.comes_back(other)
        again = await other.make("d\\f", lease(FILE, RWH, WRONG), back_to(made.file, 9))
        assert await change(other, again.file, 5) == 0
        assert await holder.told() == []

    act(tmp_path, scene)


def test_k5_an_open_that_is_restored_keeps_its_key(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ground(tmp_path, continuous_availability=True) as place:
            other = await place.peer()
            assert await other.close((await other.make("d", create_options=FOLDER)).file) == 0
            made = await other.make("d\\f", lease(FILE, RWH, D), durable(9, persistent=True))
            guid = other.client.guid
        async with ground(tmp_path, continuous_availability=True) as place:
            holder, other = await place.peer(), await place.peer(guid)
            await hold(holder)
            again = await other.make("d\\f", lease(FILE, RWH, WRONG), back_to(made.file, 9, persistent=True))
            assert await change(other, again.file, 5) == 0
            assert await holder.told() == []
            assert await change(other, (await other.make("d\\f", lease(FILE, RWH))).file, 6) == 0
            assert await holder.told() == [(D, RH, 0)]

    asyncio.run(scene())


# What a break is


def test_b1_b2_b5_rh_becomes_none_with_an_acknowledgment_that_nobody_waits_for(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        made = await holder.make("d", lease(D, RH), create_options=FOLDER)
        assert made.lease is not None
        assert (await other.make("d\\f")).status == 0, "before the acknowledgment"
        assert await holder.told() == [(D, RH, 0)]
        assert last(holder)[1].flags == oplock_break.ACK_REQUIRED
        assert last(holder)[1].new_epoch == made.lease.epoch + 1
        assert await holder.acknowledge(D, 0) == 0
        again = await holder.make("d", lease(D, RH), create_options=FOLDER)
        assert again.lease is not None and (again.state, again.lease.epoch) == (RH, made.lease.epoch + 2)

    act(tmp_path, scene)


def test_b3_r_becomes_none_without_an_acknowledgment(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        await hold(holder, R)
        await other.make("d\\f")
        assert await holder.told() == [(D, R, 0)]
        assert last(holder)[1].flags == 0
        again = await holder.make("d", lease(D, R), create_options=FOLDER)
        assert again.lease is not None and not again.lease.flags & create_contexts.LeaseFlags.BREAK_IN_PROGRESS
        assert await holder.acknowledge(D, 0) == NtStatus.UNSUCCESSFUL

    act(tmp_path, scene)


def test_b4_a_break_to_r_goes_on_to_none_after_its_acknowledgment(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other, third = await ground.peer(), await ground.peer(), await ground.peer()
        await hold(holder, RH, share=int(ShareAccess.READ))
        file = (await other.make("f", desired_access=ALL)).file
        rename = set_info_body(file, FileInfoClass.RENAME, rename_to("d\\f"))
        await other.client.post(Command.SET_INFO, rename)
        assert await holder.told() == [(D, RH, R)]
        epoch = last(holder)[1].new_epoch
        await third.make("d\\new")
        assert await holder.told() == [], "no second notification before the acknowledgment"
        assert await holder.acknowledge(D, R) == 0
        assert await holder.told() == [(D, R, 0)]
        # Windows counts the steps of one break once (smb2.lease.v2_breaking3).
        assert (last(holder)[1].flags, last(holder)[1].new_epoch) == (0, epoch)
        assert (await other.receive()).status == NtStatus.SHARING_VIOLATION

    act(tmp_path, scene)


def test_b6_the_notification_belongs_to_no_session_and_is_not_signed(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        first, other = await ground.peer(), await ground.peer()
        second = await ground.peer(first.client.guid)
        await hold(first)
        await hold(second)
        await ground.lose(first)
        await other.make("d\\f")
        assert await second.told() == [(D, RH, 0)], "by another connection of the client"
        header = last(second)[0]
        assert (header.session_id, header.tree_id, header.message_id) == (0, 0, 0xFFFFFFFFFFFFFFFF)
        assert not header.flags & HeaderFlags.SIGNED and header.signature == bytes(16)

    act(tmp_path, scene)


def test_b7_the_break_comes_right_behind_the_reply(tmp_path: Path) -> None:
    """MS-SMB2 3.3.4.7 does not say when. Windows answers the change first: smb2.dirlease.rename, unlink_different_*."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        await hold(client)
        await client.client.post(Command.CREATE, client.request("d\\f"))
        assert Made(await client.client.receive()).status == 0
        assert client.is_notification(await client.client.receive())
        assert client.breaks == [(D, RH, 0)]

    act(tmp_path, scene)


# Deletions


@pytest.mark.parametrize("parent", [D, WRONG])
@pytest.mark.parametrize("on_close", [True, False], ids=["delete on close", "disposition"])
def test_p39_an_open_that_expires_deletes_as_a_close_does(tmp_path: Path, parent: int, on_close: bool) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        await other.make("d", create_options=FOLDER)
        options = ON_CLOSE if on_close else 0
        made = await other.make(
            "d\\f", lease(FILE, RWH, parent), durable(9, timeout=50), desired_access=ALL, create_options=options
        )
        if not on_close:
            assert await other.set_info(made.file, FileInfoClass.DISPOSITION, b"\1") == 0
        await hold(holder)
        await ground.lose(other)
        assert await holder.told() == []
        async with asyncio.timeout(5):
            while (ground.folder / "d" / "f").exists():
                await asyncio.sleep(0.01)
        assert await holder.told() == ([] if parent == D else [(D, RH, 0)])

    act(tmp_path, scene)


@pytest.mark.parametrize("how", ["disposition", "delete on close"])
@pytest.mark.parametrize("last_by", ["d\\a", "d\\b"])
def test_p37_each_hard_link_is_deleted_with_its_own_last_close(tmp_path: Path, how: str, last_by: str) -> None:
    """Both names are to be deleted, and a stream of one of them stays open longest."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        await client.make("d", create_options=FOLDER)
        file = (await client.make("d\\a", desired_access=ALL)).file
        assert await client.set_info(file, FileInfoClass.LINK, rename_to("d\\b")) == 0
        assert await client.close(file) == 0
        stream = (await client.make(f"{last_by}:s", desired_access=ALL)).file
        options = ON_CLOSE if how == "delete on close" else 0
        for name in ("d\\a", "d\\b"):
            file = (await client.make(name, desired_access=ALL, create_options=options)).file
            if not options:
                assert await client.set_info(file, FileInfoClass.DISPOSITION, b"\1") == 0
                assert (await client.create(name)).status == NtStatus.DELETE_PENDING
            assert await client.close(file) == 0
        left = [path.name for path in (ground.folder / "d").iterdir()]
        assert left == [last_by[-1]]
        assert (await client.create(last_by)).status == NtStatus.DELETE_PENDING
        assert await client.close(stream) == 0
        assert not list((ground.folder / "d").iterdir())
        assert len(ground.service.server.file_table) == 1, "only the folder is open"

    act(tmp_path, scene)


def test_p37_a_withdrawn_deletion_keeps_its_name_only(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        first = (await client.make("a", desired_access=ALL)).file
        assert await client.set_info(first, FileInfoClass.LINK, rename_to("b")) == 0
        second = (await client.make("b", desired_access=ALL)).file
        for file in (first, second):
            assert await client.set_info(file, FileInfoClass.DISPOSITION, b"\1") == 0
        assert await client.set_info(second, FileInfoClass.DISPOSITION, b"\0") == 0
        assert await client.close(first) == 0
        assert await client.close(second) == 0
        assert [path.name for path in ground.folder.iterdir()] == ["b"]

    act(tmp_path, scene)


def test_p37_of_a_persistent_open_outlives_the_server(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ground(tmp_path, continuous_availability=True) as place:
            client = await place.peer()
            made = await client.make("a", durable(9, persistent=True), desired_access=ALL)
            assert await client.set_info(made.file, FileInfoClass.LINK, rename_to("b")) == 0
            assert await client.set_info(made.file, FileInfoClass.DISPOSITION, b"\1") == 0
            guid = client.client.guid
        async with ground(tmp_path, continuous_availability=True) as place:
            client = await place.peer(guid)
            other = await place.peer()
            again = await client.make("a", back_to(made.file, 9, persistent=True))
            kept = (await other.make("b")).file
            assert (await other.create("a")).status == NtStatus.DELETE_PENDING
            assert await client.close(again.file) == 0
            assert {path.name for path in place.folder.iterdir()} - {PRIVATE_NAME} == {"b"}
            assert await other.close(kept) == 0
            assert {path.name for path in place.folder.iterdir()} - {PRIVATE_NAME} == {"b"}

    asyncio.run(scene())


def test_p36_a_name_that_is_gone_is_not_deleted_again(tmp_path: Path) -> None:
    """Another file has the name when the last open of the deleted one is closed, which was to delete it, too."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        left = (await client.make("f", desired_access=ALL)).file
        file = (await client.make("f", desired_access=ALL)).file
        assert await client.set_info(file, FileInfoClass.DISPOSITION_EX, (3).to_bytes(4, "little")) == 0
        assert (await client.create("f")).status == NtStatus.DELETE_PENDING
        assert await client.close(file) == 0
        assert not (ground.folder / "f").exists()
        standard = (await client.query_info(left, FileInfoClass.STANDARD)).body[8:]
        assert standard[16:21] == bytes([0, 0, 0, 0, 1]), "no link, and deleted"
        assert await client.close((await client.make("f")).file) == 0
        assert await client.set_info(left, FileInfoClass.DISPOSITION, b"\1") != 0
        assert await client.close(left) == 0
        assert (ground.folder / "f").exists()

    act(tmp_path, scene)


def test_host_a_held_up_server_still_knows_its_own_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("own_changes", "watch"):
        monkeypatch.setattr(f"smb3server.backends.local.{module}.SECONDS", 0.05)

    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        await other.make("d", create_options=FOLDER)
        file = (await other.make("d\\f", lease(FILE, RWH, D))).file
        await hold(holder)
        hidden = struct.pack("<4qII", 0, 0, 0, 0, 2, 0)
        assert await other.set_info(file, FileInfoClass.BASIC, hidden) == 0
        time.sleep(0.1)  # The event loop is held up.
        assert await holder.told() == []
        (ground.folder / "d" / "mark").touch()
        async with asyncio.timeout(5):
            while not await holder.told():
                await asyncio.sleep(0.01)

    act(tmp_path, scene)


def test_k1_two_clients_with_one_key_have_two_leases_of_a_file(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        await holder.make("f", lease(FILE, RWH))
        await other.client.post(Command.CREATE, other.request("f", lease(FILE, RWH)))
        assert await holder.told() == [(FILE, RWH, RH)]
        assert await other.waits()
        assert await holder.acknowledge(FILE, RH) == 0
        assert Made(await other.receive()).state == RH

    act(tmp_path, scene)


def test_f20_acknowledgments_that_nobody_asked_for(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        await client.make("f", lease(FILE, RWH))
        assert await client.acknowledge(FILE, R) == NtStatus.UNSUCCESSFUL
        made = await client.make("g", requested_oplock_level=int(OplockLevel.BATCH))
        body = oplock_break.OPLOCK_BREAK.pack(oplock_break.OplockBreak(24, OplockLevel.II, 0, 0, *made.file))
        # 3.3.5.22.1: the oplock is held and not breaking.
        assert (await client.call(Command.OPLOCK_BREAK, body)).status == NtStatus.INVALID_DEVICE_STATE
        wrong = oplock_break.OPLOCK_BREAK.pack(oplock_break.OplockBreak(24, OplockLevel.BATCH, 0, 0, *made.file))
        assert (await client.call(Command.OPLOCK_BREAK, wrong)).status == NtStatus.INVALID_OPLOCK_PROTOCOL
        none = await client.make("h")
        body = oplock_break.OPLOCK_BREAK.pack(oplock_break.OplockBreak(24, OplockLevel.II, 0, 0, *none.file))
        assert (await client.call(Command.OPLOCK_BREAK, body)).status == NtStatus.INVALID_DEVICE_STATE
        leased = oplock_break.OPLOCK_BREAK.pack(oplock_break.OplockBreak(24, OplockLevel.LEASE, 0, 0, *made.file))
        assert (await client.call(Command.OPLOCK_BREAK, leased)).status == NtStatus.INVALID_PARAMETER
        assert await client.close(made.file) == 0
        # 3.3.5.22.1 looks for the open before anything else.
        assert (await client.call(Command.OPLOCK_BREAK, leased)).status == NtStatus.FILE_CLOSED

    act(tmp_path, scene)


@pytest.mark.parametrize(
    ("level", "status"),
    [(OplockLevel.LEASE, NtStatus.INVALID_PARAMETER), (OplockLevel.BATCH, NtStatus.INVALID_OPLOCK_PROTOCOL)],
)
def test_f21_an_acknowledgment_of_a_wrong_level_ends_the_break(
    tmp_path: Path, level: OplockLevel, status: NtStatus
) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        made = await holder.make("f", requested_oplock_level=int(OplockLevel.BATCH))
        await other.client.post(Command.CREATE, other.request("f"))
        assert await other.waits()
        body = oplock_break.OPLOCK_BREAK.pack(oplock_break.OplockBreak(24, level, 0, 0, *made.file))
        assert (await holder.call(Command.OPLOCK_BREAK, body)).status == status
        async with asyncio.timeout(5):
            assert (await other.receive()).status == 0
        late = oplock_break.OPLOCK_BREAK.pack(oplock_break.OplockBreak(24, OplockLevel.NONE, 0, 0, *made.file))
        assert (await holder.call(Command.OPLOCK_BREAK, late)).status == NtStatus.INVALID_OPLOCK_PROTOCOL

    act(tmp_path, scene)


@pytest.mark.parametrize("links", [1, 2])
def test_p39_an_absent_open_that_gives_way_deletes_its_name_first(tmp_path: Path, links: int) -> None:
    """As smb2.durable-open.delete_on_close1 has it: the CREATE that ends the absent open makes a new file."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make(
            "f", lease(FILE, RWH), durable(9), desired_access=ALL, create_options=ON_CLOSE, share_access=0
        )
        assert await client.write(made.file, b"old") == 0
        if links > 1:
            assert await client.set_info(made.file, FileInfoClass.LINK, rename_to("link")) == 0
        client = await ground.comes_back(client)
        again = await client.make("f")
        assert (again.answer.create_action, again.answer.end_of_file) == (CreateAction.CREATED, 0)
        assert (ground.folder / "link").exists() == (links > 1)

    act(tmp_path, scene)


def test_p36_one_of_several_names_goes_with_the_open_that_asked_for_it(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        left = (await client.make("f", desired_access=ALL)).file
        assert await client.set_info(left, FileInfoClass.LINK, rename_to("link")) == 0
        file = (await client.make("f", desired_access=ALL)).file
        assert await client.set_info(file, FileInfoClass.DISPOSITION_EX, (3).to_bytes(4, "little")) == 0
        assert await client.close(file) == 0
        assert [path.name for path in ground.folder.iterdir()] == ["link"]
        assert await client.write(left, b"still there") == 0
        assert await client.close(left) == 0
        assert (ground.folder / "link").read_bytes() == b"still there"

    act(tmp_path, scene)
