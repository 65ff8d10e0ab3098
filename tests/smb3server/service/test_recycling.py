"""Whose recycle folder a deleted file goes to, and who can see it there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from smb3server.access.descriptor import EVERYONE, Acl, SecurityDescriptor, allow
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import Tree
from smb3server.wire import attributes as attr
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.file_info import (
    DISPOSITION,
    DispositionInformation,
    FileInfoClass,
    RenameInformation,
    encode_rename,
)
from smb3server.wire.query_info import InfoType
from smb3server.wire.status import NtStatus
from tests.lab.serving import ALL, READ, WRITE, WRITE_DAC, make, needs_root, serving, status_of_open, tree_of

DELETE = 0x00010000
USERS = "".join(f'[[user]]\nname = "{name}"\npassword = "pw"\n' for name in ("carol", "dave")) + "".join(
    f'[[user]]\nname = "{name}"\npassword = "pw"\n{line}'
    for name, line in (("alice", 'unix_user = "games"\n'), ("bob", 'unix_user = "news"\n'))
    if os.geteuid() == 0
)


def config(folder: Path, *lines: str) -> str:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    return "\n".join((f'[[share]]\nname = "data"\npath = "{folder}"\nrecycle = true', *lines, USERS))


async def delete(tree: Tree, name: str) -> None:
    await tree.close(await tree.create(name, DELETE, CreateDisposition.OPEN, CreateOptions.DELETE_ON_CLOSE))


async def status_of(work: object) -> int:
    try:
        await work  # type: ignore[misc]
    except ServerError as error:
        return error.status
    return 0


async def open_to_all(tree: Tree, name: str) -> None:
    file = await tree.create(name, WRITE_DAC)
    descriptor = SecurityDescriptor(dacl=Acl((allow(EVERYONE, ALL, 3),)))
    await tree.set_info(file, 0, descriptor.pack(), InfoType.SECURITY, 4)
    await tree.close(file)


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_nobody_prepares_a_folder_for_another(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "share"
    text = config(folder)
    folder.chmod(mode)

    async def body() -> None:
        async with (
            serving(tmp_path, text) as service,
            tree_of(service, "alice", "data") as alice,
            tree_of(service, "bob", "data") as bob,
        ):
            assert await status_of(make(bob, ".recycle", folder=True)) == NtStatus.OBJECT_NAME_COLLISION
            assert await status_of(make(bob, ".recycle\\alice", folder=True)) == NtStatus.ACCESS_DENIED
            assert await status_of(open_to_all(bob, ".recycle")) == NtStatus.ACCESS_DENIED
            held = await bob.create(".recycle", READ)
            moved = encode_rename(RenameInformation(0, 0, "away"))
            assert await status_of(bob.set_info(held, FileInfoClass.RENAME, moved)) == NtStatus.ACCESS_DENIED
            await make(alice, "private", folder=True)
            (folder / "private").chmod(0o700)
            await make(alice, "private\\salary")
            assert await status_of_open(bob, "private\\salary", READ) == NtStatus.ACCESS_DENIED
            await delete(alice, "private\\salary")
            assert (folder / ".recycle/alice/private/salary").exists()
            assert await status_of_open(bob, ".recycle\\alice\\private\\salary", READ) == NtStatus.ACCESS_DENIED

    asyncio.run(body())


@needs_root
def test_a_folder_that_another_user_of_the_host_made_is_not_used(tmp_path: Path) -> None:
    """Not even if the server's own folder went away. The file stays, and its user is told."""
    folder = tmp_path / "share"
    text = config(folder)

    async def body() -> None:
        async with serving(tmp_path, text) as service, tree_of(service, "alice", "data") as alice:
            (folder / ".recycle").rmdir()
            (folder / ".recycle/alice").mkdir(parents=True)
            for place in (folder / ".recycle", folder / ".recycle/alice"):
                os.chown(place, 9, 9)
                place.chmod(0o777)
            await make(alice, "salary")
            assert await status_of(delete(alice, "salary")) == NtStatus.CANNOT_DELETE
            file = await alice.create("salary", DELETE)
            body = DISPOSITION.pack(DispositionInformation(1))
            assert await status_of(alice.set_info(file, FileInfoClass.DISPOSITION, body)) == NtStatus.CANNOT_DELETE
            await alice.close(file)
            assert (folder / "salary").exists()
            # The server's folder, and in it one that is not alice's.
            os.chown(folder / ".recycle", 0, 0)
            assert await status_of(delete(alice, "salary")) == NtStatus.CANNOT_DELETE
            assert os.listdir(folder / ".recycle/alice") == []

    asyncio.run(body())


def test_accounts_that_share_a_user_of_the_host_have_folders_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    text = config(folder)

    async def body() -> None:
        async with (
            serving(tmp_path, text) as service,
            tree_of(service, "carol", "data") as carol,
            tree_of(service, "dave", "data") as dave,
        ):
            await make(carol, "private", folder=True)
            await make(carol, "private\\salary")
            await delete(carol, "private\\salary")
            for place in (".recycle\\carol", ".recycle\\carol\\private"):
                assert await status_of_open(carol, place, READ) == 0
                assert await status_of_open(dave, place, READ) == NtStatus.ACCESS_DENIED
                assert await status_of_open(dave, place, WRITE) == NtStatus.ACCESS_DENIED

    asyncio.run(body())


def test_who_asks_for_the_deletion_decides_whose_folder_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    text = config(folder)

    async def body() -> None:
        async with (
            serving(tmp_path, text) as service,
            tree_of(service, "carol", "data") as carol,
            tree_of(service, "dave", "data") as dave,
        ):
            await make(carol, "file")
            await open_to_all(carol, "file")
            kept = await dave.create("file", READ)
            await delete(carol, "file")
            assert (folder / "file").exists()
            await dave.close(kept)
            assert (folder / ".recycle/carol/file").exists()
            assert not (folder / ".recycle/dave").exists()

    asyncio.run(body())


def test_temporary_files_are_gone(tmp_path: Path) -> None:
    """By their attribute. [MS-FSCC 2.6]"""
    folder = tmp_path / "share"
    text = config(folder)

    async def body() -> None:
        async with serving(tmp_path, text) as service, tree_of(service, "carol", "data") as tree:
            options = CreateOptions.DELETE_ON_CLOSE
            file = await tree.create("t", ALL, CreateDisposition.CREATE, options, attributes=attr.TEMPORARY)
            await tree.close(file)
            await tree.close(await tree.create("other", ALL, CreateDisposition.CREATE, options))
            assert os.listdir(folder / ".recycle/carol") == ["other"]

    asyncio.run(body())


def test_a_folder_without_a_place_for_names_has_the_users_folders(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    text = config(folder, 'recycle_folder = ".bin"')

    async def body() -> None:
        async with serving(tmp_path, text) as service:
            for name in ("carol", "dave"):
                async with tree_of(service, name, "data") as tree:
                    await make(tree, "file")
                    await delete(tree, "file")
        assert sorted(str(path.relative_to(folder)) for path in folder.glob(".bin/*/*")) == [
            ".bin/carol/file",
            ".bin/dave/file",
        ]

    asyncio.run(body())
