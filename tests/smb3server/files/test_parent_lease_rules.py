"""The lease of a file's parent directory: rows K1 to K3 and P1 to P42 of docs/caching.md.

Every case is played by the client that has the leases and by another one, with various ParentLeaseKeys: none, a wrong
one, and the right ones.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.file_info import DispositionFlags, FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.query_info import InfoType
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import ALL, RH, FileId, Ground, Peer, act, lease, rename_to

D, E, WRONG = 1, 2, 3
"""Lease keys of the folders ``d`` and ``e``, and one that no lease has."""
FOLDER, ON_CLOSE = int(CreateOptions.DIRECTORY_FILE), int(CreateOptions.DELETE_ON_CLOSE)
OPEN, OVERWRITE, SUPERSEDE = (
    int(CreateDisposition.OPEN),
    int(CreateDisposition.OVERWRITE),
    int(CreateDisposition.SUPERSEDE),
)
NOW = 133_000_000_000_000_000
MARKED = struct.pack("<B", 1)


class Actor:
    """A client whose opens name a ParentLeaseKey (or none), in a folder of its own."""

    def __init__(self, peer: Peer, top: str, parent: int | None) -> None:
        self.peer = peer
        self.top = top
        self.parent = parent
        self.opens: list[FileId] = []

    def at(self, name: str) -> str:
        return f"{self.top}\\{name}"

    async def open(self, name: str, parent: int | None = None, **fields: Any) -> FileId:
        """Open or create a file. ``parent``: a ParentLeaseKey other than the actor's."""
        parent = self.parent if parent is None else parent
        contexts = [lease(1000 + len(self.opens), 0, parent)] if parent is not None else []
        made = await self.peer.make(self.at(name), *contexts, **{"desired_access": ALL, **fields})
        self.opens.append(made.file)
        return made.file

    async def set(self, file: FileId, level: int, data: bytes, expected: int = 0) -> None:
        assert await self.peer.set_info(file, level, data) == expected

    async def control(self, file: FileId, code: int, data: bytes, expected: int = 0) -> bytes:
        reply = await self.peer.fsctl(file, code, data)
        assert reply.status == expected, hex(reply.status)
        return reply.body

    async def close(self, file: FileId) -> None:
        self.opens.remove(file)
        assert await self.peer.close(file) == 0

    async def close_all(self) -> None:
        while self.opens:
            await self.close(self.opens[-1])


Act = Callable[[Actor], Awaitable[None]]


class Case(NamedTuple):
    row: str
    what: str
    act: Act
    broken: frozenset[int] = frozenset({D})
    """The folders whose leases are broken, to NONE."""
    at_close: bool = False
    """Not before the actor closes its opens."""
    spares: bool = True
    """A lease whose key is the ParentLeaseKey is not broken."""


NOBODY: frozenset[int] = frozenset()


def creating(name: str, **fields: Any) -> Act:
    async def create(actor: Actor) -> None:
        await actor.open(name, **fields)

    return create


def setting(level: int, data: bytes, name: str = "d\\f", expected: int = 0) -> Act:
    async def set_it(actor: Actor) -> None:
        await actor.set(await actor.open(name, create_disposition=OPEN), level, data, expected)

    return set_it


def basic(creation: int = 0, access: int = 0, write: int = 0, change: int = 0, attributes: int = 0) -> bytes:
    return struct.pack("<4qII", creation, access, write, change, attributes, 0)


def size(value: int) -> bytes:
    return struct.pack("<q", value)


def moving(level: int, name: str, target: str) -> Act:
    async def move(actor: Actor) -> None:
        data = rename_to(target if target.startswith(":") else actor.at(target))
        await actor.set(await actor.open(name, create_disposition=OPEN), level, data)

    return move


def controlling(code: int, data: bytes, expected: int = 0) -> Act:
    async def control(actor: Actor) -> None:
        await actor.control(await actor.open("d\\f"), code, data, expected)

    return control


async def write(actor: Actor) -> None:
    assert await actor.peer.write(await actor.open("d\\f")) == 0


