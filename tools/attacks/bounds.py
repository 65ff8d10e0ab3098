"""Attacks whose requests hold as many elements as the server takes, and the table of all numbers that decide how long
one request keeps the event loop: what bounds each, and the case that measures it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from typing import Any, NamedTuple

from smb3server.access.descriptor import EVERYONE, Ace, Acl, SecurityDescriptor, Sid, allow
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import Tree
from smb3server.wire.create_contexts import MAX_CONTEXTS, RawContext
from smb3server.wire.fsctl import CopyChunk, CopyChunkHeader
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.lock import LockElement
from smbdirect.codec import Codec
from tools.attacks.lab import Target, case
from tools.attacks.raw import NEGOTIATE, Stranger, frame, header


class Number(NamedTuple):
    """A number that a client chooses, and that decides how long the event loop works for one request."""

    what: str
    bound: str
    """The module and constant, or what else limits it."""
    case: str
    """The attack that sends as many, and measures the server's processor time."""
    fields: tuple[str, ...] = ()
    """The fields of ``smb3server/wire`` that carry it."""


NUMBERS = (
    Number("elements of a LOCK", "commands.lock.MAX_ELEMENTS", "locks_given_back", ("LockRequest.lock_count",)),
    Number("waiting LOCKs", "files.locks.AT_ONCE in a turn", "locks_given_back"),
    Number("commands of a message", "a turn of the event loop for some of them", "compound_reads"),
    Number("entries of a descriptor", "access.descriptor.MAX_BYTES", "large_descriptors"),
    Number("users of the host in a DACL", "access.posix.MAX_NAMED", "large_descriptors"),
    Number("extended attributes", "wire.file_info.MAX_EAS", "thousands_of_eas"),
    Number("names of extended attributes asked for", "max_transact_size", "half_a_million_ea_names"),
    Number("alternate streams", "backends.local.streams.MAX_STREAMS; more than FEW on a worker", "streams"),
    Number("watchers of a folder", "limits.max_watchers_per_user", "watchers"),
    Number("entries of a folder", "a worker reads large folders", "missing_names"),
    Number("components of a path", "backends.names.MAX_DEPTH", "deep_path"),
    Number("bytes allocated, freed, zeroed", "backends.local.release.LARGE; more on a worker", "allocation"),
    Number(
        "chunks of a copy",
        "commands.fsctl.copy_chunk.MAX_CHUNKS",
        "long_lists",
        ("CopyChunkHeader.chunk_count",),
    ),
    Number("ranges of a TRIM", "commands.fsctl.file._MAX_TRIM_RANGES", "long_lists", ("TrimHeader.num_ranges",)),
    Number("allocated ranges of a file", "commands.fsctl.file._RANGES_AT_ONCE; more on a worker", "long_lists"),
    Number("contexts of a CREATE", "wire.create_contexts.MAX_CONTEXTS", "long_lists"),
    Number("characters of a search pattern", "files.searches.MAX_PATTERN", "long_lists"),
    Number(
        "dialects and contexts of a NEGOTIATE, and algorithms in them",
        "limits.max_message_before_authentication",
        "long_negotiations",
        (
            "NegotiateRequest.dialect_count",
            "NegotiateRequest.context_count",
            "RdmaTransformCapabilities.transform_count",
            "CompressionCapabilities.algorithm_count",
        ),
    ),
    Number(
        "bytes that a compressed message declares, and payloads of its chain",
        "one message of a connection at a time, state.ceilings.MOST_EXPANDED; compression.transform._MOST_PAYLOADS",
        "compressed_bombs",
    ),
    Number("bytes of a token", "limits.max_message_before_authentication", "nested_tokens"),
    Number("elements of an RPC array", "rpc.lsarpc.MAX_LOOKUPS, rpc.samr.MAX_LOOKUPS", "large_rpc_calls"),
    Number("opens below a folder", "limits.max_opens_per_user; OPENS_AT_ONCE in a turn", "renaming_folders"),
    Number("opens with an AppInstanceId", "an index", "application_instances"),
)
"""Every place. ``tests/project/test_promises.py`` compares it with the fields of ``smb3server/wire``."""
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


