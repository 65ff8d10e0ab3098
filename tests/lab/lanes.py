"""The same scenario on servers with and without the fast lane."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from smb3server.backends.local import file_io
from smb3server.dispatch.fast_lane import FastLane
from smb3server.wire.header import Command
from smbdirect.codec import Buffer

Step = tuple[str, dict[str, Any]]
"""A step of a scenario: its name and its fields."""


class Lanes:
    """Whether servers have the lane, and how many messages it took."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, run: Callable[[Sequence[Step], str], Awaitable[list[Any]]]
    ) -> None:
        """``run``: plays steps with a protection against a new server, and returns what it has seen."""
        self.on = True
        self.taken = 0
        """Without CREATEs, which make the opens of all scenarios."""
        self.created = 0
        self._run = run
        take, finish = FastLane.take, FastLane.finish

        def counted(lane: FastLane, *message: Any) -> bool:
            created = message[1][12] == Command.CREATE
            taken = self.on and take(lane, *message)
            self.taken += taken and not created
            self.created += taken and created
            return taken

        monkeypatch.setattr(FastLane, "take", counted)
        monkeypatch.setattr(FastLane, "finish", lambda lane, *answer: self.on and finish(lane, *answer))

    def both(self, steps: Sequence[Step], protection: str = "none") -> None:
        """Play ``steps`` with and without the lane, and compare."""
        transcripts = []
        for self.on in (True, False):
            transcripts.append(asyncio.run(self._played(steps, protection)))
        fast, general = transcripts
        assert fast == general

    async def _played(self, steps: Sequence[Step], protection: str) -> list[Any]:
        return await self._run(steps, protection)


def fill_disk(monkeypatch: pytest.MonkeyPatch, end: int) -> None:
    """Let files of the local backend have no space from offset ``end`` on."""
    write = file_io.write_from

    def full(descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        if offset < end < offset + sum(map(len, buffers)):
            write(descriptor, [memoryview(buffers[0])[: end - offset]], offset)
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, buffers, offset)

    monkeypatch.setattr(file_io, "write_from", full)
