"""The file's own lease, and leases of the folder that a rename leads to: rows F and G of docs/caching.md.

One client holds a lease, another one operates. What waits is held up until the holder acknowledges.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from smb3server.wire import oplock_break
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, ShareAccess
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.query_info import InfoType
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import (
    ALL,
    RH,
    RW,
    RWH,
    FileId,
    Ground,
    Peer,
    R,
    act,
    close_body,
    key,
    lease,
    rename_to,
    set_info_body,
)
from tests.lab.wire_client import ioctl_body

READ, WRITE, DELETE = int(Access.READ_DATA), int(Access.WRITE_DATA), int(Access.DELETE)
ATTRIBUTES = int(Access.READ_ATTRIBUTES | Access.WRITE_ATTRIBUTES | Access.SYNCHRONIZE | Access.READ_CONTROL)
NOT_WRITE = int(ShareAccess.READ | ShareAccess.DELETE)
FOLDER, ON_CLOSE = int(CreateOptions.DIRECTORY_FILE), int(CreateOptions.DELETE_ON_CLOSE)
OPEN, OVERWRITE = int(CreateDisposition.OPEN), int(CreateDisposition.OVERWRITE)
HELD, OTHER = 1, 2
"""Lease keys."""


class Request(NamedTuple):
    """What the second client sends: a command, and its body, given its open of the file."""

    command: int
    body: Callable[[FileId], bytes]


def opening(**fields: int) -> Request:
    values = {"create_disposition": OPEN, "desired_access": READ, **fields}
    return Request(Command.CREATE, lambda _: Peer.request("f", **values))


def setting(level: int, data: bytes, kind: int = InfoType.FILE, more: int = 0) -> Request:
    return Request(Command.SET_INFO, lambda file: set_info_body(file, level, data, kind, more))


# A DACL with one entry: everyone, full access.
_DACL = struct.pack("<BBHHHBBHI", 2, 0, 28, 1, 0, 0, 0, 20, 0x001F01FF) + bytes.fromhex("010100000000000100000000")
SECURITY = setting(0, struct.pack("<BBHIIII", 1, 0, 0x8004, 0, 0, 0, 20) + _DACL, InfoType.SECURITY, 4)
WRITING = Request(Command.WRITE, lambda file: struct.pack("<HHIQ2QIIHHI", 49, 112, 1, 0, *file, 0, 0, 0, 0, 0) + b"x")
READING = Request(
    Command.READ, lambda file: struct.pack("<HBBIQ2QIIIHH", 49, 0x50, 0, 4, 0, *file, 0, 0, 0, 0, 0) + b"\0"
)
FLUSHING = Request(Command.FLUSH, lambda file: struct.pack("<HHI2Q", 24, 0, 0, *file))
ZEROING = Request(
    Command.IOCTL,
    lambda file: ioctl_body(Fsctl.SET_ZERO_DATA, struct.pack("<qq", 0, 5), struct.pack("<QQ", *file)),
)
CLOSING = Request(Command.CLOSE, close_body)


class Case(NamedTuple):
    row: str
    what: str
    request: Request
    held: int
    """The lease of the first client."""
    left: int
    """What the notification leaves of it; the same if there is none."""
    waits: bool = False
    on_close: bool = False
    """The second client's open has FILE_DELETE_ON_CLOSE."""
    shares: int = 7
    """ShareAccess of the first client."""
    status: int = 0


