"""The states of a connection's life: which may follow which, and that nobody is notified twice."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from smb3server.net.tcp import TcpTransport
from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.life import IllegalChange, Life, change
from smbdirect.providers.base import Completion, Operation, Read, RemoteSegment, Send, Status, WorkRequest, Write
from smbdirect.providers.loopback import CAPABILITIES, LoopbackProvider
from smbdirect.rdma.pool import BufferPool
from smbdirect.rdma.work_queue import WorkQueue
from smbdirect.unauthenticated import MEMORY_LIMIT, SMALL_MESSAGE, Allowance

FORWARD = {
    Life.OPENING: {Life.OPEN, Life.CLOSING, Life.DEAD},
    Life.OPEN: {Life.CLOSING, Life.DEAD},
    Life.CLOSING: {Life.DEAD},
    Life.DEAD: {Life.ENDED},
    Life.ENDED: set(),
}


@pytest.mark.parametrize("present", list(Life))
@pytest.mark.parametrize("following", list(Life))
def test_only_legal_changes_are_made(present: Life, following: Life) -> None:
    if following in FORWARD[present]:
        assert change(present, following) is following
    else:
        with pytest.raises(IllegalChange, match=f"{present.name} to {following.name}"):
            change(present, following)


@pytest.mark.parametrize("late", [False, True])
def test_a_tcp_transport_reports_its_end_once_even_to_a_late_owner(late: bool) -> None:
    async def body() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        transport = TcpTransport(ours, BufferPool(), 70_000)
        ends: list[BaseException | None] = []
        if late:
            transport.abort("before it was started")
        transport.start(lambda message: message.release(), ends.append)
        transport.abort("over")
        transport.abort("over again")
        transport.start(lambda message: message.release(), ends.append)
        for _ in range(5):
            await asyncio.sleep(0)
        assert [type(end) for end in ends] == [ConnectionAbortedError]
        theirs.close()
        listening.close()

    asyncio.run(body())


class Recorder:
    """An endpoint that keeps what is posted, or refuses it."""

    def __init__(self, size: int) -> None:
        self.capabilities = replace(CAPABILITIES, max_send_queue=size)
        self.chains: list[list[WorkRequest]] = []
        self.refuses = False

    def post(self, requests: list[WorkRequest]) -> None:
        self.chains.append(list(requests))
        if self.refuses:
            raise ProviderError("refused")


def queue_of(size: int) -> tuple[Recorder, WorkQueue]:
    recorder = Recorder(size)
    queue = WorkQueue(recorder, lambda: None)  # type: ignore[arg-type]
    return recorder, queue


def test_one_signalled_request_speaks_for_all_before_it() -> None:
    recorder, queue = queue_of(4)
    done: list[tuple[int, BaseException | None]] = []
    for number in range(5):
        request: WorkRequest = Write([b"x"], RemoteSegment(1, 0, 1), signalled=False)
        if number == 4:
            request = Send([b"x"], signalled=False)
        queue.add([request], lambda error, number=number: done.append((number, error)))  # type: ignore[misc]
    queue.post()
    (chain,) = recorder.chains
    assert [request.signalled for request in chain] == [False, True, False, True]
    assert len(queue.waiting) == 1
    queue.completed(Completion(Operation.WRITE, Status.OK, chain[1].context))
    assert done == [(0, None), (1, None)]
    queue.post()
    assert [request.signalled for request in recorder.chains[1]] == [True]
    queue.completed(Completion(Operation.WRITE, Status.FLUSHED, chain[3].context))
    queue.completed(Completion(Operation.SEND, Status.FLUSHED, recorder.chains[1][0].context))
    assert [number for number, _ in done] == [0, 1, 2, 3, 4]
    assert all(isinstance(error, ConnectionLost) for _, error in done[2:])


def test_what_nobody_waits_for_is_signalled_now_and_then() -> None:
    """Messages of which nobody wants to know count as pending until they are posted, but at most 16 in a row."""
    recorder, queue = queue_of(64)
    for number in range(40):
        queue.waiting.append((Send([b"x"], signalled=False), None, 10))
        assert queue.post() == (0 if number % 16 == 15 else 10)
    requests = [request for chain in recorder.chains for request in chain]
    assert [number for number, request in enumerate(requests) if request.signalled] == [15, 31]
    assert [queue.completed(Completion(Operation.SEND, Status.OK, request.context)) for request in requests] == [
        10 if request.signalled else 0 for request in requests
    ]
    done: list[BaseException | None] = []
    queue.waiting.append((Send([b"x"], signalled=False), done.append, 10))
    assert queue.post() == 0
    (last,) = recorder.chains[-1]
    assert last.signalled
    assert queue.completed(Completion(Operation.SEND, Status.OK, last.context)) == 10
    assert done == [None]


def test_room_is_reported_before_a_small_queue_is_full() -> None:
    recorder, queue = queue_of(4)
    for _ in range(6):
        queue.waiting.append((Send([b"x"], signalled=False), None, 1))
    queue.post()
    assert [request.signalled for request in recorder.chains[0]] == [False, True, False, True]
    assert len(queue.waiting) == 2
    queue.completed(Completion(Operation.SEND, Status.OK, recorder.chains[0][1].context))
    queue.post()
    assert not queue.waiting


def test_every_read_is_signalled() -> None:
    recorder, queue = queue_of(64)
    requests: list[WorkRequest] = [Read([memoryview(bytearray(1))], RemoteSegment(1, 0, 1)) for _ in range(3)]
    done: list[BaseException | None] = []
    queue.add(requests, done.append)
    queue.post()
    for request in recorder.chains[0][:2]:
        queue.completed(Completion(Operation.READ, Status.OK, request.context))
    assert not done
    queue.completed(Completion(Operation.READ, Status.OK, recorder.chains[0][2].context))
    assert done == [None]


def test_what_was_refused_or_never_posted_is_finished_at_the_end() -> None:
    recorder, queue = queue_of(2)
    recorder.refuses = True
    done: list[BaseException | None] = []
    for _ in range(4):
        queue.add([Send([b"x"], signalled=False)], done.append)
    with pytest.raises(ProviderError):
        queue.post()
    assert not done
    lost = ConnectionLost("over")
    queue.fail(lost)
    queue.fail(lost)
    assert done == [lost] * 4


def test_an_allowance_is_one_for_both_transports() -> None:
    """What one peer holds over TCP is missing for its next connection, over whatever fabric."""
    pool = BufferPool()
    first, second = Allowance(pool.unauthenticated), Allowance(pool.unauthenticated)
    evicted: list[str] = []
    assert first.take("192.0.2.1", SMALL_MESSAGE, lambda: evicted.append("small"))
    assert not pool.unauthenticated.taken
    assert first.take("192.0.2.1", MEMORY_LIMIT, lambda: evicted.append("first"))
    assert not second.take("192.0.2.1", SMALL_MESSAGE + 1, lambda: evicted.append("second"))
    first.give_back()
    first.give_back()
    assert second.take("192.0.2.1", SMALL_MESSAGE + 1, lambda: evicted.append("second"))
    assert pool.unauthenticated.taken == SMALL_MESSAGE + 1
    assert second.take("192.0.2.1", SMALL_MESSAGE + 2, lambda: evicted.append("second"))
    assert pool.unauthenticated.taken == SMALL_MESSAGE + 2
    assert not evicted


def test_a_buffer_reports_its_release_once() -> None:
    pool = BufferPool()
    buffer = pool.acquire(70_000)
    sizes: list[int] = []
    buffer.on_release = sizes.append
    buffer.release()
    buffer.release()
    assert sizes == [70_000]
    assert not pool.lent
    again = pool.acquire(70_000)
    again.release()
    assert sizes == [70_000]


def test_a_provider_takes_over_no_sockets_unless_it_says_so() -> None:
    provider = LoopbackProvider()
    assert not provider.adopts_sockets
    assert provider.notices == ()
    with socket.socket() as sock, pytest.raises(ProviderError, match="takes over no sockets"):
        provider.adopt(sock, lambda request: None)
