"""Referrals, and the share of a namespace (MS-SMB2 3.3.5.15.2, 3.3.5.7, 3.3.5.9, MS-DFSC 3.2)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from smb3server.config.model import NamespaceConfig
from smb3server.dfs.namespace import Link, Namespace
from smb3server.service.namespaces import RunningNamespaces
from smb3server.service.running_shares import RunningShares
from smb3server.service.stored_opens import StoredOpens
from smb3server.wire import dfs
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from tests.lab.wire_client import Client, Harness, create_body, ioctl_body, running

DFS = int(HeaderFlags.DFS_OPERATIONS)
OPEN, CREATE = 1, 2
ITSELF = 0x200000
LINKS = (
    Link.make("projects", ["//files1/projects", "//files2/projects; priority=last"], ttl=60),
    Link.make("in/deep", ["share/folder"], failback=True),
    Link.make("on", ["more"]),
)
FILES = Namespace("files", LINKS)


def drive(
    test: Callable[[Harness, Client, RunningNamespaces], Awaitable[None]], share: str = "IPC$", dialect: int = 0x0311
) -> None:
    async def main() -> None:
        async with running() as harness:
            server = harness.server
            namespaces = RunningNamespaces(server, RunningShares(server, StoredOpens(server)))
            namespaces.add(NamespaceConfig(FILES))
            namespaces.add(NamespaceConfig(Namespace("more")))
            client = await harness.connect()
            await client.login(dialect, share=share)
            await test(harness, client, namespaces)

    asyncio.run(main())


async def refer(
    client: Client, path: str, level: int = 4, output: int = 4096, code: int = Fsctl.DFS_GET_REFERRALS
) -> tuple[int, dfs.Referral | None]:
    data = dfs.pack_request(dfs.ReferralRequest(level, path))
    if code == Fsctl.DFS_GET_REFERRALS_EX:
        name = path.encode("utf-16-le")
        data = struct.pack("<HHIH", level, 0, 2 + len(name), len(name)) + name
    reply = await client.call(Command.IOCTL, ioctl_body(code, data, output=output))
    if reply.status:
        return reply.status, None
    offset, length = struct.unpack_from("<II", reply.body, 32)
    return 0, dfs.parse_referral(reply.message[offset : offset + length])


def answer(referral: dfs.Referral | None) -> tuple[str, int, list[str]]:
    assert referral is not None
    return referral.path, referral.path_consumed, [target.address for target in referral.targets]


@pytest.mark.parametrize("code", [Fsctl.DFS_GET_REFERRALS, Fsctl.DFS_GET_REFERRALS_EX])
def test_where_a_path_lies(code: int) -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        _, found = await refer(client, "\\SRV\\FILES\\Projects\\a\\b", code=code)
        assert answer(found) == ("\\SRV\\FILES\\Projects", 38, ["\\files1\\projects", "\\files2\\projects"])
        assert found is not None
        assert (found.root, found.flags, found.ttl) == (False, dfs.ReferralFlags.STORAGE_SERVERS, 60)
        assert [target.begins_set for target in found.targets] == [True, True]
        # A share of this server is told by the name that the client has for it.
        _, found = await refer(client, "\\srv\\files\\in\\deep", code=code)
        assert answer(found) == ("\\srv\\files\\in\\deep", 36, ["\\srv\\share\\folder"])
        assert found is not None
        assert found.flags == dfs.ReferralFlags.STORAGE_SERVERS | dfs.ReferralFlags.TARGET_FAILBACK
        # A link to another namespace: further referrals are needed.
        _, found = await refer(client, "\\srv\\files\\on", code=code)
        assert found is not None
        assert found.flags == dfs.ReferralFlags.REFERRAL_SERVERS
        for path in ("\\srv\\files", "\\srv\\files\\in", "\\srv\\files\\none\\x", "\\srv\\files\\"):
            _, found = await refer(client, path, code=code)
            assert answer(found) == ("\\srv\\files", 20, ["\\srv\\files"])
            assert found is not None
            assert (found.root, found.flags, found.ttl) == (True, 3, 300)

    drive(test)


@pytest.mark.parametrize(
    ("path", "level", "status"),
    [
        ("\\srv\\nothing\\x", 4, NtStatus.NOT_FOUND),
        ("\\srv\\share", 4, NtStatus.NOT_FOUND),
        ("\\domain\\SYSVOL", 4, NtStatus.NOT_FOUND),
        ("", 4, NtStatus.INVALID_PARAMETER),
        ("\\domain", 4, NtStatus.INVALID_PARAMETER),
        ("\\srv\\\\files", 4, NtStatus.INVALID_PARAMETER),
        ("\\srv\\files", 0, NtStatus.INVALID_PARAMETER),
        ("\\srv\\files", 5, 0),
        ("\\srv\\files", 1, 0),
    ],
)
def test_what_is_asked_for(path: str, level: int, status: int) -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        assert (await refer(client, path, level))[0] == status

    drive(test)


def test_requests_that_are_cut_short_or_about_a_file() -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        for code in (Fsctl.DFS_GET_REFERRALS, Fsctl.DFS_GET_REFERRALS_EX):
            for data in (b"", b"\4", b"\4\0a", b"\4\0\1\0\xff\xff\xff\xff", b"\4\0\1\0\2\0\0\0\xff\xff"):
                reply = await client.call(Command.IOCTL, ioctl_body(code, data))
                assert reply.status == NtStatus.INVALID_PARAMETER, (code, data)
        data = dfs.pack_request(dfs.ReferralRequest(4, "\\srv\\files"))
        reply = await client.call(Command.IOCTL, ioctl_body(Fsctl.DFS_GET_REFERRALS, data, file_id=bytes(16)))
        assert reply.status == NtStatus.INVALID_PARAMETER

    drive(test)


def test_a_buffer_that_is_too_small() -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        for output in (0, 8, 60):
            assert (await refer(client, "\\srv\\files\\projects", output=output))[0] == NtStatus.BUFFER_OVERFLOW
        _, found = await refer(client, "\\srv\\files\\projects", output=200)
        assert answer(found)[2] == ["\\files1\\projects"]

    drive(test)


def test_referrals_are_for_ipc_alone() -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        assert (await refer(client, "\\srv\\files"))[0] == NtStatus.INVALID_DEVICE_REQUEST

    drive(test, share="share")


@pytest.mark.parametrize("users", [frozenset({"other"}), frozenset()])
def test_who_may_not_use_a_namespace_learns_nothing_of_it(users: frozenset[str]) -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        assert (await refer(client, "\\srv\\files\\projects"))[0] == 0
        namespaces.add(NamespaceConfig(FILES, users))
        assert (await refer(client, "\\srv\\files\\projects"))[0] == NtStatus.NOT_FOUND
        assert (await refer(client, "\\srv\\files"))[0] == NtStatus.NOT_FOUND

    drive(test)


@pytest.mark.parametrize("dialect", [0x0202, 0x0210, 0x0300, 0x0311])
def test_the_share_says_what_it_is(dialect: int) -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        assert next(iter(harness.server.connection_list)).server_capabilities & 1
        reply = await client.tree_connect("files")
        kind, flags, capabilities = struct.unpack_from("<B1xII", reply.body, 2)
        assert (kind, flags & 3, capabilities & 8) == (1, 3, 8)

    drive(test, dialect=dialect)


@pytest.mark.parametrize(
    ("name", "flags", "options", "status"),
    [
        ("srv\\files\\projects", DFS, 0, NtStatus.PATH_NOT_COVERED),
        ("srv\\files\\PROJECTS\\", DFS, 0, NtStatus.PATH_NOT_COVERED),
        ("srv\\files\\projects\\a\\b", DFS, 0, NtStatus.PATH_NOT_COVERED),
        ("srv\\files\\projects", DFS, ITSELF, NtStatus.PATH_NOT_COVERED),
        ("srv\\files\\in\\deep\\x", DFS, 0, NtStatus.PATH_NOT_COVERED),
        ("srv\\files\\in", DFS, 0, 0),
        ("srv\\files", DFS, 0, 0),
        ("srv\\files\\none", DFS, 0, NtStatus.OBJECT_NAME_NOT_FOUND),
        ("projects", 0, 0, NtStatus.PATH_NOT_COVERED),
        ("projects\\a", 0, 0, NtStatus.PATH_NOT_COVERED),
        ("projects:stream", 0, 0, NtStatus.PATH_NOT_COVERED),
        ("projects", 0, ITSELF, 0),
        ("in", 0, 0, 0),
    ],
)
def test_names_that_lead_through_links(name: str, flags: int, options: int, status: int) -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        reply = await client.call(Command.CREATE, create_body(name, OPEN, 0x80, options), flags=flags)
        assert reply.status == status

    drive(test, share="files")


def test_nobody_changes_a_namespace_over_smb() -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        for name, disposition, access, options in (
            ("new", CREATE, 0x80, 1),
            ("new.txt", CREATE, 0x2, 0),
            ("projects", OPEN, 0x10000, ITSELF),
            ("projects", OPEN, 0x10080, ITSELF | 0x1000),
            ("in", OPEN, 0x10000, 0),
            ("in\\new", CREATE, 0x80, 1),
            ("projects\\new", CREATE, 0x80, 1),
            ("", OPEN, 0x40000, 0),
        ):
            reply = await client.call(Command.CREATE, create_body(name, disposition, access, options))
            assert reply.status in (NtStatus.ACCESS_DENIED, NtStatus.CANNOT_DELETE), (name, reply.status)
        reply = await client.call(Command.CREATE, create_body("projects", OPEN, 0x2000000, ITSELF))
        assert reply.status == 0
        file = struct.unpack_from("<2Q", reply.body, 64)
        text = "moved".encode("utf-16-le")
        for level, data in (
            (FileInfoClass.RENAME, struct.pack("<B7xQI", 0, 0, len(text)) + text),
            (FileInfoClass.DISPOSITION, b"\1"),
            (FileInfoClass.BASIC, struct.pack("<4qII", 0, 0, 0, 0, 2, 0)),
        ):
            body = struct.pack("<HBBIHHI2Q", 33, 1, level, len(data), 96, 0, 0, *file) + data
            assert (await client.call(Command.SET_INFO, body)).status == NtStatus.ACCESS_DENIED
        control = ioctl_body(Fsctl.DELETE_REPARSE_POINT, struct.pack("<IHH", 0x8000000A, 0, 0), reply.body[64:80])
        assert (await client.call(Command.IOCTL, control)).status == NtStatus.ACCESS_DENIED

    drive(test, share="files")


def test_who_watches_the_root_sees_links_come_and_go() -> None:
    async def test(harness: Harness, client: Client, namespaces: RunningNamespaces) -> None:
        folder = await client.call(Command.CREATE, create_body("", OPEN, 0x81, 1))
        body = struct.pack("<HHI16sII", 32, 1, 4096, folder.body[64:80], 3, 0)
        await client.post(Command.CHANGE_NOTIFY, body)
        assert (await client.receive()).status == NtStatus.PENDING
        namespaces.add(NamespaceConfig(FILES.with_links([LINKS[0], Link.make("new", ["share"])])))
        reply = await client.receive()
        assert reply.status == 0
        assert "new".encode("utf-16-le") in reply.body or "in".encode("utf-16-le") in reply.body

    drive(test, share="files")
