"""MAXIMUM_ALLOWED, and DACLs in an unusual order: rows X1 to X6 and O1 to O3 of docs/caching.md."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from smb3server.access.descriptor import EVERYONE, Ace, Acl, Control, SecurityDescriptor, allow, deny, unpack
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_READ
from smb3server.backends.base import User
from smb3server.wire import attributes as attr
from smb3server.wire import create_contexts
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import FileId, Ground, Made, Peer, act
from tests.lab.served import open_up

MAXIMUM_ALLOWED = int(Access.MAXIMUM_ALLOWED)
OPEN = int(CreateDisposition.OPEN)
DIRECTORY = int(CreateOptions.DIRECTORY_FILE)
MXAC = RawContext(create_contexts.MAXIMAL_ACCESS, b"")
DACL = 4
BOB = User(60001, 60001, (60001,))


async def granted(peer: Peer, made: Made) -> int:
    """FileAccessInformation."""
    assert made.status == 0, hex(made.status)
    reply = await peer.query_info(made.file, FileInfoClass.ACCESS)
    return int(struct.unpack_from("<I", reply.body, 8)[0])


async def maximal(peer: Peer, name: str, more: int = 0, **fields: int) -> Made:
    return await peer.create(name, MXAC, desired_access=MAXIMUM_ALLOWED | more, create_disposition=OPEN, **fields)


def descriptor(*aces: Ace, control: int = 0) -> bytes:
    bits = int(Control.DACL_PRESENT | Control.SELF_RELATIVE) | control
    return SecurityDescriptor(None, None, Acl(aces), None, bits).pack()


async def set_dacl(peer: Peer, file: FileId, *aces: Ace, control: int = 0) -> None:
    assert await peer.set_info(file, 0, descriptor(*aces, control=control), kind=3, additional=DACL) == 0


async def dacl_of(peer: Peer, file: FileId) -> SecurityDescriptor:
    body = struct.pack("<HBBIHHIIIQQ", 41, 3, 0, 4096, 0, 0, 0, DACL, 0, *file) + b"\0"
    reply = await peer.call(Command.QUERY_INFO, body)
    assert reply.status == 0
    return unpack(reply.body[8 : 8 + struct.unpack_from("<I", reply.body, 4)[0]])


def test_x1_every_right_of_the_descriptor_and_two_by_the_folder(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", desired_access=FILE_ALL_ACCESS)
        assert await granted(client, await maximal(client, "f")) == FILE_ALL_ACCESS
        await set_dacl(client, made.file, allow(EVERYONE, int(Access.WRITE_EA)))
        # The owner also reads and writes the descriptor. DELETE and FILE_READ_ATTRIBUTES come from the folder.
        expected = Access.WRITE_EA | Access.READ_CONTROL | Access.WRITE_DAC | Access.DELETE | Access.READ_ATTRIBUTES
        assert await granted(client, await maximal(client, "f")) == int(expected)

    act(tmp_path, scene)


def test_x2_x6_what_a_read_only_file_leaves(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", file_attributes=attr.READONLY, desired_access=FILE_ALL_ACCESS)
        assert await client.close(made.file) == 0
        opened = await maximal(client, "f")
        taken = Access.WRITE_DATA | Access.APPEND_DATA | Access.DELETE_CHILD
        assert await granted(client, opened) == FILE_ALL_ACCESS & ~int(taken)
        assert opened.maximal is not None
        assert (opened.maximal.query_status, opened.maximal.maximal_access) == (0, FILE_ALL_ACCESS)
        for access, status in ((Access.WRITE_DATA, True), (Access.APPEND_DATA, True), (Access.DELETE_CHILD, False)):
            named = await client.create("f", desired_access=int(access), create_disposition=OPEN)
            assert named.status == (NtStatus.ACCESS_DENIED if status else 0)
            beside = await maximal(client, "f", int(access))
            assert beside.status == NtStatus.ACCESS_DENIED

    act(tmp_path, scene)


def test_x3_a_read_only_directory_keeps_all(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        options = {"create_options": DIRECTORY, "file_attributes": attr.READONLY}
        await client.make("d", desired_access=FILE_ALL_ACCESS, **options)
        assert await granted(client, await maximal(client, "d", create_options=DIRECTORY)) == FILE_ALL_ACCESS

    act(tmp_path, scene)


def test_x4_x5_other_rights_beside_it_must_be_granted(tmp_path: Path) -> None:
    """Each bit of the mask, as a right that is asked for by name."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", desired_access=FILE_ALL_ACCESS)
        await set_dacl(client, made.file, allow(EVERYONE, FILE_GENERIC_READ))
        may = FILE_GENERIC_READ | Access.WRITE_DAC | Access.DELETE | MAXIMUM_ALLOWED | Access.GENERIC_READ
        for bit in (1 << number for number in range(32)):
            opened = await maximal(client, "f", bit)
            if bit & may:
                assert await granted(client, opened) == int(FILE_GENERIC_READ | Access.WRITE_DAC | Access.DELETE)
                assert await client.close(opened.file) == 0
            elif bit == Access.ACCESS_SYSTEM_SECURITY:
                assert opened.status == NtStatus.PRIVILEGE_NOT_HELD
            else:
                assert opened.status == NtStatus.ACCESS_DENIED, hex(bit)

    act(tmp_path, scene)


