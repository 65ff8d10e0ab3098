"""The lane of looks against the general way: the same message, with and without the lane.

Replies are compared byte for byte, except for what no two messages share: MessageIds, signatures (which are verified)
and the FileIds, which are chosen by chance.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.metadata import Metadata
from smb3server.commands.create import looking
from smb3server.commands.info.file_levels import FILE_LEVELS
from smb3server.dispatch import look_lane
from smb3server.dispatch.look_lane import LookLane
from smb3server.process.change_times import TICK_NS
from smb3server.settings.share import ShareRules
from smb3server.state.share import Share
from smb3server.wire.close import CLOSE_REQUEST, CloseRequest
from smb3server.wire.create import CreateRequest, pack_request
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.header import Command
from smb3server.wire.query_info import QUERY_INFO_REQUEST, QueryInfoRequest
from smb3server.wire.read_write import READ_REQUEST, TAIL, WRITE_REQUEST, ReadRequest, WriteRequest
from tests.lab.lanes import fill_disk
from tests.lab.wire_client import Client, Harness, Reply, compound, create_body, related, running, server_signature

READ_ATTRIBUTES, LOOKS = 0x80, 0x00120088
ALL = 18
NAMES = (
    *("file", "FILE", "folder", "folder\\below", "folder\\missing", "missing\\file", "missing", "", ".hidden"),
    *("link", "gone", "linked\\below", "file:stream", "folder:$DATA", "file::$DATA", "held", "doomed", "file\\below"),
    *(
        "@GMT-2020.01.01-00.00.00\\file",
        "$Extend\\$Quota:$Q:$INDEX_ALLOCATION",
        "a*b",
        "read-only",
        "\u00e4",
        "x" * 300,
    ),
)
ACCESSES = (READ_ATTRIBUTES, LOOKS, 0x20000, 0x100000, 1, 0x02000000, 0x10000, 0, 0x01000000, 0x80000000, 0x40000000)


@pytest.fixture
def roomy() -> Iterator[Path]:
    """A folder on tmpfs, whose change times tell of every change."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


