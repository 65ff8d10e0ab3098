"""Write times: rows W1 to W4 of docs/caching.md. Two clients have the file open, and a third looks at its path."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path

import pytest

from smb3server.wire import attributes as attr
from smb3server.wire.file_info import FileInfoClass
from tests.lab.rule_scene import ALL, FileId, Ground, Peer, act, times_of, write_time

TICK = 0.03
"""Seconds: more than the resolution of any host's file times and the 10 ms after a client's change time was stored, in
which a new one of the host counts as caused by that."""
STICKY = 132_000_000_000_000_000
FREEZE, THAW = -1, -2


class Two:
    """Two opens of one file by two clients."""

    def __init__(self, peers: list[Peer], files: list[FileId], looker: Peer) -> None:
        self.peers, self.files, self.looker = peers, files, looker

    async def write(self, who: int) -> None:
        await asyncio.sleep(TICK)
        assert await self.peers[who].write(self.files[who]) == 0

    async def set_times(self, who: int, write: int) -> None:
        body = struct.pack("<4qII", 0, 0, write, 0, 0, 0)
        assert await self.peers[who].set_info(self.files[who], FileInfoClass.BASIC, body) == 0

    async def set_size(self, who: int, level: int, size: int) -> None:
        await asyncio.sleep(TICK)
        assert await self.peers[who].set_info(self.files[who], level, struct.pack("<Q", size)) == 0

    async def time(self) -> int:
        """The last write time, by all three."""
        found = {await write_time(peer, file) for peer, file in zip(self.peers, self.files, strict=True)}
        made = await self.looker.make("f", desired_access=0x80, create_disposition=1)
        found |= {made.answer.last_write_time, await write_time(self.looker, made.file)}
        assert await self.looker.close(made.file) == 0
        assert len(found) == 1
        return found.pop()

    async def close(self, who: int) -> None:
        assert await self.peers[who].close(self.files[who]) == 0
        del self.peers[who], self.files[who]


async def two(ground: Ground) -> Two:
    peers = [await ground.peer(), await ground.peer()]
    return Two(peers, [(await peer.make("f", desired_access=ALL)).file for peer in peers], await ground.peer())


def test_w1_a_write_changes_the_times_at_once_and_sets_archive(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL)).file
        for _ in range(2):
            assert await peer.write(file) == 0
        normal = struct.pack("<4qII", 0, 0, 0, 0, attr.NORMAL, 0)
        assert await peer.set_info(file, FileInfoClass.BASIC, normal) == 0
        assert struct.unpack_from("<I", (await peer.query_info(file, FileInfoClass.BASIC)).body, 40) == (attr.NORMAL,)
        for _ in range(2):
            before = await times_of(peer, file)
            await asyncio.sleep(TICK)
            assert await peer.write(file) == 0
            after = await times_of(peer, file)
            assert after[2] > before[2]
            assert after[3] > before[3]
        assert struct.unpack_from("<I", (await peer.query_info(file, FileInfoClass.BASIC)).body, 40) == (attr.ARCHIVE,)
        assert await peer.flush(file) == 0
        assert await write_time(peer, file) == after[2], "nothing is left for FLUSH"

    act(tmp_path, scene)


def test_w2_a_time_that_was_set_stops_updates_by_that_open_only(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        opens = await two(ground)
        await opens.set_times(0, STICKY)
        await opens.write(0)
        assert await opens.time() == STICKY
        await opens.write(1)
        by_other = await opens.time()
        assert by_other > STICKY
        await opens.write(0)
        assert await opens.time() == by_other
        await opens.close(0)
        assert await opens.time() == by_other
        await opens.close(0)
        assert await opens.time() == by_other

    act(tmp_path, scene)


@pytest.mark.parametrize("first", [0, 1])
def test_w2_two_opens_have_set_the_time(tmp_path: Path, first: int) -> None:
    async def scene(ground: Ground) -> None:
        opens = await two(ground)
        await opens.set_times(0, STICKY - 1)
        await opens.set_times(1, STICKY)
        await opens.write(first)
        await opens.write(1 - first)
        assert await opens.time() == STICKY
        await opens.close(first)
        assert await opens.time() == STICKY
        await opens.write(0)
        await opens.close(0)
        assert await opens.time() == STICKY

    act(tmp_path, scene)


def test_w3_frozen_and_thawed(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        opens = await two(ground)
        before = await opens.time()
        await opens.set_times(0, FREEZE)
        await opens.write(0)
        assert await opens.time() == before
        await opens.set_times(0, THAW)
        assert await opens.time() == before, "thawing changes nothing"
        await opens.write(0)
        assert await opens.time() > before
        await opens.set_times(0, FREEZE)
        frozen = await opens.time()
        await opens.write(1)
        assert await opens.time() > frozen, "it is frozen for one open only"

    act(tmp_path, scene)


def test_w3_what_was_frozen_is_kept_though_it_was_thawed(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        opens = await two(ground)
        before = await opens.time()
        await opens.set_times(0, FREEZE)
        await opens.write(0)
        await opens.set_times(0, THAW)
        await opens.close(0)
        assert await opens.time() == before

    act(tmp_path, scene)


ACCESS, WRITE, CHANGE = 1, 2, 3


@pytest.mark.parametrize("which", [ACCESS, WRITE, CHANGE])
def test_w3_each_time_is_frozen_and_thawed(tmp_path: Path, which: int) -> None:
    async def scene(ground: Ground) -> None:
        opens = await two(ground)

        async def set_it(who: int, value: int, attributes: int = 0) -> None:
            times = [value if index == which else 0 for index in range(4)]
            body = struct.pack("<4qII", *times, attributes, 0)
            assert await opens.peers[who].set_info(opens.files[who], FileInfoClass.BASIC, body) == 0

        async def seen() -> int:
            return (await times_of(opens.looker, (await opens.looker.make("f", desired_access=0x80)).file))[which]

        await opens.write(0)
        before = await seen()
        await set_it(0, FREEZE)
        await opens.write(0)
        assert await seen() == before
        if which == ACCESS:
            os.utime(ground.folder / "f")
            assert await seen() == before, "as for a read, which the host notes"
        elif which == CHANGE:
            await set_it(0, 0, attr.HIDDEN)
            assert await seen() == before, "attributes change the time, too"
        await set_it(0, THAW)
        assert await seen() == before
        await opens.write(0)
        thawed = await seen()
        assert thawed > before
        await set_it(0, FREEZE)
        await opens.write(0)
        await opens.close(0)
        assert await seen() == thawed, "it is stored"
        await opens.write(0)
        assert which == ACCESS or await seen() > thawed

    act(tmp_path, scene)


@pytest.mark.parametrize("name", ["f", "d"])
@pytest.mark.parametrize("offset", [0, 1 << 20])
def test_w5_a_write_to_a_stream_changes_the_times_of_its_file(tmp_path: Path, name: str, offset: int) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        options = {"create_options": 1} if name == "d" else {}
        file = (await peer.make(name, desired_access=ALL, **options)).file
        stream = (await peer.make(f"{name}:s", desired_access=ALL)).file
        for _ in range(3):
            before = await times_of(peer, file)
            await asyncio.sleep(TICK)
            assert await peer.write(stream, b"data", offset) == 0
            after = await times_of(peer, file)
            assert after[2] > before[2] and after[3] > before[3] and after[0] == before[0]
            assert await times_of(peer, stream) == after
        sticky = struct.pack("<4qII", 0, 0, STICKY, 0, 0, 0)
        assert await peer.set_info(stream, FileInfoClass.BASIC, sticky) == 0
        assert await peer.write(stream) == 0
        assert await write_time(peer, file) == STICKY, "the open of the stream has set the time"
        other = (await peer.make(f"{name}:s", desired_access=ALL)).file
        assert await peer.write(other) == 0
        assert await write_time(peer, file) > STICKY

    act(tmp_path, scene)


@pytest.mark.parametrize("which", [WRITE, CHANGE])
@pytest.mark.parametrize("name", ["f", "d"])
@pytest.mark.parametrize("base_open", [True, False])
def test_w5_times_frozen_through_a_stream(tmp_path: Path, name: str, which: int, base_open: bool) -> None:
    async def scene(ground: Ground) -> None:
        peer, looker = await ground.peer(), await ground.peer()
        options = {"create_options": 1} if name == "d" else {}
        base = (await looker.make(name, desired_access=0x80, **options)).file
        stream = (await peer.make(f"{name}:s", desired_access=ALL)).file
        if not base_open:
            await looker.close(base)

        async def seen() -> int:
            file = base if base_open else (await looker.make(name, desired_access=0x80, **options)).file
            found = (await times_of(looker, file))[which]
            if not base_open:
                await looker.close(file)
            return found

        async def set_it(value: int) -> None:
            times = [value if index == which else 0 for index in range(4)]
            body = struct.pack("<4qII", *times, 0, 0)
            assert await peer.set_info(stream, FileInfoClass.BASIC, body) == 0

        before = await seen()
        await set_it(FREEZE)
        await asyncio.sleep(TICK)
        assert await peer.write(stream) == 0
        assert await seen() == before == (await times_of(peer, stream))[which]
        await set_it(THAW)
        await asyncio.sleep(TICK)
        assert await peer.write(stream) == 0
        thawed = await seen()
        assert thawed > before
        await set_it(FREEZE)
        await asyncio.sleep(TICK)
        assert await peer.write(stream) == 0
        await peer.close(stream)
        assert await seen() == thawed, "it is stored"

    act(tmp_path, scene)


def test_w5_a_time_that_an_open_of_the_file_has_set_gives_way(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        opens = await two(ground)
        await opens.set_times(0, STICKY)
        await opens.write(0)
        assert await opens.time() == STICKY
        stream = (await opens.looker.make("f:s", desired_access=ALL)).file
        assert await opens.looker.write(stream) == 0
        assert await opens.time() > STICKY

    act(tmp_path, scene)


END, ALLOCATION = int(FileInfoClass.END_OF_FILE), int(FileInfoClass.ALLOCATION)


def test_w4_sizes(tmp_path: Path) -> None:
    """The end of file changes the times also if it stays. An allocation does only if it cuts the file."""

    async def scene(ground: Ground) -> None:
        opens = await two(ground)
        for level, size, changes in (
            (END, 0, True),
            (ALLOCATION, 0, False),
            (END, 1, True),
            (END, 1, True),
            (ALLOCATION, 4096, False),
            (ALLOCATION, 0, True),
        ):
            before = await opens.time()
            await opens.set_size(0, level, size)
            assert (await opens.time() > before) is changes, (level, size)
        await opens.set_times(0, STICKY)
        await opens.set_size(0, END, 2)
        assert await opens.time() == STICKY
        await opens.set_size(1, END, 2)
        assert await opens.time() > STICKY

    act(tmp_path, scene)


async def overwrite(peer: Peer) -> None:
    await peer.make("f", create_disposition=5)


def test_w2_overwriting_is_no_write_of_the_open_that_has_set_the_time(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        opens = await two(ground)
        await opens.set_times(0, STICKY)
        await opens.write(0)
        await overwrite(opens.looker)
        assert await opens.time() > STICKY

    act(tmp_path, scene)