async def write_to_stream(actor: Actor) -> None:
    assert await actor.peer.write(await actor.open("d\\f:s", create_disposition=OPEN)) == 0


async def read_lock_and_query(actor: Actor) -> None:
    file = await actor.open("d\\f")
    body = struct.pack("<HBBIQ2QIIIHH", 49, 0x50, 0, 4, 0, *file, 0, 0, 0, 0, 0) + b"\0"
    assert (await actor.peer.call(Command.READ, body)).status == 0
    assert await actor.peer.lock(file) == 0
    assert await actor.peer.unlock(file) == 0
    assert (await actor.peer.query_info(file, FileInfoClass.BASIC)).status == 0


async def flush(actor: Actor) -> None:
    body = struct.pack("<HHI2Q", 24, 0, 0, *await actor.open("d\\f"))
    assert (await actor.peer.call(Command.FLUSH, body)).status == 0


async def set_security(actor: Actor) -> None:
    # A DACL with one entry: everyone, full access.
    entry = struct.pack("<BBHI", 0, 0, 20, 0x001F01FF) + bytes.fromhex("010100000000000100000000")
    data = struct.pack("<BBHIIII", 1, 0, 0x8004, 0, 0, 0, 20) + struct.pack("<BBHHH", 2, 0, 28, 1, 0) + entry
    file = await actor.open("d\\f")
    assert await actor.peer.set_info(file, 0, data, InfoType.SECURITY, 4) == 0


async def mark_and_withdraw(actor: Actor) -> None:
    file = await actor.open("d\\f")
    await actor.set(file, FileInfoClass.DISPOSITION, MARKED)
    await actor.set(file, FileInfoClass.DISPOSITION, b"\0")


async def mark_and_close_but_not_last(actor: Actor) -> None:
    await actor.open("d\\f")
    file = await actor.open("d\\f")
    await actor.set(file, FileInfoClass.DISPOSITION, MARKED)
    await actor.close(file)
    assert await actor.peer.create(actor.at("d\\f")) is not None
    # Before the case ends the deletion is withdrawn.
    await actor.set(actor.opens[0], FileInfoClass.DISPOSITION, b"\0")


async def mark(actor: Actor) -> None:
    await actor.set(await actor.open("d\\f"), FileInfoClass.DISPOSITION, MARKED)


async def mark_by_another_with_the_key(actor: Actor) -> None:
    await actor.open("d\\f")
    file = await actor.open("d\\f")
    await actor.set(file, FileInfoClass.DISPOSITION, MARKED)
    await actor.close(file)


async def mark_by_another_without_the_key(actor: Actor) -> None:
    await actor.open("d\\f")
    file = await actor.open("d\\f", parent=99)
    await actor.set(file, FileInfoClass.DISPOSITION, MARKED)
    await actor.close(file)


async def on_close_by_another_without_the_key(actor: Actor) -> None:
    await actor.open("d\\f")
    file = await actor.open("d\\f", parent=99, create_options=ON_CLOSE)
    await actor.close(file)


async def posix_while_others_are_open(actor: Actor) -> None:
    other = await actor.open("d\\f")
    file = await actor.open("d\\f")
    flags = DispositionFlags.DELETE | DispositionFlags.POSIX_SEMANTICS
    await actor.set(file, FileInfoClass.DISPOSITION_EX, struct.pack("<I", flags))
    await actor.close(file)
    assert (await actor.peer.create(actor.at("d\\f"), create_disposition=OPEN)).status == (
        NtStatus.OBJECT_NAME_NOT_FOUND
    )
    assert await actor.peer.write(other, b"still there") == 0


async def one_of_two_links(actor: Actor) -> None:
    await actor.open("e\\link")
    file = await actor.open("d\\linked")
    await actor.set(file, FileInfoClass.DISPOSITION, MARKED)
    await actor.close(file)
    assert (await actor.peer.create(actor.at("d\\linked"), create_disposition=OPEN)).status == (
        NtStatus.OBJECT_NAME_NOT_FOUND
    )
    assert await actor.open("e\\link", create_disposition=OPEN)


