"""The whole stack over the loopback provider: transport, core and RDMA operations, with and without faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from smbdirect.core.settings import Settings
from smbdirect.errors import ConnectionLost, ProtocolError, ProviderError
from smbdirect.life import Life
from smbdirect.message_transport import RemoteBuffer
from smbdirect.providers.base import Access, Completion, Operation, Send, Status
from smbdirect.providers.loopback import CAPABILITIES, Faults, LoopbackProvider
from smbdirect.rdma.pool import BufferPool
from smbdirect.transport.listen import connect, listen
from smbdirect.transport.smb_direct import SmbDirectTransport

PATIENCE = 10.0


class End:
    """One side's upper layer: keeps messages (copied, unless told to hold them) and the end."""

    def __init__(self, transport: SmbDirectTransport, hold: bool = False) -> None:
        self.transport = transport
        self.messages: list[bytes] = []
        self.held: list[Any] = []
        self.closed: list[BaseException | None] = []
        self.hold = hold
        self.reply: Callable[[bytes], None] | None = None
        self._news = asyncio.Event()
        transport.start(self._message, self._closed)

    def _message(self, message: Any) -> None:
        self.messages.append(bytes(message.view))
        if self.hold:
            self.held.append(message)
        else:
            message.release()
        if self.reply is not None:
            self.reply(self.messages[-1])
        self._news.set()

    def _closed(self, error: BaseException | None) -> None:
        self.closed.append(error)
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def received(self, count: int) -> list[bytes]:
        await self.until(lambda: len(self.messages) >= count)
        return self.messages

    async def end(self) -> BaseException | None:
        await self.until(lambda: self.closed)
        return self.closed[0]


Scenario = Callable[[End, End], Awaitable[None]]


def run(
    scenario: Scenario,
    provider: LoopbackProvider | None = None,
    *,
    client: Settings | None = None,
    server: Settings | None = None,
    trusted: bool = True,
    hold: bool = False,
) -> None:
    async def main() -> None:
        fabric = provider or LoopbackProvider()
        pool = BufferPool()
        accepted: asyncio.Future[End] = asyncio.get_running_loop().create_future()

        def on_transport(transport: SmbDirectTransport) -> None:
            if trusted:
                transport.trust(1 << 20)
            accepted.set_result(End(transport, hold))

        listener = await listen(fabric, "127.0.0.1", 0, on_transport, server, pool=pool)
        near = End(await connect(fabric, *listener.address, settings=client, pool=pool))
        far = await accepted
        try:
            await scenario(near, far)
        finally:
            near.transport.abort()
            far.transport.abort()
            await near.end()
            await far.end()
            await listener.close()
        assert not fabric.endpoints
        for message in near.held + far.held:
            message.release()
        assert pool.lent == 0
        assert near.transport.pending_send_bytes == far.transport.pending_send_bytes == 0

    asyncio.run(main())


def pattern(size: int, seed: int = 1) -> bytes:
    return bytes((index * 7 + seed) & 0xFF for index in range(size))


FABRICS: dict[str, Callable[[], LoopbackProvider]] = {
    "plain": LoopbackProvider,
    "late": lambda: LoopbackProvider(faults=Faults(delay_turns=3, reorder_placement=True, hold_reads=True)),
    "registering": lambda: LoopbackProvider(
        replace(CAPABILITIES, requires_registration=True, max_transfer=65536, max_send_sge=4, max_read_sge=2)
    ),
    "cramped": lambda: LoopbackProvider(
        replace(CAPABILITIES, max_transfer=4096, max_send_queue=4, max_send_sge=2, max_read_sge=1)
    ),
}


@pytest.fixture(params=list(FABRICS))
def fabric(request: pytest.FixtureRequest) -> LoopbackProvider:
    return FABRICS[request.param]()


SIZES = [1, 100, 1340, 1341, 8168, 8169, 20000, 131072]


def test_messages_of_any_size_both_ways(fabric: LoopbackProvider) -> None:
    async def scenario(near: End, far: End) -> None:
        messages = [pattern(size, size) for size in SIZES]
        for message in messages:
            near.transport.send([message[:7], message[7:]])
            far.transport.send([message])
        assert await far.received(len(messages)) == messages
        assert await near.received(len(messages)) == messages

    run(scenario, fabric)


