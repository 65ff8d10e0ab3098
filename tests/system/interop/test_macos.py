"""What programs that nobody here wrote say of shares for Macs: smbtorture, and Samba that gets the same requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.wire import apple, create
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from tests.lab.rule_scene import Peer
from tests.lab.wire_client import Client
from tools.torture import macos
from tools.torture.server import PASSWORD, USER

pytestmark = [
    pytest.mark.interop,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="both servers act as users of the host"),
]
NEEDS_SMBD = pytest.mark.skipif(
    shutil.which("smbd", path="/usr/sbin:/usr/bin") is None or not any(Path("/usr/lib").glob("*/samba/vfs/fruit.so")),
    reason="Samba with vfs_fruit is not installed (samba, samba-vfs-modules)",
)
NEEDS_SMBTORTURE = pytest.mark.skipif(
    shutil.which("smbtorture") is None, reason="smbtorture is not installed (samba-testsuite)"
)
INFO = apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo(finder_info=b"SMB,OLE!\x40\x00".ljust(32, b"\0")))
BLANK = apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo())
Servers = tuple[tuple[str, int], tuple[str, int]]


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder that users of the host can enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="macos-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def both() -> Iterator[Servers]:
    """The addresses of this server and of Samba's, with the same shares."""
    what = macos.setup()
    with (
        place() as one,
        place() as two,
        macos.served_here(one, what, None) as (host, port, _),
        macos.served_by_samba(two, what, None) as (other, other_port, _),
    ):
        yield (host, port), (other, other_port)


def ask_both(both: Servers, scene: Callable[[Peer], Awaitable[list[Any]]]) -> None:
    """Play a scene on both servers, and compare what it saw."""

    async def play(address: tuple[str, int]) -> list[Any]:
        client = Client(*await asyncio.open_connection(*address))
        try:
            assert (await client.negotiate()).status == 0
            assert (await client.session_setup(USER, PASSWORD)).status == 0
            assert (await client.tree_connect("mac")).status == 0
            return await scene(Peer(client))
        finally:
            client.writer.transport.abort()

    here, samba = (asyncio.run(play(address)) for address in both)
    assert len(here) == len(samba) > 0
    for mine, theirs in zip(here, samba, strict=True):
        assert mine == theirs


def query(asked: int, client: int) -> RawContext:
    return RawContext(apple.AAPL, struct.pack("<IIQQ", 1, 0, asked, client))


async def opened(peer: Peer, name: str, *contexts: RawContext, disposition: int = 3) -> tuple[int, Any, bytes | None]:
    """Open a file. Return the status, its id, and the data of the AAPL context of the answer."""
    reply = await peer.call(
        Command.CREATE, peer.request(name, *contexts, create_disposition=disposition, desired_access=0x1F01FF)
    )
    if reply.status:
        return reply.status, None, None
    answer, found = create.parse_response(memoryview(reply.message))
    data = {context.name: bytes(context.data) for context in found}
    return 0, (answer.persistent, answer.volatile), data.get(apple.AAPL)


def without_full_sync(data: bytes | None, asked: int) -> bytes | None:
    """Leave out the one bit that is meant to differ: here FLUSH reaches the disk on every share."""
    if data is None or not asked & apple.Asked.VOLUME_CAPS:
        return data
    at = 16 + (8 if asked & apple.Asked.SERVER_CAPS else 0)
    (caps,) = struct.unpack_from("<Q", data, at)
    return data[:at] + struct.pack("<Q", caps & ~apple.VolumeCaps.FULL_SYNC) + data[at + 8 :]


@NEEDS_SMBD
def test_samba_answers_the_same_queries_with_the_same_bytes(both: Servers) -> None:
    async def scene(peer: Peer) -> list[Any]:
        seen = []
        for asked in range(8):
            for client in (0, 0x01, 0x0D):
                status, file, data = await opened(peer, "aapl", query(asked, client))
                seen.append((asked, client, status, without_full_sync(data, asked)))
                await peer.close(file)
        for data in (b"", bytes(8), struct.pack("<IIQ", 1, 0, 7), struct.pack("<IIQQQ", 1, 0, 7, 0, 0)):
            seen.append((data, (await opened(peer, "aapl", RawContext(apple.AAPL, data)))[0]))
        return seen

    ask_both(both, scene)


async def streams(peer: Peer, name: str) -> list[str]:
    """The names of a file's streams."""
    _, file, _ = await opened(peer, name, disposition=1)
    reply = await peer.query_info(file, FileInfoClass.STREAM)
    await peer.close(file)
    data, found, at = reply.message[72:], [], 0
    while True:
        following, length = struct.unpack_from("<II", data, at)
        found.append(data[at + 24 : at + 24 + length].decode("utf-16-le"))
        if not following:
            return sorted(found)
        at += following


async def cut(peer: Peer, file: Any, size: int) -> int:
    return await peer.set_info(file, FileInfoClass.END_OF_FILE, struct.pack("<Q", size))


async def read(peer: Peer, file: Any, offset: int, length: int) -> tuple[int, bytes]:
    body = struct.pack("<HBBIQQQIIIHH", 49, 0, 0, length, offset, *file, 0, 0, 0, 0, 0) + b"\0"
    reply = await peer.call(Command.READ, body)
    return reply.status, b"" if reply.status else reply.message[80:]


