"""Attacks by a user with an account: how one request, or many, affect all other users."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import uuid
from typing import Any

from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import Tree
from smb3server.wire import read_write
from smb3server.wire.create_contexts import APP_INSTANCE_ID, RawContext
from smb3server.wire.header import HEADER, Header
from tools.attacks.lab import Target, case
from tools.fuzz.pipes import bind, pdu, request

_READ_WRITE = 0x12019F
_FULL_EA = 15
_ALLOCATION = 19
_CREATE, _OPEN, _OVERWRITE, _OPEN_IF = 2, 1, 4, 3
_TRANSCEIVE = 0x0011C017
_LSARPC = ("12345778-1234-ABCD-EF00-0123456789AB", 0, 0)
_LARGE = 8 << 20


def _eas(count: int, value: bytes = b"v", same: bool = False) -> bytes:
    """Return a list of FILE_FULL_EA_INFORMATION. [MS-FSCC 2.4.16]"""
    entries = []
    for index in range(count):
        name = b"A" if same else b"%05d" % index
        body = struct.pack("<BBH", 0, len(name), len(value)) + name + b"\0" + value
        padding = -(4 + len(body)) % 4
        last = index == count - 1
        entries.append(
            struct.pack("<I", 0 if last else 4 + len(body) + padding) + body + b"\0" * (0 if last else padding)
        )
    return b"".join(entries)


async def _set(tree: Tree, name: str, data: bytes) -> None:
    file = await tree.create(name, _READ_WRITE, 0, 3)
    with contextlib.suppress(ServerError):
        await tree.set_info(file, _FULL_EA, data)
    await tree.close(file)


async def _open(tree: Tree, name: str, access: int = _READ_WRITE, disposition: int = _OPEN_IF, options: int = 0) -> Any:
    return await tree.create(name, access, disposition, options)


@case()
async def thousands_of_eas(target: Target) -> None:
    """Send one SET_INFO with 4,200 extended attributes."""
    tree = await target.log_on("carol")
    file = await _open(tree, "ea")
    with contextlib.suppress(ServerError):
        await tree.set_info(file, _FULL_EA, _eas(4200))


@case()
async def one_ea_again_and_again(target: Target) -> None:
    """Send one SET_INFO that sets one extended attribute 100,000 times."""
    tree = await target.log_on("carol")
    file = await _open(tree, "ea")
    with contextlib.suppress(ServerError):
        await tree.set_info(file, _FULL_EA, _eas(100_000, same=True))


async def _file_with_eas(target: Target) -> None:
    tree = await target.log_on("carol")
    file = await _open(tree, "ea")
    for count in (1500, 300, 50):
        try:
            await tree.set_info(file, _FULL_EA, _eas(count))
            break
        except ServerError:
            continue
    await tree.close(file)


@case(prepare=_file_with_eas)
async def overwriting_eas(target: Target) -> None:
    """Send OVERWRITE of a file with as many extended attributes as it can have."""
    tree = await target.log_on("carol")
    await _open(tree, "ea", disposition=_OVERWRITE)


@case()
async def half_a_million_ea_names(target: Target) -> None:
    """Send one QUERY_INFO that requests 500,000 extended attributes."""
    tree = await target.log_on("carol")
    file = await _open(tree, "ea")
    count = 500_000
    data = (struct.pack("<IB", 8, 1) + b"A\0\0") * (count - 1) + struct.pack("<IB", 0, 1) + b"A\0"
    with contextlib.suppress(ServerError):
        await tree.query_info(file, _FULL_EA, size=len(data) + 4, data=data)


async def _deep_folders(target: Target) -> None:
    at = os.open(target.share, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("a", dir_fd=at)
        below = os.open("a", os.O_RDONLY, dir_fd=at)
        os.fchmod(below, 0o777)
        os.close(at)
        at = below
    os.close(at)


@case(prepare=_deep_folders)
async def deep_path(target: Target) -> None:
    """Look up a missing name 500 to 3,000 folders deep."""
    tree = await target.log_on("carol")
    for depth in (500, 1000, 2000, 3000):
        with contextlib.suppress(ServerError):
            await _open(tree, "\\".join(["a"] * depth + ["missing"]), 0x80, _OPEN)


async def _huge_folder(target: Target) -> None:
    folder = target.share / "huge"
    folder.mkdir()
    folder.chmod(0o777)
    at = os.open(folder, os.O_RDONLY)
    for index in range(270_000):
        os.close(os.open(f"file-{index:07d}-x.dat", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    await asyncio.sleep(1.2)


@case(prepare=_huge_folder)
async def missing_names(target: Target) -> None:
    """Look up missing names, long and short, in a folder of 270,000 files."""
    tree = await target.log_on("carol")
    for index in range(20):
        for name in (f"nosuch{index}", f"Q{index:05d}~1"):
            with contextlib.suppress(ServerError):
                await _open(tree, f"huge\\{name}", 0x80, _OPEN)


@case()
async def allocation(target: Target) -> None:
    """Send SET_INFO that reserves 2 GiB in one request."""
    tree = await target.log_on("carol")
    file = await _open(tree, "reserved")
    with contextlib.suppress(ServerError):
        await tree.set_info(file, _ALLOCATION, struct.pack("<Q", 2 << 30))
    await tree.close(file)


async def _large_file(target: Target) -> None:
    (target.share / "large").write_bytes(os.urandom(_LARGE))
    (target.share / "large").chmod(0o666)


@case(prepare=_large_file)
async def compound_reads(target: Target) -> None:
    """Send 60 READs of 8 MiB in one message, on 4 connections that do not read the answers."""
    trees = []
    for _ in range(4):
        tree = await target.log_on("carol")
        trees.append(tree)
        client: Any = tree.client
        client.credits_wanted = 8192
        for _ in range(40):
            await client.echo()
        file = await _open(tree, "large", 0x120089, _OPEN)
        client.transport.pause_reading()
        count = min(60, client.credits // 128)
        message = b""
        for index in range(count):
            record = read_write.ReadRequest(
                padding=80, length=_LARGE, offset=0, persistent=file.file_id[0], volatile=file.file_id[1]
            )
            body = read_write.READ_REQUEST.pack(record) + b"\0"
            step = 64 + len(body) + -(64 + len(body)) % 8
            last = index == count - 1
            header = Header(
                credit_charge=128,
                command=8,
                credits=128,
                message_id=client._next_message_id,
                tree_id=tree.tree_id,
                session_id=tree.session.session_id,
                next_command=0 if last else step,
            )
            client._next_message_id += 128
            message += (HEADER.pack(header) + body).ljust(step, b"\0")
        target.note(f"{count} READs in {len(message)} bytes")
        client.transport.send([message])
    await asyncio.sleep(target.seconds / 2)
    for tree in trees:
        tree.client.transport.abort("the attack ends")


@case(wrapper=("prlimit", "--nofile=3000:3000"))
async def all_opens(target: Target) -> None:
    """Open files as one user until the server refuses: another user must still be able to open a file and to log on."""
    tree = await target.log_on("carol")
    await tree.close(await _open(tree, "shared"))
    count = 0
    with contextlib.suppress(ServerError):
        while count < 4000:
            await _open(tree, "shared", 0x80, _OPEN)
            count += 1
    target.note(f"{count} opens")
    try:
        other = await target.log_on("dave")
        await _open(other, "shared", 0x80, _OPEN)
    except ServerError as error:
        target.fail(f"another user cannot open a file: {error.status:#x}")


@case()
async def large_rpc_calls(target: Target) -> None:
    """Send calls of 32 KB to the local security authority, with right and wrong counts."""
    tree = await target.log_on("carol", "IPC$")
    count = 1000
    sids = b"".join(struct.pack("<IBB6sI", 1, 1, 1, b"\0\0\0\0\0\1", index) for index in range(count))
    pointers = b"".join(struct.pack("<I", 0x20004 + 4 * index) for index in range(count))
    lookup = struct.pack("<III", count, 0x20000, count) + pointers + sids + bytes(8)
    lookup += struct.pack("<HHIII", 1, 0, 0, 0, 2)
    for number, stub in (
        (76, lookup),
        (76, struct.pack("<III", 0xFFFFFFFF, 0x20000, 0xFFFFFFFF) + bytes(32000)),
        (76, struct.pack("<III", 0x7FFFFFFF, 0x20000, 0x7FFFFFFF)),
        (77, struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF) + bytes(30000)),
        (14, bytes(20) + struct.pack("<IIII", 1000, 0xFFFFFFFF, 0, 0xFFFFFFFF) + bytes(30000)),
    ):
        file = await tree.create("lsarpc", _READ_WRITE, _OPEN)
        await tree.ioctl(_TRANSCEIVE, pdu(11, bind(_LSARPC)), file)
        body = request(number, stub)
        head, data = body[:8], body[8:]
        parts = [data[at : at + 4000] for at in range(0, len(data), 4000)]
        message = b"".join(
            pdu(0, head + part, (1 if index == 0 else 0) | (2 if index == len(parts) - 1 else 0))
            for index, part in enumerate(parts)
        )
        with contextlib.suppress(ServerError):
            await tree.ioctl(_TRANSCEIVE, message, file, accept=(0, 0x80000005))
        await tree.close(file)


@case()
async def watchers(target: Target) -> None:
    """Start 1,000 recursive watches of one folder, and create 200 files in it."""
    watcher, maker = await target.log_on("carol"), await target.log_on("carol")
    calls = []
    with contextlib.suppress(ServerError):
        for _ in range(1000):
            folder = await watcher.create("", 0x120089, _OPEN, 1)
            calls.append(await watcher.watch(folder, 0xFFF, True))
    target.note(f"{len(calls)} watches")
    for index in range(200):
        await maker.close(await _open(maker, f"new{index}"))


async def _many_opens(target: Target, tree: Tree) -> None:
    """Open one file 3,000 times, or almost as often as the user may: some further opens must remain possible."""
    opens = [await _open(tree, "file")]
    with contextlib.suppress(ServerError):
        while len(opens) < 3000:
            opens.append(await _open(tree, "file", 0x80, _OPEN))
    target.note(f"{len(opens)} opens")
    for file in opens[-8:]:
        await tree.close(file)


@case()
async def renaming_folders(target: Target) -> None:
    """Send RENAME of a folder, 20 times, while there are 3,000 opens."""
    tree, other = await target.log_on("carol"), await target.log_on("carol")
    await tree.make_directory("r0")
    # Before this user has as many opens as one user may have.
    folder = await _open(other, "r0", 0x110080, _OPEN, 1)
    await _many_opens(target, tree)
    for index in range(20):
        await other.rename(folder, f"r{index + 1}")


@case()
async def application_instances(target: Target) -> None:
    """Send CREATEs with an AppInstanceId, 50 times, while there are 3,000 opens."""
    tree, other = await target.log_on("carol"), await target.log_on("carol")
    await _many_opens(target, tree)
    context = RawContext(APP_INSTANCE_ID, struct.pack("<HH", 20, 0) + uuid.uuid4().bytes)
    for _ in range(50):
        await other.close(await other.create("file", 0x80, _OPEN, contexts=[context]))
