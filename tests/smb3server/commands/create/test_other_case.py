"""OPEN_IF of a name that is there in another case, which is looked for only where the file would be created."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from smb3server.access.descriptor import EVERYONE, Ace, AceType, Acl, SecurityDescriptor
from smb3server.backends.base import OpenRequest
from smb3server.backends.local.backend import LocalBackend
from smb3server.state.share import Share
from smb3server.wire.create import CreateAction, parse_response
from smb3server.wire.status import NtStatus
from tests.lab.wire_client import Client, Reply, running

OPEN_IF, OVERWRITE_IF = 3, 5
READS = 0x00120089
MAXIMUM_ALLOWED = 0x02000000


def play(tmp_path: Path, test: Callable[[Client], Awaitable[None]]) -> None:
    async def body() -> None:
        with closing(LocalBackend(tmp_path)) as backend:
            async with running() as harness:
                harness.server.add_share(Share("local", backend=backend))
                client = await harness.connect()
                await client.login(share="local")
                await test(client)

    asyncio.run(body())


def action(reply: Reply) -> int:
    assert reply.status == 0, hex(reply.status)
    return parse_response(memoryview(reply.message))[0].create_action


def test_it_is_opened_and_not_made_anew(tmp_path: Path) -> None:
    (tmp_path / "Folder").mkdir()
    (tmp_path / "Folder" / "File").write_bytes(b"x")

    async def test(client: Client) -> None:
        for access in (0x0012019F, MAXIMUM_ALLOWED):
            assert action(await client.open("fOLDER\\fILE", OPEN_IF, access)) == CreateAction.OPENED
        assert action(await client.open("FOLDER\\FILE", OVERWRITE_IF)) == CreateAction.OVERWRITTEN
        assert action(await client.open("folder\\new", OPEN_IF)) == CreateAction.CREATED
        assert (await client.open("none\\new", OPEN_IF)).status == NtStatus.OBJECT_PATH_NOT_FOUND
        assert (await client.open("FOLDER\\FILE", 2)).status == NtStatus.OBJECT_NAME_COLLISION

    play(tmp_path, test)
    assert sorted(path.name for path in (tmp_path / "Folder").iterdir()) == ["File", "new"]


def test_it_takes_no_right_to_add_files(tmp_path: Path) -> None:
    (tmp_path / "Folder").mkdir()
    (tmp_path / "Folder" / "File").write_bytes(b"x")
    (tmp_path / "Folder").chmod(0o755)
    only_reads = SecurityDescriptor(dacl=Acl((Ace(int(AceType.ALLOWED), 0, 0x001200A9, EVERYONE),)))
    with closing(LocalBackend(tmp_path)) as backend, closing(backend.open(OpenRequest(("Folder",)))) as folder:
        folder.set_security_descriptor(only_reads.pack())

    async def test(client: Client) -> None:
        for name in ("Folder\\File", "fOLDER\\fILE"):
            assert action(await client.open(name, OPEN_IF, READS)) == CreateAction.OPENED
            assert (await client.open(name, 2, READS)).status == NtStatus.OBJECT_NAME_COLLISION
        for disposition in (OPEN_IF, 2):
            assert (await client.open("Folder\\new", disposition, READS)).status == NtStatus.ACCESS_DENIED

    play(tmp_path, test)
    assert [path.name for path in (tmp_path / "Folder").iterdir()] == ["File"]
