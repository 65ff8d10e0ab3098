"""CREATE, QUERY_INFO and CLOSE by the fast lane against the general way: the same walk on a server with and without it.

Replies are compared byte for byte, except for what no two servers share: times, FileIds, numbers of files, MessageIds
and signatures, which are verified. So is what the walk leaves behind.
"""

from __future__ import annotations

import asyncio
import random
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.commands.create import plain
from smb3server.dispatch.fast_lane import FastLane
from smb3server.process.change_times import TICK_NS
from smb3server.state.objects import Open
from smb3server.state.share import Share
from smb3server.wire.close import CLOSE_REQUEST, CloseRequest
from smb3server.wire.create import CreateRequest, pack_request
from smb3server.wire.create_contexts import RawContext, parse_contexts
from smb3server.wire.header import Command
from smb3server.wire.query_info import QUERY_INFO_REQUEST, QueryInfoRequest
from tests.lab.wire_client import Client, Harness, Reply, running, server_signature

STEPS = 250
PENDING, NOTIFICATION = 0x103, (1 << 64) - 1
NAMES = (
    *("file", "file", "FILE", "folder", "folder\\below", "folder\\new", "new", "missing\\file", "", "link", "gone"),
    *(
        "file:stream",
        "file::$DATA",
        "held",
        "leased",
        "a*b",
        "\u00e4",
        "x" * 300,
        "file\\below",
        "@GMT-2020.01.01-00.00.00",
    ),
)
ACCESSES = (0x120089, 0x120089, 0x12019F, 0x80, 0x02000000, 0x10000, 0x110080, 0, 0x01000000, 0x80000000)
OPTIONS = (0, 0, 0x40, 0x40, 1, 0x1040, 0x21, 0x200000, 0x4000, 0x8000, 0x01000000)
GUID = b"0123456789abcdef"
CONTEXTS: Sequence[tuple[tuple[bytes, bytes], ...]] = (
    *((), (), ()),
    ((b"MxAc", b""),),
    ((b"QFid", b""),),
    ((b"MxAc", b""), (b"QFid", b"")),
    ((b"RqLs", GUID + struct.pack("<IIQ", 7, 0, 0) + bytes(20)),),
    ((b"RqLs", GUID[::-1] + struct.pack("<IIQ", 3, 0, 0)),),
    ((b"DHnQ", bytes(16)), (b"MxAc", b"")),
    ((b"AlSi", struct.pack("<Q", 100_000)),),
    ((b"TWrp", struct.pack("<Q", 132223104000000000)),),
    ((b"MxAc", bytes(3)),),
)
HEADERS: Sequence[dict[str, int]] = (
    *({}, {}, {}, {}, {}),
    *({"flags": 0x10}, {"flags": 0x20000000}, {"flags": 0x10000000}, {"status": 1}, {"tree_id": 77}),
    *({"credits": 0}, {"credits": 9}, {"credit_charge": 2}, {"ruin": 1}),
)


class Walk:
    """One walk of requests on one server."""

    def __init__(self, harness: Harness, client: Client) -> None:
        self.harness, self.client = harness, client
        self.seen: list[Any] = []

    async def call(self, command: int, body: bytes, ruin: int = 0, **header: Any) -> Reply:
        """Send a request and note its replies. Return the last one."""
        client = self.client
        message = client.build(command, body, **header)
        if client.encrypt:
            message = client.sealed(message)
        elif client.sign:
            message = client.signed(message)
            message = message[:50] + bytes([message[50] ^ ruin]) + message[51:]
        await client.frame(message)
        return await self.answer()

    async def answer(self) -> Reply:
        while True:
            (reply,) = await self.client.receive_compound()
            if reply.header.message_id == NOTIFICATION:
                self.seen.append("break")
                continue
            self.seen.append(self.comparable(reply))
            if reply.status != PENDING:
                return reply

    def comparable(self, reply: Reply) -> Any:
        data = bytearray(reply.message)
        if reply.header.flags & 8 and any(data[48:64]) and not self.client.encrypt:
            assert self.client.signer is not None and server_signature(self.client.signer, reply) == data[48:64]
        data[40:48], data[48:64] = bytes(8), bytes(16)
        contexts: list[RawContext] = []
        if not reply.status and reply.header.command == Command.CREATE:
            offset, length = struct.unpack_from("<II", data, 144)
            contexts = parse_contexts(memoryview(reply.message)[offset:][:length]) if length else []
            # The numbers of a file are those of the host.
            contexts = [RawContext(name, b"" if name == b"QFid" else content) for name, content in contexts]
            data[72:104], data[128:144] = bytes(32), bytes(16)
            del data[152:]
        elif not reply.status and reply.header.command == Command.CLOSE:
            data[72:104] = bytes(32)
        elif not reply.status and reply.header.command == Command.QUERY_INFO:
            # Basic information has nothing but times and attributes, standard information no times.
            data[72 : 72 + 32 * (len(data) == 72 + 40)] = bytes(32 * (len(data) == 72 + 40))
        return bytes(data), contexts

    async def step(self, chance: random.Random) -> None:
        """Open something, ask about it, and close it."""
        contexts = chance.choice(CONTEXTS)
        lease = any(name == b"RqLs" for name, _ in contexts)
        asked = CreateRequest(
            requested_oplock_level=0xFF if lease else chance.choice((0, 0, 1, 8, 9)),
            desired_access=chance.choice(ACCESSES),
            share_access=chance.choice((7, 7, 7, 1, 0)),
            create_disposition=chance.choice((1, 1, 1, 3, 3, 0, 2, 4, 5, 6)),
            create_options=chance.choice(OPTIONS),
        )
        body = pack_request(asked, chance.choice(NAMES), [RawContext(*context) for context in contexts])
        if not chance.randrange(20):
            body = chance.choice((body[:40], body[:54], b"\7" + body[1:], body + bytes(3)))
        header = dict(chance.choice(HEADERS))
        if self.client.encrypt or not self.client.sign:
            header.pop("ruin", None)
        reply = await self.call(Command.CREATE, body, **header)
        if reply.status or reply.header.command != Command.CREATE:
            return
        file_id = struct.unpack_from("<QQ", reply.message, 128)
        query = QueryInfoRequest(
            info_type=chance.choice((1, 1, 1, 2, 3)),
            info_class=chance.choice((4, 5, 5, 7, 200)),
            output_buffer_length=chance.choice((0, 24, 1024, 65537, 1 << 24)),
            persistent=file_id[0],
            volatile=file_id[1] + (not chance.randrange(10)),
        )
        await self.call(Command.QUERY_INFO, QUERY_INFO_REQUEST.pack(query))
        closing = CloseRequest(24, chance.choice((0, 1)), 0, *file_id)
        await self.call(Command.CLOSE, CLOSE_REQUEST.pack(closing))


