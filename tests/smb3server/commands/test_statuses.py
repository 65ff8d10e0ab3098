"""The status of requests that files, names, pipes and sessions refuse."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from smb3server.settings.server import Settings
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.fs_info import FsInfoClass
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.query_info import InfoType
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import ALL, Ground, Peer, act, set_info_body
from tests.lab.wire_client import ioctl_body

DIRECTORY = 1
READ_ATTRIBUTES, READ, DELETE = 0x80, 0x120089, 0x10000
NO_FILE = b"\xff" * 16


# Names

NAMES = [
    ("none\\\\file", NtStatus.OBJECT_PATH_NOT_FOUND),
    ("none\\a*b", NtStatus.OBJECT_PATH_NOT_FOUND),
    ("d\\a*b", NtStatus.OBJECT_NAME_INVALID),
    ("f\\a*b", NtStatus.OBJECT_PATH_NOT_FOUND),
    ("none\\x\\a*b\\y", NtStatus.OBJECT_PATH_NOT_FOUND),
    ("d\\a:s:$INDEX_ALLOCATION", NtStatus.INVALID_PARAMETER),
    ("a:s:$INDEX_ALLOCATION", NtStatus.INVALID_PARAMETER),
    ("$Extend\\$Quota:$Q:$INDEX_ALLOCATION", NtStatus.OBJECT_PATH_NOT_FOUND),
    ("a:s:$UNKNOWN", NtStatus.OBJECT_NAME_INVALID),
    ("d\\new\\..\\..\\..\\f", NtStatus.OBJECT_PATH_SYNTAX_BAD),
    ("..\\f", NtStatus.OBJECT_PATH_SYNTAX_BAD),
    ("d\\..\\f", NtStatus.INVALID_PARAMETER),
    ("none\\..", 0),
    (".", 0),
    ("d\\.", 0),
    ("d\\.\\g", 0),
    (".\\d\\g", 0),
    ("d\\none\\..\\g", 0),
    ("d\\none\\..\\..\\f", 0),
    ("d\\.:s", NtStatus.OBJECT_NAME_INVALID),
]


@pytest.mark.parametrize(("name", "status"), NAMES)
def test_names(tmp_path: Path, name: str, status: int) -> None:
    """What is wrong with a component shows only when the folder above it exists. [MS-FSA 2.1.5.1 phases 6, 7]"""

    async def scene(ground: Ground) -> None:
        (ground.folder / "d").mkdir()
        (ground.folder / "f").write_bytes(b"f")
        (ground.folder / "d" / "g").write_bytes(b"g")
        peer = await ground.peer()
        assert (await peer.create(name, create_disposition=1, desired_access=READ)).status == status
        assert sorted(entry.name for entry in ground.folder.iterdir()) == ["d", "f"]

    act(tmp_path, scene)


# Pipes


@pytest.mark.parametrize("access", [0, 0x00000200])
def test_access_that_nobody_can_have_to_a_pipe(tmp_path: Path, access: int) -> None:
    """MS-FSA 2.1.5.1, phase 1."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        assert (await peer.client.tree_connect("IPC$")).status == 0
        assert (await peer.create("srvsvc", create_disposition=1)).status == 0
        refused = await peer.create("srvsvc", create_disposition=1, desired_access=access)
        assert refused.status == NtStatus.ACCESS_DENIED

    act(tmp_path, scene)


# Information


@pytest.mark.parametrize("level", list(FsInfoClass))
def test_volumes_cannot_be_set(tmp_path: Path, level: FsInfoClass) -> None:
    """MS-FSA 2.1.5.16: most levels can be set nowhere, and label, control and object id not here."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL)).file
        settable = level in (FsInfoClass.LABEL, FsInfoClass.CONTROL, FsInfoClass.OBJECT_ID)
        body = set_info_body(file, level, bytes(64), kind=InfoType.FILESYSTEM)
        expected = NtStatus.NOT_SUPPORTED if settable else NtStatus.INVALID_INFO_CLASS
        assert (await peer.call(Command.SET_INFO, body)).status == expected

    act(tmp_path, scene)


@pytest.mark.parametrize(
    ("name", "status"), [("f", NtStatus.SHORT_NAMES_NOT_ENABLED_ON_VOLUME), ("f:s", NtStatus.INVALID_PARAMETER)]
)
def test_short_names_cannot_be_set(tmp_path: Path, name: str, status: int) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make(name, desired_access=ALL)).file
        short = "F~1".encode("utf-16-le")
        data = struct.pack("<I", len(short)) + short
        assert await peer.set_info(file, FileInfoClass.SHORT_NAME, data) == status
        stat = (await peer.make(name, desired_access=READ)).file
        assert await peer.set_info(stat, FileInfoClass.SHORT_NAME, data) == NtStatus.ACCESS_DENIED

    act(tmp_path, scene)


def test_administrators_set_the_valid_data_length_that_a_file_has(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.15.17: all data up to the end of file is valid."""

    async def scene(ground: Ground) -> None:
        async def lengths(user: str) -> list[int]:
            peer = await ground.peer(user=user)
            file = (await peer.make("f", desired_access=ALL)).file
            assert await peer.write(file, b"12345") == 0
            folder = (await peer.make("d", create_options=DIRECTORY, desired_access=ALL)).file

            async def set_it(of: tuple[int, int], length: int) -> int:
                return await peer.set_info(of, FileInfoClass.VALID_DATA_LENGTH, struct.pack("<q", length))

            return [await set_it(file, length) for length in (5, 4, 6, -1)] + [await set_it(folder, 0)]

        assert await lengths("u") == [0] + [NtStatus.INVALID_PARAMETER] * 4
        assert await lengths("other") == [NtStatus.PRIVILEGE_NOT_HELD] * 5
        assert (ground.folder / "f").read_bytes() == b"12345"

    act(tmp_path, scene, Settings(admins=frozenset(["u"])))


