"""The thread that writes to the kernel's RDMA descriptors, and connections while the credentials of the loop change."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from smbdirect.errors import ConnectionLost
from smbdirect.providers.base import (
    Access,
    CloseCause,
    CloseReason,
    Completion,
    Operation,
    RemoteSegment,
    Send,
    Status,
    Write,
)
from smbdirect.providers.verbs import abi
from smbdirect.providers.verbs.device import SIW_VENDOR
from smbdirect.providers.verbs.endpoint import VerbsEndpoint
from smbdirect.providers.verbs.provider import VerbsConnectionRequest
from smbdirect.providers.verbs.thread import NAME, VerbsThread
from tests.lab.verbs_kernel import Kernel

PATIENCE = 10.0


class _Counted:
    """A queue of batches that remembers how many jobs each had."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.batches: list[int] = []

    def put(self, batch: list[Any]) -> None:
        self.batches.append(len(batch))
        self._queue.put(batch)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


# ---------------------------------------------------------------------- the thread


def test_what_it_is_given_runs_in_order_on_one_thread() -> None:
    async def main() -> None:
        thread = VerbsThread(asyncio.get_running_loop())
        ran: list[tuple[int, int]] = []
        for number in range(100):
            if number % 10 == 5:
                assert (
                    thread.call(lambda number=number: ran.append((number, threading.get_ident())) or number) == number
                )
            else:
                thread.hand(lambda number=number: ran.append((number, threading.get_ident())))
        thread.call(lambda: None)
        assert [number for number, _ in ran] == list(range(100))
        assert len({ident for _, ident in ran}) == 1
        assert ran[0][1] != threading.get_ident()

    asyncio.run(main())


def test_what_is_handed_runs_without_anybody_waiting() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        thread, done = VerbsThread(loop), loop.create_future()
        thread.hand(lambda: thread.tell(done.set_result, 1))
        async with asyncio.timeout(PATIENCE):
            assert await done == 1

    asyncio.run(main())


def test_errno_comes_with_the_answer() -> None:
    async def main() -> None:
        thread = VerbsThread(asyncio.get_running_loop())

        def fails() -> int:
            ctypes.set_errno(13)
            return -1

        ctypes.set_errno(0)
        assert thread.call(fails) == -1
        assert abi.oserror("it").errno == 13

    asyncio.run(main())


def test_what_a_function_raises_is_raised_and_the_thread_goes_on() -> None:
    async def main() -> None:
        thread = VerbsThread(asyncio.get_running_loop())
        with pytest.raises(ZeroDivisionError):
            thread.call(lambda: 1 // 0)
        assert thread.call(lambda: 1) == 1

    asyncio.run(main())


def test_all_loops_of_a_process_share_it() -> None:
    """librdmacm opens a device once: whoever uses it later, maybe with other credentials, writes to that descriptor."""

    async def main() -> int:
        return int(VerbsThread(asyncio.get_running_loop()).call(threading.get_ident))

    idents = {asyncio.run(main()) for _ in range(2)}
    with ThreadPoolExecutor() as pool:
        idents |= set(pool.map(lambda _: asyncio.run(main()), range(4)))
    assert len(idents) == 1
    assert len(threads()) == 1


def test_results_for_a_closed_loop_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    thread = VerbsThread(loop)
    loop.close()
    thread.call(thread.tell, print)


def test_functions_that_may_write_are_called_on_it() -> None:
    class Library:
        def ibv_reg_mr(self) -> int:
            return threading.get_ident()

        rdma_get_cm_event = ibv_dereg_mr = rdma_destroy_id = ibv_reg_mr
        ibv_get_cq_event = ibv_get_async_event = rdma_ack_cm_event = ibv_reg_mr

    async def main() -> None:
        thread = VerbsThread(asyncio.get_running_loop())
        library: Any = thread.bring(abi.Libraries(Library(), Library())).verbs  # type: ignore[arg-type]
        there = thread.call(threading.get_ident)
        assert there != threading.get_ident()
        for name in ("ibv_reg_mr", "ibv_dereg_mr", "rdma_get_cm_event", "rdma_destroy_id"):
            assert getattr(library, name)() == there
        # These wait for nobody: the loop may be told by them at any time.
        for name in ("ibv_get_cq_event", "ibv_get_async_event", "rdma_ack_cm_event"):
            assert getattr(library, name)() == threading.get_ident()

    asyncio.run(main())


# ---------------------------------------------------------------------- connections


class Scene(NamedTuple):
    kernel: Kernel
    endpoint: VerbsEndpoint
    completions: list[Completion]
    closed: list[CloseReason]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0)


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    made = Kernel(getattr(request, "param", True))
    yield made
    made.close()