async def walked(protection: str, seed: int, steps: int) -> list[Any]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "folder").mkdir()
        for path in ("file", "folder/below", "held", "leased"):
            (root / path).write_bytes(path.encode() * 1000)
        (root / "link").symlink_to("file")
        (root / "gone").symlink_to("nowhere")
        async with running() as harness:
            harness.server.add_share(Share("local", backend=LocalBackend(root), path=name))
            clients = [await harness.connect(), await harness.connect()]
            for client in clients:
                await client.login(0x0311, "local")
                client.sign, client.encrypt = protection == "sign", protection == "encrypt"
            held = CreateRequest(desired_access=0x120089, share_access=0, create_disposition=1)
            await clients[1].call(Command.CREATE, pack_request(held, "held"))
            leased = held._replace(share_access=7, requested_oplock_level=1)
            await clients[1].call(Command.CREATE, pack_request(leased, "leased"))
            walk = Walk(harness, clients[0])
            chance = random.Random(seed)
            for _ in range(steps):
                await walk.step(chance)
            server = harness.server
            paths = (path.relative_to(root) for path in root.rglob("*"))
            walk.seen.append(sorted(str(path) for path in paths if path.parts[0] != ".smb3server"))
            walk.seen.append(sorted(opened.path for opened in server.opens.by_id.values()))
            walk.seen.append([len(server.file_table), server.buffers.lent])
            return walk.seen


@pytest.mark.parametrize("protection", ["none", "sign", "encrypt"])
def test_a_walk_is_answered_alike(monkeypatch: pytest.MonkeyPatch, protection: str) -> None:
    taken: dict[int, int] = {}
    take = FastLane.take
    on = True

    def counted(lane: FastLane, *message: Any) -> bool:
        command = message[1][12]
        done = on and take(lane, *message)
        taken[command] = taken.get(command, 0) + done
        return done

    monkeypatch.setattr(FastLane, "take", counted)
    found = []
    for on in (True, False):  # noqa: B007 ``counted`` looks at it
        found.append(asyncio.run(walked(protection, 5, STEPS)))
    assert len(found[0]) == len(found[1])
    for number, (fast, general) in enumerate(zip(*found, strict=True)):
        assert fast == general, number
    for command in (Command.CREATE, Command.QUERY_INFO, Command.CLOSE):
        assert taken[command] > STEPS // 10


