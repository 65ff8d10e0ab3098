"""Every operation with a user who has every right but one, and with one who has just enough: ``rights_table``.

On the local backend the host lets everybody do everything, so the descriptors alone decide.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from smb3server.access.descriptor import (
    BUILTIN_GUESTS,
    BUILTIN_USERS,
    EVERYONE,
    Ace,
    AceType,
    Acl,
    Control,
    SecurityDescriptor,
    Sid,
    allow,
)
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.access.posix import IdMap
from smb3server.auth.users import Account, nt_hash
from smb3server.backends.base import Backend, Disposition, Handle, Kind, OpenRequest, User
from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.reparse import symlink_buffer
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.settings.server import Settings
from smb3server.state.share import Share
from smb3server.wire import create, file_info, fsctl, lock, query_directory, read_write
from smb3server.wire.close import CLOSE_REQUEST, CloseRequest
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, CreateRequest
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.file_info import DispositionFlags, FileInfoClass, RenameInformation
from smb3server.wire.flush import FLUSH_REQUEST, FlushRequest
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.query_info import InfoType, SecurityInformation
from smb3server.wire.set_info import SetInfoRequest, build_set_info_request
from smb3server.wire.status import NtStatus
from tests.lab import rights_table
from tests.lab.rights_table import OBJECTS, TABLE, Right, Row
from tests.lab.wire_client import Client, Harness, ioctl_body, running

IDS = IdMap()
ME = User(54321, 54321, (54323,))
STRANGER = IDS.user_sid(60000)
MAXIMUM = int(Access.MAXIMUM_ALLOWED)
READ_ATTRIBUTES = int(Access.READ_ATTRIBUTES)
ON_CLOSE = int(CreateOptions.DELETE_ON_CLOSE)
FOLDER = int(CreateOptions.DIRECTORY_FILE)
REPARSE = int(CreateOptions.OPEN_REPARSE_POINT)
CONTENT = bytes(range(200)) * 50
FileId = tuple[int, int]
OPEN, CREATE, OPEN_IF, OVERWRITE, OVERWRITE_IF, SUPERSEDE = (
    CreateDisposition.OPEN,
    CreateDisposition.CREATE,
    CreateDisposition.OPEN_IF,
    CreateDisposition.OVERWRITE,
    CreateDisposition.OVERWRITE_IF,
    CreateDisposition.SUPERSEDE,
)


class Refused(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(hex(status))
        self.status = status


class Actor:
    """A client at work in one folder of the share; whatever is refused raises ``Refused``."""

    def __init__(self, client: Client, base: str) -> None:
        self.client = client
        self.base = base

    async def call(self, command: int, body: bytes) -> Any:
        reply = await self.client.call(command, body)
        if reply.status:
            raise Refused(reply.status)
        return reply

    async def open(
        self,
        name: str,
        access: int = MAXIMUM,
        disposition: int = OPEN,
        options: int = 0,
        contexts: list[RawContext] | None = None,
    ) -> FileId:
        record = CreateRequest(
            desired_access=access, share_access=7, create_disposition=disposition, create_options=options
        )
        path = f"{self.base}\\{name}" if self.base else name
        body = create.pack_request(record, path, contexts or [])
        answer, _ = create.parse_response(memoryview((await self.call(Command.CREATE, body)).message))
        return answer.persistent, answer.volatile

    async def close(self, file: FileId) -> None:
        await self.call(Command.CLOSE, CLOSE_REQUEST.pack(CloseRequest(24, 0, 0, *file)))

    @asynccontextmanager
    async def opened(self, name: str, access: int = MAXIMUM, options: int = 0) -> AsyncIterator[FileId]:
        file = await self.open(name, access, OPEN, options)
        try:
            yield file
        finally:
            await self.close(file)

    async def set_info(self, file: FileId, level: int, data: bytes, kind: int = InfoType.FILE, parts: int = 0) -> None:
        record = SetInfoRequest(
            info_type=kind, info_class=level, additional_information=parts, persistent=file[0], volatile=file[1]
        )
        await self.call(Command.SET_INFO, build_set_info_request(record, data))

    async def query_info(self, file: FileId, level: int, kind: int = InfoType.FILE, parts: int = 0) -> bytes:
        body = struct.pack("<HBBIHHIIIQQ", 41, kind, level, 65536, 0, 0, 0, parts, 0, *file) + b"\0"
        reply = await self.call(Command.QUERY_INFO, body)
        _, offset, length = struct.unpack_from("<HHI", reply.body)
        return bytes(reply.message[offset : offset + length])

    async def control(self, file: FileId, code: int, data: bytes = b"") -> bytes:
        reply = await self.call(Command.IOCTL, ioctl_body(code, data, struct.pack("<QQ", *file)))
        offset, length = struct.unpack_from("<II", reply.body, 32)
        return bytes(reply.message[offset : offset + length])


Act = Callable[[Actor], Awaitable[None]]
ACTS: dict[str, Act] = {}


def operation(name: str) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        ACTS[name] = act
        return act

    return register


def _create(operation_name: str, name: str, access: int, disposition: int, options: int = 0) -> None:
    async def act(actor: Actor) -> None:
        await actor.close(await actor.open(name, access, disposition, options))

    ACTS[operation_name] = act


for _row in TABLE:
    if _row.operation.startswith("open for "):
        _create(_row.operation, "folder\\file", rights_table.RIGHTS[_row.operation.removeprefix("open for ")], OPEN)
_create("open a stream for WRITE_DATA", "folder\\file:s", int(Access.WRITE_DATA), OPEN)
_create("create a file", "folder\\new", READ_ATTRIBUTES, CREATE)
_create("open or create a file", "folder\\new", MAXIMUM, OPEN_IF)
_create("overwrite or create a file", "folder\\new", READ_ATTRIBUTES, OVERWRITE_IF)
_create("create a folder", "folder\\new", READ_ATTRIBUTES, CREATE, FOLDER)
_create("create a stream", "folder\\file:new", READ_ATTRIBUTES, CREATE)
_create("open or create a stream", "folder\\file:new", MAXIMUM, OPEN_IF)
_create("create a stream for WRITE_DAC", "folder\\file:new", int(Access.WRITE_DAC), CREATE)
_create("create a stream for WRITE_OWNER", "folder\\file:new", int(Access.WRITE_OWNER), CREATE)
_create("create a stream, deleted on close", "folder\\file:new", MAXIMUM, CREATE, ON_CLOSE)
_create("create a stream of a folder", "folder\\inner:new", READ_ATTRIBUTES, CREATE)
_create("create a stream of a missing file", "folder\\new:new", READ_ATTRIBUTES, CREATE)
_create("overwrite a file", "folder\\file", READ_ATTRIBUTES, OVERWRITE)
_create("overwrite a stream", "folder\\file:s", READ_ATTRIBUTES, OVERWRITE)
_create("supersede a file", "folder\\file", READ_ATTRIBUTES, SUPERSEDE)
_create("delete on close, with MAXIMUM_ALLOWED", "folder\\file", MAXIMUM, OPEN, ON_CLOSE)
_create("delete on close, with DELETE", "folder\\file", int(Access.DELETE), OPEN, ON_CLOSE)
_create("delete a stream on close", "folder\\file:s", MAXIMUM, OPEN, ON_CLOSE)
_create("delete a folder on close", "folder\\inner", MAXIMUM, OPEN, ON_CLOSE | FOLDER)


def _set(operation_name: str, level: int, data: bytes, name: str = "folder\\file", parts: int = -1) -> None:
    async def act(actor: Actor) -> None:
        async with actor.opened(name) as file:
            if parts >= 0:
                await actor.set_info(file, 0, data, InfoType.SECURITY, parts)
            else:
                await actor.set_info(file, level, data)

    ACTS[operation_name] = act


_set("set times and attributes", FileInfoClass.BASIC, struct.pack("<4QII", 0, 0, 132000000000000000, 0, 2, 0))
_set("set end of file", FileInfoClass.END_OF_FILE, struct.pack("<Q", 3))
_set("set allocation size", FileInfoClass.ALLOCATION, struct.pack("<Q", 0))
_set("set extended attributes", FileInfoClass.FULL_EA, b"".join(file_info.encode_eas([file_info.EaEntry(b"N", b"v")])))
_set("set disposition", FileInfoClass.DISPOSITION, b"\1")
_set("set disposition, extended", FileInfoClass.DISPOSITION_EX, struct.pack("<I", DispositionFlags.DELETE))


def _name(operation_name: str, level: int, source: str, target: str, flags: int = 0) -> None:
    async def act(actor: Actor) -> None:
        name = target if target.startswith(":") else f"{actor.base}\\{target}"
        async with actor.opened(source) as file:
            await actor.set_info(file, level, file_info.encode_rename(RenameInformation(flags, 0, name)))

    ACTS[operation_name] = act


_name("rename into another folder", FileInfoClass.RENAME, "folder\\file", "there\\new")
_name("rename within the folder", FileInfoClass.RENAME, "folder\\file", "folder\\new")
_name("rename a folder", FileInfoClass.RENAME, "folder\\inner", "there\\new")
_name("rename over a file", FileInfoClass.RENAME, "folder\\file", "there\\target", 1)
_name("rename a stream", FileInfoClass.RENAME, "folder\\file:s", ":new")
_name("link", FileInfoClass.LINK, "folder\\file", "there\\new")
_name("link over a file", FileInfoClass.LINK, "folder\\file", "there\\target", 1)


def self_relative(**parts: Any) -> bytes:
    return SecurityDescriptor(**parts).pack()


LABEL = Ace(AceType.MANDATORY_LABEL, 0, 1, Sid(16, (8192,)))
AUDIT = Ace(AceType.AUDIT, 0xC0, FILE_ALL_ACCESS, EVERYONE)
_set("set the owner", 0, self_relative(owner=EVERYONE), parts=SecurityInformation.OWNER)
_set("set the group", 0, self_relative(group=BUILTIN_GUESTS), parts=SecurityInformation.GROUP)
_set("set the DACL", 0, self_relative(dacl=Acl((allow(EVERYONE, FILE_ALL_ACCESS),))), parts=SecurityInformation.DACL)
_set("set the mandatory label", 0, self_relative(sacl=Acl((LABEL,))), parts=SecurityInformation.LABEL)
_set("set the SACL", 0, self_relative(sacl=Acl((AUDIT,))), parts=SecurityInformation.SACL)


def _query(operation_name: str, level: int, kind: int = InfoType.FILE, parts: int = 0) -> None:
    async def act(actor: Actor) -> None:
        async with actor.opened("folder\\file") as file:
            await actor.query_info(file, level, kind, parts)

    ACTS[operation_name] = act


_query("query owner, group and DACL", 0, InfoType.SECURITY, 7)
_query("query the SACL", 0, InfoType.SECURITY, SecurityInformation.SACL)
_query("query extended attributes", FileInfoClass.FULL_EA)
_query("query times and attributes", FileInfoClass.BASIC)


@operation("list a folder")
async def _(actor: Actor) -> None:
    async with actor.opened("folder\\inner") as file:
        record = query_directory.QueryDirectoryRequest(
            info_class=FileInfoClass.NAMES,
            persistent=file[0],
            volatile=file[1],
            file_name_length=2,
            output_buffer_length=4096,
        )
        body = query_directory.QUERY_DIRECTORY_REQUEST.pack(record) + "*".encode("utf-16-le")
        await actor.call(Command.QUERY_DIRECTORY, body)


@operation("read")
async def _(actor: Actor) -> None:
    async with actor.opened("folder\\file") as file:
        record = read_write.ReadRequest(length=10, persistent=file[0], volatile=file[1])
        await actor.call(Command.READ, read_write.READ_REQUEST.pack(record) + b"\0")


def _write(operation_name: str, offset: int) -> None:
    async def act(actor: Actor) -> None:
        async with actor.opened("folder\\file") as file:
            record = read_write.WriteRequest(
                data_offset=112, length=3, offset=offset, persistent=file[0], volatile=file[1]
            )
            await actor.call(Command.WRITE, read_write.WRITE_REQUEST.pack(record) + b"new")

    ACTS[operation_name] = act


_write("write", 1)
_write("append", len(CONTENT))


@operation("flush")
async def _(actor: Actor) -> None:
    async with actor.opened("folder\\file") as file:
        await actor.call(Command.FLUSH, FLUSH_REQUEST.pack(FlushRequest(24, 0, 0, *file)))


@operation("lock")
async def _(actor: Actor) -> None:
    async with actor.opened("folder\\file") as file:
        record = lock.LockRequest(persistent=file[0], volatile=file[1])
        elements = [lock.LockElement(0, 1, lock.LockFlags.EXCLUSIVE_LOCK | lock.LockFlags.FAIL_IMMEDIATELY)]
        await actor.call(Command.LOCK, lock.pack_request(record, elements))


@operation("watch a folder")
async def _(actor: Actor) -> None:
    client, file = actor.client, await actor.open("folder\\inner")
    await client.post(Command.CHANGE_NOTIFY, struct.pack("<HHI2QII", 32, 0, 4096, *file, 3, 0))
    answer = (await client.receive()).status
    await client.post(Command.CLOSE, CLOSE_REQUEST.pack(CloseRequest(24, 0, 0, *file)))
    for _ in range(2 if answer == NtStatus.PENDING else 1):
        await client.receive()
    if answer != NtStatus.PENDING:
        raise Refused(answer)


def _control(operation_name: str, code: int, data: bytes) -> None:
    async def act(actor: Actor) -> None:
        async with actor.opened("folder\\file") as file:
            await actor.control(file, code, data)

    ACTS[operation_name] = act


_control("query allocated ranges", Fsctl.QUERY_ALLOCATED_RANGES, struct.pack("<QQ", 0, 10))
_control("set sparse", Fsctl.SET_SPARSE, b"\1")
_control("set zero data", Fsctl.SET_ZERO_DATA, struct.pack("<QQ", 1, 5))
_control("trim", Fsctl.FILE_LEVEL_TRIM, struct.pack("<IIQQ", 0, 1, 0, 8192))
_control("set a reparse point", Fsctl.SET_REPARSE_POINT, symlink_buffer("elsewhere"))
_control("set compression", Fsctl.SET_COMPRESSION, struct.pack("<H", 0))


def _copy(operation_name: str, code: int, target_offset: int) -> None:
    async def act(actor: Actor) -> None:
        async with actor.opened("there\\target") as source, actor.opened("folder\\file") as file:
            key = (await actor.control(source, Fsctl.SRV_REQUEST_RESUME_KEY))[:24]
            chunks = [fsctl.CopyChunk(0, target_offset, 5)]
            await actor.control(file, code, fsctl.encode_copy_chunks(key, chunks))

    ACTS[operation_name] = act


_copy("copy chunks from another file", Fsctl.SRV_COPYCHUNK, 1)
_copy("copy chunks to the end, write only", Fsctl.SRV_COPYCHUNK_WRITE, len(CONTENT))


# The share


class World(NamedTuple):
    """A server, and clients at its shares of one store."""

    runner: asyncio.Runner
    backend: Backend
    root: Path | None
    user: Client
    guest: Client
    at_read_only: Client
    numbers: Iterator[int]


async def _client(harness: Harness, user: str, password: str, share: str) -> Client:
    client = await harness.connect()
    await client.negotiate()
    assert (await client.session_setup(user, password)).status == 0
    assert (await client.tree_connect(share)).status == 0
    return client


@pytest.fixture(scope="module", params=["memory", "local"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = None
    backend: Backend = MemoryBackend()
    if request.param == "local":
        root = tmp_path_factory.mktemp("share")
        for folder in (root, *root.parents):
            if folder != Path("/") and folder.stat().st_uid == os.geteuid():
                folder.chmod(folder.stat().st_mode | 0o755)
        root.chmod(0o777)
        backend = LocalBackend(root)
    with asyncio.Runner() as runner:
        manager = running(Settings(allow_guest=True))
        harness = runner.run(manager.__aenter__())
        try:
            server = harness.server
            server.users.add(Account("u", nt_hash("pw"), ME))
            server.add_share(Share("disk", backend=backend))
            server.add_share(Share("public", backend=backend, guest_ok=True, user=User(54329, 54329)))
            server.add_share(Share("frozen", backend=backend, read_only=True))
            clients = [
                runner.run(_client(harness, name, "pw", share))
                for name, share in (("u", "disk"), ("somebody", "public"), ("u", "frozen"))
            ]
            yield World(runner, backend, root, *clients, itertools.count())
            for entry in list(server.global_open_table.values()):
                entry.close()
        finally:
            runner.run(manager.__aexit__(None, None, None))
            backend.close()


def _make(backend: Backend, path: tuple[str, ...], directory: bool) -> Handle:
    return backend.open(
        OpenRequest(path, disposition=Disposition.CREATE, write=not directory, directory=True if directory else None)
    )


PATHS = {
    "folder": ("folder",),
    "there": ("there",),
    "file": ("folder", "file"),
    "inner": ("folder", "inner"),
    "target": ("there", "target"),
}


def build(world: World, masks: dict[str, int], who: Sid) -> str:
    """A new folder with the table's objects; ``who`` has these rights on them. Its name."""
    backend, base = world.backend, f"c{next(world.numbers)}"
    _make(backend, (base,), True).close()
    for name, path in PATHS.items():
        directory = name in ("folder", "there", "inner")
        handle = _make(backend, (base, *path), directory)
        if not directory:
            handle.write_from([CONTENT], 0)
            handle.set_ea(b"EA", b"value")
            stream = backend.open(OpenRequest((base, *path), "s", Disposition.CREATE, True, True))
            stream.write_from([b"stream"], 0)
            stream.close()
        dacl = Acl((allow(who, masks.get(name, FILE_ALL_ACCESS)), allow(STRANGER, FILE_ALL_ACCESS)))
        control = int(Control.DACL_PRESENT | Control.SELF_RELATIVE)
        handle.set_security_descriptor(SecurityDescriptor(STRANGER, EVERYONE, dacl, None, control).pack())
        handle.set_times(last_write=131000000000000000)
        handle.close()
    if world.root is not None:
        for folder, _, files in os.walk(world.root / base):
            Path(folder).chmod(0o777)
            for file in files:
                (Path(folder) / file).chmod(0o666)
                if os.geteuid() == 0:
                    # The user's own, so that the host lets him do what it keeps for owners.
                    os.chown(Path(folder) / file, ME.uid, ME.gid)
    return base


