"""What is measured of requests, and that nothing is while nobody asks."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from smb3server.client.protocol.messages import ServerError
from smb3server.dispatch.measuring import CLASSES, OTHERS, READS, WRITES, Measuring, Timings
from smb3server.dispatch.watchdog import Watchdog
from smb3server.wire.create import Access, CreateDisposition
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.harness import Lab, lab

ACCESS = int(Access.READ_DATA | Access.WRITE_DATA)


def test_nothing_is_measured_unless_somebody_asks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "smb3server.files.requests")
    measuring = Measuring()
    assert measuring.observer is None
    timings = measuring.count()
    assert measuring.observer is not None
    assert measuring.count() is timings
    watched = Measuring(Watchdog(1.0))
    assert watched.observer is not None
    assert watched.timings is None
    watched.watchdog = None
    assert watched.observer is None


@pytest.mark.parametrize(
    ("seconds", "size"), [(0.0, 0), (1e-6, 1), (2e-6, 2), (3.9e-6, 2), (1.0, 20), (1e6, CLASSES - 1)]
)
def test_times_fall_into_powers_of_two(seconds: float, size: int) -> None:
    timings = Timings()
    timings.note(Command.ECHO, 0, "", seconds)
    assert timings.classes[Command.ECHO][size] == 1
    assert sum(timings.classes[Command.ECHO]) == 1


def test_numbers_that_are_no_command_are_not_counted() -> None:
    timings = Timings()
    timings.note(0xFFFF, 0, "", 1.0)
    assert not any(map(any, timings.classes))


def count(timings: Timings, command: int) -> int:
    return sum(timings.classes[command])


def test_requests_are_counted_in_the_lane_and_beside_it(tmp_path: Path) -> None:
    async def body(scene: Lab) -> None:
        async with scene.tree() as tree:
            file = await tree.create("f", ACCESS, CreateDisposition.CREATE)
            await tree.write(file, 0, b"x" * 100)
            timings = scene.server.measuring.count()
            for _ in range(3):
                assert await tree.read(file, 0, 100) == b"x" * 100
            await tree.write(file, 0, b"y" * 300_000)
            await tree.read(file, 0, 300_000)
            assert await tree.read(file, 400_000, 10) == b""
            with pytest.raises(ServerError):
                await tree.create("none", ACCESS, CreateDisposition.OPEN)
            await tree.close(await tree.create("f", ACCESS, CreateDisposition.OPEN))
            assert count(timings, Command.READ) >= 5
            assert count(timings, Command.WRITE) >= 1
            assert (count(timings, Command.CREATE), count(timings, Command.CLOSE)) == (2, 1)
            assert timings.errors[Command.CREATE, NtStatus.OBJECT_NAME_NOT_FOUND] == 1
            assert timings.errors[Command.READ, NtStatus.END_OF_FILE] == 1
            counts = timings.of_shares["share"]
            assert counts[READS] == count(timings, Command.READ)
            assert counts[WRITES] == count(timings, Command.WRITE)
            assert counts[OTHERS] == 3
            assert timings.opened["share"] == 1
            assert not scene.server.measuring._waiting

    async def run() -> None:
        async with lab(tmp_path) as scene:
            await body(scene)

    asyncio.run(run())


def test_a_request_that_waits_is_timed_to_its_answer(tmp_path: Path) -> None:
    """A CHANGE_NOTIFY waits for a change, and is counted without a time."""

    async def run() -> None:
        async with lab(tmp_path) as scene, scene.tree() as tree:
            folder = await tree.create("", int(Access.READ_DATA), CreateDisposition.OPEN)
            timings = scene.server.measuring.count()
            watching = await tree.watch(folder, 0x1)
            await tree.close(await tree.create("new", ACCESS, CreateDisposition.CREATE))
            assert await tree.changes(watching)
            assert timings.of_shares["share"][OTHERS] == 3
            assert count(timings, Command.CHANGE_NOTIFY) == 0
            assert not scene.server.measuring._waiting

    asyncio.run(run())


def test_each_request_has_a_line_at_the_level_debug(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with lab(tmp_path) as scene, scene.tree() as tree:
            file = await tree.create("f", ACCESS, CreateDisposition.CREATE)
            with caplog.at_level(logging.DEBUG, "smb3server.files"):
                scene.server.measuring.update()
                await tree.write(file, 0, b"x")
                with pytest.raises(ServerError):
                    await tree.create("a\\b", ACCESS, CreateDisposition.OPEN)
            scene.server.measuring.update()
            await tree.close(file)

    asyncio.run(run())
    lines = [entry.getMessage() for entry in caplog.records if entry.name == "smb3server.files.requests"]
    assert [line.split(" ", 1)[1].split(",")[0] for line in lines] == [
        "WRITE share 'f': SUCCESS",
        "CREATE share 'a/b': OBJECT_PATH_NOT_FOUND",
    ]
