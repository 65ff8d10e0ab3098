"""``waiting``: attempts, what is in their way, and how their requests end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from smb3server.backends.base import FolderNotRead
from smb3server.dispatch import waiting
from smb3server.dispatch.chain import Chain
from smb3server.dispatch.request import (
    Host,
    Interim,
    Pending,
    Request,
    Response,
    SessionRequest,
    TreeRequest,
    handles,
)
from smb3server.dispatch.waiting import Attempt, Begin, MustWait
from smb3server.files.caching import Caching
from smb3server.process.long_work import LongWork
from smb3server.state.break_notifications import BreakNotifications
from smb3server.state.objects import Connection
from smb3server.state.opens import OpenTable
from smb3server.wire.header import Command, Header
from smb3server.wire.status import Disconnect, NtStatus, StatusError

DONE = Response([b"done"])


class Peer:
    """What requests need of a connection. ``results`` are their replies."""

    def __init__(self) -> None:
        self.client_name = "peer"
        self.loop = asyncio.get_running_loop()
        self.server = self
        self.long_work = LongWork()
        self.fence = None
        self.results: list[Response | StatusError] = []
        self.ended: list[str] = []

    def finish(self, request: Request, result: Response | StatusError) -> None:
        self.results.append(result)

    def violated(self, error: Disconnect) -> None:
        self.ended.append(str(error))

    def disconnect(self, reason: str, broke_protocol: bool = False) -> None:
        self.ended.append(reason)

    @property
    def status(self) -> int:
        """Of the only reply."""
        (result,) = self.results
        return result.status

    def request(self) -> Request:
        header = Header(command=int(Command.CREATE))
        return Request(cast("Host", self), cast("Connection", self), header, memoryview(b""), cast("Chain", None))


def retry(
    request: Request, attempt: Attempt, interim: Interim = Interim.DELAYED, begin: Begin | None = None
) -> Response | Pending:
    """``waiting.retry``, and what the dispatcher does when a handler has returned its result."""
    result = waiting.retry(request, attempt, interim, begin)
    if isinstance(result, Pending):
        early = result.handler_returned()
        if early is not None:
            request.host.finish(request, early)
    return result


class Steps:
    """An attempt that does what is next in a list: raises an exception, or returns."""

    def __init__(self, *steps: Exception | Response | Awaitable[Response | None]) -> None:
        self.steps = list(steps)

    def __call__(self) -> Response | Awaitable[Response | None]:
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


class Reading:
    def __init__(self) -> None:
        self.steps = iter(())
        self.started = True
        self.waiting: list[Callable[[Exception | None], None]] = []


def play(scene: Callable[[Peer, Caching], Awaitable[None]]) -> None:
    async def body() -> None:
        await scene(Peer(), Caching(BreakNotifications({}, (), OpenTable(lambda share: False))))

    asyncio.run(body())


async def turn() -> None:
    await asyncio.sleep(0)


def test_what_need_not_wait_is_answered_by_the_handler() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        begun: list[Pending] = []
        request = peer.request()
        assert retry(request, Steps(DONE), begin=begun.append) is DONE  # type: ignore[arg-type]
        assert request.pending is None
        with pytest.raises(StatusError):
            retry(request, Steps(StatusError(NtStatus.ACCESS_DENIED)))
        assert not begun

    play(scene)


def test_one_turn_after_the_break_the_reply_is_made() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        attempt = Steps(MustWait(caching), MustWait(caching), DONE)
        pending = retry(peer.request(), attempt, Interim.AT_ONCE)
        assert isinstance(pending, Pending) and pending.interim is Interim.AT_ONCE
        for left in (1, 0):
            caching.finished()
            assert len(attempt.steps) == left + 1, "not on the stack of who ended the break"
            await turn()
            assert len(attempt.steps) == left
        assert peer.results == [DONE]
        assert not caching.waiters

    play(scene)


def test_a_reply_is_made_after_what_waiting_began_has_ended() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        events: list[object] = []

        def begin(pending: Pending) -> Callable[[], None]:
            events.append(pending)
            return lambda: events.append(len(peer.results))

        for end in ("finish", "fail", "cancel"):
            events.clear()
            peer.results.clear()
            last = StatusError(NtStatus.ACCESS_DENIED) if end == "fail" else DONE
            pending = retry(peer.request(), Steps(MustWait(caching), last), begin=begin)
            assert isinstance(pending, Pending)
            if end == "cancel":
                pending.cancel()
            caching.finished()
            await turn()
            assert events == [pending, 0], end
            assert len(peer.results) == 1

    play(scene)


@pytest.mark.parametrize("late", [False, True])
def test_who_is_cancelled_is_not_attempted_again(late: bool) -> None:
    """``late``: the break is over, but the turn has not come yet."""

    async def scene(peer: Peer, caching: Caching) -> None:
        attempt = Steps(MustWait(caching), DONE)
        pending = retry(peer.request(), attempt)
        assert isinstance(pending, Pending)
        if late:
            caching.finished()
        pending.cancel()
        assert peer.status == NtStatus.CANCELLED
        assert not caching.waiters
        caching.finished()
        await turn()
        assert attempt.steps == [DONE]
        assert len(peer.results) == 1

    play(scene)


def test_a_host_lease_is_polled_before_and_after_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "HOST_POLL", 0.0)

    async def scene(peer: Peer, caching: Caching) -> None:
        leased = BlockingIOError()
        attempt = Steps(leased, leased, MustWait(caching), leased, leased, DONE)
        pending = retry(peer.request(), attempt, Interim.AT_ONCE)
        assert isinstance(pending, Pending) and pending.interim is Interim.DELAYED
        async with asyncio.timeout(10):
            while not caching.waiters:
                await turn()
            caching.finished()
            while not peer.results:
                await turn()
        assert peer.results == [DONE]

    play(scene)


def test_a_host_lease_that_stays_is_a_sharing_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "HOST_POLL", 0.0)
    monkeypatch.setattr(waiting, "HOST_LEASE_TIMEOUT", 0.0)

    async def scene(peer: Peer, caching: Caching) -> None:
        retry(peer.request(), Steps(BlockingIOError(), BlockingIOError(), DONE))
        async with asyncio.timeout(10):
            while not peer.results:
                await turn()
        assert peer.status == NtStatus.SHARING_VIOLATION

    play(scene)


def test_who_no_longer_waits_for_a_folder_is_forgotten() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        reading = Reading()
        pending = retry(peer.request(), Steps(FolderNotRead(reading), DONE))
        assert isinstance(pending, Pending) and len(reading.waiting) == 1
        pending.cancel()
        assert not reading.waiting
        assert peer.status == NtStatus.CANCELLED

    play(scene)


def test_a_folder_that_cannot_be_read_is_not_asked_for_again() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        reading = Reading()
        attempt = Steps(FolderNotRead(reading), DONE)
        retry(peer.request(), attempt)
        reading.waiting[0](PermissionError(13, "denied"))
        assert peer.status == NtStatus.ACCESS_DENIED
        assert attempt.steps == [DONE]

    play(scene)


def test_work_may_lead_to_another_attempt_or_to_the_reply() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        async def look() -> None:
            await turn()

        async def finish() -> Response:
            await turn()
            return DONE

        retry(peer.request(), Steps(look(), MustWait(caching), finish()))
        async with asyncio.timeout(10):
            while not caching.waiters:
                await turn()
            caching.finished()
            while not peer.results:
                await turn()
        assert peer.results == [DONE]

    play(scene)


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_cancelled_work_cleans_up_before_the_reply(turns: int) -> None:
    """Even if it has not begun yet."""

    async def scene(peer: Peer, caching: Caching) -> None:
        events: list[object] = []

        async def work() -> Response:
            try:
                await asyncio.sleep(60)
            finally:
                events.append(len(peer.results))
            return DONE

        pending = retry(peer.request(), Steps(work()))
        assert isinstance(pending, Pending)
        for _ in range(turns):
            await turn()
        pending.cancel()
        async with asyncio.timeout(10):
            while not peer.results:
                await turn()
        assert peer.status == NtStatus.CANCELLED
        assert events == [0]

    play(scene)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StatusError(NtStatus.DELETE_PENDING), NtStatus.DELETE_PENDING),
        (FileNotFoundError(2, "gone"), NtStatus.OBJECT_NAME_NOT_FOUND),
        (RuntimeError("a fault in the server"), NtStatus.INTERNAL_ERROR),
    ],
)
def test_what_a_later_attempt_raises_is_the_reply(error: Exception, status: int) -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        retry(peer.request(), Steps(MustWait(caching), error))
        caching.finished()
        await turn()
        assert peer.status == status

    play(scene)


def test_a_later_attempt_may_end_the_connection() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        retry(peer.request(), Steps(MustWait(caching), Disconnect("broken rule")))
        caching.finished()
        await turn()
        assert peer.ended == ["broken rule"]
        assert not peer.results

    play(scene)


def test_nothing_is_done_for_a_request_that_is_over() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        pending = peer.request().pend()
        pending.handler_returned()
        pending.cancel()
        done: list[Any] = []
        waiting.answer(pending, lambda: done.append(1))
        assert not done
        assert peer.status == NtStatus.CANCELLED

    play(scene)


def test_no_attempt_follows_the_work_of_who_is_cancelled() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        async def look() -> None:
            return

        attempt = Steps(look(), DONE)
        pending = retry(peer.request(), attempt)
        assert isinstance(pending, Pending)
        pending.cancel()
        async with asyncio.timeout(10):
            while not peer.results:
                await turn()
        assert peer.status == NtStatus.CANCELLED
        assert attempt.steps == [DONE]

    play(scene)


# Until something is over


def test_a_request_is_answered_when_something_is_over() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        ends: list[waiting.Done] = []
        pending = waiting.until(peer.request(), ends.append, lambda: DONE)
        assert pending.handler_returned() is None
        ends[0](None)
        assert peer.results == [DONE]

    play(scene)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StatusError(NtStatus.DELETE_PENDING), NtStatus.DELETE_PENDING),
        (OSError(errno.ENOSPC, "full"), NtStatus.DISK_FULL),
        (RuntimeError("a fault in the server"), NtStatus.INTERNAL_ERROR),
    ],
)
@pytest.mark.parametrize("raised_by", ["what is waited for", "work"])
def test_what_goes_wrong_meanwhile_is_the_reply(error: Exception, status: int, raised_by: str) -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        def work() -> Response:
            if raised_by == "work":
                raise error
            return DONE

        ends: list[waiting.Done] = []
        waiting.until(peer.request(), ends.append, work).handler_returned()
        ends[0](None if raised_by == "work" else error)
        assert peer.status == status

    play(scene)


def test_what_a_cancelled_request_waits_for_is_called_off_once() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        ends: list[waiting.Done] = []
        called_off: list[int] = []

        def begin(done: waiting.Done) -> Callable[[], None]:
            ends.append(done)
            return lambda: called_off.append(1)

        pending = waiting.until(peer.request(), begin, lambda: DONE)
        pending.handler_returned()
        pending.cancel()
        pending.cancel()
        ends[0](None)
        ends[0](OSError())
        assert (called_off, peer.status) == ([1], NtStatus.CANCELLED)

    play(scene)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_coroutine_waits_until_something_is_over(cancelled: bool) -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        ends: list[waiting.Done] = []
        called_off: list[int] = []

        def begin(done: waiting.Done) -> Callable[[], None]:
            ends.append(done)
            return lambda: called_off.append(1)

        async def work() -> Response:
            await waiting.over(begin)
            return DONE

        pending = waiting.run(peer.request(), work())
        pending.handler_returned()
        await turn()
        if cancelled:
            pending.cancel()
        else:
            ends[0](None)
        for _ in range(5):
            await turn()
        ends[0](None)
        assert peer.status == (NtStatus.CANCELLED if cancelled else NtStatus.SUCCESS)
        assert called_off == [1]

    play(scene)


# Results before the handler returns


def test_a_result_waits_until_the_handler_has_returned() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        pending = peer.request().pend()
        pending.complete(DONE)
        assert pending.done
        assert not peer.results, "not on the handler's stack"
        assert pending.handler_returned() is DONE
        assert not peer.results, "the dispatcher answers it"

    play(scene)


def test_what_a_failed_handler_has_completed_is_given_back() -> None:
    async def scene(peer: Peer, caching: Caching) -> None:
        released: list[int] = []
        response = Response([b"data"], on_sent=lambda: released.append(1))
        pending = peer.request().pend()
        pending.complete(response)
        pending.drop()
        assert released == [1]
        pending.complete(response)
        assert released == [1, 1]
        assert not peer.results

    play(scene)


def test_a_handler_gets_no_more_than_was_checked() -> None:
    with pytest.raises(TypeError):
        handles(Command.ECHO, SessionRequest)
    with pytest.raises(TypeError):
        handles(Command.TREE_CONNECT, TreeRequest)