class Scene:
    """A server with files, and a client that sends each message twice."""

    def __init__(self, harness: Harness, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness, self.client = harness, client
        self.on = True
        self.taken = 0
        take = LookLane.take

        def counted(lane: LookLane, *message: Any) -> bool:
            taken = self.on and take(lane, *message)
            self.taken += taken
            return taken

        monkeypatch.setattr(LookLane, "take", counted)

    def message(
        self,
        name: str = "file",
        access: int = LOOKS,
        disposition: int = 1,
        options: int = 0,
        oplock: int = 0,
        query: tuple[int, int, int] = (1, ALL, 65536),
        closing: int = 0,
        ruin: int = -1,
        contexts: Sequence[tuple[bytes, bytes]] = (),
        area: tuple[int, int] | None = None,
        share_access: int = 7,
        between: tuple[int, bytes] | None = None,
        **header: Any,
    ) -> bytes:
        """Return one message. ``query``: InfoType, class and length. ``ruin``: the part whose last byte is changed.
        ``area``: what is added to offset and length of the create contexts. ``between``: command and body that are
        there instead of QUERY_INFO."""
        client = self.client
        asked = CreateRequest(
            requested_oplock_level=oplock,
            desired_access=access,
            share_access=share_access,
            create_disposition=disposition,
            create_options=options,
        )
        body = bytearray(pack_request(asked, name, [RawContext(*context) for context in contexts]))
        if area is not None:
            offset, size = struct.unpack_from("<II", body, 48)
            struct.pack_into("<II", body, 48, offset + area[0], size + area[1])
        kind, level, length = query
        record = QueryInfoRequest(info_type=kind, info_class=level, output_buffer_length=length)
        command, asking = between or (Command.QUERY_INFO, QUERY_INFO_REQUEST.pack(record))
        parts = [
            client.build(Command.CREATE, bytes(body), **header),
            related(client, command, asking),
            related(client, Command.CLOSE, CLOSE_REQUEST.pack(CloseRequest(flags=closing))),
        ]
        if "credits" not in header:
            # As many as it takes: what is granted does not depend on what was granted before.
            parts = [part[:14] + b"\1\0" + part[16:] for part in parts]
        if ruin >= 0 and not client.sign:
            parts[ruin] = parts[ruin][:-1] + b"\xff"
        whole = bytearray(compound(client, *parts))
        if ruin >= 0 and client.sign:
            start = 0
            for _ in range(ruin):
                start += struct.unpack_from("<I", whole, start + 20)[0]
            whole[start + 50] ^= 1
        return bytes(whole)

    async def answer(self, message: bytes) -> list[bytes]:
        """Send one message. Return the replies without what differs anyway."""
        client = self.client
        await client.frame(client.sealed(message) if client.encrypt else message)
        replies: list[Reply] = []
        while len(replies) < 3:
            replies += await client.receive_compound()
        comparable = []
        for reply in replies:
            data = bytearray(reply.message)
            if reply.header.flags & 8 and not client.encrypt and reply.header.session_id == client.session_id:
                assert client.signer is not None and server_signature(client.signer, reply) == data[48:64]
            data[24:32], data[48:64] = bytes(8), bytes(16)
            if reply.header.command == Command.CREATE and not reply.status:
                assert any(data[128:144])
                data[128:144] = bytes(16)
            comparable.append(bytes(data))
        return comparable

    async def same(self, **fields: Any) -> bool:
        """Compare both ways. Return whether the lane took the message."""
        before = self.taken
        found = []
        for self.on in (True, False):
            found.append(await self.answer(self.message(**fields)))
        assert found[0] == found[1], fields
        server = self.harness.server
        for opened in list(server.opens.by_id.values()) if fields.get("ruin") == 2 else ():
            # Its CLOSE was refused.
            server.opens.close(opened)
        assert not [opened for opened in server.opens.by_id.values() if opened.path != ("held",)], fields
        assert not server.buffers.lent
        return self.taken > before


@asynccontextmanager
async def scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: str = "none", dialect: int = 0x0311, **share: Any
) -> AsyncIterator[Scene]:
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    for name in ("file", "folder/below", ".hidden", "held", "read-only", "doomed"):
        (root / name).write_bytes(name.encode() * 1000)
    (root / "link").symlink_to("file")
    (root / "gone").symlink_to("nowhere")
    (root / "linked").symlink_to("folder")
    async with running() as harness:
        backend = LocalBackend(root)
        harness.server.add_share(Share("local", backend=backend, path=str(root), **share))
        client = await harness.connect()
        await client.login(dialect, "local")
        client.sign, client.encrypt = protection == "sign", protection == "encrypt"
        made = Scene(harness, client, monkeypatch)
        made.on = False
        yield made


async def all_same(made: Scene, cases: Iterable[dict[str, Any]]) -> int:
    taken = 0
    for case in cases:
        taken += await made.same(**case)
    return taken


@pytest.mark.parametrize("protection", ["none", "sign", "encrypt"])
def test_names_and_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: str) -> None:
    async def body() -> None:
        async with scene(tmp_path, monkeypatch, protection) as made:
            await made.client.open("held")
            read_only = await made.client.call(Command.CREATE, create_body("read-only", 1, 0x00120196))
            assert not read_only.status
            found = made.harness.server.opens.by_id
            opened = next(opened for opened in found.values() if opened.path == ("read-only",))
            assert opened.handle is not None
            opened.handle.set_attributes(1)
            made.harness.server.opens.close(opened)
            cases: Sequence[dict[str, Any]] = [
                {"name": name, "access": access, "options": options}
                for name, access, options in itertools.product(NAMES, ACCESSES, (0, 1, 0x40, 0x200000))
            ]
            taken = await all_same(made, cases)
            assert 40 < taken < len(cases) // 2

    asyncio.run(body())


