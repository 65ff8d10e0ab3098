"""The helper process that runs ``fence_command``."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.cluster.fencer import Fencer
from smb3server.cluster.lease_keeper import boottime

VALUES = {"node": "a", "address": "10.0.0.1", "service": "one"}


def run(command: list[str], body: Callable[[Fencer], Awaitable[None]], timeout: float = 20.0) -> None:
    async def main() -> None:
        fencer = Fencer(command, timeout)
        try:
            await body(fencer)
        finally:
            fencer.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_placeholders_are_words_and_not_read_by_a_shell(tmp_path: Path) -> None:
    async def body(fencer: Fencer) -> None:
        assert await fencer.fence({**VALUES, "address": "1; touch {service}"}, boottime() + 60) == ""
        assert (tmp_path / "out").read_text() == "a|at=1; touch one|{other}\n"

    run(["sh", "-c", f'echo "$1|$2|$3" > {tmp_path}/out', "sh", "{node}", "at={address}", "{other}"], body)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["sh", "-c", "echo no power switch >&2; exit 3"], "exit status 3: no power switch"),
        (["false"], "exit status 1"),
        (["/nowhere/fence"], "/nowhere/fence: No such file or directory"),
    ],
)
def test_failures_say_why(command: list[str], problem: str) -> None:
    async def body(fencer: Fencer) -> None:
        for _ in range(2):
            assert await fencer.fence(VALUES, boottime() + 60) == problem

    run(command, body)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    async def body(fencer: Fencer) -> None:
        assert await fencer.fence(VALUES, boottime() + 60) == "no result after 0.5 s"
        pid = int((tmp_path / "pid").read_text())
        deadline = time.monotonic() + 10
        while os.path.exists(f"/proc/{pid}") and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[-1]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    run(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"], body, 0.5)


def test_a_node_that_lost_its_membership_fences_nobody(tmp_path: Path) -> None:
    async def body(fencer: Fencer) -> None:
        assert await fencer.fence(VALUES, boottime() - 1) == "this node is no longer a member"
        assert not (tmp_path / "done").exists()

    run(["touch", str(tmp_path / "done")], body)


def test_the_command_ends_with_the_server() -> None:
    async def body(fencer: Fencer) -> None:
        asking = asyncio.ensure_future(fencer.fence(VALUES, boottime() + 60))
        await asyncio.sleep(0.5)
        fencer.close()
        assert await asking == "the helper process is gone"

    started = time.monotonic()
    run(["sleep", "25"], body)
    assert time.monotonic() - started < 20