NO = int(NtStatus.SHARING_VIOLATION)
CASES = [
    Case("F1", "W is held", opening(), RWH, RH, waits=True),
    Case("F1", "W is not held", opening(), RH, RH),
    Case("F2", "only attributes", opening(desired_access=ATTRIBUTES), RWH, RWH),
    Case("F3", "RWH", opening(), RWH, RW, waits=True, shares=0, status=NO),
    Case("F3", "RH", opening(), RH, R, waits=True, shares=0, status=NO),
    Case("F4", "W is held", opening(create_disposition=OVERWRITE), RWH, 0, waits=True),
    Case("F4", "RH", opening(create_disposition=OVERWRITE), RH, 0),
    Case("F5", "WRITE", WRITING, RH, 0),
    Case("F5", "WRITE, R", WRITING, R, 0),
    Case("F6", "end of file, the same", setting(FileInfoClass.END_OF_FILE, struct.pack("<q", 10)), RH, 0),
    Case("F6", "allocation, the same", setting(FileInfoClass.ALLOCATION, struct.pack("<q", 10)), RH, 0),
    Case("F7", "rename", setting(FileInfoClass.RENAME, rename_to("renamed")), RH, R, waits=True),
    Case("F7", "rename to the same name", setting(FileInfoClass.RENAME, rename_to("f")), RH, R, waits=True),
    Case("F10", "hard link", setting(FileInfoClass.LINK, rename_to("link")), RH, RH),
    Case("F11", "set", setting(FileInfoClass.DISPOSITION, b"\1"), RH, R, waits=True),
    Case("F11", "withdrawn", setting(FileInfoClass.DISPOSITION, b"\0"), RH, RH),
    Case("F12", "security", SECURITY, RH, R, waits=True),
    Case("F15", "attributes", setting(FileInfoClass.BASIC, struct.pack("<4qII", 0, 0, 0, 0, 2, 0)), RH, RH),
    Case("F15", "write time", setting(FileInfoClass.BASIC, struct.pack("<4qII", 0, 0, 1 << 56, 0, 0, 0)), RH, RH),
    Case("F15", "EA", setting(FileInfoClass.FULL_EA, struct.pack("<IBBH", 0, 0, 1, 1) + b"A\0v"), RH, RH),
    Case("F16", "READ", READING, RH, RH),
    Case("F16", "FLUSH", FLUSHING, RH, RH),
    Case("F17", "zeros", ZEROING, RH, 0),
    Case("F18", "delete on close", CLOSING, RH, R, waits=True, on_close=True),
    Case("F18", "no deletion", CLOSING, RH, RH),
]


async def post(peer: Peer, request: Request, file: FileId) -> None:
    await peer.client.post(request.command, request.body(file))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}-{case.what}")
def test_breaks_of_the_files_own_lease(tmp_path: Path, case: Case) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        first = (await holder.make("f")).file
        assert await holder.write(first, bytes(10)) == 0
        assert await holder.close(first) == 0
        options = ON_CLOSE if case.on_close else 0
        file = (0, 0)
        if case.request.command != Command.CREATE:
            file = (await other.make("f", desired_access=ALL, create_options=options)).file
        made = await holder.make("f", lease(HELD, case.held), share_access=case.shares, desired_access=READ)
        assert made.state == case.held
        await post(other, case.request, file)
        assert await holder.told() == ([(HELD, case.held, case.left)] if case.left != case.held else [])
        if case.waits:
            assert await other.waits()
            assert await holder.acknowledge(HELD, case.left) == 0
        assert (await other.receive()).status == case.status
        # What does not wait may have asked for an acknowledgment all the same.
        if case.left != case.held and not case.waits and case.held != R:
            assert await holder.acknowledge(HELD, case.left) == 0

    act(tmp_path, scene)


@pytest.mark.parametrize(
    "request_of", [opening(create_disposition=OVERWRITE), WRITING, SECURITY], ids=["F4", "F5", "F12"]
)
def test_the_own_key_is_spared(tmp_path: Path, request_of: Request) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        file = (await client.make("f", lease(HELD, RWH), desired_access=ALL)).file
        if request_of.command == Command.CREATE:
            made = await client.make("f", lease(HELD, RWH), create_disposition=OVERWRITE)
            assert made.state == RWH
        else:
            await post(client, request_of, file)
            assert (await client.receive()).status == 0
        assert await client.told() == []

    act(tmp_path, scene)