@pytest.mark.parametrize("dialect", [0x0202, 0x0210, 0x0302, 0x0311])
def test_levels_and_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: int) -> None:
    async def body() -> None:
        async with scene(tmp_path, monkeypatch, dialect=dialect) as made:
            queries = [(1, level, length) for level in (*FILE_LEVELS, 0, 15, 200) for length in (0, 8, 40, 104, 65536)]
            queries += [(kind, level, 1024) for kind in (0, 3, 4, 9) for level in (1, 5, 7, 18)]
            queries += [(2, 5, 1024)]
            queries += [(1, ALL, 65537), (1, ALL, 1 << 24)]
            cases = [
                {"name": name, "query": query, "closing": closing}
                for name, query, closing in itertools.product(("file", "folder", "link", ""), queries, (0, 1))
            ]
            assert await all_same(made, cases) > 100

    asyncio.run(body())


@pytest.mark.parametrize("protection", ["none", "sign", "encrypt"])
def test_what_is_unusual_in_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: str) -> None:
    async def body() -> None:
        async with scene(tmp_path, monkeypatch, protection) as made:
            unusual: list[dict[str, Any]] = [
                *({"flags": flags} for flags in (0x10, 0x70, 0x20000000, 0x10000000, 0x4)),
                *({"status": status} for status in (1, 0xFFFF, 0x10000)),
                *({"credits": credits} for credits in (0, 1, 8)),
                *({"credit_charge": charge} for charge in (0, 2)),
                *({"oplock": level} for level in (1, 8, 9)),
                *({"disposition": disposition} for disposition in (0, 2, 3, 4, 5, 6)),
                *({"options": options} for options in (0x1000, 0x4000, 0x41, 0x2000, 0x01000000)),
                {"tree_id": 77},
            ]
            # An encrypted message of another session ends the connection.
            unusual += [{"session_id": 77}] if protection != "encrypt" else []
            unusual += [{"ruin": part} for part in range(3)] if protection == "sign" else []
            taken = 0
            for case in unusual:
                if case.get("disposition") in (2, 3):
                    case["name"] = "folder"
                taken += await made.same(**{"name": "folder", **case} if "disposition" in case else case)
                assert await made.same(), case
            assert taken

    asyncio.run(body())


@pytest.mark.parametrize("rule", ["hide_dot_files", "read_only", "audit", "as_of"])
def test_shares_with_rules_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    from smb3server.state.audit import ShareAudit

    share: dict[str, Any] = {"read_only": True} if rule == "read_only" else {}

    async def body() -> None:
        async with scene(tmp_path, monkeypatch, **share) as made:
            served = made.harness.server.share_list["local"]
            if rule == "hide_dot_files":
                served.hides = lambda name: name.startswith(".")
            elif rule == "audit":
                served.audit = ShareAudit(frozenset(), made.harness.server.events)  # type: ignore[arg-type]
            elif rule == "as_of":
                served.as_of = 1
            cases = [{"name": name, "access": access, "closing": 1} for name in NAMES for access in ACCESSES[:5]]
            taken = await all_same(made, cases) if rule != "as_of" else await made.same()
            assert bool(taken) is (rule in ("hide_dot_files", "read_only"))

    asyncio.run(body())