async def _lists(target: Target) -> None:
    """Make a file with many holes, one to copy from, and a folder whose names fit a pattern badly."""
    tree = await target.log_on("carol")
    await tree.make_directory("folder")
    for number in range(300):
        await tree.close(await tree.create(f"folder\\{'a' * 100}{number:03}", _READ_WRITE, _CREATE))
    for name in ("source", "holes"):
        await tree.close(await tree.create(name, _READ_WRITE, _CREATE))
    (target.share / "source").write_bytes(os.urandom(16 << 20))
    with (target.share / "holes").open("r+b") as file:
        for number in range(20_000):
            os.pwrite(file.fileno(), b"x", number << 13)


@case(prepare=_lists)
async def long_lists(target: Target) -> None:
    """Send FSCTLs with as many chunks and ranges as they take, a CREATE with 64 contexts, and patterns of wildcards."""
    tree = await target.log_on("carol")
    source, holes = await tree.create("source", _READ_WRITE), await tree.create("holes", _READ_WRITE)
    key = (await tree.ioctl(Fsctl.SRV_REQUEST_RESUME_KEY, file=source))[:24]
    chunk, copy = Codec(CopyChunk), Codec(CopyChunkHeader)
    chunks = b"".join(chunk.pack(CopyChunk(at << 16, at << 16, 1 << 16)) for at in range(256))
    await tree.ioctl(Fsctl.SET_SPARSE, file=holes)
    for _ in range(3):
        await _attempt(target, tree.ioctl(Fsctl.SRV_COPYCHUNK, copy.pack(CopyChunkHeader(key, 256)) + chunks, holes))
        query = struct.pack("<QQ", 0, 1 << 40)
        await _attempt(target, tree.ioctl(Fsctl.QUERY_ALLOCATED_RANGES, query, holes, max_output=1 << 20))
        ranges = b"".join(struct.pack("<QQ", at << 13, 4096) for at in range(4096))
        await _attempt(target, tree.ioctl(Fsctl.FILE_LEVEL_TRIM, struct.pack("<II", 0, 4096) + ranges, holes))
    contexts = [RawContext(b"%04d" % number, bytes(900)) for number in range(MAX_CONTEXTS)]
    for _ in range(5):
        await tree.close(await tree.create("source", _READ_WRITE, _OPEN, contexts=contexts))
    folder = await tree.create("folder", 0x120089, _OPEN, _FOLDER)
    for pattern in ("*a" * 500 + "b", "?*" * 500 + "b", "<a" * 500 + "b"):
        with contextlib.suppress(ServerError):
            async with contextlib.aclosing(tree.entries(folder, pattern)) as found:
                async for _ in found:
                    break


async def _attempt(target: Target, work: Any) -> None:
    """Do what may be refused, and note it."""
    try:
        await work
    except ServerError as error:
        target.note(f"refused with {error.status:#x}")


@case()
async def long_negotiations(target: Target) -> None:
    """Send NEGOTIATEs with thousands of dialects, contexts and algorithms, without an account."""
    fixed = struct.Struct("<HHHHI16sIHH")
    ciphers = struct.pack("<HHI", 2, 2 + 2 * 28000, 0) + struct.pack("<H", 28000) + b"\1\0" * 28000
    hashes = struct.pack("<HHI", 1, 6, 0) + struct.pack("<HHHxx", 1, 0, 1)
    compression = hashes + struct.pack("<HHI", 3, 8 + 2 * 28000, 0) + struct.pack("<HHI", 28000, 0, 1) + b"\7\0" * 28000
    empty = struct.pack("<HHI", 0x7777, 0, 0) * 7000
    for dialects, count, contexts in ((1, 1, ciphers), (1, 2, compression), (1, 7000, empty), (28000, 0, b"")):
        listed = struct.pack("<H", 0x0311) * dialects
        listed += bytes(-(64 + fixed.size + len(listed)) % 8)
        body = fixed.pack(36, dialects, 1, 0, 0, os.urandom(16), 64 + fixed.size + len(listed), count, 0)
        for _ in range(20):
            one = await Stranger.connect(target.port, negotiated=False)
            one.send(frame(header(NEGOTIATE, 0) + body + listed + contexts))
            with contextlib.suppress(EOFError, OSError):
                await one.receive()
            one.close()