@pytest.mark.parametrize("name", ["target", "target:s"])
@pytest.mark.parametrize("lets_go", [True, False], ids=["closes", "acknowledges"])
@pytest.mark.parametrize("level", [FileInfoClass.RENAME, FileInfoClass.LINK])
def test_f8_each_open_stream_of_a_replaced_file_loses_h(tmp_path: Path, name: str, lets_go: bool, level: int) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        for made in ("target", "target:s", "source"):
            assert await other.close((await other.make(made)).file) == 0
        held = await holder.make(name, lease(HELD, RH), desired_access=READ)
        file = (await other.make("source", desired_access=ALL)).file
        await other.client.post(Command.SET_INFO, set_info_body(file, level, rename_to("target")))
        assert await holder.told() == [(HELD, RH, R)]
        assert await other.waits()
        if lets_go:
            assert await holder.close(held.file) == 0
        else:
            assert await holder.acknowledge(HELD, R) == 0
        assert (await other.receive()).status == (0 if lets_go else NtStatus.ACCESS_DENIED)

    act(tmp_path, scene)


@pytest.mark.parametrize("lets_go", [True, False], ids=["closes", "acknowledges"])
def test_f9_all_opens_below_a_renamed_directory_are_asked_at_once(tmp_path: Path, lets_go: bool) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        for name in ("d", "d\\sub"):
            assert await other.close((await other.make(name, create_options=FOLDER)).file) == 0
        for name in ("d\\f", "d\\sub\\g"):
            assert await other.close((await other.make(name)).file) == 0
        first = await holder.make("d\\f", lease(HELD, RH), desired_access=READ)
        second = await holder.make("d\\sub\\g", lease(OTHER, RWH), desired_access=READ)
        folder = (await other.make("d", desired_access=ALL, create_options=FOLDER)).file
        await other.client.post(Command.SET_INFO, set_info_body(folder, FileInfoClass.RENAME, rename_to("e")))
        assert sorted(await holder.told()) == [(HELD, RH, R), (OTHER, RWH, RW)]
        for number, made, left in ((HELD, first, R), (OTHER, second, RW)):
            assert await other.waits()
            if lets_go:
                assert await holder.close(made.file) == 0
            else:
                assert await holder.acknowledge(number, left) == 0
        assert (await other.receive()).status == (0 if lets_go else NtStatus.ACCESS_DENIED)

    act(tmp_path, scene)


