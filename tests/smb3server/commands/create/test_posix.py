"""POSIX opens: negotiation, names, modes, deletion and renaming of open files, links, information. [POSIX-SMB2]"""

from __future__ import annotations

import asyncio
import os
import stat
import struct
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from smb3server.access.descriptor import Ace, AceType, Acl, Control, SecurityDescriptor, Sid
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.local.macos import MacBackend
from smb3server.backends.local.snapshot_folders import SnapshotFolders
from smb3server.backends.snapshot_names import hiding, parse, parse_token
from smb3server.backends.snapshots import Snapshots
from smb3server.wire import file_info, posix, query_directory
from smb3server.wire.change_notify import CHANGE_NOTIFY_REQUEST, ChangeNotifyRequest
from smb3server.wire.create import Access, CreateAction, CreateOptions
from smb3server.wire.create_contexts import SD_BUFFER, TIMEWARP, RawContext
from smb3server.wire.file_info import FileInfoClass, RenameInformation
from smb3server.wire.filetime import from_ns
from smb3server.wire.header import Command
from smb3server.wire.query_info import InfoType, QueryInfoRequest, SecurityInformation, build_query_info_request
from smb3server.wire.set_info import SetInfoRequest, build_set_info_request
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import ALL, FileId, close, opened, read, request, write
from tests.lab.shares import share_of
from tests.lab.wire_client import Client, Reply, context, contexts_for, ioctl_body, running

OPEN, CREATE, OPEN_IF = 1, 2, 3
FOLDER, LINK = int(CreateOptions.DIRECTORY_FILE), int(CreateOptions.OPEN_REPARSE_POINT)
ON_CLOSE = int(CreateOptions.DELETE_ON_CLOSE)
SET_REPARSE_POINT, GET_REPARSE_POINT = 0x000900A4, 0x000900A8
OFFER = context(posix.EXTENSIONS_AVAILABLE, posix.VERSION)
Test = Callable[[Client, Client], Awaitable[None]]
"""Of a client with POSIX extensions, and of one without."""


def mode(bits: int) -> list[RawContext]:
    return [RawContext(posix.VERSION, struct.pack("<I", bits))]


def play(folder: Path, test: Test, store: type[LocalBackend] = LocalBackend, **rules: Any) -> None:
    async def body() -> None:
        with closing(store(folder)) as backend:
            async with running() as harness:
                harness.server.add_share(share_of("posix", backend, posix=True, **rules))
                with_posix, plain = await harness.connect(), await harness.connect()
                await with_posix.login(share="posix", contexts=[*contexts_for(), OFFER])
                await plain.login(share="posix")
                await test(with_posix, plain)

    asyncio.run(body())


async def make(client: Client, name: str, bits: int = 0o644, **fields: Any) -> tuple[FileId, dict[bytes, bytes]]:
    _, file, answers = await opened(client, name, mode(bits), desired_access=ALL, **fields)
    assert posix.VERSION in answers
    return file, answers


async def status_of(client: Client, name: str, bits: int | None = posix.NO_MODE, **fields: Any) -> int:
    body = request(name, mode(bits) if bits is not None else [], **{"create_disposition": OPEN, **fields})
    return (await client.call(Command.CREATE, body)).status


async def query(client: Client, file: FileId, level: int, kind: int = InfoType.FILE) -> Reply:
    asked = QueryInfoRequest(
        info_type=kind, info_class=level, output_buffer_length=4096, persistent=file[0], volatile=file[1]
    )
    return await client.call(Command.QUERY_INFO, build_query_info_request(asked))


def output(reply: Reply) -> bytes:
    assert reply.status == 0, hex(reply.status)
    offset, length = struct.unpack_from("<HI", reply.body, 2)
    return reply.message[offset : offset + length]


def information(data: bytes) -> tuple[posix.PosixInformation, Sid, Sid, bytes]:
    """Return FilePosixInformation, owner, group, and what comes behind."""
    size = posix.POSIX_INFORMATION.size
    owner = Sid.unpack(data, size)
    group = Sid.unpack(data, size + owner.size)
    return posix.POSIX_INFORMATION.unpack(data), owner, group, data[size + owner.size + group.size :]


async def told(client: Client, name: str, **fields: Any) -> posix.PosixInformation:
    _, file, _ = await opened(client, name, mode(posix.NO_MODE), create_disposition=OPEN, desired_access=0x80, **fields)
    found = information(output(await query(client, file, posix.LEVEL)))[0]
    await close(client, file)
    return found