def snapshot(backend: Backend, path: tuple[str, ...]) -> Any:
    """All that can be told of a file and what is below it, but for the time of the last access."""
    handle = backend.open(OpenRequest(path, open_reparse_point=True))
    try:
        info = handle.info()
        told: list[Any] = [info.kind, info.attributes, info.end_of_file, info.last_write_time, info.creation_time]
        told += [info.link_count, info.mode, info.uid, info.gid, info.reparse_tag, handle.reparse_point()]
        told += [sorted(handle.eas()), handle.security_descriptor()]
        names = [stream.name for stream in handle.streams()]
        if info.kind == Kind.DIRECTORY:
            children = sorted(entry.name for entry in handle.scan() if entry.name not in (".", ".."))
            told.append([(name, snapshot(backend, (*path, name))) for name in children])
    finally:
        handle.close()
    for name in sorted(names):
        with_data = backend.open(OpenRequest(path, name, read=True))
        try:
            buffer = bytearray(with_data.info().end_of_file)
            with_data.read_into([memoryview(buffer)], 0)
            told.append((name, bytes(buffer)))
        finally:
            with_data.close()
    return told


def attempt(world: World, client: Client, row: Row, masks: dict[str, int], who: Sid) -> tuple[int, bool]:
    """The status an operation ended with, and whether anything is different now."""
    base = build(world, masks, who)
    before = snapshot(world.backend, (base,))
    status = 0
    try:
        world.runner.run(ACTS[row.operation](Actor(client, base)))
    except Refused as refused:
        status = refused.status
    return status, snapshot(world.backend, (base,)) != before


