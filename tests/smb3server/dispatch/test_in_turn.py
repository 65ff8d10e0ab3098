"""Requests for a share on slow storage, as their clients see them: what is answered, cancelled and given up."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.dispatch.pending import PendingRequests
from smb3server.dispatch.request import HANDLERS
from smb3server.process.storage_queue import StorageQueue, away
from smb3server.settings.server import Settings
from smb3server.wire import lock
from smb3server.wire.create import CreateOptions
from smb3server.wire.header import RELATED_FILE_ID, Command, HeaderFlags
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import RWH, Ground, Peer, act, close_body, durable, lease, query_info_body
from tests.lab.wire_client import ECHO, compound

CANCEL = struct.pack("<HH", 4, 0)
DIRECTORY = int(CreateOptions.DIRECTORY_FILE)


def slow(tmp_path: Path, scene: Callable[[Ground], Awaitable[None]]) -> None:
    async def main(ground: Ground) -> None:
        # Longer than anything here takes: a CANCEL that ends a wait for the turn would show.
        ground.service.server.settings.interim_delay = 60
        await scene(ground)

    act(tmp_path, main, Settings(), slow_storage=True)


def queue_of(ground: Ground) -> StorageQueue:
    queue = ground.service.server.share_list["share"].queue
    assert queue is not None
    return queue


@contextmanager
def hanging(ground: Ground) -> Iterator[None]:
    """Nothing of the share has its turn meanwhile."""
    answer = threading.Event()
    queue_of(ground).add(lambda: away(answer.wait))
    try:
        yield
    finally:
        answer.set()


def test_a_cancel_right_behind_a_change_notify_leaves_the_folder_watched(tmp_path: Path) -> None:
    """Changes are kept for the next request from the first one on, also if that was cancelled. [MS-FSA 2.1.5.11]"""

    async def scene(ground: Ground) -> None:
        peer, other = await ground.peer(), await ground.peer()
        folder = (await peer.make("", create_options=DIRECTORY)).file
        client = peer.client
        notify = struct.pack("<HHIQQII", 32, 0, 1024, *folder, 1, 0)
        number = client.message_id
        message = client.signed(client.build(Command.CHANGE_NOTIFY, notify))
        cancel = client.signed(client.build(Command.CANCEL, CANCEL, message_id=number))
        await client.raw(b"".join(len(part).to_bytes(4, "big") + part for part in (message, cancel)))
        assert (await peer.receive()).status == NtStatus.CANCELLED
        await other.make("new")
        reply = await peer.call(Command.CHANGE_NOTIFY, notify)
        assert reply.status == 0
        assert "new".encode("utf-16-le") in reply.body

    slow(tmp_path, scene)


@pytest.mark.parametrize("share", [{"slow_storage": True}, {}], ids=["slow", "fast"])
def test_a_cancel_of_a_member_that_has_not_begun_ends_it_when_it_waits(tmp_path: Path, share: dict[str, Any]) -> None:
    """Where the CREATE before it is answered at once, it has begun when the CANCEL comes."""

    async def scene(ground: Ground) -> None:
        peer, other = await ground.peer(), await ground.peer()
        assert await other.lock((await other.make("f")).file) == 0
        client = peer.client
        ids = struct.pack("<QQ", *RELATED_FILE_ID)
        wait = lock.pack_request(
            lock.LockRequest(persistent=RELATED_FILE_ID[0], volatile=RELATED_FILE_ID[1]), [lock.LockElement(0, 1, 2)]
        )
        related = int(HeaderFlags.RELATED_OPERATIONS)
        first = client.message_id
        parts = [
            client.build(Command.CREATE, Peer.request("f")),
            client.build(Command.LOCK, wait, flags=related),
            client.build(Command.CLOSE, struct.pack("<HHI", 24, 0, 0) + ids, flags=related),
        ]
        cancel = client.signed(client.build(Command.CANCEL, CANCEL, message_id=first + 1))
        message = compound(client, *parts)
        await client.raw(b"".join(len(part).to_bytes(4, "big") + part for part in (message, cancel)))
        answers: dict[int, int] = {}
        while len(answers) < 3:
            for reply in await client.receive_compound():
                if reply.status != NtStatus.PENDING:
                    answers[reply.header.message_id - first] = reply.status
        assert answers == {0: 0, 1: NtStatus.CANCELLED, 2: 0}

    act(tmp_path, scene, Settings(), **share)


def test_a_cancel_ends_the_wait_for_storage_that_takes_long(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        client = peer.client
        with hanging(ground):
            number = client.message_id
            await client.post(Command.CREATE, Peer.request("f"))
            await client.post(Command.CANCEL, CANCEL, message_id=number)
            assert (await peer.receive()).status == NtStatus.CANCELLED
        await peer.make("g")
        assert not (ground.folder / "f").exists()

    act(tmp_path, scene, Settings(), slow_storage=True)


class NoException(BaseException):
    """Not even an ``Exception``."""


@pytest.mark.parametrize("error", [RuntimeError("a fault in the server"), NoException()], ids=["error", "worse"])
def test_a_request_whose_handler_fails_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(request: object) -> None:
        raise error

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f")).file
        with monkeypatch.context() as patch:
            patch.setitem(HANDLERS, Command.QUERY_INFO, fail)
            assert (await peer.query_info(file, 5)).status == NtStatus.INTERNAL_ERROR
        assert (await peer.query_info(file, 5)).status == 0
        assert await peer.close(file) == 0

    slow(tmp_path, scene)


def test_a_request_that_cannot_go_on_waiting_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault behind the handler, where nobody but the storage's queue would see it."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("a fault in the server")

    async def scene(ground: Ground) -> None:
        peer, other = await ground.peer(), await ground.peer()
        file = (await peer.make("f")).file
        assert await other.lock((await other.make("f")).file) == 0
        with monkeypatch.context() as patch:
            patch.setattr(PendingRequests, "go_on", fail)
            wait = lock.pack_request(
                lock.LockRequest(persistent=file[0], volatile=file[1]), [lock.LockElement(0, 1, 2)]
            )
            assert (await peer.call(Command.LOCK, wait)).status == NtStatus.INTERNAL_ERROR
        assert (await peer.call(Command.ECHO, ECHO)).status == 0
        assert await peer.close(file) == 0

    slow(tmp_path, scene)


def test_a_client_that_goes_while_another_opens_its_file_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A durable open ends when its caching rights are broken and its client is away. [MS-SMB2 3.3.4.7]"""
    held, let_go, asked = threading.Event(), threading.Event(), threading.Event()
    opening = LocalBackend.open_described

    def late(*arguments: Any) -> Any:
        if held.is_set():
            asked.set()
            let_go.wait()
        return opening(*arguments)

    monkeypatch.setattr(LocalBackend, "open_described", late)

    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        assert (await holder.make("f", lease(1), durable(1))).state == RWH
        held.set()
        try:
            await other.client.post(Command.CREATE, Peer.request("f", lease(2)))
            while not asked.is_set():
                await asyncio.sleep(0.001)
            await ground.lose(holder)
        finally:
            held.clear()
            let_go.set()
        reply = await other.receive()
        assert reply.status == 0
        (left,) = ground.service.server.opens.by_id.values()
        assert left.caching is not None
        assert left.caching.state == RWH

    slow(tmp_path, scene)


def test_what_is_sent_in_one_piece_is_done_in_its_order(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f")).file
        client = peer.client
        messages = [client.signed(client.build(Command.CLOSE, close_body(file)))]
        messages += [client.signed(client.build(Command.QUERY_INFO, query_info_body(file, 5)))]
        await client.raw(b"".join(len(part).to_bytes(4, "big") + part for part in messages))
        assert [(await peer.receive()).status for _ in messages] == [0, NtStatus.FILE_CLOSED]

    slow(tmp_path, scene)