def test_requests_that_are_no_look_go_the_general_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that are too short, in another order, or not related."""

    async def body() -> None:
        async with scene(tmp_path, monkeypatch) as made:
            client = made.client

            def parts() -> list[bytes]:
                whole, found, start = made.message(), [], 0
                while start < len(whole):
                    step = struct.unpack_from("<I", whole, start + 20)[0] or len(whole)
                    part = bytearray(whole[start : start + step])
                    part[20:24] = bytes(4)
                    found.append(bytes(part))
                    start += step
                return found

            def unrelated(part: bytes) -> bytes:
                changed = bytearray(part)
                changed[16:20] = bytes(4)
                struct.pack_into("<IQ", changed, 36, client.tree_id, client.session_id)
                return bytes(changed)

            def short(part: bytes) -> bytes:
                return part[: 64 + 8]

            async def sent(kind: str) -> list[bytes]:
                create, query, closing = parts()
                if kind == "unrelated":
                    return await made.answer(compound(client, create, unrelated(query), closing))
                if kind == "short query":
                    return await made.answer(compound(client, create, short(query), closing))
                if kind == "short close":
                    return await made.answer(compound(client, create, query, short(closing)))
                wrong = bytearray(query)
                wrong[64] = 7
                return await made.answer(compound(client, create, bytes(wrong), closing))

            for kind in ("unrelated", "short query", "short close", "wrong size"):
                found = []
                for made.on in (True, False):
                    found.append(await sent(kind))
                    for opened in list(made.harness.server.opens.by_id.values()):
                        made.harness.server.opens.close(opened)
                assert found[0] == found[1], kind
            assert not made.taken

    asyncio.run(body())


def test_no_open_is_seen_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds the file alone is asked nothing, and nothing is left behind."""

    async def body() -> None:
        async with scene(tmp_path, monkeypatch) as made:
            seen: list[int] = []
            server = made.harness.server
            add = server.opens.add
            monkeypatch.setattr(server.opens, "add", lambda opened: (seen.append(1), add(opened)))
            made.on = True
            await made.answer(made.message())
            assert made.taken == 1 and not seen and not len(server.file_table)
            assert {16, 8, 9} == look_lane.BETWEEN

    asyncio.run(body())


def _replaced(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"another")


@pytest.mark.parametrize(
    "change",
    [
        lambda path, share: path.chmod(0o400),
        lambda path, share: path.write_bytes(b"longer than before" * 999),
        lambda path, share: os.utime(path, ns=(10**18, 10**18)),
        lambda path, share: os.setxattr(path, "user.smb3.meta", META) or os.setxattr(path, "trusted.smb3.meta", META),
        lambda path, share: os.link(path, path.with_name("second")),
        lambda path, share: _replaced(path),
        lambda path, share: path.rename(path.with_name("File")),
        lambda path, share: setattr(share, "hides", lambda name: name == "file"),
        lambda path, share: setattr(share, "read_only", True),
    ],
    ids=["mode", "data", "times", "attributes", "link", "replaced", "renamed", "hidden", "read-only"],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="trusted attributes need root")
@pytest.mark.root
def test_what_is_known_of_a_file_until_it_changes(
    roomy: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path, Share], object]
) -> None:
    """The lane answers from memory only what the general way would answer as well."""

    async def body() -> None:
        async with scene(roomy, monkeypatch) as made:
            opened = 0

            def counted(*arguments: Any) -> Any:
                nonlocal opened
                opened += 1
                return make(*arguments)

            make = looking._open
            monkeypatch.setattr(looking, "_open", counted)
            # Until the changes are older than a tick of the kernel's clock.
            await asyncio.sleep(2 * TICK_NS / 1e9)
            asked: Sequence[dict[str, Any]] = [
                {"name": name, "closing": closing, "contexts": contexts, "query": (1, level, 65536)}
                for name, closing, contexts, level in itertools.product(
                    ("file", "second", "folder"), (0, 1), ((), [MAXIMAL_ACCESS], [ON_DISK_ID]), (ALL, 34)
                )
            ]
            for _ in range(2):
                await all_same(made, asked)
            assert opened == 24, "answers are not kept"
            change(roomy / "root" / "file", made.harness.server.share_list["local"])
            await all_same(made, asked)
            assert 24 <= opened <= 48
            await asyncio.sleep(2 * TICK_NS / 1e9)
            for _ in range(2):
                await all_same(made, asked)

    asyncio.run(body())