def without(rights: tuple[Right, ...]) -> dict[str, int]:
    masks = dict.fromkeys(OBJECTS, FILE_ALL_ACCESS)
    for right in rights:
        masks[right.object] &= ~right.mask
    return masks


LEAVES_NO_TRACE = {"create a stream, deleted on close", "flush", "set compression"} | {
    row.operation for row in TABLE if row.operation.startswith("open")
} - {"open or create a file", "open or create a stream"}
"""What changes nothing that lasts even if it is allowed."""


def _traces(row: Row) -> bool:
    return row.changes and row.operation not in LEAVES_NO_TRACE


def _named(need: tuple[Right, ...]) -> str:
    return "|".join(f"{right.object}.{right.name}" for right in need) or "nobody"


LACKING = [pytest.param(row, need, id=f"{row.operation}-{_named(need)}") for row in TABLE for need in row.needs]
ENOUGH = [
    pytest.param(row, need, right, id=f"{row.operation}-{_named((right,))}")
    for row in TABLE
    if () not in row.needs
    for need in row.needs
    for right in need
]
ROWS = [pytest.param(row, id=row.operation) for row in TABLE]
MY_SID = IDS.user_sid(ME.uid)


@pytest.mark.parametrize(("row", "need"), LACKING)
def test_user_who_lacks_just_that(world: World, row: Row, need: tuple[Right, ...]) -> None:
    assert attempt(world, world.user, row, without(need), MY_SID) == (row.refusal, False)