async def listing(client: Client, name: str = "") -> dict[str, tuple[posix.PosixInformation, Sid]]:
    _, folder, _ = await opened(
        client, name, mode(posix.NO_MODE), create_disposition=OPEN, desired_access=0x81, create_options=FOLDER
    )
    found: dict[str, tuple[posix.PosixInformation, Sid]] = {}
    while True:
        asked = query_directory.QueryDirectoryRequest(
            info_class=posix.LEVEL, persistent=folder[0], volatile=folder[1], output_buffer_length=700
        )
        body = query_directory.build_query_directory_request(asked, "*")
        reply = await client.call(Command.QUERY_DIRECTORY, body)
        if reply.status == NtStatus.NO_MORE_FILES:
            await close(client, folder)
            return found
        data, start = output(reply), 0
        while True:
            following, _ = struct.unpack_from("<II", data, start)
            end = start + following if following else len(data)
            info, owner, _, rest = information(data[start + 8 : end])
            (length,) = struct.unpack_from("<I", rest)
            found[rest[4 : 4 + length].decode("utf-16-le")] = info, owner
            if not following:
                break
            start = end


async def set_info(
    client: Client, file: FileId, level: int, data: bytes, kind: int = InfoType.FILE, more: int = 0
) -> int:
    asked = SetInfoRequest(
        info_type=kind, info_class=level, additional_information=more, persistent=file[0], volatile=file[1]
    )
    return (await client.call(Command.SET_INFO, build_set_info_request(asked, data))).status


async def rename(client: Client, file: FileId, name: str, replace: int = 1) -> int:
    data = file_info.encode_rename(RenameInformation(replace, 0, name))
    return await set_info(client, file, FileInfoClass.RENAME, data)


# Negotiation


def answered(offers: list[bytes], posix_share: bool, dialect: int = 0x0311) -> bool | int:
    """Return whether the extensions are agreed upon, or the status of the negotiation's failure."""

    async def body() -> bool | int:
        async with running(posix=posix_share) as harness:
            client = await harness.connect()
            contexts = [*contexts_for(), *offers] if dialect == 0x0311 else None
            reply = await client.negotiate(dialect, contexts=contexts)
            return reply.status or (struct.pack("<HH", 0x0100, 16) in reply.message and posix.VERSION in reply.message)

    return asyncio.run(body())


def test_extensions_are_agreed_upon_if_a_share_has_them() -> None:
    assert answered([OFFER], True) is True
    assert answered([OFFER], False) is False
    assert answered([], True) is False
    assert answered([OFFER], True, 0x0302) is False


def test_only_the_known_version_is_agreed_upon() -> None:
    other = bytes(16)
    assert answered([context(posix.EXTENSIONS_AVAILABLE, other)], True) is False
    assert answered([context(posix.EXTENSIONS_AVAILABLE, other + posix.VERSION)], True) is True
    assert answered([context(posix.EXTENSIONS_AVAILABLE, b"01234")], True) == NtStatus.INVALID_PARAMETER


