"""Attacks by a user with an account whose requests hold as many elements as the server takes: entries of a DACL, locks,
streams."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from smb3server.access.descriptor import EVERYONE, Ace, Acl, SecurityDescriptor, Sid, allow
from smb3server.client.files import Tree
from smb3server.client.messages import ServerError
from smb3server.wire.lock import LockElement
from tools.attacks.lab import Target, case

ALL = 0x1F01FF
_READ_WRITE = 0x12019F
_CREATE, _OPEN, _OPEN_IF = 2, 1, 3
_FOLDER = 1
_SECURITY = 3
_DACL = 4
_MOST_ACES = 2700
"""Entries with the shortest SIDs of users in a descriptor of 64 KiB."""
_INHERITED = 3
_MOST_STREAMS = 4096
_STREAMS = 22
_DELETE_ON_CLOSE = 0x1000


def _users(count: int, flags: int = 0, same: bool = False) -> tuple[Ace, ...]:
    """Return entries for users of the host."""
    return tuple(allow(Sid(22, (1, 100000 + (0 if same else index))), 0x1200A9, flags) for index in range(count))


async def _set_dacl(tree: Tree, path: str, aces: tuple[Ace, ...], options: int = 0) -> None:
    file = await tree.create(path, 0x60000, _OPEN, options)
    await tree.set_info(file, 0, SecurityDescriptor(dacl=Acl(aces)).pack(), _SECURITY, _DACL)
    await tree.close(file)


@case()
async def large_descriptors(target: Target) -> None:
    """Set DACLs of 64 KiB that name 2,700 users of the host, or one of them as often, and create files in a folder that
    hands one down."""
    for user in ("alice", "carol"):
        tree = await target.log_on(user)
        await tree.close(await tree.create(f"f-{user}", _READ_WRITE, _OPEN_IF))
        await _set_dacl(tree, f"f-{user}", _users(_MOST_ACES))
        await _set_dacl(tree, f"f-{user}", _users(_MOST_ACES, same=True))
        folder = f"d-{user}"
        await tree.make_directory(folder)
        await _set_dacl(tree, folder, (*_users(_MOST_ACES, _INHERITED), allow(EVERYONE, ALL, _INHERITED)), _FOLDER)
        for name in ("dave", user):
            other = await target.log_on(name)
            for number in range(5):
                try:
                    await other.close(await other.create(f"{folder}\\{name}{number}", _READ_WRITE, _CREATE))
                except ServerError as error:
                    target.fail(f"{name} cannot create a file in {folder}: {error.status:#x}")


async def _waiting_locks(target: Target) -> list[Any]:
    """Let as many LOCKs of one range wait as ten connections can."""
    tree = await target.log_on("carol")
    held = await tree.create("locks", _READ_WRITE, _OPEN_IF)
    await tree.lock(held, [LockElement(0, 10, 0x12)])
    waiting: list[Any] = [tree]
    for _ in range(10):
        other = await target.log_on("carol")
        client: Any = other.client
        client.credits_wanted = 512
        for _ in range(4):
            await client.echo()
        file = await other.create("locks", _READ_WRITE, _OPEN)
        waiting += [asyncio.ensure_future(other.lock(file, [LockElement(0, 10, 0x2)])) for _ in range(200)]
    await asyncio.sleep(1)
    target.note(f"{sum(not entry.done() for entry in waiting[1:])} wait")
    return waiting


@case()
async def locks_given_back(target: Target) -> None:
    """Let 2,000 LOCKs wait, and send LOCKs of 256 elements whose last one is refused, so that all are given back."""
    waiting = await _waiting_locks(target)
    tree = waiting[0]
    file = await tree.create("locks", _READ_WRITE, _OPEN)
    elements = [LockElement(1000 + index, 1, 0x12) for index in range(255)]
    for _ in range(5):
        with contextlib.suppress(ServerError):
            await tree.lock(file, [*elements, LockElement(5, 1, 0x12)])
    for entry in waiting[1:]:
        entry.cancel()


async def _many_streams(target: Target) -> None:
    tree = await target.log_on("carol")
    await tree.close(await tree.create("file", _READ_WRITE, _OPEN_IF))
    count = 0
    with contextlib.suppress(ServerError):
        for count in range(_MOST_STREAMS):
            await tree.close(await tree.create(f"file:n{count:04}", _READ_WRITE, _CREATE))
    target.note(f"{count + 1} streams")


@case(prepare=_many_streams)
async def streams(target: Target) -> None:
    """List 4,096 streams of a file, replace one of them, and delete the file."""
    tree = await target.log_on("carol")
    file = await tree.create("file", ALL, _OPEN)
    for _ in range(5):
        found = await tree.query_info(file, _STREAMS, size=1 << 20)
        if len(found) < 32 * _MOST_STREAMS:
            target.fail(f"{len(found)} bytes tell of them")
    for _ in range(5):
        await tree.close(await tree.create("file:n0000", ALL, _OPEN, _DELETE_ON_CLOSE))
        await tree.close(await tree.create("file:n0000", _READ_WRITE, _CREATE))
    await tree.close(file)
    await tree.delete("file")
