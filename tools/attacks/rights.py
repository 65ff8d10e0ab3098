"""Attacks by a user with an account on other users' property: files outside the share, others' files and opens."""

from __future__ import annotations

import os
from typing import Any

from smb3server.client.protocol import open_rdma
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import Tree
from smb3server.wire import read_write
from smb3server.wire.file_info import FileInfoClass, RenameInformation, encode_rename
from smb3server.wire.header import Command
from smb3server.wire.rdma_transform import CryptoTransform, RdmaTransformId, pack_transforms
from smbdirect.providers.make import make_provider
from tools.access_differential import descriptor
from tools.access_differential.steps import Ace, Who
from tools.attacks.lab import Target, case, password

ALL = 0x1F01FF
_OPEN, _CREATE, _OPEN_IF = 1, 2, 3
_DELETE_ON_CLOSE = 0x1000
_DATA_ONLY = 0x12019F & ~0x10100
"""The rights to read and write data, without DELETE, WRITE_DAC and WRITE_OWNER."""
_LIST_AND_ADD = 0x1200AF & ~0x40
_SECURITY = 3
_SECRET = b"not for you"


async def _refused(target: Target, what: str, attempt: Any) -> Any:
    """Record a failure if ``attempt`` succeeds. Return its result, or None."""
    try:
        made = await attempt
    except ServerError:
        return None
    target.fail(f"allowed: {what}")
    return made


async def _give(tree: Tree, path: str, everyone: int, options: int = 0) -> None:
    """Grant the owner everything and all other users ``everyone``."""
    file = await tree.create(path, 0x60000, _OPEN, options)
    packed = await tree.query_info(file, 0, _SECURITY, additional=3)
    owner, _ = descriptor.owner_and_group(packed)
    sids = {Who.ALICE: owner, Who.EVERYONE: "S-1-1-0"}
    data = descriptor.pack(dacl=(Ace(Who.ALICE, ALL), Ace(Who.EVERYONE, everyone)), sids=sids)
    await tree.set_info(file, 0, data, _SECURITY, 4)
    await tree.close(file)


async def _put(tree: Tree, path: str, data: bytes = b"x") -> None:
    file = await tree.create(path, 0x12019F, _OPEN_IF)
    await tree.write(file, 0, data)
    await tree.close(file)


async def _alices_files(target: Target) -> None:
    alice = await target.log_on("alice")
    await alice.make_directory("drop")
    for index in range(6):
        await _put(alice, f"drop\\f{index}", b"alice's")
        await _give(alice, f"drop\\f{index}", _DATA_ONLY)
    await _give(alice, "drop", _LIST_AND_ADD, 1)
    await alice.make_directory("closed")
    await _give(alice, "closed", 0x1200A9, 1)
    # With this mode, only the server's descriptor restricts access.
    os.chmod(target.share / "closed", 0o777)


@case(prepare=_alices_files)
async def other_peoples_files(target: Target) -> None:
    """Try indirect ways to delete, replace, plant and take over files."""
    bob = await target.log_on("bob")
    place = target.share / "drop"
    for access in (0x10000, 0x40000, 0x80000):
        await _refused(target, f"opening another's file for {access:#x}", bob.create("drop\\f0", access))
    for access in (0x2000000, 0x10000, 0x120089):
        try:
            made = await bob.create("drop\\f1", access, _OPEN, _DELETE_ON_CLOSE)
            await bob.close(made)
        except ServerError as error:
            target.note(f"DELETE_ON_CLOSE with {access:#x}: {error.status:#x}")
        if not (place / "f1").exists():
            target.fail(f"DELETE_ON_CLOSE with {access:#x} deletes another's file")
            break
    stream = await _refused(target, "all rights by creating a stream", bob.create("drop\\f2:x", ALL, _CREATE))
    if stream is not None:
        await bob.close(stream)
    for name in ("closed\\new", "closed\\new:stream"):
        await _refused(target, f"making {name} in a folder of others", bob.create(name, 0x12019F, _CREATE))
    await _put(bob, "mine", b"bob's")
    file = await bob.create("mine", 0x110180)
    await _refused(target, "a rename over another's file", bob.rename(file, "drop\\f3", True))
    await _refused(target, "a rename into a folder of others", bob.rename(file, "closed\\planted"))
    await bob.close(file)
    await _put(bob, "mine2", b"bob's")
    file = await bob.create("mine2", 0x110180)
    for name in ("drop\\f4", "closed\\linked"):
        link = encode_rename(RenameInformation(1, 0, name))
        await _refused(target, f"a link over {name}", bob.set_info(file, FileInfoClass.LINK, link))
    await bob.close(file)
    for index in range(6):
        path = place / f"f{index}"
        if not path.exists() or path.read_bytes() != b"alice's":
            target.fail(f"alice's file {path.name} is gone or changed")
    if os.listdir(target.share / "closed"):
        target.fail(f"planted: {os.listdir(target.share / 'closed')}")