def test_without_agreement_the_context_is_ignored(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        (tmp_path / "File").write_bytes(b"")
        _, file, answers = await opened(plain, "FILE", mode(0o644), create_disposition=OPEN)
        assert not answers
        reply = await query(plain, file, posix.LEVEL)
        assert reply.status == NtStatus.INVALID_INFO_CLASS
        assert (await query(plain, file, posix.LEVEL, InfoType.FILESYSTEM)).status == NtStatus.INVALID_INFO_CLASS
        assert await status_of(client, "FILE") == NtStatus.OBJECT_NAME_NOT_FOUND
        assert await status_of(client, "FILE", None) == 0

    play(tmp_path, test)


def test_a_context_of_another_size_is_refused(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        for data in (b"", b"000", b"00000"):
            body = request("new", [RawContext(posix.VERSION, data)])
            assert (await client.call(Command.CREATE, body)).status == NtStatus.INVALID_PARAMETER
        assert not (tmp_path / "new").exists()

    play(tmp_path, test)


# Modes and owners


@pytest.mark.parametrize("bits", [0, 0o400, 0o640, 0o777])
def test_a_new_file_has_the_mode_asked_for(tmp_path: Path, bits: int) -> None:
    async def test(client: Client, plain: Client) -> None:
        before = os.umask(0o077)
        try:
            file, answers = await make(client, "file", bits, create_disposition=CREATE)
            await make(client, "folder", bits, create_disposition=CREATE, create_options=FOLDER)
        finally:
            os.umask(before)
        assert (await write(client, file, b"data")).status == 0
        for name, kind in (("file", posix.PosixType.FILE), ("folder", posix.PosixType.DIRECTORY)):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == bits
            assert (await told(client, name)).mode == posix.mode_of(kind, bits)
        data = answers[posix.VERSION]
        assert posix.POSIX_CREATE_RESPONSE.unpack(data) == (1, 0, bits)
        assert Sid.unpack(data, 12) == Sid(22, (1, os.geteuid()))
        assert Sid.unpack(data, 28) == Sid(22, (2, os.getegid()))

    play(tmp_path, test)


def test_no_client_makes_programs_that_run_as_another_user(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        await make(client, "file", 0o7755, create_disposition=CREATE)
        folder, _ = await make(client, "folder", 0o7755, create_disposition=CREATE, create_options=FOLDER)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o1755
        assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o3755
        file, _ = await make(client, "file", create_disposition=OPEN)
        for which in (file, folder):
            assert await set_mode(client, which, 0o7711) == 0
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o1711
        assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o3711

    play(tmp_path, test)


def test_without_a_mode_the_share_decides(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        await make(client, "posix", posix.NO_MODE, create_disposition=CREATE)
        await opened(plain, "plain")
        assert (tmp_path / "posix").stat().st_mode == (tmp_path / "plain").stat().st_mode

    play(tmp_path, test)


def nfs(*numbers: int) -> Sid:
    return Sid(5, (88, *numbers))


async def set_mode(client: Client, file: FileId, bits: int) -> int:
    dacl = Acl((Ace(AceType.ALLOWED, 0, 0, nfs(3, bits)),))
    descriptor = SecurityDescriptor(None, None, dacl, None, int(Control.DACL_PRESENT)).pack()
    return await set_info(client, file, 0, descriptor, InfoType.SECURITY, SecurityInformation.DACL)


def test_a_new_mode_takes_the_place_of_a_dacl(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        everyone = Acl((Ace(AceType.ALLOWED, 0, ALL, Sid(1, (0,))),))
        _, file, _ = await opened(plain, "file", desired_access=ALL)
        descriptor = SecurityDescriptor(None, None, everyone, None, int(Control.DACL_PRESENT)).pack()
        assert await set_info(plain, file, 0, descriptor, InfoType.SECURITY, SecurityInformation.DACL) == 0
        await close(plain, file)
        file, _ = await make(client, "file", create_disposition=OPEN)
        assert await set_mode(client, file, 0o640) == 0
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
        asked = QueryInfoRequest(
            info_type=InfoType.SECURITY,
            output_buffer_length=4096,
            additional_information=SecurityInformation.DACL,
            persistent=file[0],
            volatile=file[1],
        )
        found = output(await client.call(Command.QUERY_INFO, build_query_info_request(asked)))
        assert everyone.aces[0].sid is not None
        assert SecurityDescriptor(None, None, everyone, None, int(Control.DACL_PRESENT)).pack()[20:] not in found

    play(tmp_path, test)


def test_owner_and_group_are_given_by_number(tmp_path: Path) -> None:
    which = SecurityInformation.OWNER | SecurityInformation.GROUP

    async def test(client: Client, plain: Client) -> None:
        file, _ = await make(client, "file", 0o640)
        own = SecurityDescriptor(nfs(1, os.geteuid()), nfs(2, os.getegid()), None, None, 0).pack()
        assert await set_info(client, file, 0, own, InfoType.SECURITY, which) == 0
        other = SecurityDescriptor(nfs(1, 4242), nfs(2, os.getegid()), None, None, 0).pack()
        # The server's own credentials are nobody's: what root may do, users without credentials of their own may not.
        assert await set_info(client, file, 0, other, InfoType.SECURITY, which) == NtStatus.INVALID_OWNER
        assert (tmp_path / "file").stat().st_uid == os.geteuid()
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640

    play(tmp_path, test)


def test_a_new_file_has_the_owner_and_the_mode_of_its_descriptor(tmp_path: Path) -> None:
    """As Linux sends them with ``modefromsid,idsfromsid``."""

    async def test(client: Client, plain: Client) -> None:
        dacl = Acl((Ace(AceType.ALLOWED, 0, 0, nfs(3, 0o640)),))
        for uid, status in ((os.geteuid(), 0), (4242, NtStatus.INVALID_OWNER)):
            descriptor = SecurityDescriptor(nfs(1, uid), nfs(2, os.getegid()), dacl, None, int(Control.DACL_PRESENT))
            contexts = [*mode(0o600), RawContext(SD_BUFFER, descriptor.pack())]
            body = request(f"file-{uid}", contexts, create_disposition=CREATE)
            assert (await client.call(Command.CREATE, body)).status == status
        assert os.listdir(tmp_path) == [f"file-{os.geteuid()}"]
        assert stat.S_IMODE((tmp_path / f"file-{os.geteuid()}").stat().st_mode) == 0o640

    play(tmp_path, test)


def test_readonly_is_no_obstacle(tmp_path: Path) -> None:
    """A file without a w bit is READONLY for Windows. To POSIX it is the folder's mode that matters for unlink(2)."""

    async def test(client: Client, plain: Client) -> None:
        for name in ("one", "two", "three"):
            (tmp_path / name).write_bytes(b"")
            (tmp_path / name).chmod(0o444)
        refused = await status_of(plain, "one", None, desired_access=int(Access.DELETE), create_options=ON_CLOSE)
        assert refused == NtStatus.CANNOT_DELETE
        file, _ = await make(client, "one", create_disposition=OPEN, create_options=ON_CLOSE)
        await close(client, file)
        file, _ = await make(client, "two", create_disposition=OPEN)
        assert await rename(client, file, "three") == 0
        assert sorted(os.listdir(tmp_path)) == ["three"]

    play(tmp_path, test)


# Names

ODD = [
    "a",
    "A",
    "a.",
    "a ",
    ". ",
    "...",
    "a:b",
    "a:b:$DATA",
    "b\\c",
    "\\",
    '*?<>|"',
    "con",
    "tab\t",
    "ä",
    "Ä",
    "日本語",
]


def test_names_are_those_of_posix(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        await make(client, "folder", 0o755, create_options=FOLDER)
        for name in ODD:
            assert await status_of(client, f"folder/{name}") == NtStatus.OBJECT_NAME_NOT_FOUND, name
            file, _ = await make(client, f"folder/{name}", create_disposition=CREATE)
            await close(client, file)
        assert sorted(os.listdir(tmp_path / "folder")) == sorted(ODD)
        found = await listing(client, "folder")
        assert sorted(found) == sorted([*ODD, ".", ".."])
        for name in ODD:
            assert found[name][0].inode == (tmp_path / "folder" / name).stat().st_ino

    play(tmp_path, test)


def test_mapped_characters_are_the_same_names(tmp_path: Path) -> None:
    """Linux maps characters by default (``mapposix``), but for the backslash."""

    async def test(client: Client, plain: Client) -> None:
        (tmp_path / "a:b*.").write_bytes(b"")
        assert await status_of(client, "a\uf022b\uf021\uf029") == 0
        assert await status_of(client, "a:b*.") == 0
        assert await status_of(plain, "a\uf022b\uf021\uf029", None) == 0

    play(tmp_path, test)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("/file", NtStatus.INVALID_PARAMETER),
        ("..", NtStatus.OBJECT_PATH_SYNTAX_BAD),
        ("folder/../../file", NtStatus.OBJECT_PATH_SYNTAX_BAD),
        ("fi\0le", NtStatus.OBJECT_NAME_INVALID),
        ("\ud800", NtStatus.INVALID_PARAMETER),
        ("x" * 256, NtStatus.OBJECT_NAME_INVALID),
        ("folder/" * 300 + "file", NtStatus.OBJECT_NAME_INVALID),
        (".smb3server", NtStatus.OBJECT_NAME_NOT_FOUND),
        (".SMB3server/x", NtStatus.OBJECT_PATH_NOT_FOUND),
        ("file/x", NtStatus.OBJECT_PATH_NOT_FOUND),
    ],
)
def test_other_names_are_refused(tmp_path: Path, name: str, status: NtStatus) -> None:
    async def test(client: Client, plain: Client) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").write_bytes(b"")
        path = name.encode("utf-16-le", "surrogatepass")
        body = bytearray(request("x" * (len(path) // 2), mode(0o644), create_disposition=OPEN))
        at = body.index(b"x\0" * (len(path) // 2))
        body[at : at + len(path)] = path
        assert (await client.call(Command.CREATE, bytes(body))).status == status

    play(tmp_path, test)


def test_the_server_keeps_its_own_name(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        for name in (".smb3server", ".SMB3SERVER"):
            status = await status_of(client, name, 0o755, create_disposition=CREATE, create_options=FOLDER)
            assert status == NtStatus.ACCESS_DENIED

    play(tmp_path, test)


def test_dots_are_resolved_by_name(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").write_bytes(b"")
        for name in ("./file", "folder/../file", "folder//../file", "nothing/../file"):
            assert await status_of(client, name) == 0, name
        assert await status_of(client, "folder/", create_options=FOLDER) == 0

    play(tmp_path, test)


def test_windows_finds_a_new_name_in_another_case_at_once(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        assert await status_of(plain, "FILE", None) == NtStatus.OBJECT_NAME_NOT_FOUND
        file, _ = await make(client, "file")
        assert await status_of(plain, "FILE", None) == 0
        assert await rename(client, file, "other") == 0
        assert await status_of(plain, "FILE", None) == NtStatus.OBJECT_NAME_NOT_FOUND
        assert await status_of(plain, "OTHER", None) == 0

    play(tmp_path, test)


# Deletion and renaming


async def watch(client: Client) -> None:
    """Watch the share's root, so that changes are reported."""
    _, folder, _ = await opened(client, "", desired_access=1, create_options=FOLDER, create_disposition=OPEN)
    asked = ChangeNotifyRequest(
        flags=1, output_buffer_length=4096, persistent=folder[0], volatile=folder[1], completion_filter=0xFFF
    )
    await client.post(Command.CHANGE_NOTIFY, CHANGE_NOTIFY_REQUEST.pack(asked))


async def unlink(client: Client, name: str) -> None:
    file, _ = await make(client, name, create_disposition=OPEN, create_options=ON_CLOSE | LINK)
    await close(client, file)


@pytest.mark.parametrize("links", [1, 2])
def test_an_open_file_is_unlinked_at_once(tmp_path: Path, links: int) -> None:
    async def test(client: Client, plain: Client) -> None:
        await watch(plain)
        file, _ = await make(client, "file")
        assert (await write(client, file, b"data")).status == 0
        if links == 2:
            os.link(tmp_path / "file", tmp_path / "other")
        await unlink(client, "file")
        assert not (tmp_path / "file").exists()
        again, _ = await make(client, "file", create_disposition=CREATE)
        assert await read(client, file, 4) == (0, b"data")
        assert await set_info(client, file, FileInfoClass.END_OF_FILE, struct.pack("<q", 2)) == 0
        assert await set_mode(client, file, 0o600) == 0
        found = information(output(await query(client, file, posix.LEVEL)))[0]
        assert (found.links, found.end_of_file, found.mode) == (links - 1, 2, 0o600)
        await close(client, file)
        assert (tmp_path / "file").exists() and (tmp_path / "other").exists() == (links == 2)
        await close(client, again)

    play(tmp_path, test)


@pytest.mark.parametrize("links", [1, 2])
def test_an_open_of_windows_keeps_the_name(tmp_path: Path, links: int) -> None:
    async def test(client: Client, plain: Client) -> None:
        _, windows, _ = await opened(plain, "file", desired_access=ALL)
        if links == 2:
            os.link(tmp_path / "file", tmp_path / "other")
        file, _ = await make(client, "file")
        await unlink(client, "file")
        assert (tmp_path / "file").exists()
        assert await status_of(client, "file") == NtStatus.DELETE_PENDING
        await close(plain, windows)
        assert not (tmp_path / "file").exists()
        await close(client, file)

    play(tmp_path, test)


def test_share_modes_count_as_they_are_sent(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        await make(client, "file", share_access=1)
        assert await status_of(client, "file", desired_access=0x80) == 0
        assert await status_of(client, "file", desired_access=2) == NtStatus.SHARING_VIOLATION

    play(tmp_path, test)


def test_an_open_file_is_replaced(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        one, _ = await make(client, "one")
        two, _ = await make(client, "two")
        assert (await write(client, two, b"second")).status == 0
        assert await rename(client, one, "two") == 0
        assert os.listdir(tmp_path) == ["two"]
        assert await read(client, two, 6) == (0, b"second")
        _, windows, _ = await opened(plain, "three")
        assert await rename(client, one, "three") == NtStatus.ACCESS_DENIED
        await close(plain, windows)
        assert await rename(client, one, "three") == 0

    play(tmp_path, test)


def test_case_is_a_rename_and_hard_links_stay(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        file, _ = await make(client, "file")
        assert await rename(client, file, "FILE") == 0
        (tmp_path / "file").write_bytes(b"another")
        assert sorted(os.listdir(tmp_path)) == ["FILE", "file"]
        os.link(tmp_path / "FILE", tmp_path / "link")
        assert await rename(client, file, "link") == 0
        assert sorted(os.listdir(tmp_path)) == ["FILE", "file", "link"]
        assert await rename(client, file, "a:b/x") == NtStatus.OBJECT_PATH_NOT_FOUND
        assert await rename(client, file, ":b\\ ") == 0
        assert sorted(os.listdir(tmp_path)) == [":b\\ ", "file", "link"]

    play(tmp_path, test)


def test_a_folder_is_renamed_with_open_files_in_it(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        folder, _ = await make(client, "folder", 0o755, create_options=FOLDER)
        file, _ = await make(client, "folder/file")
        assert await rename(client, folder, "moved") == 0
        assert (await write(client, file, b"data")).status == 0
        assert (tmp_path / "moved" / "file").read_bytes() == b"data"
        _, windows, _ = await opened(plain, "moved\\file")
        assert await rename(client, folder, "again") == NtStatus.ACCESS_DENIED
        await close(plain, windows)

    play(tmp_path, test)


def test_an_open_that_may_only_append_writes_at_the_end(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        await make(client, "file")
        (tmp_path / "file").write_bytes(b"hello")
        _, file, _ = await opened(client, "file", mode(0), desired_access=0x85, create_disposition=OPEN)
        for offset in (0, 5):
            assert (await write(client, file, b"x", offset)).status == NtStatus.INVALID_PARAMETER
        for data in (b" wor", b"ld"):
            assert (await write(client, file, data, (1 << 64) - 1)).status == 0
        assert (tmp_path / "file").read_bytes() == b"hello world"
        _, file, _ = await opened(client, "file", desired_access=0x85, create_disposition=OPEN)
        assert (await write(client, file, b"H", 0)).status == 0
        assert (await write(client, file, b"x", (1 << 64) - 1)).status == NtStatus.INVALID_PARAMETER

    play(tmp_path, test)


# Links and special files


def buffer(target: str, relative: bool = True) -> bytes:
    name = target.encode("utf-16-le")
    body = struct.pack("<HHHHI", len(name), len(name), 0, len(name), relative) + name + name
    return struct.pack("<IHH", 0xA000000C, len(body), 0) + body


async def target_of(client: Client, file: FileId) -> tuple[str, int]:
    reply = await client.call(Command.IOCTL, ioctl_body(GET_REPARSE_POINT, b"", struct.pack("<QQ", *file)))
    assert reply.status == 0, hex(reply.status)
    offset, length = struct.unpack_from("<II", reply.body, 32)
    data = reply.message[offset : offset + length]
    at, size, _, _, flags = struct.unpack_from("<HHHHI", data, 8)
    return data[20 + at : 20 + at + size].decode("utf-16-le"), flags


@pytest.mark.parametrize(
    ("sent", "relative", "shown", "windows"),
    [
        ("../real", True, "../real", "..\\real"),
        ("a:b/c ", True, "a:b/c ", "a\uf022b\\c\uf028"),
        ("b\\c", True, "b\\c", "b\uf026c"),
        ("etc/passwd", False, "/etc/passwd", "\\etc\\passwd"),
        ("/etc/passwd", False, "/etc/passwd", "\\etc\\passwd"),
        ("..", True, "..", ".."),
    ],
)
def test_a_symlink_comes_back(tmp_path: Path, sent: str, relative: bool, shown: str, windows: str) -> None:
    """Linux leaves out the slash with which an absolute target begins."""

    async def test(client: Client, plain: Client) -> None:
        link, _ = await make(client, "link", posix.NO_MODE, create_options=LINK)
        body = ioctl_body(SET_REPARSE_POINT, buffer(sent, relative), struct.pack("<QQ", *link))
        assert (await client.call(Command.IOCTL, body)).status == 0
        assert await target_of(client, link) == (shown, int(relative))
        await close(client, link)
        assert await status_of(client, "link") == NtStatus.STOPPED_ON_SYMLINK
        assert await status_of(client, "link/x") == NtStatus.STOPPED_ON_SYMLINK
        _, link, _ = await opened(plain, "link", desired_access=0x80, create_options=LINK, create_disposition=OPEN)
        assert await target_of(plain, link) == (windows, int(relative))
        wanted = posix.mode_of(posix.PosixType.SYMLINK, 0o777)
        assert (await told(client, "link", create_options=LINK)).mode == wanted
        assert (await listing(client))["link"][0].mode == wanted

    play(tmp_path, test)


@pytest.mark.parametrize("data", [buffer("")[:24], buffer("x")[:20], buffer("x\0y"), buffer("x")[:8] + bytes(16)])
def test_a_malformed_symlink_is_refused(tmp_path: Path, data: bytes) -> None:
    async def test(client: Client, plain: Client) -> None:
        link, _ = await make(client, "link", posix.NO_MODE, create_options=LINK)
        whole = data[:4] + struct.pack("<H", len(data) - 8) + data[6:]
        body = ioctl_body(SET_REPARSE_POINT, whole, struct.pack("<QQ", *link))
        assert (await client.call(Command.IOCTL, body)).status == NtStatus.IO_REPARSE_DATA_INVALID

    play(tmp_path, test)


def test_no_symlink_of_the_host_is_followed(tmp_path: Path) -> None:
    """Whether it leads out of the share or not, the client gets its target."""
    share, outside = tmp_path / "share", tmp_path / "outside"
    share.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (share / "inside").write_bytes(b"")
    (share / "out").symlink_to(outside)
    (share / "up").symlink_to("../outside/secret")
    (share / "in").symlink_to("inside")
    (share / "gone").symlink_to("nothing")

    async def test(client: Client, plain: Client) -> None:
        for name in ("out", "up", "in", "gone", "out/secret", "out/new"):
            for disposition in (OPEN, CREATE, OPEN_IF):
                status = await status_of(client, name, 0o644, create_disposition=disposition)
                assert status == NtStatus.STOPPED_ON_SYMLINK, name
        file, _ = await make(client, "inside")
        assert await rename(client, file, "out/new") != 0
        assert sorted(os.listdir(outside)) == ["secret"]
        found = await listing(client)
        for name in ("out", "up", "in", "gone"):
            assert found[name][0].mode == posix.mode_of(posix.PosixType.SYMLINK, 0o777)
            assert found[name][0].inode == (share / name).lstat().st_ino
            link, _ = await make(client, name, posix.NO_MODE, create_options=LINK)
            assert (await target_of(client, link))[0] == os.readlink(share / name)
            await close(client, link)
            await unlink(client, name)
        assert sorted(os.listdir(share)) == ["inside"] and (outside / "secret").exists()

    play(share, test)


def test_special_files(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        os.mkfifo(tmp_path / "host", 0o640)
        node, _ = await make(client, "node", 0o600, create_options=LINK)
        data = struct.pack("<IHHQII", 0x80000014, 16, 0, 0x00524843, 1, 3)
        body = ioctl_body(SET_REPARSE_POINT, data, struct.pack("<QQ", *node))
        assert (await client.call(Command.IOCTL, body)).status == 0
        await close(client, node)
        found = await listing(client)
        for name, kind, bits in (
            ("host", posix.PosixType.FIFO, 0o640),
            ("node", posix.PosixType.CHARACTER_DEVICE, 0o600),
        ):
            for info in (found[name][0], await told(client, name, create_options=LINK)):
                assert (info.mode, info.reparse_tag) == (posix.mode_of(kind, bits), 0x80000014)
        _, host, _ = await opened(
            client, "host", mode(0), desired_access=0x80, create_options=LINK, create_disposition=OPEN
        )
        reply = await client.call(Command.IOCTL, ioctl_body(GET_REPARSE_POINT, b"", struct.pack("<QQ", *host)))
        offset, length = struct.unpack_from("<II", reply.body, 32)
        assert reply.message[offset : offset + length] == struct.pack("<IHHQ", 0x80000014, 8, 0, 0x4F464946)

    play(tmp_path, test)


# Information


def test_what_a_file_tells(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        file, _ = await make(client, "file", 0o640)
        assert (await write(client, file, bytes(5000))).status == 0
        os.link(tmp_path / "file", tmp_path / "other")
        info, owner, group, rest = information(output(await query(client, file, posix.LEVEL)))
        seen = (tmp_path / "file").stat()
        assert (info.end_of_file, info.links, info.inode) == (5000, 2, seen.st_ino)
        assert (owner, group, rest) == (Sid(22, (1, seen.st_uid)), Sid(22, (2, seen.st_gid)), b"")
        reply = await query(client, file, posix.LEVEL, InfoType.FILESYSTEM)
        volume = posix.POSIX_VOLUME_INFORMATION.unpack(output(reply))
        host = os.statvfs(tmp_path)
        assert (volume.block_size, volume.total_blocks, volume.total_file_nodes) == (
            host.f_frsize,
            host.f_blocks,
            host.f_files,
        )

    play(tmp_path, test)


def test_what_lies_above_the_share_is_not_told(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        (tmp_path / "folder").mkdir()
        above, owner = (await listing(client))[".."]
        assert (above.inode, above.device, owner) == (0, 0, Sid(0, (0,)))
        assert (await listing(client, "folder"))[".."][0].inode == tmp_path.stat().st_ino

    play(tmp_path, test)


def test_a_share_for_macs_may_have_them(tmp_path: Path) -> None:
    limit = 1 << 20

    async def test(client: Client, _: Client) -> None:
        file, _ = await make(client, "file")
        assert (await write(client, file, b"data")).status == 0
        assert await rename(client, file, "FILE") == 0
        volume = posix.POSIX_VOLUME_INFORMATION.unpack(
            output(await query(client, file, posix.LEVEL, InfoType.FILESYSTEM))
        )
        assert volume.total_blocks * volume.block_size == limit
        await unlink(client, "FILE")
        assert not list(tmp_path.iterdir())
        assert (await query(client, file, posix.LEVEL)).status == 0
        _, stream, _ = await opened(client, "other:stream", desired_access=ALL)
        assert (await write(client, stream, b"data")).status == 0
        await close(client, stream)
        await unlink(client, "other")
        assert [path.name for path in tmp_path.iterdir()] == [".smb3server"]

    play(tmp_path, test, MacBackend, time_machine=True, time_machine_max_size=limit)


def test_listing_needs_a_posix_open(tmp_path: Path) -> None:
    async def test(client: Client, plain: Client) -> None:
        _, folder, _ = await opened(client, "", desired_access=0x81, create_options=FOLDER, create_disposition=OPEN)
        asked = query_directory.QueryDirectoryRequest(
            info_class=posix.LEVEL, persistent=folder[0], volatile=folder[1], output_buffer_length=700
        )
        body = query_directory.build_query_directory_request(asked, "*")
        assert (await client.call(Command.QUERY_DIRECTORY, body)).status == NtStatus.INVALID_INFO_CLASS

    play(tmp_path, test)


def test_granted_access_is_not_more_than_that_of_other_opens(tmp_path: Path) -> None:
    """A descriptor of Windows holds for POSIX opens, too."""

    async def test(client: Client, plain: Client) -> None:
        reads = Acl((Ace(AceType.ALLOWED, 0, 0x00120089, Sid(1, (0,))),))
        _, file, _ = await opened(plain, "file", desired_access=ALL)
        descriptor = SecurityDescriptor(None, None, reads, None, int(Control.DACL_PRESENT)).pack()
        assert await set_info(plain, file, 0, descriptor, InfoType.SECURITY, SecurityInformation.DACL) == 0
        await close(plain, file)
        for access in (Access.WRITE_DATA, Access.DELETE_CHILD, Access.EXECUTE):
            for who, bits in ((plain, None), (client, 0o777)):
                assert await status_of(who, "file", bits, desired_access=int(access)) == NtStatus.ACCESS_DENIED
        answer, _, _ = await opened(client, "file", mode(0o777), desired_access=1, create_disposition=OPEN)
        assert answer.create_action == CreateAction.OPENED

    play(tmp_path, test)


def test_in_a_snapshot(tmp_path: Path) -> None:
    """The rules for names and symlinks are the same, and nothing can be changed."""
    folder = tmp_path / "share"
    past = folder / ".snapshots" / "@GMT-2024.05.06-07.08.09"
    past.mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    for place in (folder, past):
        (place / "a:b").write_bytes(b"then" if place is past else b"now!")
        (place / "A:B").write_bytes(b"")
        (place / "out").symlink_to(tmp_path)
    pattern = parse(".snapshots/@GMT-%Y.%m.%d-%H.%M.%S", str(folder))
    options = LocalOptions(read_only=True, is_snapshot=True)
    snapshots = Snapshots(SnapshotFolders(pattern), lambda found: LocalBackend(found, options))
    then = RawContext(TIMEWARP, struct.pack("<Q", from_ns((parse_token("@GMT-2024.05.06-07.08.09") or 0) * 10**9)))

    async def body() -> None:
        with closing(LocalBackend(folder, LocalOptions(vetoes=hiding(pattern, None)))) as backend:
            async with running() as harness:
                harness.server.add_share(share_of("posix", backend, posix=True, snapshots=snapshots))
                client = await harness.connect()
                await client.login(share="posix", contexts=[*contexts_for(), OFFER])
                contexts = [*mode(posix.NO_MODE), then]
                _, file, _ = await opened(client, "a:b", contexts, desired_access=0x81, create_disposition=OPEN)
                assert await read(client, file, 10) == (0, b"then")
                assert information(output(await query(client, file, posix.LEVEL)))[0].end_of_file == 4
                await close(client, file)
                for name, status in (
                    ("a:B", NtStatus.OBJECT_NAME_NOT_FOUND),
                    ("out", NtStatus.STOPPED_ON_SYMLINK),
                    ("out/secret", NtStatus.OBJECT_PATH_NOT_FOUND),
                ):
                    asked = request(name, contexts, desired_access=0x81, create_disposition=OPEN)
                    assert (await client.call(Command.CREATE, asked)).status == status, name
                new = request("new", contexts, create_disposition=CREATE)
                assert (await client.call(Command.CREATE, new)).status == NtStatus.MEDIA_WRITE_PROTECTED
                file, _ = await make(client, "@GMT-2024.05.06-07.08.09")
                await close(client, file)
                assert (folder / "@GMT-2024.05.06-07.08.09").is_file()

    asyncio.run(body())