both_kinds = pytest.mark.parametrize("kernel", [True, False], indirect=True, ids=["writing", "mapped"])


def play(
    kernel: Kernel, patch: pytest.MonkeyPatch, scene: Callable[[Scene], Awaitable[None]], receives: int = 4
) -> None:
    """A client connects; the credentials of the loop's thread change whenever they can."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        provider = kernel.provider(patch)
        established: asyncio.Future[VerbsEndpoint] = loop.create_future()
        tasks: list[asyncio.Task[None]] = []

        async def accept(request: VerbsConnectionRequest) -> None:
            try:
                kernel.change_credentials()
                endpoint: Any = request.prepare()
                for number in range(receives):
                    endpoint.post_receive(memoryview(bytearray(64)), number)
                kernel.change_credentials()
                await request.accept()
                established.set_result(endpoint)
            except BaseException as error:
                established.set_exception(error)

        listener = await provider.listen(
            "192.0.2.1", 445, lambda request: tasks.append(loop.create_task(accept(request)))
        )
        kernel.change_credentials()
        assert listener._cm_id is not None
        kernel.happens(abi.CM_CONNECT_REQUEST, kernel.new_id(), listener._cm_id)
        async with asyncio.timeout(PATIENCE):
            endpoint = await established
        kernel.change_credentials()
        acted = Scene(kernel, endpoint, [], [])
        endpoint.on_completions = acted.completions.extend
        endpoint.on_closed = acted.closed.append
        await scene(acted)
        endpoint.abort()
        await acted.until(lambda: acted.closed)
        await listener.close()
        received = [entry.context for entry in acted.completions if entry.operation is Operation.RECEIVE]
        assert received[:receives] == list(range(receives))
        assert len(acted.closed) == 1
        kernel.stop(loop)

    asyncio.run(main())


@both_kinds
def test_a_connection_serves_while_the_loop_acts_as_others(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(acted: Scene) -> None:
        for number in range(20):
            kernel.change_credentials()
            acted.endpoint.post(
                [
                    Write([b"data%d" % number], RemoteSegment(1, 0, len(b"data%d" % number)), None, False),
                    Send([b"answer%d" % number], number),
                ]
            )
            await acted.until(lambda number=number: len(acted.completions) > number)
        assert acted.completions == [Completion(Operation.SEND, Status.OK, number) for number in range(20)]
        wanted = [text % number for number in range(20) for text in (b"data%d", b"answer%d")]
        assert kernel.sent == wanted
        kernel.receives(7)
        await acted.until(lambda: len(acted.completions) == 21)
        assert acted.completions[-1] == Completion(Operation.RECEIVE, Status.OK, 0, 7)

    play(kernel, monkeypatch, scene)
    # The end of a connection is told, too, and nothing of it stays.
    for name in ("rdma_disconnect", "rdma_destroy_qp", "ibv_destroy_cq", "rdma_destroy_id"):
        assert name in kernel.calls


@both_kinds
def test_who_tells_the_device(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where doorbells are mapped, no other thread is between a request and the wire."""

    async def scene(acted: Scene) -> None:
        acted.endpoint.post([Send([b"x"], 0)])
        await acted.until(lambda: acted.completions)
        assert (threading.get_ident() in kernel.posting_threads) is not kernel.writing
        assert len(kernel.posting_threads) == 1
        # Inline data would be read after the caller was told that it may use the buffer again.
        assert (acted.endpoint.capabilities.max_inline == 0) is kernel.writing

    play(kernel, monkeypatch, scene)