# Controls


@pytest.mark.parametrize("code", [Fsctl.GET_OBJECT_ID, Fsctl.CREATE_OR_GET_OBJECT_ID])
def test_no_room_for_an_object_id(tmp_path: Path, code: int) -> None:
    """MS-FSA 2.1.5.10.1, 2.1.5.10.13."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = struct.pack("<QQ", *(await peer.make("f", desired_access=ALL)).file)
        for room, status in ((63, NtStatus.INVALID_PARAMETER), (64, 0)):
            body = ioctl_body(code, b"", file, output=room)
            assert (await peer.call(Command.IOCTL, body)).status == status

    act(tmp_path, scene)


def test_compression_that_the_volume_does_not_have(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.10.29."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL)).file
        (opened,) = ground.service.server.opens.by_id.values()
        store = opened.store
        assert store is not None
        store.supports_compression = False
        for wanted, status in ((0, 0), (1, NtStatus.INVALID_DEVICE_REQUEST), (2, NtStatus.INVALID_DEVICE_REQUEST)):
            assert (await peer.fsctl(file, Fsctl.SET_COMPRESSION, struct.pack("<H", wanted))).status == status

    act(tmp_path, scene)


def test_what_programs_for_ntfs_ask(tmp_path: Path) -> None:
    """Serial number, sizes and file numbers are those of the levels that say them, too. [MS-FSCC 2.3.26, 2.3.61]"""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        folder = (await peer.make("d", create_options=DIRECTORY)).file
        file = (await peer.make("d\\name", desired_access=ALL, file_attributes=0x2)).file
        serial, number, _ = struct.unpack("<QQQ", (await peer.query_info(file, FileInfoClass.ID)).body[8:])
        above = struct.unpack("<QQQ", (await peer.query_info(folder, FileInfoClass.ID)).body[8:])[1]
        volume = (await peer.fsctl(file, Fsctl.GET_NTFS_VOLUME_DATA)).body[48:]
        assert len(volume) == 96
        found, sectors, clusters, free, _, sector, cluster = struct.unpack_from("<QqqqqII", volume)
        assert (found, sectors * sector) == (serial, clusters * cluster) and 0 < free <= clusters
        for asked, version, size in ((b"", 2, 60), (b"\2\0\2\0", 2, 60), (b"\2\0\3\0", 3, 76), (b"\3\0\x09\0", 3, 76)):
            record = (await peer.fsctl(file, Fsctl.READ_FILE_USN_DATA, asked)).body[48:]
            width = 8 if version == 2 else 16
            assert struct.unpack_from("<IHH", record) == (len(record), version, 0) and len(record) % 8 == 0
            assert int.from_bytes(record[8 : 8 + width], "little") == number
            assert int.from_bytes(record[8 + width : 8 + 2 * width], "little") == above
            attributes, length, offset = struct.unpack_from("<IHH", record, size - 8)
            assert (attributes, offset) == (0x22, size)
            assert record[offset : offset + length].decode("utf-16-le") == "name"
        for asked in (b"\0\0\1\0", b"\4\0\x09\0", b"\3\0\2\0"):
            refused = await peer.fsctl(file, Fsctl.READ_FILE_USN_DATA, asked)
            assert refused.status == NtStatus.INVALID_PARAMETER
        target = struct.pack("<QQ", *file)
        for code, room in ((Fsctl.GET_NTFS_VOLUME_DATA, 95), (Fsctl.READ_FILE_USN_DATA, 67)):
            reply = await peer.call(Command.IOCTL, ioctl_body(code, b"", target, output=room))
            assert reply.status == NtStatus.BUFFER_TOO_SMALL

    act(tmp_path, scene)


@pytest.mark.parametrize("attribute", [0x8000, 0x20000])
def test_attributes_of_another_file_system_are_accepted_and_not_kept(tmp_path: Path, attribute: int) -> None:
    """INTEGRITY_STREAM and NO_SCRUB_DATA. [MS-FSCC 2.6]"""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        assert (await peer.make("f", file_attributes=attribute)).answer.file_attributes == 0x20
        made = await peer.make("d", file_attributes=attribute, create_options=DIRECTORY)
        assert made.answer.file_attributes == 0x10

    act(tmp_path, scene)


@pytest.mark.parametrize("dialect", [0x0202, 0x0210, 0x0300, 0x0311])
def test_every_dialect_may_ask_for_the_interfaces(tmp_path: Path, dialect: int) -> None:
    """3.3.5.15.11 refuses none; on loopback alone there is nothing to tell."""

    async def scene(ground: Ground) -> None:
        client = await ground.connect()
        await client.login(dialect)
        answers = [await client.call(Command.IOCTL, ioctl_body(Fsctl.QUERY_NETWORK_INTERFACE_INFO, b"", NO_FILE))]
        newest = await ground.peer()
        answers.append(await newest.call(Command.IOCTL, ioctl_body(Fsctl.QUERY_NETWORK_INTERFACE_INFO, b"", NO_FILE)))
        assert answers[0].status == answers[1].status
        assert answers[0].body[48:] == answers[1].body[48:]

    act(tmp_path, scene)


# Share modes of a file and its streams


@pytest.mark.parametrize("base", ["f", "d"])
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("stream_shares_delete", [True, False])
@pytest.mark.parametrize("stream_access", [READ, READ_ATTRIBUTES])
def test_a_stream_beside_an_open_for_deletion(
    tmp_path: Path, base: str, exists: bool, stream_shares_delete: bool, stream_access: int
) -> None:
    """MS-FSA 2.1.5.1.2.2, in both orders."""

    async def scene(ground: Ground) -> None:
        peer, other = await ground.peer(), await ground.peer()
        options = {"create_options": DIRECTORY} if base == "d" else {}
        await peer.close((await peer.make(base, desired_access=ALL, **options)).file)
        if exists:
            await peer.close((await peer.make(f"{base}:s", desired_access=ALL)).file)
        share = {"share_access": 7 if stream_shares_delete else 3}
        refused = not stream_shares_delete and stream_access == READ

        async def outcome(who: Peer, name: str, **fields: Any) -> tuple[int, tuple[int, int]]:
            made = await who.create(name, **fields)
            return made.status, made.file

        expected = NtStatus.SHARING_VIOLATION if refused else 0
        whole = (await peer.make(base, desired_access=DELETE | READ, **options)).file
        status, stream = await outcome(other, f"{base}:s", desired_access=stream_access, **share)
        assert status == expected
        if refused:
            assert (await peer.create(f"{base}:s", create_disposition=1)).status == (
                0 if exists else NtStatus.OBJECT_NAME_NOT_FOUND
            ), "a stream that was refused is not left behind"
        else:
            assert await other.close(stream) == 0
        assert await peer.close(whole) == 0
        if not refused:
            return
        await other.make(f"{base}:s", desired_access=stream_access, **share)
        assert (await peer.create(base, desired_access=DELETE, **options)).status == NtStatus.SHARING_VIOLATION

    act(tmp_path, scene)


# Sessions


def test_one_client_has_one_dialect(tmp_path: Path) -> None:
    """3.3.5.5.3 (GlobalClientTable), 3.3.7.1."""

    async def scene(ground: Ground) -> None:
        async def session(guid: bytes, dialect: int) -> tuple[Peer, int]:
            client = await ground.connect()
            client.guid = guid
            assert (await client.negotiate(dialect)).status == 0
            return Peer(client), (await client.session_setup()).status

        guid, zero = bytes(range(16)), bytes(16)
        first, status = await session(guid, 0x0311)
        assert status == 0
        assert (await session(guid, 0x0300))[1] == NtStatus.USER_SESSION_DELETED
        assert (await session(guid, 0x0311))[1] == 0
        assert (await session(guid, 0x0210))[1] == 0, "the table is for 3.x"
        assert (await session(bytes(range(1, 17)), 0x0300))[1] == 0
        assert ((await session(zero, 0x0300))[1], (await session(zero, 0x0311))[1]) == (0, 0)
        for client in list(ground.clients):
            if client.guid == guid:
                await ground.lose(Peer(client))
        assert first.client not in ground.clients
        assert (await session(guid, 0x0302))[1] == 0, "nothing is left of the client that went"

    act(tmp_path, scene)