@NEEDS_SMBD
def test_samba_keeps_finder_information_by_the_same_rules(both: Servers) -> None:
    async def scene(peer: Peer) -> list[Any]:
        seen: list[Any] = []
        (await opened(peer, "rules", query(7, 1)))[1]
        for offset, data in (
            *((offset, INFO[:size]) for offset in (0, 1, 59, 60, 61, 1000) for size in (1, 3, 16, 17, 59, 60)),
            (0, INFO + bytes(40)),
            (30, INFO + bytes(40)),
            (0, bytes(60)),
            (0, BLANK),
            (0, b"XFP\0" + INFO[4:]),
        ):
            name = "rules:AFP_AfpInfo"
            status, file, _ = await opened(peer, name)
            seen.append((offset, len(data), status, await peer.write(file, data, offset)))
            for start, length in ((0, 60), (0, 61), (16, 8), (59, 2), (60, 1), (61, 1)):
                seen_here = await read(peer, file, start, length)
                # Behind a short write Samba 4.17 stores what its memory happens to hold; here there are zeros.
                seen.append((start, length, seen_here if len(data) >= 60 else (seen_here[0], len(seen_here[1]))))
            seen += [
                await peer.set_info(file, FileInfoClass.END_OF_FILE, struct.pack("<Q", end)) for end in (0, 1, 60, 61)
            ]
            seen.append(await streams(peer, "rules"))
            await peer.close(file)
            seen.append(await streams(peer, "rules"))
            status, file, _ = await opened(peer, name, disposition=1)
            seen.append(status)
            if not status:
                seen.append(await peer.set_info(file, FileInfoClass.DISPOSITION, b"\x01"))
                await peer.close(file)
        return seen

    ask_both(both, scene)


@NEEDS_SMBD
def test_samba_keeps_resource_forks_and_empty_streams_by_the_same_rules(both: Servers) -> None:
    async def scene(peer: Peer) -> list[Any]:
        seen: list[Any] = []
        await opened(peer, "fork", query(7, 1))
        for stream in ("AFP_Resource", "note"):
            name = f"fork:{stream}"
            _, file, _ = await opened(peer, name)
            seen += [await streams(peer, "fork"), (await opened(peer, name, disposition=1))[0]]
            seen += [
                await peer.write(file, b"0123456789", 5),
                await streams(peer, "fork"),
                await read(peer, file, 0, 99),
            ]
            seen.append(await peer.set_info(file, FileInfoClass.END_OF_FILE, struct.pack("<Q", 1)))
            seen.append(await peer.set_info(file, FileInfoClass.END_OF_FILE, struct.pack("<Q", 0)))
            seen += [await streams(peer, "fork"), (await opened(peer, name, disposition=1))[0]]
            seen += [await peer.write(file, b"again", 0), await streams(peer, "fork")]
            seen.append(await peer.set_info(file, FileInfoClass.DISPOSITION, b"\x01"))
            await peer.close(file)
            seen.append(await streams(peer, "fork"))
        return seen

    ask_both(both, scene)


@NEEDS_SMBD
def test_samba_lists_the_same_entries(both: Servers) -> None:
    async def scene(peer: Peer) -> list[Any]:
        for name, content in (
            ("entry", b"data"),
            ("entry:AFP_AfpInfo", INFO),
            ("entry:AFP_Resource", b"fork"),
            ("plain", b"data"),
        ):
            _, file, _ = await opened(peer, name, query(7, 1))
            assert await peer.write(file, content) == 0
            await peer.close(file)
        made = await peer.make("", desired_access=0x100081, create_disposition=1, create_options=1)
        seen = []
        for name in ("entry", "plain"):
            pattern = name.encode("utf-16-le")
            level = FileInfoClass.ID_BOTH_DIRECTORY
            body = struct.pack("<HBBI2QHHI", 33, level, 1, 0, *made.file, 96, len(pattern), 65536) + pattern
            reply = await peer.call(Command.QUERY_DIRECTORY, body)
            (offset,) = struct.unpack_from("<H", reply.message, 66)
            entry = reply.message[offset:]
            made_at = (struct.unpack_from("<Q", entry, 8)[0] - 116444736000000000) // 10_000_000 - 946684800
            (seconds,) = struct.unpack_from(">I", entry, 90)
            seen.append((name, entry[68:90], seconds - made_at if name == "entry" else seconds))
            # Modes of new files differ by configuration: the kind of the file is left of them.
            seen.append((entry[95] & 0xF0, entry[96:104]))
        return seen

    ask_both(both, scene)


@NEEDS_SMBTORTURE
def test_smbtorture_passes_what_it_passed(tmp_path: Path) -> None:
    expected = {row.test: row.here for row in macos.expected() if row.release == "4.17"}
    assert list(expected.values()).count("pass") >= 37
    what = macos.setup()
    with place() as folder, macos.served_here(folder, what, None) as (host, port, paths):
        found = macos.results(what, [], host, port, paths, tmp_path, samba=False)
    assert {test for test, result in found.items() if result != "pass"} == {
        test for test, result in expected.items() if result != "pass"
    }
    assert found.keys() == expected.keys()