def test_posts_of_one_turn_go_to_the_thread_together(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(acted: Scene) -> None:
        memory = memoryview(bytearray(1024))
        assert acted.endpoint.domain is not None
        acted.endpoint.domain.register(memory, Access.LOCAL_WRITE)
        thread = acted.endpoint._device.thread
        counted = _Counted(thread._batches)
        monkeypatch.setattr(thread, "_batches", counted)
        for number in range(5):
            memory[number] = number
            acted.endpoint.post([Send([memory[number : number + 1]], number)])
            acted.endpoint.post_receive(memory[64:], 4 + number)
        assert counted.batches == []
        await acted.until(lambda: len(acted.completions) == 5)
        assert counted.batches[0] == 10
        assert kernel.sent == [bytes([number]) for number in range(5)]

    play(kernel, monkeypatch, scene)


def test_memory_may_be_used_again_once_a_later_request_is_done(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A READ's Write is not signalled, the Send of its response is: then the buffer of the Write is used again."""
    kernel.vendor_id = SIW_VENDOR

    async def scene(acted: Scene) -> None:
        memory = memoryview(bytearray(b"A" * 8192))
        assert acted.endpoint.domain is not None
        acted.endpoint.domain.register(memory, Access.LOCAL_WRITE)
        acted.endpoint.post([Write([memory], RemoteSegment(1, 0, 8192), None, False), Send([b"answer"], 0)])
        await acted.until(lambda: acted.completions)
        memory[:] = b"B" * 8192
        kernel.transmit()
        assert acted.completions == [Completion(Operation.SEND, Status.OK, 0)]
        assert kernel.sent == [b"A" * 8192, b"answer"]

    play(kernel, monkeypatch, scene)


@both_kinds
def test_nothing_follows_what_the_device_refused(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Send tells the peer that the Writes before it arrived."""

    async def scene(acted: Scene) -> None:
        kernel.refuse_after = 2
        acted.endpoint.post([Send([b"0"], 0), Send([b"1"], 1), Send([b"2"], 2), Send([b"3"], 3)])
        acted.endpoint.post([Send([b"4"], 4)])
        await acted.until(lambda: acted.closed)
        assert kernel.sent == [b"0", b"1"]
        sends = [(entry.context, entry.status) for entry in acted.completions if entry.operation is Operation.SEND]
        assert sends == [(0, Status.OK), (1, Status.OK), *((number, Status.FLUSHED) for number in (2, 3, 4))]
        assert acted.closed == [CloseReason(CloseCause.DEVICE, "ibv_post_send failed")]

    play(kernel, monkeypatch, scene)


def test_what_completes_while_the_queue_is_being_armed_is_seen(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises no event, for the queue is not armed yet."""

    async def scene(acted: Scene) -> None:
        def late() -> None:
            kernel.on_arming = lambda: None
            kernel.receives(9)

        kernel.on_arming = late
        acted.endpoint.post([Send([b"x"], "sent")])
        await acted.until(lambda: len(acted.completions) == 2)
        assert [entry.context for entry in acted.completions] == ["sent", 0]

    play(kernel, monkeypatch, scene)


@both_kinds
def test_a_queue_that_cannot_be_armed_ends_the_connection(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would hear of its completions any more."""

    async def scene(acted: Scene) -> None:
        kernel.refuse_notify = True
        acted.endpoint.post([Send([b"x"], "sent")])
        await acted.until(lambda: acted.closed)
        assert acted.closed == [CloseReason(CloseCause.DEVICE, "ibv_req_notify_cq failed")]

    play(kernel, monkeypatch, scene)


@both_kinds
def test_a_request_whose_connection_has_ended_cannot_be_answered(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its identifier is memory of the library that was freed."""

    async def main() -> None:
        requests: list[VerbsConnectionRequest] = []
        listener = await kernel.provider(monkeypatch).listen("192.0.2.1", 445, requests.append)
        assert listener._cm_id is not None
        kernel.happens(abi.CM_CONNECT_REQUEST, kernel.new_id(), listener._cm_id)
        async with asyncio.timeout(PATIENCE):
            while not requests:
                await asyncio.sleep(0)
            kernel.refuse_notify = True
            endpoint, closed = requests[0].prepare(), asyncio.Event()
            endpoint.on_closed = lambda _: closed.set()
            await closed.wait()
        with pytest.raises(ConnectionLost):
            await requests[0].accept()
        requests[0].reject()
        assert "rdma_accept" not in kernel.calls and "rdma_reject" not in kernel.calls
        kernel.stop(asyncio.get_running_loop())

    asyncio.run(main())


def test_what_was_handed_comes_before_the_queue_pair_goes(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(acted: Scene) -> None:
        acted.endpoint.post([Send([b"last"], "sent")])
        acted.endpoint.abort()
        await acted.until(lambda: acted.closed)
        assert kernel.calls.index("rdma_destroy_qp") > max(
            index for index, name in enumerate(kernel.calls) if name in ("post_send", "post_recv", "req_notify_cq")
        )
        assert [entry.context for entry in acted.completions if entry.operation is Operation.SEND] == ["sent"]

    play(kernel, monkeypatch, scene)


def test_the_garbage_collector_may_end_things_on_any_thread() -> None:
    """A finalizer that runs on the verbs thread itself must not wait for that thread; one on a worker may."""

    async def body() -> None:
        thread = VerbsThread(asyncio.get_running_loop())
        assert thread.call(lambda: thread.call(lambda: threading.current_thread().name)) == NAME
        assert await asyncio.to_thread(thread.call, lambda: threading.current_thread().name) == NAME

    asyncio.run(body())
