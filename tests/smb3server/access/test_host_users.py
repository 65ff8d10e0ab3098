"""Acting as users of the host: ownership of what they create, the kernel's checks, descriptors as modes and ACLs."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.access.descriptor import EVERYONE, Acl, Control, SecurityDescriptor, allow
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_READ
from smb3server.access.posix import user_sid
from smb3server.auth.users import Account, nt_hash
from smb3server.backends.base import User
from smb3server.backends.local.backend import LocalBackend
from smb3server.state.share import Share
from smb3server.wire.create import Access
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import FileId, opened, status_of
from tests.lab.wire_client import Client, running

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
ALICE, BOB = User(54321, 54321), User(54322, 54322)


def run(tmp_path: Path, test: Callable[[Client, Client], Awaitable[None]], force: User | None = None) -> None:
    """Two sessions, ``u`` as Alice and ``other`` as Bob."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o755)
    tmp_path.chmod(0o777)

    async def body() -> None:
        async with running() as harness:
            for name, user in (("u", ALICE), ("other", BOB)):
                harness.server.users.add(Account(name, nt_hash("pw"), user))
            backend = LocalBackend(tmp_path)
            harness.server.add_share(Share("disk", backend=backend, user=force))
            clients = []
            for name in ("u", "other"):
                client = await harness.connect()
                await client.negotiate()
                assert (await client.session_setup(name)).status == 0
                assert (await client.tree_connect("disk")).status == 0
                clients.append(client)
            await test(*clients)
            for entry in list(harness.server.opens.by_id.values()):
                harness.server.opens.close(entry)
            backend.close()

    asyncio.run(body())


async def set_descriptor(client: Client, file: FileId, descriptor: SecurityDescriptor, which: int) -> int:
    data = descriptor.pack()
    body = struct.pack("<HBBIHHI2Q", 33, 3, 0, len(data), 96, 0, which, *file) + data
    return (await client.call(Command.SET_INFO, body)).status


def test_files_belong_to_their_creator_and_modes_hold(tmp_path: Path) -> None:
    async def test(alice: Client, bob: Client) -> None:
        await opened(alice, "hers")
        stat = (tmp_path / "hers").stat()
        assert (stat.st_uid, stat.st_gid) == (ALICE.uid, ALICE.gid)
        (tmp_path / "hers").chmod(0o600)
        assert await status_of(bob, "hers") == NtStatus.ACCESS_DENIED
        assert await status_of(alice, "hers", create_disposition=1) == 0

    run(tmp_path, test)


def test_forced_user_owns_everything(tmp_path: Path) -> None:
    async def test(alice: Client, bob: Client) -> None:
        await opened(alice, "f")
        assert (tmp_path / "f").stat().st_uid == BOB.uid
        await opened(bob, "f")

    run(tmp_path, test, force=BOB)


def test_descriptors_become_modes_and_acls(tmp_path: Path) -> None:
    async def test(alice: Client, bob: Client) -> None:
        access = 0x0012019F | Access.WRITE_DAC
        _, file, _ = await opened(alice, "f", desired_access=access)
        aces = (allow(user_sid(ALICE.uid), FILE_ALL_ACCESS), allow(EVERYONE, FILE_GENERIC_READ))
        descriptor = SecurityDescriptor(None, None, Acl(aces), None, int(Control.DACL_PRESENT | Control.SELF_RELATIVE))
        assert await set_descriptor(alice, file, descriptor, 4) == 0
        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o744
        assert await status_of(bob, "f", create_disposition=1) == NtStatus.ACCESS_DENIED
        assert await status_of(bob, "f", create_disposition=1, desired_access=0x00120089) == 0
        both = descriptor._replace(dacl=Acl((*aces, allow(user_sid(BOB.uid), FILE_ALL_ACCESS))))
        assert await set_descriptor(alice, file, both, 4) == 0
        assert "system.posix_acl_access" in os.listxattr(tmp_path / "f")
        assert await status_of(bob, "f", create_disposition=1) == 0
        assert await set_descriptor(alice, file, descriptor, 4) == 0
        assert "system.posix_acl_access" not in os.listxattr(tmp_path / "f")

    run(tmp_path, test)
