"""Extended attributes that whoever opens the file must know, what setting them changes, holes of files that are not
sparse any more, and the mode of an open."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from smb3server.wire import attributes as attr
from smb3server.wire.change_notify import NotifyFilter
from smb3server.wire.create import CreateOptions
from smb3server.wire.file_info import NEED_EA, EaEntry, FileInfoClass, decode_eas, encode_eas
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.query_info import parse_output_response
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import ALL, FileId, Ground, Peer, act, rename_to
from tests.lab.wire_client import Reply

READ, OPEN = 0x120089, 1
WRITE_THROUGH, SEQUENTIAL, UNBUFFERED = 2, 4, 8
ALERT, NONALERT, ON_CLOSE = 0x10, 0x20, 0x1000


def output(reply: Reply) -> bytes:
    return bytes(parse_output_response(memoryview(reply.message)))


@pytest.mark.parametrize(("flags", "status"), [(0, 0), (NEED_EA, NtStatus.ACCESS_DENIED)])
def test_needed_eas_must_be_known(tmp_path: Path, flags: int, status: int) -> None:
    """MS-FSA 2.1.5.1.2, 2.1.5.15.6, MS-FSCC 2.4.16."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL)).file
        eas = [EaEntry(b"ONE", b"1"), EaEntry(b"TWO", b"2", flags)]
        assert await peer.set_info(file, FileInfoClass.FULL_EA, b"".join(encode_eas(eas))) == 0
        assert decode_eas(output(await peer.query_info(file, FileInfoClass.FULL_EA))) == eas
        assert await peer.close(file) == 0
        knows = await peer.make("f", desired_access=ALL, create_disposition=OPEN)
        without = int(CreateOptions.NO_EA_KNOWLEDGE)
        found = await peer.create("f", desired_access=READ, create_disposition=OPEN, create_options=without)
        assert found.status == status
        # An EA that is set again has the flags that come with it.
        again = b"".join(encode_eas([EaEntry(b"two", b"3")]))
        assert await peer.set_info(knows.file, FileInfoClass.FULL_EA, again) == 0
        found = await peer.create("f", desired_access=READ, create_disposition=OPEN, create_options=without)
        assert found.status == 0

    act(tmp_path, scene)