async def copy_chunk(actor: Actor) -> None:
    file = await actor.open("d\\f")
    key = (await actor.control(file, Fsctl.SRV_REQUEST_RESUME_KEY, b""))[48:72]
    chunks = struct.pack("<24sII", key, 1, 0) + struct.pack("<QQII", 0, 4, 2, 0)
    await actor.control(file, Fsctl.SRV_COPYCHUNK, chunks)


async def reparse_point(actor: Actor) -> None:
    data = struct.pack("<IHH16s", 0x00000099, 4, 0, b"0123456789abcdef") + b"data"
    await actor.control(await actor.open("d\\f"), Fsctl.SET_REPARSE_POINT, data)


SET_EA = struct.pack("<IBBH", 0, 0, 1, 1) + b"A\0v"
EOF_, ALLOCATION, BASIC = FileInfoClass.END_OF_FILE, FileInfoClass.ALLOCATION, FileInfoClass.BASIC
RENAME, LINK = FileInfoClass.RENAME, FileInfoClass.LINK
BOTH = frozenset({D, E})

CASES = [
    Case("P1", "file", creating("d\\new")),
    Case("P1", "directory", creating("d\\new", create_options=FOLDER)),
    Case("P2", "with its file", creating("d\\new:s")),
    Case("P3", "of an existing file", creating("d\\f:new"), NOBODY),
    Case("P4", "only opens", creating("d\\f", create_disposition=OPEN), NOBODY),
    Case("P5", "overwrite", creating("d\\f", create_disposition=OVERWRITE)),
    Case("P5", "supersede", creating("d\\f", create_disposition=SUPERSEDE)),
    Case("P6", "WRITE", write, at_close=True),
    Case("P6", "WRITE to a stream", write_to_stream, at_close=True),
    Case("P7", "READ, lock, query", read_lock_and_query, NOBODY),
    Case("P8", "FLUSH", flush, NOBODY),
    Case("P9", "larger", setting(EOF_, size(100))),
    Case("P9", "smaller", setting(EOF_, size(3))),
    Case("P9", "the same", setting(EOF_, size(10))),
    Case("P10", "larger", setting(ALLOCATION, size(1 << 20))),
    Case("P10", "smaller", setting(ALLOCATION, size(0))),
    Case("P10", "the same", setting(ALLOCATION, size(10))),
    Case("P11", "changed", setting(BASIC, basic(attributes=2))),
    Case("P11", "not changed", setting(BASIC, basic(attributes=0x20)), NOBODY),
    Case("P12", "CreationTime", setting(BASIC, basic(creation=NOW))),
    Case("P13", "LastAccessTime", setting(BASIC, basic(access=NOW))),
    Case("P14", "LastWriteTime", setting(BASIC, basic(write=NOW))),
    Case("P15", "ChangeTime", setting(BASIC, basic(change=NOW))),
    Case("P16", "0, -1 and -2", setting(BASIC, basic(-1, -2, -1, -2)), NOBODY),
    Case("P17", "end of file", setting(EOF_, size(100), "d\\f:s")),
    Case("P17", "allocation", setting(ALLOCATION, size(1 << 20), "d\\f:s")),
    Case("P17", "attributes", setting(BASIC, basic(attributes=2), "d\\f:s")),
    Case("P17", "LastWriteTime", setting(BASIC, basic(write=NOW), "d\\f:s")),
    Case("P17", "ChangeTime", setting(BASIC, basic(change=NOW), "d\\f:s")),
    Case("P18", "EA", setting(FileInfoClass.FULL_EA, SET_EA), NOBODY),
    Case("P19", "security", set_security, NOBODY),
    Case("P20", "within the folder", moving(RENAME, "d\\f", "d\\renamed")),
    Case("P21", "into d", moving(RENAME, "top", "d\\renamed")),
    Case("P22", "out of d, into e", moving(RENAME, "d\\f", "e\\renamed"), BOTH),
    Case("P23", "to the same name", moving(RENAME, "d\\f", "d\\f"), NOBODY),
    Case("P24", "of a stream", moving(RENAME, "d\\f:s", ":renamed"), NOBODY),
    Case("P25", "over a file", moving(RENAME, "d\\f", "d\\g")),
    Case("P25", "over a file elsewhere", moving(RENAME, "d\\f", "e\\h"), BOTH),
    Case("P26", "hard link", moving(LINK, "d\\f", "d\\new link")),
    Case("P26", "hard link in the place of a file", moving(LINK, "d\\f", "d\\g")),
    Case("P27", "hard link elsewhere", moving(LINK, "d\\f", "e\\new link"), frozenset({E})),
    Case(
        "P28",
        "short name",
        setting(FileInfoClass.SHORT_NAME, bytes(8), expected=NtStatus.SHORT_NAMES_NOT_ENABLED_ON_VOLUME),
        NOBODY,
    ),
    Case(
        "P29",
        "valid data length",
        setting(FileInfoClass.VALID_DATA_LENGTH, size(5), expected=NtStatus.PRIVILEGE_NOT_HELD),
        NOBODY,
    ),
    Case("P30", "set and withdrawn", mark_and_withdraw, NOBODY),
    Case("P31", "not the last close", mark_and_close_but_not_last, NOBODY),
    Case("P32", "by the same open", mark, at_close=True),
    Case("P32", "by one with the same key", mark_by_another_with_the_key, at_close=True),
    Case("P33", "by one with another key", mark_by_another_without_the_key, at_close=True, spares=False),
    Case("P34", "by the same open", creating("d\\f", create_options=ON_CLOSE), at_close=True),
    Case("P35", "by one with another key", on_close_by_another_without_the_key, at_close=True, spares=False),
    Case("P36", "others stay open", posix_while_others_are_open),
    Case("P37", "the other name stays open", one_of_two_links),
    Case("P38", "stream", creating("d\\f:s", create_options=ON_CLOSE), NOBODY),
    Case("P40", "not supported", controlling(Fsctl.SET_ENCRYPTION, bytes(8), NtStatus.INVALID_DEVICE_REQUEST), NOBODY),
    Case("P41", "zeros", controlling(Fsctl.SET_ZERO_DATA, struct.pack("<qq", 0, 5)), at_close=True),
    Case("P41", "copied", copy_chunk, at_close=True),
    Case("P42", "sparse", controlling(Fsctl.SET_SPARSE, b"\1")),
    Case("P42", "reparse point", reparse_point),
]


