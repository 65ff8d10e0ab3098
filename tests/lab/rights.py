"""Every operation of ``rights_table`` as a client does it, and a client at work in one folder of a share."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from smb3server.access.claims import Claim, ClaimType
from smb3server.access.descriptor import (
    BUILTIN_GUESTS,
    EVERYONE,
    Ace,
    AceType,
    Acl,
    SecurityDescriptor,
    Sid,
    allow,
)
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.access.posix import user_sid
from smb3server.access.resource_attributes import attribute_ace
from smb3server.backends.base import User
from smb3server.backends.local.reparse import symlink_buffer
from smb3server.wire import create, file_info, fsctl, lock, offload, query_directory, read_write
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
from tests.lab.rights_table import OBJECTS, TABLE, Right
from tests.lab.wire_client import Client, ioctl_body

ME = User(54321, 54321, (54323,))
STRANGER = user_sid(60000)
SOMEBODY = user_sid(60001)
SYSTEM_SECURITY = int(Access.ACCESS_SYSTEM_SECURITY)
FOR_BACKUP = int(CreateOptions.OPEN_FOR_BACKUP_INTENT)
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
    if _row.operation.removeprefix("open for ") in rights_table.RIGHTS:
        _create(_row.operation, "folder\\file", rights_table.RIGHTS[_row.operation.removeprefix("open for ")], OPEN)
_create("open a stream for WRITE_DATA", "folder\\file:s", int(Access.WRITE_DATA), OPEN)
_create("open for reading, for backup", "folder\\file", int(Access.READ_DATA), OPEN, FOR_BACKUP)
_create("list a folder, for backup", "folder\\inner", int(Access.READ_DATA), OPEN, FOR_BACKUP | FOLDER)
_create("open for writing, for backup", "folder\\file", int(Access.WRITE_DATA), OPEN, FOR_BACKUP)
_create("create a file, for backup", "folder\\new", READ_ATTRIBUTES, CREATE, FOR_BACKUP)
_create("create a folder, for backup", "folder\\new", READ_ATTRIBUTES, CREATE, FOR_BACKUP | FOLDER)
_create("delete on close, for backup", "folder\\file", int(Access.DELETE), OPEN, ON_CLOSE | FOR_BACKUP)
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


def _set(
    operation_name: str,
    level: int,
    data: bytes,
    name: str = "folder\\file",
    parts: int = -1,
    access: int = MAXIMUM,
    options: int = 0,
) -> None:
    async def act(actor: Actor) -> None:
        async with actor.opened(name, access, options) as file:
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
_name("link, extended", FileInfoClass.LINK_EX, "folder\\file", "there\\new")
_name("link over a file", FileInfoClass.LINK, "folder\\file", "there\\target", 1)


def self_relative(**parts: Any) -> bytes:
    return SecurityDescriptor(**parts).pack()


LABEL = Ace(AceType.MANDATORY_LABEL, 0, 1, Sid(16, (8192,)))
ATTRIBUTE = attribute_ace(Claim("Project", ClaimType.STRING, ("SQL",)))
POLICY = Ace(AceType.SCOPED_POLICY_ID, 0, 0, Sid(17, (1, 2)))
AUDIT = Ace(AceType.AUDIT, 0xC0, FILE_ALL_ACCESS, EVERYONE)
_set("set the owner", 0, self_relative(owner=EVERYONE), parts=SecurityInformation.OWNER)
_set("set the group", 0, self_relative(group=BUILTIN_GUESTS), parts=SecurityInformation.GROUP)
_set("set the DACL", 0, self_relative(dacl=Acl((allow(EVERYONE, FILE_ALL_ACCESS),))), parts=SecurityInformation.DACL)
_set("set the mandatory label", 0, self_relative(sacl=Acl((LABEL,))), parts=SecurityInformation.LABEL)
_set("set resource attributes", 0, self_relative(sacl=Acl((ATTRIBUTE,))), parts=SecurityInformation.ATTRIBUTE)
_set(
    "set the central access policy",
    0,
    self_relative(sacl=Acl((POLICY,))),
    parts=SecurityInformation.SCOPE,
    access=SYSTEM_SECURITY,
)
_set("set the SACL", 0, self_relative(sacl=Acl((AUDIT,))), parts=SecurityInformation.SACL, access=SYSTEM_SECURITY)
_set(
    "set another owner, for backup",
    0,
    self_relative(owner=SOMEBODY),
    parts=SecurityInformation.OWNER,
    access=int(Access.WRITE_OWNER),
    options=FOR_BACKUP,
)
_set(
    "set the DACL, for backup",
    0,
    self_relative(dacl=Acl((allow(EVERYONE, FILE_ALL_ACCESS),))),
    parts=SecurityInformation.DACL,
    access=int(Access.WRITE_DAC),
    options=FOR_BACKUP,
)


def _query(operation_name: str, level: int, kind: int = InfoType.FILE, parts: int = 0, access: int = MAXIMUM) -> None:
    async def act(actor: Actor) -> None:
        async with actor.opened("folder\\file", access) as file:
            await actor.query_info(file, level, kind, parts)

    ACTS[operation_name] = act


_query("query owner, group and DACL", 0, InfoType.SECURITY, 7)
_query("query the SACL", 0, InfoType.SECURITY, SecurityInformation.SACL, SYSTEM_SECURITY)
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
_control("get a token (OFFLOAD_READ)", Fsctl.OFFLOAD_READ, offload.READ_INPUT.pack(offload.OffloadReadInput()))
_control(
    "write by a token (OFFLOAD_WRITE)",
    Fsctl.OFFLOAD_WRITE,
    offload.WRITE_INPUT.pack(offload.OffloadWriteInput(file_offset=512, copy_length=512)),
)
_control("set a reparse point", Fsctl.SET_REPARSE_POINT, symlink_buffer("elsewhere"))
_control("set compression", Fsctl.SET_COMPRESSION, struct.pack("<H", 0))


def _copy(operation_name: str, code: int, target_offset: int) -> None:
    async def act(actor: Actor) -> None:
        async with actor.opened("there\\target") as source, actor.opened("folder\\file") as file:
            key = (await actor.control(source, Fsctl.SRV_REQUEST_RESUME_KEY))[:24]
            header = fsctl.COPY_CHUNK_HEADER.pack(fsctl.CopyChunkHeader(key, 1))
            body = header + fsctl.COPY_CHUNK.pack(fsctl.CopyChunk(0, target_offset, 5))
            await actor.control(file, code, body)

    ACTS[operation_name] = act


_copy("copy chunks from another file", Fsctl.SRV_COPYCHUNK, 1)
_copy("copy chunks to the end, write only", Fsctl.SRV_COPYCHUNK_WRITE, len(CONTENT))


# The share


def without(rights: tuple[Right, ...]) -> dict[str, int]:
    masks = dict.fromkeys(OBJECTS, FILE_ALL_ACCESS)
    for right in rights:
        masks[right.object] &= ~right.mask
    return masks


PATHS = {
    "folder": ("folder",),
    "there": ("there",),
    "file": ("folder", "file"),
    "inner": ("folder", "inner"),
    "target": ("there", "target"),
}