@pytest.mark.parametrize(("row", "need", "right"), ENOUGH)
def test_user_who_has_that(world: World, row: Row, need: tuple[Right, ...], right: Right) -> None:
    others = tuple(other for other in need if other != right)
    assert attempt(world, world.user, row, without(others), MY_SID) == (0, _traces(row))


@pytest.mark.parametrize("row", ROWS)
def test_read_only_share(world: World, row: Row) -> None:
    status, changed = attempt(world, world.at_read_only, row, {}, MY_SID)
    assert not changed
    if row.changes or () in row.needs:
        assert status in (row.refusal, NtStatus.ACCESS_DENIED)
    else:
        assert status == 0


@pytest.mark.parametrize("row", ROWS)
def test_guest_who_is_given_nothing(world: World, row: Row) -> None:
    assert attempt(world, world.guest, row, {}, BUILTIN_USERS) == (row.refusal, False)


@pytest.mark.parametrize("row", [row for row in TABLE if () not in row.needs], ids=lambda row: row.operation)
def test_guest_who_is_given_what_everyone_is(world: World, row: Row) -> None:
    assert attempt(world, world.guest, row, {}, EVERYONE) == (0, _traces(row))


def test_page_shows_the_table() -> None:
    page = rights_table.PAGE.read_text()
    assert page == rights_table.page_with_table(page)


def test_every_operation_of_the_table_is_tried() -> None:
    assert set(ACTS) == {row.operation for row in TABLE}
