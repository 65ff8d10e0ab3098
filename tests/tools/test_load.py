"""The load test itself, briefly: clients over TCP and iWARP, all content verified; and that it would notice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tools.load.__main__ import load
from tools.load.model import Model
from tools.load.worker import Mismatch, Worker


@pytest.mark.parametrize("seed", [1, 2])
def test_content_is_what_was_written(tmp_path: Path, seed: int) -> None:
    ground = asyncio.run(load(tmp_path, clients=3, operations=60, seconds=60, seed=seed))
    assert sum(ground.done.values()) == 180
    assert {"read", "write", "rename", "copy"} <= set(ground.done)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_content_is_what_was_written_for_minutes(tmp_path: Path) -> None:
    ground = asyncio.run(load(tmp_path, clients=6, operations=1 << 62, seconds=300, seed=4))
    assert sum(ground.done.values()) > 10_000


def test_a_lost_write_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pretend(self: Worker, name: str) -> None:
        await self.open(name)
        self.ground.model.write(name, 0, b"never sent")

    monkeypatch.setattr(Worker, "write", pretend)
    with pytest.raises((Mismatch, ExceptionGroup)) as found:
        asyncio.run(load(tmp_path, clients=2, operations=60, seconds=60, seed=3))
    assert isinstance(found.value, Mismatch) or found.group_contains(Mismatch)


def test_model() -> None:
    model = Model()
    model.create("f")
    model.write("f", 4, b"data")
    assert model.read("f", 0, 99) == b"\0\0\0\0data"
    model.zero("f", 5, 99)
    model.truncate("f", 10)
    assert model.read("f", 4, 99) == b"d\0\0\0\0\0"
    model.copy("f", 4, 9, 2)
    model.rename("f", "g")
    assert model.read("g", 9, 9) == b"d\0"
    model.delete("g")
    assert not model.files
