"""What is left of a file that is overwritten, replaced or deleted, and what others see of it."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.base import User
from smb3server.backends.local.streams import FEW
from smb3server.wire import attributes as attr
from smb3server.wire.change_notify import Action
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import ALL, FileId, Ground, Peer, act

READ, OPEN = 0x120089, 1
DIRECTORY, REPARSE = int(CreateOptions.DIRECTORY_FILE), int(CreateOptions.OPEN_REPARSE_POINT)
REPLACE, POSIX, IGNORE_READONLY = 1, 2, 0x40
OVERWRITING = [CreateDisposition.OVERWRITE, CreateDisposition.OVERWRITE_IF, CreateDisposition.SUPERSEDE]


async def write(peer: Peer, name: str, data: bytes = b"data", **fields: Any) -> None:
    made = await peer.make(name, desired_access=ALL, **fields)
    assert await peer.write(made.file, data) == 0
    assert await peer.close(made.file) == 0


async def exists(peer: Peer, name: str) -> bool:
    made = await peer.create(name, desired_access=READ, create_disposition=OPEN)
    if not made.status:
        await peer.close(made.file)
    return not made.status


async def attributes(peer: Peer, name: str) -> int:
    made = await peer.make(name, desired_access=0x80, create_disposition=OPEN)
    await peer.close(made.file)
    return made.answer.file_attributes


@pytest.mark.parametrize("disposition", OVERWRITING)
@pytest.mark.parametrize("count", [1, 3, FEW + 5])
def test_overwriting_a_file_removes_its_streams(tmp_path: Path, disposition: int, count: int) -> None:
    async def scene(ground: Ground) -> None:
        peer, watcher = await ground.peer(), await ground.peer()
        await write(peer, "f")
        for number in range(count):
            await write(peer, f"f:S{number}")
        held = (await watcher.make("f:held", desired_access=ALL)).file
        assert await watcher.write(held, b"kept") == 0
        folder = (await watcher.make("", desired_access=READ, create_options=DIRECTORY)).file
        notify = struct.pack("<HHIQQII", 32, 0, 65536, *folder, 0x200, 0)
        await watcher.client.post(Command.CHANGE_NOTIFY, notify)
        assert await watcher.waits()
        await peer.close((await peer.make("f", desired_access=ALL, create_disposition=disposition)).file)
        assert [await exists(peer, f"f:s{number}") for number in range(count)] == [False] * count
        assert await exists(peer, "f:held"), "somebody has it open"
        changes = await watcher.receive()
        assert changes.status in (0, NtStatus.NOTIFY_ENUM_DIR)
        if not changes.status and count < 10:
            assert struct.unpack_from("<I", changes.body, 8 + 4)[0] == Action.REMOVED_STREAM
        await peer.close((await peer.make("f", desired_access=ALL, create_disposition=disposition)).file)
        await watcher.close(held)
        await peer.close((await peer.make("f", desired_access=ALL, create_disposition=disposition)).file)
        assert not await exists(peer, "f:held")

    act(tmp_path, scene)


@pytest.mark.parametrize("disposition", OVERWRITING)
def test_overwriting_a_stream_leaves_the_others(tmp_path: Path, disposition: int) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        for name in ("f", "f:a", "f:b"):
            await write(peer, name)
        await peer.close((await peer.make("f:a", desired_access=ALL, create_disposition=disposition)).file)
        assert await exists(peer, "f:b") and (ground.folder / "f").read_bytes() == b"data"

    act(tmp_path, scene)


@pytest.mark.parametrize("disposition", OVERWRITING)
def test_attributes_are_added_unless_the_file_is_superseded(tmp_path: Path, disposition: int) -> None:
    """MS-FSA 2.1.5.1.2.1."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        await write(peer, "f", file_attributes=attr.NOT_INDEXED)
        made = await peer.make("f", desired_access=ALL, create_disposition=disposition, file_attributes=attr.HIDDEN)
        kept = 0 if disposition == CreateDisposition.SUPERSEDE else attr.NOT_INDEXED
        assert made.answer.file_attributes == attr.ARCHIVE | attr.HIDDEN | kept

    act(tmp_path, scene)