@case(prepare=_alices_files)
async def giving_files_away(target: Target) -> None:
    """Set owners and groups other than the user's: no file on disk may then belong to root, or be set-group-id."""
    bob = await target.log_on("bob")
    await _put(bob, "gift", b"#!/bin/sh\n")
    path = target.share / "gift"
    if os.geteuid() == 0:
        path.chmod(0o2755)
    file = await bob.create("gift", 0xE0000)
    owners = (("S-1-22-1-0", ""), ("", "S-1-22-2-0"), ("", "S-1-22-2-42"), ("S-1-22-1-5", ""), ("S-1-5-18", ""))
    for owner, group in owners:
        which = 1 if owner else 2
        data = descriptor.pack(owner=owner, group=group)
        made = bob.set_info(file, 0, data, _SECURITY, which)
        await _refused(target, f"owner {owner} group {group}", made)
    found = path.stat()
    if found.st_gid in {0, 42} or (os.geteuid() == 0 and found.st_uid == 0):
        target.fail(f"on disk it belongs to {found.st_uid}:{found.st_gid}")


@case(prepare=_alices_files)
async def read_only_shares(target: Target) -> None:
    """Try to write, create and delete on a read-only share."""
    carol = await target.log_on("carol", "readonly")
    for access in (0x2, 0x10000, 0x40000, 0x100):
        await _refused(target, f"access {access:#x}", carol.create("drop\\f5", access))
    await _refused(target, "making a file", carol.create("new", 0x120089, _CREATE))
    await _refused(target, "making a stream", carol.create("drop\\f5:s", 0x120089, _CREATE))
    alice = await target.log_on("alice")
    # The last closer may have the right to delete.
    held = await alice.create("drop\\f5", 0x120089)
    try:
        await carol.close(await carol.create("drop\\f5", 0x2000000, _OPEN, _DELETE_ON_CLOSE))
    except ServerError:
        target.note("DELETE_ON_CLOSE was refused")
    await alice.close(held)
    if not (target.share / "drop" / "f5").exists():
        target.fail("a file was deleted")


@case()
async def escapes(target: Target) -> None:
    """Use names, links and renames that lead out of the share."""
    outside = target.share.parent / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (outside / "secret").write_bytes(_SECRET)
    (outside / "secret").chmod(0o666)
    for name, to in (("abs", str(outside)), ("rel", "../outside"), ("proc", "/proc/self/root"), ("up", "..")):
        (target.share / name).symlink_to(to)
    carol = await target.log_on("carol")
    names = ["..\\outside\\secret", "a\\..\\..\\outside\\secret", "../outside/secret", "abs\\secret", "rel\\secret"]
    names += ["up\\outside\\secret", f"proc{str(outside).replace('/', chr(92))}\\secret", ".\\..\\outside\\secret"]
    names += ["\uf02e\uf02e\\outside\\secret", "．．\\outside\\secret", "rel\\secret::$DATA", "rel\\.\\secret"]
    for name in names:
        for disposition, options in ((_OPEN, 0), (_OPEN, 0x200000), (_CREATE, 0), (_OPEN_IF, 0)):
            try:
                file = await carol.create(name, 0x12019F, disposition, options)
                data = await carol.read(file, 0, 100)
                await carol.close(file)
            except ServerError:
                continue
            if data == _SECRET:
                target.fail(f"read through {name!r}")
    await _put(carol, "inside")
    file = await carol.create("inside", 0x110180)
    for name in ("..\\outside\\moved", "abs\\moved", "rel\\moved", "up\\outside\\moved"):
        for level in (FileInfoClass.LINK, FileInfoClass.RENAME):
            try:
                await carol.set_info(file, level, encode_rename(RenameInformation(1, 0, name)))
            except ServerError:
                continue
    await carol.close(file)
    if sorted(os.listdir(outside)) != ["secret"] or (outside / "secret").read_bytes() != _SECRET:
        target.fail(f"outside the share now: {os.listdir(outside)}")