async def prepare(peer: Peer, top: str) -> None:
    for name in (top, f"{top}\\d", f"{top}\\e"):
        assert await peer.close((await peer.make(name, create_options=FOLDER)).file) == 0
    for name in ("d\\f", "d\\f:s", "d\\g", "d\\linked", "e\\h", "top"):
        file = (await peer.make(f"{top}\\{name}", desired_access=ALL)).file
        assert await peer.write(file, bytes(10)) == 0
        if name == "d\\linked":
            assert await peer.set_info(file, LINK, rename_to(f"{top}\\e\\link")) == 0
        assert await peer.close(file) == 0


async def play(case: Case, holder: Peer, actor: Actor) -> None:
    await prepare(actor.peer, actor.top)
    folders = []
    for name, number in (("d", D), ("e", E)):
        made = await holder.make(actor.at(name), lease(number, RH), create_options=FOLDER)
        assert made.state == RH
        folders.append(made.file)
    spared = {actor.parent} if case.spares else set()
    expected = sorted((number, RH, 0) for number in case.broken - spared)
    await case.act(actor)
    assert sorted(await holder.told()) == ([] if case.at_close else expected), "at the operation"
    await actor.close_all()
    assert sorted(await holder.told()) == (expected if case.at_close else []), "at the close"
    for file in folders:
        assert await holder.close(file) == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}-{case.what}")
def test_k1_k2_k3_breaks_of_the_parents_lease(tmp_path: Path, case: Case) -> None:
    async def scene(ground: Ground) -> None:
        holder = await ground.peer()
        same, other = await ground.peer(holder.client.guid), await ground.peer()
        for number, (peer, parent) in enumerate(((same, None), (same, D), (other, WRONG), (other, D), (other, E))):
            await play(case, holder, Actor(peer, f"top{number}", parent))

    act(tmp_path, scene)
