"""Valid requests of two clients, as the fuzzer's starting points for whole connections.

A FileId is the number of an open, in the order in which a client has opened files. A TreeId of 1 is IPC$.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from smb3server.wire import change_notify, close, create, flush, ioctl, lock, query_directory, query_info, set_info
from smb3server.wire import create_contexts as contexts
from smb3server.wire import read_write as io
from smb3server.wire.create import CreateRequest
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.file_info import FileInfoClass, RenameInformation, encode_rename
from smb3server.wire.header import HEADER, Command, Header
from smb3server.wire.ioctl import Fsctl, IoctlRequest
from smb3server.wire.lock import LockElement

_ALL = 0x1F01FF
_GUID = bytes(range(16))


def message(command: int, body: bytes, tree: int = 0, following: int = 0, flags: int = 0) -> bytes:
    """Return a message, whose header the harness puts right."""
    return HEADER.pack(Header(command=command, tree_id=tree, next_command=following, flags=flags)) + body


def opening(name: str, found: Sequence[RawContext] = (), tree: int = 0, **fields: int) -> bytes:
    """Return a CREATE."""
    values = {"desired_access": _ALL, "share_access": 7, "create_disposition": 3, **fields}
    return message(Command.CREATE, create.pack_request(CreateRequest(**values), name, found), tree)


def control(code: int, data: bytes = b"", number: int = 0, tree: int = 0) -> bytes:
    """Return an IOCTL."""
    request = IoctlRequest(ctl_code=code, persistent=number, max_output_response=4096, flags=1)
    return message(Command.IOCTL, ioctl.build_ioctl_request(request, data), tree)


def told(level: int, kind: int, data: bytes, number: int = 0) -> bytes:
    """Return a SET_INFO."""
    request = set_info.SetInfoRequest(info_type=kind, info_class=level, persistent=number, additional_information=4)
    return message(Command.SET_INFO, set_info.build_set_info_request(request, data))


def asked(level: int, kind: int, number: int = 0) -> bytes:
    """Return a QUERY_INFO."""
    request = query_info.QueryInfoRequest(
        info_type=kind, info_class=level, persistent=number, output_buffer_length=4096, additional_information=7
    )
    return message(Command.QUERY_INFO, query_info.build_query_info_request(request))


def _write(number: int, data: bytes, offset: int = 0) -> bytes:
    record = io.WriteRequest(data_offset=112, length=len(data), offset=offset, persistent=number)
    return message(Command.WRITE, io.WRITE_REQUEST.pack(record) + data)


def _read(number: int, length: int, offset: int = 0) -> bytes:
    return message(
        Command.READ, io.READ_REQUEST.pack(io.ReadRequest(length=length, offset=offset, persistent=number)) + b"\0"
    )


def _lock(number: int, *elements: LockElement) -> bytes:
    return message(Command.LOCK, lock.pack_request(lock.LockRequest(persistent=number), elements))


def _listing(number: int, level: int, pattern: str = "*") -> bytes:
    request = query_directory.QueryDirectoryRequest(info_class=level, persistent=number, output_buffer_length=4096)
    return message(Command.QUERY_DIRECTORY, query_directory.build_query_directory_request(request, pattern))


def _notify(number: int) -> bytes:
    record = change_notify.ChangeNotifyRequest(persistent=number, output_buffer_length=4096, completion_filter=0xFFF)
    return message(Command.CHANGE_NOTIFY, change_notify.CHANGE_NOTIFY_REQUEST.pack(record))


def _close(number: int) -> bytes:
    return message(Command.CLOSE, close.CLOSE_REQUEST.pack(close.CloseRequest(flags=1, persistent=number)))


def _lease(state: int = 7) -> RawContext:
    return RawContext(contexts.REQUEST_LEASE, contexts.LEASE_V2_CODEC.pack(contexts.LeaseV2(_GUID, state)))


def _durable() -> RawContext:
    record = contexts.DurableRequestV2(2000, 0, 0, _GUID)
    return RawContext(contexts.DURABLE_REQUEST_V2, contexts.DURABLE_REQUEST_V2_CODEC.pack(record))


def scripts() -> Iterator[list[tuple[int, bytes]]]:
    """Yield scripts: messages with the number of the client that sends each."""
    file, folder = opening("file"), opening("folder", create_options=1)
    yield [(0, m) for m in (file, _write(0, b"data" * 50), _read(0, 300), _read(0, 1 << 20), _close(0))]
    end = told(FileInfoClass.END_OF_FILE, 1, struct.pack("<Q", 100_000))
    rename = told(FileInfoClass.RENAME, 1, encode_rename(RenameInformation(1, 0, "folder\\other")))
    yield [(0, m) for m in (folder, file, end, _read(1, 70_000), _read(1, 5000, 99_000), rename, _close(1))]
    for level in FileInfoClass:
        yield [(0, file), (0, asked(level, 1)), (0, told(level, 1, bytes(48))), (0, asked(0, 3)), (1, file)]
        yield [(0, folder), (0, opening("folder\\a")), (0, _listing(0, level)), (0, asked(level, 2))]
    for code in Fsctl:
        yield [(0, file), (0, _write(0, b"x" * 64)), (0, control(code)), (0, control(code, bytes(64)))]
    exclusive, shared = LockElement(0, 10, 2), LockElement(0, 10, 1)
    yield [(0, file), (1, file), (0, _lock(0, exclusive)), (1, _lock(0, shared)), (1, _read(0, 5)), (0, _close(0))]
    leased = opening("file", [_lease(), _durable()], requested_oplock_level=0xFF)
    acknowledgment = message(Command.OPLOCK_BREAK, struct.pack("<HHI16sIQ", 36, 0, 0, _GUID, 3, 0))
    yield [(0, leased), (0, _write(0, b"1")), (1, file), (0, acknowledgment), (1, _write(0, b"2")), (0, _close(0))]
    batch = opening("file", [_durable()], requested_oplock_level=9)
    yield [(0, batch), (1, file), (0, message(Command.OPLOCK_BREAK, struct.pack("<HBBI16s", 24, 1, 0, 0, bytes(16))))]
    yield [
        (0, folder),
        (0, _notify(0)),
        (1, opening("folder\\new")),
        (0, _notify(0)),
        (0, message(12, b"\4\0\0\0")),
        (0, _close(0)),
    ]
    gone = opening("file", create_options=0x1000)
    yield [
        (0, gone),
        (1, file),
        (0, message(Command.FLUSH, flush.FLUSH_REQUEST.pack(flush.FlushRequest()))),
        (0, _close(0)),
    ]
    bind = b"\5\0\x0b\3\x10\0\0\0\x48\0\0\0\1\0\0\0\xb8\x10\xb8\x10\0\0\0\0\1\0\0\0\0\0\1\0"
    bind += bytes.fromhex("c84f324b7016d30112785a47bf6ee18803000000045d888aeb1cc9119fe808002b10486002000000")
    yield [
        (0, opening("srvsvc", tree=1)),
        (0, control(Fsctl.PIPE_TRANSCEIVE, bind, tree=1)),
        (0, control(Fsctl.PIPE_WAIT, tree=1)),
    ]
    first = opening("file")
    first = message(5, first[64:].ljust(88, b"\0"), following=152)
    yield [(0, first + message(16, asked(18, 1)[64:], flags=4)), (0, first + message(6, _close(0)[64:], flags=4))]