def test_a_file_that_is_not_sparse_any_more_has_no_holes(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.10.36."""
    size = 3 << 20

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL)).file
        assert (await peer.fsctl(file, Fsctl.SET_SPARSE)).status == 0
        assert await peer.write(file, b"end", size) == 0
        path = ground.folder / "f"
        assert os.stat(path).st_blocks * 512 < size
        written = os.stat(path).st_mtime_ns
        assert (await peer.fsctl(file, Fsctl.SET_SPARSE, b"\0")).status == 0
        assert os.stat(path).st_blocks * 512 >= size
        assert os.stat(path).st_mtime_ns == written
        (attributes,) = struct.unpack_from("<I", output(await peer.query_info(file, FileInfoClass.BASIC)), 32)
        assert not attributes & attr.SPARSE

    act(tmp_path, scene)


def eas_of(value: bytes) -> bytes:
    return b"".join(encode_eas([EaEntry(b"ONE", value)]))


async def attributes_of(peer: Peer, file: FileId) -> int:
    return int(struct.unpack_from("<I", output(await peer.query_info(file, FileInfoClass.BASIC)), 32)[0])


@pytest.mark.parametrize("change", ["eas", "name", "data"])
def test_what_changes_a_file_marks_it_for_archiving(tmp_path: Path, change: str) -> None:
    """FILE_ATTRIBUTE_ARCHIVE: MS-FSA 2.1.4.17, 2.1.5.15.6; a rename sets it as on Windows and Samba."""
    plain = struct.pack("<4qII", 0, 0, 0, 0, attr.NORMAL, 0)

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL)).file
        assert await peer.set_info(file, FileInfoClass.BASIC, plain) == 0
        assert await attributes_of(peer, file) == attr.NORMAL
        assert await peer.close(file) == 0
        file = (await peer.make("f", desired_access=ALL)).file
        if change == "eas":
            assert await peer.set_info(file, FileInfoClass.FULL_EA, eas_of(b"1")) == 0
        elif change == "name":
            assert await peer.set_info(file, FileInfoClass.RENAME, rename_to("g")) == 0
        else:
            assert await peer.write(file) == 0
        assert await attributes_of(peer, file) == attr.ARCHIVE

    act(tmp_path, scene)


def test_a_renamed_folder_is_not_marked(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        folder = (await peer.make("d", desired_access=ALL, create_options=int(CreateOptions.DIRECTORY_FILE))).file
        assert await peer.set_info(folder, FileInfoClass.RENAME, rename_to("e")) == 0
        assert await attributes_of(peer, folder) == attr.DIRECTORY

    act(tmp_path, scene)


def test_who_watches_attributes_is_told_of_eas(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.15.6: FILE_NOTIFY_CHANGE_EA and FILE_NOTIFY_CHANGE_ATTRIBUTES."""

    async def scene(ground: Ground) -> None:
        watcher, peer = await ground.peer(), await ground.peer()
        folder = (
            await watcher.make("", create_options=int(CreateOptions.DIRECTORY_FILE), create_disposition=OPEN)
        ).file
        file = (await peer.make("f", desired_access=ALL)).file
        body = struct.pack("<HHI2QII", 32, 0, 4096, *folder, NotifyFilter.ATTRIBUTES, 0)
        await watcher.client.post(Command.CHANGE_NOTIFY, body)
        assert await watcher.waits()
        assert await peer.set_info(file, FileInfoClass.FULL_EA, eas_of(b"1")) == 0
        reply = await watcher.receive()
        assert reply.status == 0 and "f".encode("utf-16-le") in output(reply)

    act(tmp_path, scene)


def test_eas_of_reparse_points_and_too_many_are_refused(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.15.6."""
    link = struct.pack("<IHHHHHHI", 0xA000000C, 16, 0, 0, 2, 2, 2, 1) + "tt".encode("utf-16-le")

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        itself = int(CreateOptions.OPEN_REPARSE_POINT)
        file = (await peer.make("link", desired_access=ALL, create_options=itself)).file
        assert (await peer.fsctl(file, Fsctl.SET_REPARSE_POINT, link)).status == 0
        assert await peer.set_info(file, FileInfoClass.FULL_EA, eas_of(b"1")) == NtStatus.EAS_NOT_SUPPORTED
        other = (await peer.make("f", desired_access=ALL)).file
        # An entry has nine bytes besides its name and its value: 64 KiB - 4 in all.
        assert await peer.set_info(other, FileInfoClass.FULL_EA, eas_of(bytes(65520))) == NtStatus.EA_TOO_LARGE

    act(tmp_path, scene)


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (0, WRITE_THROUGH | SEQUENTIAL, 0),
        (0, ALERT, NtStatus.INVALID_PARAMETER),
        (0, NONALERT, NtStatus.INVALID_PARAMETER),
        (ALERT, 0, NtStatus.INVALID_PARAMETER),
        (NONALERT, WRITE_THROUGH, NtStatus.INVALID_PARAMETER),
        (ALERT, NONALERT, 0),
        (NONALERT, NONALERT | SEQUENTIAL, 0),
        (ALERT, ALERT | NONALERT, NtStatus.INVALID_PARAMETER),
        (0, UNBUFFERED, NtStatus.INVALID_PARAMETER),
        (0, ON_CLOSE, NtStatus.INVALID_PARAMETER),
        (0, 1, NtStatus.INVALID_PARAMETER),
    ],
)
def test_the_mode_of_an_open(tmp_path: Path, before: int, after: int, status: int) -> None:
    """MS-FSA 2.1.5.15.8."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL, create_options=before)).file
        assert await peer.set_info(file, FileInfoClass.MODE, struct.pack("<I", after)) == status
        mode = struct.unpack("<I", output(await peer.query_info(file, FileInfoClass.MODE)))[0]
        assert mode == (before if status else after)

    act(tmp_path, scene)


def test_an_unbuffered_open_keeps_what_it_said_of_writing_through(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.15.8."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL, create_options=UNBUFFERED)).file
        assert await peer.set_info(file, FileInfoClass.MODE, struct.pack("<I", WRITE_THROUGH)) == 0
        mode = struct.unpack("<I", output(await peer.query_info(file, FileInfoClass.MODE)))[0]
        assert mode == UNBUFFERED

    act(tmp_path, scene)