@pytest.mark.parametrize("credits", [1, 2, 3, 16])
def test_few_credits(credits: int) -> None:
    few = Settings(receive_credit_max=credits, send_credit_target=credits)

    async def scenario(near: End, far: End) -> None:
        far.reply = lambda message: far.transport.send([message, message])
        messages = [pattern(size, size) for size in SIZES[:5]] * 5
        for message in messages:
            near.transport.send([message])
        assert await near.received(len(messages)) == [message * 2 for message in messages]

    run(scenario, client=few)
    run(scenario, server=few)
    run(scenario, client=few, server=few)


def test_on_sent_is_called_once_per_message_in_order(fabric: LoopbackProvider) -> None:
    async def scenario(near: End, far: End) -> None:
        sent: list[int] = []
        for index in range(40):
            near.transport.send([pattern(2000)], on_sent=lambda index=index: sent.append(index))
        await far.received(40)
        await near.until(lambda: True)
        while len(sent) < 40:
            await asyncio.sleep(0)
        assert sent == list(range(40))
        assert near.transport.pending_send_bytes == 0

    run(scenario, fabric)


def test_held_messages_do_not_starve_the_peer() -> None:
    async def scenario(near: End, far: End) -> None:
        for index in range(300):
            near.transport.send([pattern(50, index)])
        assert await far.received(300) == [pattern(50, index) for index in range(300)]
        assert [bytes(message.view) for message in far.held] == far.messages

    run(scenario, hold=True)


def test_pausing_holds_messages_back() -> None:
    async def scenario(near: End, far: End) -> None:
        far.transport.pause_reading()
        for index in range(20):
            near.transport.send([pattern(50, index)])
        for _ in range(50):
            await asyncio.sleep(0)
        assert far.messages == []
        far.transport.resume_reading()
        assert await far.received(20) == [pattern(50, index) for index in range(20)]

    run(scenario)


# -- RDMA ------------------------------------------------------------------------------------------------------------


def descriptors_of(registered: Any, lengths: list[int]) -> list[RemoteBuffer]:
    """Descriptors that cut a buffer registered in one piece into ``lengths``."""
    (whole,) = registered.descriptors
    cuts = []
    offset = whole.offset
    for length in lengths:
        cuts.append(RemoteBuffer(offset, whole.token, length))
        offset += length
    return cuts


@pytest.mark.parametrize("lengths", [[60000], [1, 59999], [30001, 17, 29982]])
def test_write_then_send_arrives_placed(fabric: LoopbackProvider, lengths: list[int]) -> None:
    async def scenario(near: End, far: End) -> None:
        memory = bytearray(1 << 16)
        view = memoryview(memory)
        registered = [near.transport.rdma.register(view[start : start + 4096], writable=True) for start in (0,)]
        registered[0].deregister()
        pieces = []
        position = 100
        for length in lengths:
            region = near.transport.endpoint.register(view[position : position + length], Access(7))
            pieces.append(RemoteBuffer(region.address, region.token, length))
            position += length
        placed: list[bytes] = []
        near.reply = lambda message: placed.append(bytes(memory))
        data = pattern(60000)
        done: list[Any] = []
        far.transport.rdma.write_to_peer(pieces, [data[:5], data[5:50000], data[50000:]], done.append)
        assert done == []
        far.transport.send([b"response"], invalidate=pieces[0].token)
        await near.received(1)
        assert placed[0] == bytes(100) + data + bytes((1 << 16) - 60100)
        while not done:
            await asyncio.sleep(0)
        assert done == [None]
        assert far.transport.counters["bytes_rdma_written"] == 60000
        assert far.transport.counters["remote_invalidations_sent"] == 1
        assert near.transport.counters["remote_invalidations_received"] == 1

    run(scenario, fabric)