def test_only_the_control_makes_a_file_sparse(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.15.2, 2.1.5.10.38."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL)).file

        async def set_it(value: int) -> int:
            body = struct.pack("<4qII", 0, 0, 0, 0, value, 0)
            assert await peer.set_info(file, FileInfoClass.BASIC, body) == 0
            return await attributes(peer, "f")

        assert await set_it(attr.SPARSE | attr.HIDDEN) == attr.HIDDEN
        assert (await peer.fsctl(file, Fsctl.SET_SPARSE)).status == 0
        assert await set_it(attr.ARCHIVE) == attr.ARCHIVE | attr.SPARSE
        assert (await peer.fsctl(file, Fsctl.SET_SPARSE, b"\0")).status == 0
        assert await set_it(attr.NORMAL) == attr.NORMAL

    act(tmp_path, scene)


# Renames


async def rename(peer: Peer, old: str, new: str, flags: int, level: int = FileInfoClass.RENAME_EX) -> int:
    made = await peer.make(old, desired_access=ALL, create_disposition=OPEN)
    path = new.encode("utf-16-le")
    status = await peer.set_info(made.file, level, struct.pack("<IIQI", flags, 0, 0, len(path)) + path)
    await peer.close(made.file)
    return status


@pytest.mark.parametrize(
    ("flags", "share", "status"),
    [
        (REPLACE, 7, NtStatus.ACCESS_DENIED),
        (REPLACE | POSIX, 7, 0),
        (REPLACE | POSIX, 3, NtStatus.ACCESS_DENIED),
        (POSIX, 7, NtStatus.OBJECT_NAME_COLLISION),
    ],
)
def test_replacing_a_file_that_is_open(tmp_path: Path, flags: int, share: int, status: int) -> None:
    """MS-FSCC 2.4.43: with POSIX_SEMANTICS the opens of what is replaced stay."""

    async def scene(ground: Ground) -> None:
        peer, other = await ground.peer(), await ground.peer()
        await write(peer, "new", b"new")
        await write(peer, "old", b"old")
        held = (await other.make("old", desired_access=ALL & ~0x10000, share_access=share)).file
        assert await rename(peer, "new", "old", flags) == status
        assert (ground.folder / "old").read_bytes() == (b"old" if status else b"new")
        assert await other.write(held, b"written") == 0
        assert await other.close(held) == 0
        assert (ground.folder / "old").read_bytes() == (b"written" if status else b"new")

    act(tmp_path, scene)


@pytest.mark.parametrize(("flags", "status"), [(REPLACE, NtStatus.ACCESS_DENIED), (REPLACE | IGNORE_READONLY, 0)])
def test_replacing_a_file_that_is_readonly(tmp_path: Path, flags: int, status: int) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        await write(peer, "new")
        await write(peer, "old", b"old", file_attributes=attr.READONLY)
        assert await rename(peer, "new", "old", flags) == status

    act(tmp_path, scene)


@pytest.mark.parametrize("flags", [0, REPLACE])
def test_a_rename_onto_another_name_of_the_file(tmp_path: Path, flags: int) -> None:
    async def scene(ground: Ground) -> None:
        peer, other = await ground.peer(), await ground.peer()
        await write(peer, "one")
        (ground.folder / "two").hardlink_to(ground.folder / "one")
        held = (await other.make("two", desired_access=READ)).file
        expected = 0 if flags else NtStatus.OBJECT_NAME_COLLISION
        assert await rename(peer, "one", "two", flags) == expected
        left = ["two"] if flags else ["one", "two"]
        assert sorted(entry.name for entry in ground.folder.iterdir() if entry.name[0] != ".") == left
        assert (ground.folder / "two").read_bytes() == b"data"
        assert await other.close(held) == 0

    act(tmp_path, scene)


def test_what_is_about_to_be_deleted_is_not_renamed(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        await write(peer, "f")
        file: FileId = (await peer.make("f", desired_access=ALL)).file
        assert await peer.set_info(file, FileInfoClass.DISPOSITION, b"\1") == 0
        path = "g".encode("utf-16-le")
        body = struct.pack("<B7xQI", 1, 0, len(path)) + path
        assert await peer.set_info(file, FileInfoClass.RENAME, body) == NtStatus.ACCESS_DENIED
        assert await peer.set_info(file, FileInfoClass.DISPOSITION, b"\0") == 0
        assert await peer.set_info(file, FileInfoClass.RENAME, body) == 0
        assert await peer.close(file) == 0
        assert (ground.folder / "g").exists()

    act(tmp_path, scene)


# Folders


def test_a_folder_with_entries_is_no_reparse_point(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.10.37."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        folder = (await peer.make("d", desired_access=ALL, create_options=DIRECTORY | REPARSE)).file
        target = "\\??\\C:\\x".encode("utf-16-le")
        body = struct.pack("<4H", 0, len(target), len(target) + 2, 0) + target + bytes(4)
        data = struct.pack("<IHH", 0xA0000003, len(body), 0) + body
        await write(peer, "d\\f")
        assert (await peer.fsctl(folder, Fsctl.SET_REPARSE_POINT, data)).status == NtStatus.DIRECTORY_NOT_EMPTY
        (ground.folder / "d" / "f").unlink()
        assert (await peer.fsctl(folder, Fsctl.SET_REPARSE_POINT, data)).status == 0

    act(tmp_path, scene)


def test_reparse_points_by_the_letter(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.10.3, 2.1.5.10.37: which status comes first, and whose GUID counts."""
    mount_point = struct.pack("<IHH", 0xA0000003, 12, 0) + struct.pack("<4H", 0, 0, 2, 0) + bytes(4)
    ours, others = bytes(range(16)), bytes(range(1, 17))

    def foreign(guid: bytes, content: bytes = b"", tag: int = 0x1234) -> bytes:
        return struct.pack("<IHH", tag, len(content), 0) + guid + content

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL, create_options=REPARSE)).file

        async def status(code: int, data: bytes) -> int:
            return (await peer.fsctl(file, code, data)).status

        assert await status(Fsctl.SET_REPARSE_POINT, mount_point) == NtStatus.NOT_A_DIRECTORY
        assert await status(Fsctl.DELETE_REPARSE_POINT, foreign(ours)) == NtStatus.NOT_A_REPARSE_POINT
        assert await status(Fsctl.SET_REPARSE_POINT, foreign(ours, b"once")) == 0
        assert await status(Fsctl.SET_REPARSE_POINT, foreign(ours, b"again")) == 0
        for code in (Fsctl.SET_REPARSE_POINT, Fsctl.DELETE_REPARSE_POINT):
            assert await status(code, foreign(others)) == NtStatus.REPARSE_ATTRIBUTE_CONFLICT
            assert await status(code, foreign(ours, tag=0x1235)) == NtStatus.IO_REPARSE_TAG_MISMATCH
        assert await status(Fsctl.SET_REPARSE_POINT, mount_point) == NtStatus.NOT_A_DIRECTORY
        assert await status(Fsctl.DELETE_REPARSE_POINT, foreign(ours, b"x")) == NtStatus.IO_REPARSE_DATA_INVALID
        assert await status(Fsctl.DELETE_REPARSE_POINT, foreign(ours)) == 0

    act(tmp_path, scene)


def test_a_listing_that_finds_nothing_ends_the_second_time(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.6.3: FirstQuery."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        folder = (await peer.make("", desired_access=READ, create_options=DIRECTORY)).file

        async def query(pattern: str, flags: int = 0) -> int:
            name = pattern.encode("utf-16-le")
            body = struct.pack("<HBBIQQHHI", 33, 37, flags, 0, *folder, 96, len(name), 65536) + name
            return (await peer.call(Command.QUERY_DIRECTORY, body)).status

        assert [await query("none*") for _ in range(3)] == [NtStatus.NO_SUCH_FILE] + [NtStatus.NO_MORE_FILES] * 2
        assert await query("none*", flags=1) == NtStatus.NO_MORE_FILES
        assert await query("nothing*", flags=0x10) == NtStatus.NO_SUCH_FILE

    act(tmp_path, scene)


@pytest.mark.parametrize(("milliseconds", "status"), [(300_000, 0), (300_001, NtStatus.INVALID_PARAMETER)])
def test_the_longest_resiliency(tmp_path: Path, milliseconds: int, status: int) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f")).file
        answer = await peer.fsctl(file, Fsctl.LMR_REQUEST_RESILIENCY, struct.pack("<II", milliseconds, 0))
        assert answer.status == status
        await asyncio.sleep(0)

    act(tmp_path, scene)


# Programs


@pytest.mark.root
@pytest.mark.parametrize(
    ("mode", "status"), [(0o644, 0), (0o600, 0), (0o200, NtStatus.ACCESS_DENIED), (0o000, NtStatus.ACCESS_DENIED)]
)
def test_whoever_may_read_a_program_may_start_it(tmp_path: Path, mode: int, status: int) -> None:
    """Windows opens a program with these rights. A file without a stored descriptor has the rights of its mode."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        program = ground.folder / "setup.exe"
        program.write_bytes(b"MZ")
        os.chown(program, 12345, 12345)
        program.chmod(mode)
        assert (await peer.create("setup.exe", desired_access=0x1200A9, create_disposition=OPEN)).status == status

    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    act(tmp_path, scene, user=User(12345, 12345))