ALL_OF_ALL = allow(EVERYONE, FILE_ALL_ACCESS)
NONE_OF_ALL = deny(EVERYONE, FILE_ALL_ACCESS)


@pytest.mark.parametrize(
    ("aces", "status"),
    [((ALL_OF_ALL, NONE_OF_ALL), 0), ((NONE_OF_ALL, ALL_OF_ALL), NtStatus.ACCESS_DENIED)],
    ids=["allow first", "deny first"],
)
@pytest.mark.parametrize("user", [None, BOB], ids=["own", "other user of the host"])
def test_o1_o2_the_order_of_the_entries_is_kept_and_decides(
    tmp_path: Path, aces: tuple[Ace, ...], status: int, user: User | None
) -> None:
    if user is not None:
        if os.geteuid():
            pytest.skip("acting as other users takes root")
        (tmp_path / "share").mkdir()
        os.chown(tmp_path / "share", user.uid, user.gid)
        open_up(tmp_path)

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", desired_access=FILE_ALL_ACCESS)
        assert await client.write(made.file, b"data") == 0
        await set_dacl(client, made.file, *aces)
        stored = (await dacl_of(client, made.file)).dacl
        assert stored is not None
        assert [ace.pack() for ace in stored.aces] == [ace.pack() for ace in aces]
        opened = await client.create("f", desired_access=FILE_GENERIC_READ | 2, create_disposition=OPEN)
        assert opened.status == status

    act(tmp_path, scene, user=user)


INHERITED, REQUEST = int(Control.DACL_AUTO_INHERITED), int(Control.DACL_AUTO_INHERIT_REQ)


@pytest.mark.parametrize(("sent", "stored"), [(0, 0), (INHERITED, 0), (REQUEST, 0), (INHERITED | REQUEST, INHERITED)])
def test_o3_the_inherited_flag_needs_its_request(tmp_path: Path, sent: int, stored: int) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", desired_access=FILE_ALL_ACCESS)
        await set_dacl(client, made.file, ALL_OF_ALL, control=sent)
        assert (await dacl_of(client, made.file)).control & (INHERITED | REQUEST) == stored

    act(tmp_path, scene)


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user of the host")
def test_the_owner_of_an_ordinary_file_has_all_rights(tmp_path: Path) -> None:
    """Mode 0644, no stored DACL: programs that ask for everything, as npm's v9u-smb2 does to rename, get it."""

    async def scene(ground: Ground) -> None:
        open_up(ground.folder)
        os.chown(ground.folder, BOB.uid, BOB.gid)
        client = await ground.peer()
        assert await client.close((await client.make("f", desired_access=FILE_ALL_ACCESS)).file) == 0
        assert (ground.folder / "f").stat().st_mode & 0o777 == 0o644
        made = await client.create("f", desired_access=FILE_ALL_ACCESS, create_disposition=OPEN)
        assert await granted(client, made) == FILE_ALL_ACCESS
        assert await client.close(made.file) == 0
        (ground.folder / "f").chmod(0o444)
        taken = int(Access.WRITE_DATA | Access.APPEND_DATA | Access.DELETE_CHILD)
        assert await granted(client, await maximal(client, "f")) == FILE_ALL_ACCESS & ~taken

    act(tmp_path, scene, user=BOB)