def test_f9_a_batch_oplock_below_a_renamed_directory_goes_altogether(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        folder = (await other.make("d", desired_access=ALL, create_options=FOLDER)).file
        held = await holder.make("d\\f", requested_oplock_level=int(OplockLevel.BATCH))
        await other.client.post(Command.SET_INFO, set_info_body(folder, FileInfoClass.RENAME, rename_to("e")))
        assert await holder.told() == []
        note = oplock_break.parse_notification(memoryview(holder.notifications[-1].message))
        assert isinstance(note, oplock_break.OplockBreak) and note.oplock_level == OplockLevel.NONE
        assert await other.waits()
        assert await holder.close(held.file) == 0
        assert (await other.receive()).status == 0

    act(tmp_path, scene)


def test_f13_a_lock_below_the_end_of_data_takes_everything(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        file = (await other.make("f")).file
        assert await other.write(file, bytes(10)) == 0
        await holder.make("f", lease(HELD, RH), desired_access=READ)
        assert await other.lock(file, 9) == 0
        assert await holder.told() == [(HELD, RH, 0)]

    act(tmp_path, scene)


@pytest.mark.parametrize("how", ["tree connect", "session", "connection"])
def test_f18_an_open_that_ends_with_its_client_deletes_without_waiting(tmp_path: Path, how: str) -> None:
    """As smb2.lease.initial_delete_tdis, _logoff and _disconnect have it."""

    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        held = await holder.make("f", lease(HELD, RH), desired_access=READ)
        await other.make("f", desired_access=ALL, create_options=ON_CLOSE)
        if how == "connection":
            await ground.lose(other)
        else:
            command = Command.LOGOFF if how == "session" else Command.TREE_DISCONNECT
            assert (await other.call(command, struct.pack("<HH", 4, 0))).status == 0
        assert await holder.told() == [(HELD, RH, R)]
        assert (ground.folder / "f").exists()
        assert await holder.close(held.file) == 0
        assert not (ground.folder / "f").exists()

    act(tmp_path, scene)


# A leased destination folder


async def folders_and_source(peer: Peer, level: int) -> tuple[FileId, bytes]:
    for name in ("from", "to"):
        assert await peer.close((await peer.make(name, create_options=FOLDER)).file) == 0
    file = (await peer.make("from\\f", desired_access=ALL)).file
    return file, set_info_body(file, level, rename_to("to\\f"))


BOTH_KINDS = pytest.mark.parametrize("level", [FileInfoClass.RENAME, FileInfoClass.LINK], ids=["rename", "link"])


@BOTH_KINDS
@pytest.mark.parametrize("same_session", [True, False])
@pytest.mark.parametrize(
    ("access", "share", "status"),
    [(READ, 7, 0), (READ, 3, 0), (READ, 5, NO), (READ | DELETE, 7, NO), (ATTRIBUTES, 0, 0)],
    ids=["reads", "does not share DELETE", "does not share WRITE", "DELETE", "only attributes"],
)
def test_g1_opens_of_the_folder(
    tmp_path: Path, access: int, share: int, status: int, same_session: bool, level: int
) -> None:
    async def scene(ground: Ground) -> None:
        other = await ground.peer()
        holder = other if same_session else await ground.peer()
        _, body = await folders_and_source(other, level)
        await holder.make("to", desired_access=access, share_access=share, create_options=FOLDER)
        assert (await other.call(Command.SET_INFO, body)).status == status

    act(tmp_path, scene)


@pytest.mark.parametrize("same_session", [True, False])
@pytest.mark.parametrize(("access", "share"), [(READ | DELETE, 7), (READ, NOT_WRITE)], ids=["DELETE", "not WRITE"])
def test_g1_another_client_that_watches_the_folder_may_have_it_open_for_deletion(
    tmp_path: Path, access: int, share: int, same_session: bool
) -> None:
    async def scene(ground: Ground) -> None:
        other = await ground.peer()
        watcher = other if same_session else await ground.peer()
        _, body = await folders_and_source(other, FileInfoClass.RENAME)
        folder = (await watcher.make("to", desired_access=access, share_access=share, create_options=FOLDER)).file
        await watcher.client.post(Command.CHANGE_NOTIFY, struct.pack("<HHI2QII", 32, 0, 1024, *folder, 1, 0))
        assert await watcher.waits()
        may = access & DELETE and not same_session
        assert (await other.call(Command.SET_INFO, body)).status == (0 if may else NO)

    act(tmp_path, scene)


@BOTH_KINDS
@pytest.mark.parametrize(("access", "share"), [(DELETE, 7), (READ, NOT_WRITE)], ids=["DELETE", "not WRITE"])
@pytest.mark.parametrize("lets_go", [False, True], ids=["stays", "closes"])
def test_g2_g3_g4_handle_caching_in_the_way_is_broken(
    tmp_path: Path, lets_go: bool, level: int, access: int, share: int
) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        _, body = await folders_and_source(other, level)
        held = await holder.make(
            "to", lease(HELD, RH), desired_access=access, share_access=share, create_options=FOLDER
        )
        assert held.state == RH
        await other.client.post(Command.SET_INFO, body)
        assert await holder.told() == [(HELD, RH, R)]
        assert await other.waits()
        if lets_go:
            assert await holder.close(held.file) == 0
        else:
            assert await holder.acknowledge(HELD, R) == 0
        assert (await other.receive()).status == (0 if lets_go else NO)
        if not lets_go:
            assert await holder.told() == [], "the folder did not change"

    act(tmp_path, scene)


@BOTH_KINDS
def test_g2_of_the_same_session(tmp_path: Path, level: int) -> None:
    """As smb2.dirlease.rename_dst_parent has it: the folder is open for DELETE."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        _, body = await folders_and_source(client, level)
        await client.make("to", lease(HELD, RH), desired_access=DELETE, create_options=FOLDER)
        await client.client.post(Command.SET_INFO, body)
        assert await client.told() == [(HELD, RH, R)]
        await client.client.post(
            Command.OPLOCK_BREAK,
            oplock_break.LEASE_BREAK.pack(oplock_break.LeaseBreak(lease_key=key(HELD), lease_state=R)),
        )
        replies = {reply.header.command: reply.status for reply in (await client.receive(), await client.receive())}
        assert replies == {Command.OPLOCK_BREAK: 0, Command.SET_INFO: NO}
        again = await client.make("to", lease(HELD, RH), desired_access=DELETE, create_options=FOLDER)
        assert again.state == RH, "the lease can be raised again"

    act(tmp_path, scene)


WAITING: list[tuple[str, Callable[[FileId], bytes], int, int]] = [
    ("rename", lambda file: set_info_body(file, FileInfoClass.RENAME, rename_to("renamed")), Command.SET_INFO, 0),
    ("disposition", lambda file: set_info_body(file, FileInfoClass.DISPOSITION, b"\1"), Command.SET_INFO, 0),
    ("security", SECURITY.body, Command.SET_INFO, 0),
    ("close", close_body, Command.CLOSE, ON_CLOSE),
]


@pytest.mark.parametrize(
    ("what", "body", "command", "options"), WAITING, ids=lambda value: value if isinstance(value, str) else ""
)
def test_g5_what_waits_for_h_sends_no_interim_reply(
    tmp_path: Path, what: str, body: Callable[[FileId], bytes], command: int, options: int
) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        file = (await other.make("f", desired_access=ALL, create_options=options)).file
        await holder.make("f", lease(HELD, RH), desired_access=READ)
        await other.client.post(command, body(file))
        assert await holder.told() == [(HELD, RH, R)]
        await asyncio.sleep(0.05)  # More than the delay of interim replies here.
        assert await other.waits()
        assert await holder.acknowledge(HELD, R) == 0
        assert (await other.receive()).status == 0
        assert other.pending == []

    act(tmp_path, scene)


def test_a_wait_for_h_does_not_hold_up_the_end_of_the_server(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        file = (await other.make("f", desired_access=ALL)).file
        await holder.make("f", lease(HELD, RH), desired_access=READ)
        await other.client.post(Command.SET_INFO, set_info_body(file, FileInfoClass.RENAME, rename_to("g")))
        assert await other.waits()
        async with asyncio.timeout(5):
            await ground.service.server.shutdown(30.0)
        assert (await other.receive()).status == NtStatus.CANCELLED
        assert (ground.folder / "f").exists()

    act(tmp_path, scene)


def test_a_wait_for_h_can_be_cancelled(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        file = (await other.make("f", desired_access=ALL)).file
        await holder.make("f", lease(HELD, RH), desired_access=READ)
        number = other.client.message_id
        await other.client.post(Command.SET_INFO, set_info_body(file, FileInfoClass.DISPOSITION, b"\1"))
        assert await other.waits()
        await other.client.post(Command.CANCEL, struct.pack("<HH", 4, 0), message_id=number)
        assert (await other.receive()).status == NtStatus.CANCELLED
        assert await holder.told() == [(HELD, RH, R)]
        assert await holder.acknowledge(HELD, R) == 0
        assert await other.close(file) == 0
        assert (ground.folder / "f").exists()

    act(tmp_path, scene)
