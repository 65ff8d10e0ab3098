"""The table of rights held against Samba: nothing is allowed here that it refuses, but for what is explained.

Samba keeps the descriptors alone in charge (``acl_xattr:ignore system acls``), so it decides by the same rules.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.access.descriptor import Acl, Control, SecurityDescriptor, Sid, allow, unpack
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.wire import file_info, read_write
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.query_info import InfoType
from tests.lab.rights import (
    ACTS,
    CONTENT,
    CREATE,
    FOLDER,
    MAXIMUM,
    PATHS,
    Actor,
    FileId,
    Refused,
    without,
)
from tests.lab.rights_table import TABLE, Right, Row
from tests.lab.wire_client import Client
from tools.access_differential import servers
from tools.access_differential.player import Login

LONGEST_TURN = 0.1

ADMINISTRATOR, USER = servers.LOGINS

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(bool(servers.missing()), reason=servers.missing()),
]

EXPLAINED: dict[str, str] = {
    **dict.fromkeys(
        (
            "create a stream, deleted on close",
            "delete on close, with MAXIMUM_ALLOWED",
            "delete a stream on close",
            "delete a folder on close",
        ),
        "Samba wants DELETE by name; here what MAXIMUM_ALLOWED came to counts",
    ),
    "set disposition, extended": "a level that Samba does not know",
    "link, extended": "a level that Samba does not know",
    "trim": "a control code that Samba does not know",
    "get a token (OFFLOAD_READ)": "a control code that Samba does not implement",
    "write by a token (OFFLOAD_WRITE)": "a control code that Samba does not implement",
    "set a reparse point": "Samba makes none for this client",
    "set the group": "Samba takes no group that it cannot map; Windows does, and it gives nobody anything here",
}
"""Operations that Samba refuses to who has all the rights for them, and why."""

SHARE_OPTIONS = """\
acl_xattr:default acl style = everyone
force create mode = 0666
force directory mode = 0777
"""
"""Everybody may do everything with a new file, until the test gives it a descriptor."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where Samba listens."""
    # Its sockets' paths must be short, and its users must get through.
    with tempfile.TemporaryDirectory(prefix="access-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with servers.running_samba(folder / "samba", SHARE_OPTIONS) as (number, _):
            yield number


async def _connect(port: int, login: Login) -> Client:
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    assert (await client.negotiate(0x0302)).status == 0
    assert (await client.session_setup(login.name, login.password)).status == 0
    assert (await client.tree_connect(servers.SHARE)).status == 0
    return client


async def _sid(actor: Actor) -> Sid:
    """Of the user, as owner of what it makes."""
    file = await actor.open("own", MAXIMUM, CREATE)
    owner = unpack(await actor.query_info(file, 0, InfoType.SECURITY, 1)).owner
    await actor.close(file)
    assert owner is not None
    await actor.close(await actor.open("own", MAXIMUM | 0x10000, options=0x1000))
    return owner


async def _write(actor: Actor, file: FileId, data: bytes) -> None:
    record = read_write.WriteRequest(data_offset=112, length=len(data), persistent=file[0], volatile=file[1])
    await actor.call(Command.WRITE, read_write.WRITE_REQUEST.pack(record) + data)


async def _build(actor: Actor, masks: dict[str, int], user: Sid, administrator: Sid) -> None:
    """As ``test_rights.build``, through the protocol."""
    base, actor.base = actor.base, ""
    await actor.close(await actor.open(base, MAXIMUM, CREATE, FOLDER))
    actor.base = base
    for path in map("\\".join, PATHS.values()):
        folder = path in ("folder", "there", "folder\\inner")
        file = await actor.open(path, MAXIMUM, CREATE, FOLDER if folder else 0)
        if not folder:
            await _write(actor, file, CONTENT)
            eas = b"".join(file_info.encode_eas([file_info.EaEntry(b"EA", b"value")]))
            await actor.set_info(file, FileInfoClass.FULL_EA, eas)
        await actor.close(file)
        if not folder:
            file = await actor.open(f"{path}:s", MAXIMUM, CREATE)
            await _write(actor, file, b"stream")
            await actor.close(file)
    for name, path in reversed(list(PATHS.items())):
        dacl = Acl((allow(user, masks.get(name, FILE_ALL_ACCESS)), allow(administrator, FILE_ALL_ACCESS)))
        control = int(Control.DACL_PRESENT | Control.DACL_PROTECTED | Control.SELF_RELATIVE)
        async with actor.opened("\\".join(path)) as file:
            descriptor = SecurityDescriptor(dacl=dacl, control=control).pack()
            await actor.set_info(file, 0, descriptor, InfoType.SECURITY, 4)


def _granted() -> Iterator[tuple[Row, Right, dict[str, int]]]:
    """Every cell in which an operation is allowed here."""
    for row in TABLE:
        if () not in row.needs:
            for need in row.needs:
                for right in need:
                    yield row, right, without(tuple(other for other in need if other != right))


def test_samba_allows_what_is_allowed_here(port: int) -> None:
    async def refused() -> set[str]:
        administrator, user = await _connect(port, ADMINISTRATOR), await _connect(port, USER)
        sids = [await _sid(Actor(client, "")) for client in (user, administrator)]
        found = set()
        for number, (row, _, masks) in enumerate(_granted()):
            base = f"c{number}"
            await _build(Actor(administrator, base), masks, *sids)
            try:
                await ACTS[row.operation](Actor(user, base))
            except Refused:
                found.add(row.operation)
        for client in (administrator, user):
            client.writer.close()
        return found

    assert asyncio.run(refused()) == set(EXPLAINED)
