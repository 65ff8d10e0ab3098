"""Work on slow storage: in turn, with the event loop going on while it waits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from smb3server.process import storage_queue
from smb3server.process.storage_queue import StorageQueue, away


@asynccontextmanager
async def queue_of(name: str = "share s") -> AsyncIterator[StorageQueue]:
    queue = StorageQueue(name)
    try:
        yield queue
        assert await queue.drained(asyncio.get_running_loop().time() + 60)
    finally:
        queue.close()


def done(queue: StorageQueue, work: Callable[[], object]) -> asyncio.Future[object]:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    queue.add(work, future.set_result)
    return future


def test_the_loop_goes_on_while_work_is_away_and_no_other_work_begins() -> None:
    async def main() -> None:
        async with queue_of() as queue:
            answer, steps = threading.Event(), []

            def first() -> str:
                steps.append("asks")
                away(answer.wait)
                steps.append("has the answer")
                return "first"

            asked = done(queue, first)
            second = done(queue, lambda: steps.append("second"))
            while not queue.since:
                await asyncio.sleep(0)
            # The loop runs here, as often as it likes.
            for _ in range(100):
                await asyncio.sleep(0)
            assert steps == ["asks"]
            assert len(queue) == 2
            assert queue.silent_for() > 0
            answer.set()
            assert await asked == "first"
            await second
            assert steps == ["asks", "has the answer", "second"]
            assert queue.silent_for() == 0

    asyncio.run(main())


def test_work_may_use_the_event_loop() -> None:
    async def main() -> None:
        async with queue_of() as queue:
            loop, here = asyncio.get_running_loop(), threading.get_ident()
            called: list[int] = []

            def work() -> None:
                assert threading.get_ident() != here
                assert asyncio.get_running_loop() is loop
                assert queue.is_here
                away(lambda: None)
                loop.call_soon(lambda: called.append(threading.get_ident()))

            await done(queue, work)
            await asyncio.sleep(0)
            assert called == [here]
            assert not queue.is_here

    asyncio.run(main())


def test_waiting_work_can_be_withdrawn_and_begun_work_cannot() -> None:
    async def main() -> None:
        async with queue_of() as queue:
            answer, did = threading.Event(), []
            began = queue.add(lambda: away(answer.wait))
            waits = queue.add(lambda: did.append("withdrawn"))
            while not queue.since:
                await asyncio.sleep(0)
            assert not began()
            assert waits()
            assert not waits()
            last = done(queue, lambda: did.append("last"))
            answer.set()
            await last
            assert did == ["last"]

    asyncio.run(main())


def test_work_that_fails_is_logged_and_the_next_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with queue_of("share broken") as queue:
            queue.add(lambda: away(lambda: 1 // 0))
            await done(queue, lambda: None)
        assert "work on share broken failed" in caplog.text

    asyncio.run(main())


def test_helpers_are_few_and_do_not_wait_for_their_turn() -> None:
    async def main() -> None:
        async with queue_of() as queue:
            answer = threading.Event()
            queue.add(lambda: away(answer.wait))
            before = threading.active_count()
            futures = [queue.helped(lambda: threading.current_thread().name) for _ in range(50)]
            assert set(await asyncio.gather(*futures)) == {"storage share s"}
            assert threading.active_count() - before <= storage_queue.HELPERS + 1
            with pytest.raises(ZeroDivisionError):
                await queue.helped(lambda: 1 // 0)
            answer.set()

    asyncio.run(main())


def test_silence_is_logged_once_and_so_is_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage_queue, "PATIENCE", 0.01)

    async def main() -> None:
        async with queue_of("share far") as queue:
            answer = threading.Event()
            asked = done(queue, lambda: away(answer.wait))
            while "has not answered" not in caplog.text:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            answer.set()
            await asked

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("share far: storage has not answered for")
    assert told[1:] == ["share far: storage answers again"]


def test_the_end_does_not_wait_for_storage_that_hangs() -> None:
    async def main() -> StorageQueue:
        queue = StorageQueue("share gone")
        queue.add(lambda: away(answer.wait))
        while not queue.since:
            await asyncio.sleep(0)
        assert not await queue.drained(asyncio.get_running_loop().time())
        queue.close()
        return queue

    answer = threading.Event()
    queue = asyncio.run(main())
    # The thread finds that its event loop has ended, and goes no further.
    answer.set()
    assert queue.since


def test_away_is_a_plain_call_for_everybody_else() -> None:
    assert away(lambda value: value + 1, 1) == 2