def test_nothing_is_known_of_files_that_the_store_looks_at_anew(roomy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with scene(roomy, monkeypatch) as made:
            made.harness.server.share_list["local"].backend.store.kept.device = None
            looking._known.clear()
            await asyncio.sleep(2 * TICK_NS / 1e9)
            for _ in range(2):
                assert await made.same(name="file")
            assert not looking._known

    asyncio.run(body())


def test_what_is_known_of_files_is_bounded(roomy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with scene(roomy, monkeypatch) as made:
            monkeypatch.setattr(looking, "_MOST_KNOWN", 2)
            looking._known.clear()
            await asyncio.sleep(2 * TICK_NS / 1e9)
            for name in ("file", "held", "folder", "doomed", "folder\\below", "file"):
                assert await made.same(name=name), name
                assert len(looking._known) <= 2

    asyncio.run(body())


META = Metadata(attributes=0x23).pack(0)
MAXIMAL_ACCESS, ON_DISK_ID, LEASE = (b"MxAc", b""), (b"QFid", b""), (b"RqLs", bytes(15) + b"1" + bytes(16))
CONTEXTS: Sequence[tuple[Sequence[tuple[bytes, bytes]], bool]] = (
    ([MAXIMAL_ACCESS], True),
    ([ON_DISK_ID], True),
    ([MAXIMAL_ACCESS, ON_DISK_ID], True),
    ([ON_DISK_ID, MAXIMAL_ACCESS], True),
    ([ON_DISK_ID, ON_DISK_ID], True),
    ([(b"MxAc", bytes(8))], True),
    ([(b"MxAc", struct.pack("<Q", 132223104000000000))], True),
    ([(b"XxXx", b"unknown"), MAXIMAL_ACCESS], True),
    ([(b"MxAc", bytes(7))], False),
    ([(b"QFid", bytes(1))], False),
    ([ON_DISK_ID] * 8, False),
    ([ON_DISK_ID] * 65, False),
    ([LEASE], False),
    ([MAXIMAL_ACCESS, (b"AlSi", bytes(8))], False),
    ([(b"DHnQ", bytes(16))], False),
    ([(b"DH2Q", bytes(16) + b"0123456789abcdef")], False),
    ([(b"TWrp", struct.pack("<Q", 132223104000000000))], False),
    ([(b"ExtA", b"")], False),
    ([(b"SecD", bytes(20))], False),
    ([(b"AAPL", bytes(24))], False),
    ([(bytes.fromhex("93ad25509cb411e7b42383de968bcd7c"), bytes(4))], False),
)
"""Create contexts, and whether a look may have them."""


@pytest.mark.parametrize("dialect", [0x0202, 0x0302, 0x0311])
def test_create_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: int) -> None:
    """What clients send with a look: Linux QFid, Windows MxAc and QFid."""

    async def body() -> None:
        async with scene(tmp_path, monkeypatch, dialect=dialect) as made:
            for contexts, ordinary in CONTEXTS:
                for name in ("file", "folder", "", "missing", "link", "file:stream"):
                    taken = await made.same(name=name, contexts=contexts)
                    if dialect == 0x0311:
                        assert taken is (ordinary and name in ("file", "folder", "", "link")), (name, contexts)
            cases = [
                {"contexts": [MAXIMAL_ACCESS], "area": area}
                for area in itertools.product((0, 1, 8, -8, -80, 1000), (0, 1, -1, -20, 8, 1000))
            ]
            assert await all_same(made, cases) < len(cases)

    asyncio.run(body())


READ_DATA, WRITE_DATA = 0x00120089, 0x0012019F


def reading(length: int = 4096, offset: int = 0, **fields: Any) -> tuple[int, bytes]:
    """Return a READ without its header."""
    return Command.READ, READ_REQUEST.pack(ReadRequest(length=length, offset=offset, **fields)) + b"\0"


def writing(data: bytes = b"written", offset: int = 0, **fields: Any) -> tuple[int, bytes]:
    """Return a WRITE without its header."""
    fields = {"data_offset": TAIL, "length": len(data), **fields}
    return Command.WRITE, WRITE_REQUEST.pack(WriteRequest(offset=offset, **fields)) + data


class Data:
    """Sends each message with READ or WRITE with and without the lane, to the same files."""

    def __init__(self, made: Scene, root: Path) -> None:
        self.made, self.root = made, root

    def _state(self) -> list[Any]:
        share = self.made.harness.server.share_list["local"]
        usage = next(iter(self.made.harness.server.sessions.by_id.values())).usage
        assert usage is not None
        counted = share.bytes_read, share.bytes_written, usage.bytes_read, usage.bytes_written, usage.opens
        share.bytes_read = share.bytes_written = usage.bytes_read = usage.bytes_written = 0
        names = sorted(path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())
        return [counted, *((path.name, path.read_bytes()) for path in names if ".smb3server" not in path.parts)]

    async def same(self, **fields: Any) -> bool:
        """Compare replies, files and counts. Return whether the lane took the message."""
        made, before = self.made, self.made.taken
        server = made.harness.server
        found: list[Any] = []
        for made.on in (True, False):
            for name in ("file", "folder/below"):
                (self.root / name).write_bytes(name.encode() * 1000)
            self._state()
            replies = [bytearray(reply) for reply in await made.answer(made.message(**fields))]
            for reply in replies:
                # Times: each request is later than the one before.
                reply[72:104] = bytes(32) if reply[12] in (Command.CREATE, Command.CLOSE) else reply[72:104]
            for opened in list(server.opens.by_id.values()):
                if opened.path != ("held",):
                    server.opens.close(opened)
            found.append((replies, self._state()))
        assert found[0] == found[1], fields
        assert not server.buffers.lent
        return made.taken > before

    async def takes(self, cases: Iterable[dict[str, Any]]) -> int:
        """Return how many of the messages the lane took."""
        taken = 0
        for case in cases:
            taken += await self.same(**case)
        return taken


DATA_ACCESSES = (
    READ_DATA,
    WRITE_DATA,
    0x1,
    0x2,
    0x4,
    0x20,
    0x80000000,
    0x40000000,
    0x02000000,
    0x10000000,
    0x13019F,
    LOOKS,
)


@pytest.mark.parametrize("protection", ["none", "sign", "encrypt"])
@pytest.mark.parametrize("between", [reading(), writing()], ids=["read", "write"])
def test_data_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: str, between: tuple[int, bytes]
) -> None:
    """Names and access. A file that somebody has open, a stream, a folder or a link goes the general way."""

    async def body() -> None:
        async with scene(tmp_path, monkeypatch, protection) as made:
            await made.client.open("held")
            data = Data(made, tmp_path / "root")
            cases = list(itertools.product(NAMES, DATA_ACCESSES, (0x64, 0x200000)))
            if protection != "none":  # the rules do not depend on it: a part of the names shows that all is protected
                cases = [case for case in cases if case[0] == "file"] + cases[::7]
            for name, access, options in cases:
                taken = await data.same(name=name, access=access, options=options, between=between)
                if name == "file" and access in (READ_DATA, WRITE_DATA) and options == 0x64:
                    assert taken is (access == WRITE_DATA or between[0] == Command.READ)
                elif name in ("held", "folder", "missing", "file:stream") or access == 0x13019F:
                    assert not taken, (name, access, options)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("protection", "dialect"), [("none", 0x0202), ("sign", 0x0302), ("none", 0x0311), ("encrypt", 0x0311)]
)
def test_data_of_any_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: str, dialect: int) -> None:
    """Lengths, offsets, flags, full disks, and what else the fields of READ and WRITE ask for."""

    async def body() -> None:
        async with scene(tmp_path, monkeypatch, protection, dialect) as made:
            fill_disk(monkeypatch, 50_000)
            data = Data(made, tmp_path / "root")
            reads = [
                reading(length, offset, minimum_count=minimum)
                for length, offset, minimum in itertools.product(
                    (0, 1, 4000, 4001, 65536, 65537, 1 << 24), (0, 3999, 4000, (1 << 63) - 1), (0, 1, 5000)
                )
            ]
            reads += [
                reading(channel=1),
                reading(channel=1, channel_info_offset=112, channel_info_length=16),
                reading(flags=1),
                reading(flags=2),
                reading(persistent=5, volatile=7),
                reading(structure_size=48),
                (Command.READ, READ_REQUEST.pack(ReadRequest(length=1))[:20]),
            ]
            writes = [
                writing(bytes(size), offset)
                for size, offset in itertools.product(
                    (0, 1, 4096, 40_000), (0, 3999, 5000, 49_999, 60_000, (1 << 63) - 1, (1 << 64) - 1)
                )
            ]
            writes += [
                writing(flags=2),
                writing(channel=1),
                writing(length=8),
                writing(length=70_000),
                writing(data_offset=0x101),
                writing(data_offset=100),
                writing(persistent=5, volatile=7),
                writing(structure_size=48),
            ]
            for closing in (0, 1):
                cases = [{"access": WRITE_DATA, "between": between, "closing": closing} for between in reads]
                assert 15 < await data.takes(cases) < len(cases)
                cases = [{"access": WRITE_DATA, "between": between, "closing": closing} for between in writes]
                assert 5 < await data.takes(cases) < len(cases)

    asyncio.run(body())