@pytest.mark.parametrize("size", [1, 4096, 65537, 3_000_000])
def test_read_of_any_length(fabric: LoopbackProvider, size: int) -> None:
    async def scenario(near: End, far: End) -> None:
        source = bytearray(pattern(size))
        registered = near.transport.rdma.register(memoryview(source), readable=True)
        local = [far.transport.acquire(size // 3 + 1), far.transport.acquire(size - size // 3 - 1)]
        finished = asyncio.Event()
        result: list[Any] = []

        def done(error: BaseException | None) -> None:
            result.append(error)
            finished.set()

        views = [buffer.view for buffer in local]
        far.transport.rdma.read_from_peer(registered.descriptors, views, done)
        async with asyncio.timeout(PATIENCE):
            await finished.wait()
        assert result == [None]
        assert b"".join(views) == source
        for buffer in local:
            buffer.release()
        registered.deregister()
        assert registered.invalidated

    run(scenario, fabric)


def test_writes_that_nobody_waits_for_are_in_place_before_the_message_behind_them(fabric: LoopbackProvider) -> None:
    """Their copies, if the fabric needs any, are given back (``run`` looks)."""

    async def scenario(near: End, far: End) -> None:
        memory = memoryview(bytearray(50_000))
        registered = near.transport.rdma.register(memory, writable=True)
        seen: list[bytes] = []
        near.reply = lambda message: seen.append(bytes(memory))
        for number in range(40):
            far.transport.work.corked = True
            far.transport.rdma.write_to_peer(registered.descriptors, [pattern(50_000, number)], None)
            far.transport.work.corked = False
            far.transport.send([b"%d" % number])
            await near.received(number + 1)
            assert seen[number] == pattern(50_000, number)
        assert far.transport.counters["rdma_writes"] >= 40
        assert far.transport.rdma.takes_any_memory != bool(far.transport.counters["bounced_bytes"])
        registered.deregister()

    run(scenario, fabric)


def test_short_descriptors_are_refused_before_anything_is_posted() -> None:
    async def scenario(near: End, far: End) -> None:
        calls: list[Any] = []
        for remote in ([], [RemoteBuffer(0, 1, 99)], [RemoteBuffer((1 << 64) - 50, 1, 100)]):
            with pytest.raises(ValueError):
                far.transport.rdma.write_to_peer(remote, [bytes(100)], calls.append)
            with pytest.raises(ValueError):
                far.transport.rdma.read_from_peer(remote, [memoryview(bytearray(100))], calls.append)
        near.transport.send([b"alive"])
        await far.received(1)
        assert calls == []
        assert far.transport.counters["rdma_writes"] == 0

    run(scenario)


def test_bad_token_reports_the_transfer_and_closes() -> None:
    async def scenario(near: End, far: End) -> None:
        calls: list[Any] = []
        far.transport.rdma.read_from_peer([RemoteBuffer(0, 1, 100)], [memoryview(bytearray(100))], calls.append)
        far.transport.rdma.write_to_peer([RemoteBuffer(0, 1, 100)], [bytes(100)], calls.append)
        assert isinstance(await far.end(), ConnectionLost)
        assert len(calls) == 2
        assert all(isinstance(call, ConnectionLost) for call in calls)
        await near.end()

    run(scenario)


def test_write_and_response_go_out_in_one_post() -> None:
    async def scenario(near: End, far: End) -> None:
        memory = bytearray(1 << 16)
        registered = near.transport.rdma.register(memoryview(memory), writable=True)
        posts: list[int] = []
        post = far.transport.endpoint.post

        def counting(requests: Any) -> None:
            posts.append(len(requests))
            post(requests)

        far.transport.endpoint.post = counting

        def respond(message: bytes) -> None:
            far.transport.rdma.write_to_peer(registered.descriptors, [bytes(1 << 16)], lambda error: None)
            far.transport.send([b"response"])

        far.reply = respond
        near.transport.send([b"request"])
        await near.received(1)
        assert posts == [2]

    run(scenario)


def test_the_end_of_a_turn_comes_after_its_messages() -> None:
    async def scenario(near: End, far: End) -> None:
        promised: list[bool] = []
        called: list[int] = []
        far.reply = lambda message: promised.append(
            far.transport.at_end_of_turn(lambda: called.append(len(far.messages)))
        )
        for _ in range(3):
            near.transport.send([b"message"])
        await far.received(3)
        assert promised == [True, True, False]
        assert called == [3]
        assert not far.transport.at_end_of_turn(lambda: called.append(0))

    run(scenario)


def test_the_end_of_a_turn_comes_before_any_other_work_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(near: End, far: End) -> None:
        order: list[str] = []
        completed = far.transport.work.completed

        def noted(completion: Completion) -> int:
            order.append("work done")
            return completed(completion)

        def mixed(completions: Sequence[Completion]) -> None:
            between = [Completion(Operation.SEND, Status.OK, None)] if len(completions) == 2 else []
            far.transport._completed([*completions[:1], *between, *completions[1:]])

        def take(message: bytes) -> None:
            order.append("message")
            far.transport.at_end_of_turn(lambda: order.append("end"))

        await asyncio.sleep(0.01)
        far.reply = take
        monkeypatch.setattr(far.transport.work, "completed", noted)
        far.transport.endpoint.on_completions = mixed
        near.transport.send([b"message"])
        near.transport.send([b"message"])
        await far.received(2)
        assert order == ["message", "end", "work done", "message"]

    run(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_the_connection_ends_the_turn(fails: bool) -> None:
    async def scenario(near: End, far: End) -> None:
        called: list[Life] = []

        def take(message: bytes) -> None:
            assert far.transport.at_end_of_turn(lambda: called.append(far.transport.life))
            if fails:
                raise ValueError("a defect")
            far.transport.abort()

        far.reply = take
        near.transport.send([b"message"])
        near.transport.send([b"never"])
        await far.end()
        assert len(far.messages) == len(called) == 1

    run(scenario)


def test_steady_state_allocates_and_registers_nothing() -> None:
    async def scenario(near: End, far: End) -> None:
        memory = bytearray(1 << 16)
        registered = near.transport.rdma.register(memoryview(memory), writable=True)

        def respond(message: bytes) -> None:
            buffer = far.transport.acquire(1 << 16)
            far.transport.rdma.write_to_peer(registered.descriptors, [buffer.view], lambda error: buffer.release())
            far.transport.send([b"response"])

        far.reply = respond
        for _ in range(20):
            near.transport.send([b"request"])
        await near.received(20)
        before = dict(far.transport.counters)
        for index in range(500):
            near.transport.send([b"request"])
            await near.received(21 + index)
        after = far.transport.counters
        assert after["allocations"] == before["allocations"]
        assert after["registrations"] == before["registrations"]
        assert after["rdma_writes"] == before["rdma_writes"] + 500

    run(scenario, LoopbackProvider(replace(CAPABILITIES, requires_registration=True)))


# -- the end -----------------------------------------------------------------------------------------------------------


def test_close_delivers_what_was_queued() -> None:
    async def scenario(near: End, far: End) -> None:
        near.transport.send([pattern(100_000)])
        near.transport.close()
        assert await far.received(1) == [pattern(100_000)]
        assert await far.end() is None
        assert await near.end() is None
        calls: list[int] = []
        near.transport.send([b"late"], on_sent=lambda: calls.append(1))
        await asyncio.sleep(0)
        assert calls == [1]

    run(scenario)


def test_lost_connection_reports_everything_once() -> None:
    async def scenario(near: End, far: End) -> None:
        sent: list[int] = []
        far.transport.endpoint._provider.faults.drop_after = 3
        for index in range(10):
            near.transport.send([pattern(100_000)], on_sent=lambda index=index: sent.append(index))
        assert isinstance(await near.end(), ConnectionLost)
        assert isinstance(await far.end(), ConnectionLost)
        assert sent == list(range(10))
        assert near.transport.pending_send_bytes == 0

    run(scenario)


def test_stranger_is_kept_small() -> None:
    async def scenario(near: End, far: End) -> None:
        near.transport.send([bytes(60_000)])
        await far.received(1)
        assert far.transport.receives.memory <= 16 * 1368
        near.transport.send([bytes(65_537)])
        assert isinstance(await far.end(), ProtocolError)
        assert far.transport.receives.memory <= 16 * 1368

    run(scenario, trusted=False)


@pytest.mark.parametrize("size", [70_000, 1 << 20])
def test_trust_raises_credits(size: int) -> None:
    """Whatever messages the upper layer allows: their size is no sign of trust."""

    async def scenario(near: End, far: End) -> None:
        assert near.transport.connection.credits.send_credits <= 8
        far.transport.trust(size)
        near.transport.send([b"x"])
        while near.transport.connection.credits.send_credits < 200:
            await asyncio.sleep(0)
        near.transport.send([pattern(size // 2)])
        assert (await far.received(2))[1] == pattern(size // 2)

    run(scenario, trusted=False)


def test_no_task_or_timer_survives() -> None:
    async def scenario(near: End, far: End) -> None:
        near.transport.close()
        await far.end()
        await near.end()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        for end in (near, far):
            assert end.transport._timer is None
            assert end.transport._close_timer is None

    run(scenario)


# -- peers that misbehave ----------------------------------------------------------------------------------------------


def garbage(first: list[bytes]) -> None:
    """A raw peer that sends ``first`` to a listener; the listener must drop it and keep nothing."""

    async def main() -> None:
        fabric = LoopbackProvider()
        pool = BufferPool()
        handed: list[SmbDirectTransport] = []

        def on_transport(transport: SmbDirectTransport) -> None:
            transport.start(lambda message: message.release(), ended.append)
            handed.append(transport)

        ended: list[Any] = []
        listener = await listen(fabric, "127.0.0.1", 0, on_transport, pool=pool)
        closed = asyncio.Event()

        def prepare(endpoint: Any) -> None:
            endpoint.on_closed = lambda reason: closed.set()
            for _ in range(16):
                endpoint.post_receive(memoryview(bytearray(2048)))

        endpoint = await fabric.connect(*listener.address, prepare)
        for message in first:
            endpoint.post([Send([message])])
        async with asyncio.timeout(PATIENCE):
            await closed.wait()
            while listener.transports or len(ended) < len(handed):
                await asyncio.sleep(0)
        assert not fabric.endpoints
        assert pool.lent == 0
        await listener.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


NEGOTIATE = bytes.fromhex("0001 0001 0000 ff00 54050000 54050000 56a70200")


@pytest.mark.parametrize(
    "first",
    [
        [b""],
        [b"\xff" * 512],
        [b"\xfeSMB" + bytes(60)],
        [NEGOTIATE[:19]],
        [bytes(20)],
        [NEGOTIATE, b""],
        [NEGOTIATE, NEGOTIATE],
        [NEGOTIATE, b"\xff" * 1364],
        [NEGOTIATE, bytes.fromhex("ff00 ff00 0000 0000 00000100 18000000 04000000 00000000 41414141")],
    ],
    ids=range(9),
)
def test_garbage_is_dropped_and_forgotten(first: list[bytes]) -> None:
    garbage(first)


def test_refused_version_gets_its_response_and_a_graceful_end() -> None:
    garbage([bytes.fromhex("0101 0101 0000 ff00 54050000 54050000 56a70200")])


def test_silent_connections_are_dropped() -> None:
    async def main() -> None:
        fabric = LoopbackProvider()
        settings = Settings(negotiation_timeout_passive=1.0)
        listener = await listen(fabric, "127.0.0.1", 0, lambda transport: None, settings)
        for _ in range(100):
            await fabric.connect(*listener.address, lambda endpoint: None)
        assert len(fabric.endpoints) == 200
        assert sum(transport.receives.memory for transport in listener.transports) <= 100 * 2048
        async with asyncio.timeout(PATIENCE):
            while fabric.endpoints or listener.transports:
                await asyncio.sleep(0.01)
        await listener.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_closing_a_listener_ends_negotiations_only() -> None:
    async def scenario(near: End, far: End) -> None:
        near.transport.send([b"still here"])
        assert await far.received(1) == [b"still here"]

    run(scenario)

    async def main() -> None:
        fabric = LoopbackProvider()
        listener = await listen(fabric, "127.0.0.1", 0, lambda transport: None)
        await fabric.connect(*listener.address, lambda endpoint: None)
        await listener.close()
        async with asyncio.timeout(PATIENCE):
            while fabric.endpoints:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_connect_to_nobody() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost):
            await connect(LoopbackProvider(), "127.0.0.1", 5445)

    asyncio.run(main())


def test_connect_reports_a_refused_negotiation() -> None:
    """The acceptor ends the connection instead of answering."""

    async def main() -> None:
        fabric = LoopbackProvider()

        def on_request(request: Any) -> None:
            endpoint = request.prepare()
            endpoint.post_receive(memoryview(bytearray(512)))
            endpoint.on_completions = lambda completions: endpoint.abort()
            tasks.append(asyncio.ensure_future(request.accept()))

        tasks: list[Any] = []
        listener = await fabric.listen("127.0.0.1", 0, on_request)
        with pytest.raises(ConnectionLost):
            await connect(fabric, *listener.address)
        await asyncio.gather(*tasks)
        assert not fabric.endpoints

    asyncio.run(main())


def test_failing_upper_layer_loses_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(near: End, far: End) -> None:
        def fail(message: bytes) -> None:
            raise KeyError("bug")

        far.reply = fail
        near.transport.send([b"one"])
        near.transport.send([b"two"])
        assert isinstance(await far.end(), KeyError)
        await near.end()
        assert far.messages == [b"one"]

    run(scenario)
    assert "handling a message failed" in caplog.text


def test_small_receive_queue() -> None:
    async def scenario(near: End, far: End) -> None:
        far.reply = lambda message: far.transport.send([message * 2])
        for index in range(30):
            near.transport.send([pattern(3000, index)])
        assert await near.received(30) == [pattern(3000, index) * 2 for index in range(30)]

    run(scenario, LoopbackProvider(replace(CAPABILITIES, max_receive_queue=10)))


def test_message_longer_than_the_peer_takes_is_refused_locally() -> None:
    async def scenario(near: End, far: End) -> None:
        assert near.transport.max_outbound_message_size == 131_072
        with pytest.raises(ValueError):
            near.transport.send([bytes(131_073)])
        near.transport.send([bytes(131_072)])
        assert await far.received(1) == [bytes(131_072)]

    run(scenario, server=Settings(max_fragmented_receive_size=131_072))


def test_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smbdirect.transport.smb_direct.CLOSE_TIMEOUT", 0.01)

    async def scenario(near: End, far: End) -> None:
        far.transport._completed = lambda completions: None
        far.transport.endpoint.on_completions = far.transport._completed
        sent: list[int] = []
        near.transport.send([bytes(1_000_000)], on_sent=lambda: sent.append(1))
        near.transport.close()
        assert await near.end() is None
        assert sent == [1]
        assert near.transport.pending_send_bytes == 0

    run(scenario)


def test_post_that_fails_reports_everything() -> None:
    async def scenario(near: End, far: End) -> None:
        calls: list[Any] = []

        def refuse(requests: Any) -> None:
            raise ProviderError("broken")

        far.transport.endpoint.post = refuse
        registered = near.transport.rdma.register(memoryview(bytearray(64)), writable=True)
        far.transport.rdma.write_to_peer(registered.descriptors, [bytes(64)], calls.append)
        far.transport.send([b"x"], on_sent=lambda: calls.append("sent"))
        await far.end()
        await near.end()
        assert len(calls) == 2
        assert calls[0] == "sent"
        assert isinstance(calls[1], ConnectionLost)

    run(scenario)


def test_transfer_after_the_end_reports_an_error() -> None:
    async def scenario(near: End, far: End) -> None:
        registered = near.transport.rdma.register(memoryview(bytearray(64)), writable=True)
        descriptors = registered.descriptors
        far.transport.abort()
        calls: list[Any] = []
        far.transport.rdma.write_to_peer(descriptors, [bytes(64)], calls.append)
        far.transport.rdma.read_from_peer(descriptors, [memoryview(bytearray(64))], calls.append)
        assert calls == []
        await far.end()
        await asyncio.sleep(0)
        assert all(isinstance(call, ConnectionLost) for call in calls)
        assert len(calls) == 2

    run(scenario)


def test_messages_wait_for_start() -> None:
    """Between establishment and ``start`` nothing is lost, not even the end."""

    async def main() -> None:
        fabric = LoopbackProvider()
        handed: list[SmbDirectTransport] = []
        listener = await listen(fabric, "127.0.0.1", 0, handed.append)
        near = End(await connect(fabric, *listener.address))
        near.transport.send([b"early"])
        near.transport.send([b"bird"])
        async with asyncio.timeout(PATIENCE):
            while not handed or len(handed[0]._backlog) < 2:
                await asyncio.sleep(0)
        far = End(handed[0])
        assert await far.received(2) == [b"early", b"bird"]
        far.transport.detach()
        near.transport.abort()
        await near.end()
        async with asyncio.timeout(PATIENCE):
            while fabric.endpoints or far.transport.life is not Life.ENDED:
                await asyncio.sleep(0)
        late = End(far.transport)
        assert await late.end() is None
        await listener.close()

    asyncio.run(main())


def test_messages_that_could_not_be_registered_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(near: End, far: End) -> None:
        cache = near.transport.rdma.cache
        gathered = cache.gathered
        left = [3]

        def refusing(segments: Any, length: int) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise ProviderError("no more memory")
            return gathered(segments, length)

        monkeypatch.setattr(cache, "gathered", refusing)
        sent: list[int] = []
        near.transport.work.corked = True
        for number in range(6):
            near.transport.send([pattern(100)], on_sent=lambda number=number: sent.append(number))
        near.transport.work.corked = False
        near.transport.send([pattern(100)], on_sent=lambda: sent.append(6))
        assert isinstance(await near.end(), ProviderError)
        assert sorted(sent) == list(range(7))
        assert near.transport.pending_send_bytes == 0

    run(scenario, FABRICS["registering"]())
