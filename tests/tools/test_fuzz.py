"""The fuzzer finds what must not be, and finds nothing in the server."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from smb3server.client.protocol.messages import Reply
from smb3server.wire.header import HEADER, Header
from smb3server.wire.status import NtStatus
from smbdirect.message_transport import TransportKind
from tools.fuzz import smb, watch
from tools.fuzz.__main__ import fuzz
from tools.fuzz.client import FuzzClient
from tools.fuzz.mutation import mutate
from tools.fuzz.watch import Failed, Watch, watched
from tools.support.innocent import Innocent

SEED = 20


@pytest.fixture(autouse=True)
def clients_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fuzzer closes the connections of its innocent clients."""
    made: list[Innocent] = []
    closed: list[Innocent] = []

    class Noted(Innocent):
        def __init__(self, port: int) -> None:
            super().__init__(port)
            made.append(self)

        def close(self) -> None:
            super().close()
            closed.append(self)

    monkeypatch.setattr(watch, "Innocent", Noted)
    yield
    assert set(closed) == set(made)


@pytest.mark.parametrize("kind", ["signed", "encrypted", "twochannels", "rdma", "rpc"])
def test_some_seconds_of_each_kind(kind: str, tmp_path: Path) -> None:
    fuzz(kind, 1.0, SEED, out=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*smb.KINDS, "rpc"])
def test_twenty_seconds_of_each_kind(kind: str, tmp_path: Path) -> None:
    fuzz(kind, 20.0, SEED, out=tmp_path)


@pytest.mark.long
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="takes a network namespace: RoCE has one UDP port per host")
def test_twenty_seconds_of_roce(tmp_path: Path) -> None:
    """In a process of its own, which makes the namespace."""
    command = [sys.executable, "-m", "tools.fuzz", "--kinds", "roce", "--minutes", "0.33", "--seed", str(SEED)]
    ended = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_mutation_depends_on_the_seed_alone() -> None:
    data = bytes(range(200))
    first = [mutate(random.Random(number), data) for number in range(50)]
    assert first == [mutate(random.Random(number), data) for number in range(50)]
    assert len(set(first)) > 45
    for number in range(100):
        mutate(random.Random(number), b"")


class _Log:
    """What ``Watch`` asks of a server, with a log that a test writes."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.text = ""
        self.memory = 1 << 20

    def alive(self) -> bool:
        return True

    def log_text(self, start: int = 0) -> str:
        return self.text[start:]

    def resident(self) -> int:
        return self.memory


def watching(log: _Log, share: Path) -> closing[Watch]:
    return closing(Watch(log, share))  # type: ignore[arg-type]


def test_what_must_not_be_is_found(tmp_path: Path) -> None:
    """A traceback, an error line, an INTERNAL_ERROR, memory, a client that is not answered."""
    with watched() as real:
        log = _Log(real.server.port)
        with watching(log, tmp_path) as seen:
            log.text = "2026-01-01 INFO smb3server: all is well\n"
            seen.look()
            log.text += "Traceback (most recent call last):\n"
            with pytest.raises(Failed, match="traceback"):
                seen.look()
        log.text = "2026-01-01 ERROR smb3server: something\n"
        with watching(log, tmp_path) as seen, pytest.raises(Failed, match="in the log"):
            seen.look()
        log.text, log.memory = "", 1 << 40
        with watching(log, tmp_path) as seen, pytest.raises(Failed, match="holds"):
            seen.look()
        log.memory, log.port = 0, 1
        with watching(log, tmp_path) as seen, pytest.raises(Failed, match="innocent"):
            seen.look()


async def _one(answer: int) -> list[int]:
    class Transport:
        kind = TransportKind.TCP
        fabric = "tcp"
        rdma = None

        def start(self, *_: object) -> None: ...

    client = FuzzClient(Transport())
    message = memoryview(bytearray(HEADER.pack(Header(status=answer, command=5, credits=1))))
    client._take_one(Reply(HEADER.unpack(message), message))
    return client.internal_errors


@pytest.mark.parametrize(("answer", "found"), [(NtStatus.INTERNAL_ERROR, [5]), (NtStatus.ACCESS_DENIED, [])])
def test_internal_errors_are_noted(answer: int, found: list[int]) -> None:
    assert asyncio.run(_one(answer)) == found