@pytest.mark.parametrize("protection", ["none", "sign", "encrypt"])
def test_data_and_what_is_unusual_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: str) -> None:
    """Headers, contexts, share modes, oplocks, leases and dispositions."""

    async def body() -> None:
        async with scene(tmp_path, monkeypatch, protection) as made:
            data = Data(made, tmp_path / "root")
            durable, lease = (b"DH2Q", bytes(32)), (b"RqLs", bytes(15) + b"1" + struct.pack("<I", 7) + bytes(12))
            unusual: list[dict[str, Any]] = [
                *({"flags": flags} for flags in (0x10, 0x70, 0x20000000, 0x10000000)),
                *({"status": status} for status in (1, 0xFFFF, 0x10000)),
                *({"credits": credits} for credits in (0, 1, 8)),
                *({"credit_charge": charge} for charge in (0, 2)),
                *({"oplock": level} for level in (1, 8, 9)),
                *({"disposition": disposition} for disposition in (0, 3, 4, 5)),
                *({"contexts": contexts} for contexts in ([durable], [MAXIMAL_ACCESS], [ON_DISK_ID], [durable, lease])),
                {"contexts": [lease], "oplock": 0xFF},
                {"share_access": 0},
                {"share_access": 9},
                {"name": "folder\\below"},
                {"tree_id": 77},
            ]
            unusual += [{"ruin": part} for part in range(3)] if protection == "sign" else []
            for case, between in itertools.product(unusual, (reading(), writing())):
                if "oplock" not in case or between[0] == Command.READ:
                    # A WRITE would break the client's own oplock of level II, and tell it so.
                    await data.same(**{"access": WRITE_DATA, "between": between, **case})
                assert await data.same(access=WRITE_DATA, between=between), case

    asyncio.run(body())