@case()
async def stolen_ids(target: Target) -> None:
    """Use FileIds, TreeIds and SessionIds of other users."""
    carol, dave = await target.log_on("carol"), await target.log_on("dave")
    await _put(carol, "diary", _SECRET)
    file = await carol.create("diary", 0x12019F)
    await _refused(target, "reading by a stolen FileId", dave.read(file, 0, 100))
    await _refused(target, "closing a stolen FileId", dave.close(file))
    stolen = Tree(dave.session, carol.tree_id + 1000, "", 0)
    await _refused(target, "a TreeId that is nobody's", stolen.create("diary", 0x120089))
    own = dave.session.session_id
    for number in (carol.session.session_id, own ^ 1):
        dave.session.session_id = number
        await _refused(target, "a stolen SessionId", dave.create("diary", 0x120089))
    dave.session.session_id = own
    client = await target.connect()
    session = await client.log_on("dave", password("dave"), previous_session_id=carol.session.session_id)
    await session.tree_connect("data")
    if await carol.read(file, 0, 100) != _SECRET:
        target.fail("another's PreviousSessionId ends a session")


@case()
async def rdma_in_the_clear(target: Target) -> None:
    """Send READ and WRITE by RDMA in an encrypted session, as if it were not: their data would cross the wire
    unencrypted. Then send a WRITE whose data has a forged tag."""
    transport: Any = await open_rdma(make_provider("iwarp"), "127.0.0.1", target.server.ports["iwarp"])
    client = await target.connect(transport)
    session = await client.log_on("carol", password("carol"), encrypt=True)
    tree = await session.tree_connect("data")
    await _put(tree, "secret", _SECRET)
    file = await tree.create("secret", 0x12019F)
    memory = bytearray(4096)
    region = transport.rdma.register(memoryview(memory), readable=True, writable=True)
    described = read_write.pack_descriptors(region.descriptors)
    persistent, volatile = file.file_id
    where = read_write.TAIL, len(described)
    asked = read_write.READ_REQUEST.pack_fields(49, 0, 0, 4096, 0, persistent, volatile, 0, 1, 0, *where)
    try:
        # The data comes encrypted, or not at all.
        (await tree.call(Command.READ, [asked, described], payload=4096)).release()
    except ServerError as error:
        target.note(f"READ by RDMA on an encrypted session: {error.status:#x}")
    if _SECRET in memory:
        target.fail("the content came by RDMA")

    async def write(channel: int, info: bytes) -> None:
        fields = 49, 0, 0, 0, persistent, volatile, channel, 4096, read_write.TAIL, len(info), 0
        body = [read_write.WRITE_REQUEST.pack_fields(*fields), info]
        await _refused(target, f"WRITE by RDMA, channel {channel}", tree.call(Command.WRITE, body, payload=4096))

    await write(read_write.Channel.RDMA_V1, described)
    forged = CryptoTransform(RdmaTransformId.ENCRYPTION, bytes(16), bytes(12))
    chain = pack_transforms(forged, read_write.Channel.RDMA_V1, region.descriptors)
    await write(read_write.Channel.RDMA_TRANSFORM, chain)
    if await tree.read(file, 0, 4096) != _SECRET:
        target.fail("the file was written to")
    region.deregister()


@case()
async def guests_beyond_their_share(target: Target) -> None:
    """Connect as a guest to shares that do not admit guests, and check who owns a guest's file on disk."""
    client = await target.connect()
    session = await client.log_on("nobody-there", "x", guest=True)
    for share in ("data", "readonly"):
        await _refused(target, f"a guest on {share}", session.tree_connect(share))
    tree = await session.tree_connect("guests")
    try:
        await _put(tree, "guest's")
    except ServerError:
        return
    found = (target.share / "guest's").stat()
    if os.geteuid() == 0 and found.st_uid == 0:
        target.fail("a guest's file belongs to root")