@pytest.mark.parametrize("on", [True, False])
def test_a_create_that_waits_for_a_break(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    """It gets an interim response, and its answer when the other client has closed the file."""
    if not on:
        monkeypatch.setattr(FastLane, "take", lambda *_: False)

    async def body() -> None:
        async with running() as harness:
            holder, other = await harness.connect(), await harness.connect()
            for client in (holder, other):
                await client.login(0x0311)
            batch = CreateRequest(
                requested_oplock_level=9, desired_access=0x12019F, share_access=7, create_disposition=3
            )
            reply = await holder.call(Command.CREATE, pack_request(batch, "file"))
            file_id = struct.unpack_from("<QQ", reply.message, 128)
            await other.post(Command.CREATE, pack_request(batch._replace(requested_oplock_level=0), "file"))
            interim = await other.receive()
            assert interim.status == PENDING and interim.header.flags & 2
            assert (await holder.receive()).header.command == Command.OPLOCK_BREAK
            assert not (await holder.call(Command.CLOSE, CLOSE_REQUEST.pack(CloseRequest(24, 0, 0, *file_id)))).status
            final = await other.receive()
            assert not final.status and final.header.async_id == interim.header.async_id
            assert len(harness.server.opens.by_id) == 1

    asyncio.run(body())


LEASE_1 = GUID[::-1] + struct.pack("<IIQ", 3, 0, 0)
LEASE_2 = GUID + struct.pack("<IIQ", 7, 4, 0) + b"p" * 16 + struct.pack("<HH", 5, 0)
ABOUT = ((b"MxAc", b""), (b"QFid", b""))
ORDINARY: Sequence[tuple[int, tuple[tuple[bytes, bytes], ...]]] = (
    *((level, ()) for level in (0, 1, 8, 9, 0xFF)),
    *((0, (context,)) for context in ABOUT),
    *((level, ABOUT) for level in (0, 9)),
    *((0xFF, ((b"RqLs", lease),)) for lease in (LEASE_1, LEASE_2)),
    *((0xFF, ((b"RqLs", lease), *ABOUT)) for lease in (LEASE_1, LEASE_2)),
)


async def opened_one_by_one(root: Path, shared: bool) -> list[Any]:
    """Open and close files in all ordinary ways, each several times, and while the file changes. ``shared``: another
    client has them open as well."""
    async with running() as harness:
        harness.server.add_share(Share("local", backend=LocalBackend(root), path=str(root)))
        client = await harness.connect()
        await client.login(0x0311, "local")
        walk = Walk(harness, client)
        if shared:
            other = await harness.connect()
            await other.login(0x0311, "local")
            for name in ("file", "folder", ""):
                held = CreateRequest(desired_access=0x120089, share_access=7, create_disposition=1)
                assert not (await other.call(Command.CREATE, pack_request(held, name))).status
        for name in ("missing", "missing\\file", "file\\below"):
            asked = CreateRequest(desired_access=0x120089, share_access=7, create_disposition=1)
            assert (await walk.call(Command.CREATE, pack_request(asked, name))).status
        for name, access in (("file", 0x120089), ("file", 0x12019F), ("file", 0x80), ("folder", 0x81), ("", 0x81)):
            for level, contexts in ORDINARY:
                for number in range(4):
                    if name == "file" and number != 1:
                        # The change shows although everything about the file was known.
                        (root / name).write_bytes(bytes(1000 * number))
                        if number == 0:
                            await asyncio.sleep(2 * TICK_NS / 1e9)
                    asked = CreateRequest(
                        requested_oplock_level=level, desired_access=access, share_access=7, create_disposition=1
                    )
                    body = pack_request(asked, name, [RawContext(*context) for context in contexts])
                    reply = await walk.call(Command.CREATE, body)
                    assert not reply.status
                    walk.seen.append(bytes(reply.message[66:67] + reply.message[104:124]))
                    opened = list(harness.server.opens.by_id.values())[-1]
                    walk.seen.append(state_of(opened))
                    closing = CloseRequest(24, number & 1, 0, *struct.unpack_from("<QQ", reply.message, 128))
                    assert not (await walk.call(Command.CLOSE, CLOSE_REQUEST.pack(closing))).status
        walk.seen.append([len(harness.server.file_table), len(harness.server.opens.by_id)])
        return walk.seen


def state_of(opened: Open) -> Any:
    """Return what an open is for later requests, without what differs anyway."""
    skipped = {"file_id", "session", "tree", "store", "handle", "descriptor", "file", "caching", "usage"}
    state = {name: getattr(opened, name) for name in Open.__slots__ if name not in skipped}
    holder = opened.caching
    return state, holder and (type(holder), holder.state), opened.descriptor is not None, opened.usage is not None


@pytest.mark.parametrize("shared", [False, True])
def test_ordinary_opens_are_answered_alike(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    make, taken, known = plain._opened, list[bool](), 0

    def counted(*arguments: Any) -> Any:
        nonlocal known
        before = len(plain._known)
        body = make(*arguments)
        taken.append(body is not None)
        known += body is not None and before > 0 and len(plain._known) == before
        return body

    monkeypatch.setattr(plain, "_opened", counted)
    ordinary = 5 * 4 * len(ORDINARY) + 3 * shared
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        root = Path(name)
        (root / "folder").mkdir()
        (root / "file").touch()
        plain._known.clear()
        found = [asyncio.run(opened_one_by_one(root, shared))]
        assert len(taken) == ordinary and all(taken) and known > len(taken) // 4
        monkeypatch.setattr(FastLane, "take", lambda *_: False)
        found.append(asyncio.run(opened_one_by_one(root, shared)))
        assert len(taken) == ordinary
    for number, (fast, general) in enumerate(zip(*found, strict=True)):
        assert fast == general, number