@pytest.mark.parametrize("rule", ["audit", "delayed_write_times", "read_only", "watched", "no archive"])
def test_data_on_shares_with_rules_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """The lane writes only what nobody is told of."""
    from smb3server.state.audit import ShareAudit

    share: dict[str, Any] = {"read_only": True} if rule == "read_only" else {}
    if rule == "delayed_write_times":
        share["rules"] = ShareRules(delayed_write_times=True)

    async def body() -> None:
        async with scene(tmp_path, monkeypatch, **share) as made:
            server = made.harness.server
            served = server.share_list["local"]
            if rule == "audit":
                served.audit = ShareAudit(frozenset(), server.events)  # type: ignore[arg-type]
            elif rule == "watched":
                monkeypatch.setattr(type(served.notify), "__bool__", lambda hub: True)
            elif rule == "no archive":
                opened = await made.client.call(Command.CREATE, create_body("file", 1, WRITE_DATA))
                assert not opened.status
                for found in list(server.opens.by_id.values()):
                    assert found.handle is not None
                    found.handle.set_attributes(2)
                    server.opens.close(found)
            data = Data(made, tmp_path / "root")
            assert await data.same(access=READ_DATA, between=reading()) is (rule != "audit")
            if rule != "no archive":
                assert not await data.same(access=WRITE_DATA, between=writing())
                return
            # The WRITE sets the attribute, once.
            for made.on, taken in ((True, 1), (True, 2)):
                await made.answer(made.message(access=WRITE_DATA, between=writing()))
                assert made.taken == taken

    asyncio.run(body())
