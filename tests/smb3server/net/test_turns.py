"""How connections over TCP share the event loop: who has sent many messages does not keep the others waiting."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from smb3server.net.framing import MESSAGES_PER_TURN
from smb3server.net.tcp import TcpTransport
from smbdirect.message_transport import InboundMessage
from smbdirect.rdma.pool import BufferPool

MANY = 5 * MESSAGES_PER_TURN + 7


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


class Lines:
    """Connections that note what they receive in one list, and answer each message with the same bytes."""

    def __init__(self) -> None:
        self.received: list[tuple[int, bytes]] = []
        self.peers: list[socket.socket] = []
        self.transports: list[TcpTransport] = []
        self.ended: list[BaseException | None] = []
        self.pool = BufferPool()

    def add(self, *messages: bytes) -> TcpTransport:
        """Make a connection whose peer has sent ``messages`` before the loop looks at it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            peer = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        peer.sendall(b"".join(map(framed, messages)))
        number = len(self.peers)
        self.peers.append(peer)
        transport = TcpTransport(accepted, self.pool, 4096)
        transport.trust(65536)
        self.transports.append(transport)

        def take(inbound: InboundMessage) -> None:
            message = bytes(inbound.view)
            self.received.append((number, message))
            transport.send((message,))
            inbound.release()

        transport.start(take, self.ended.append)
        return transport

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)

    def close(self) -> None:
        for transport in self.transports:
            transport.abort()
        for peer in self.peers:
            peer.close()


def play(test: Callable[[Lines], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        lines = Lines()
        try:
            await test(lines)
        finally:
            lines.close()
            await asyncio.sleep(0)

    asyncio.run(main())


NUMBERED = [b"message %d" % number for number in range(MANY)]


@pytest.mark.parametrize("busy", [1, 3])
def test_a_single_message_does_not_wait_for_all_messages_of_others(busy: int) -> None:
    async def test(lines: Lines) -> None:
        for _ in range(busy):
            lines.add(*NUMBERED)
        lines.add(b"alone")
        await lines.until(lambda: len(lines.received) == busy * MANY + 1)
        assert lines.received.index((busy, b"alone")) <= busy * MESSAGES_PER_TURN
        for number in range(busy):
            assert [message for line, message in lines.received if line == number] == NUMBERED

    play(test)


def test_the_answers_of_a_turn_are_sent_before_the_next_turn() -> None:
    async def test(lines: Lines) -> None:
        transport = lines.add(*NUMBERED)
        await lines.until(lambda: len(lines.received) >= MESSAGES_PER_TURN)
        assert len(lines.received) == MESSAGES_PER_TURN
        assert transport.pending_send_bytes == 0
        expected = b"".join(map(framed, NUMBERED[:MESSAGES_PER_TURN]))
        assert lines.peers[0].recv(len(expected), socket.MSG_WAITALL) == expected

    play(test)


def test_a_connection_that_is_paused_between_turns_goes_on_where_it_stopped() -> None:
    async def test(lines: Lines) -> None:
        transport = lines.add(*NUMBERED)
        await lines.until(lambda: len(lines.received) >= MESSAGES_PER_TURN)
        transport.pause_reading()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(lines.received) == MESSAGES_PER_TURN
        transport.resume_reading()
        await lines.until(lambda: len(lines.received) == MANY)
        assert [message for _, message in lines.received] == NUMBERED

    play(test)


@pytest.mark.parametrize("end", ["abort", "close", "gone"])
def test_nothing_is_delivered_after_an_end_between_turns(end: str) -> None:
    async def test(lines: Lines) -> None:
        transport = lines.add(*NUMBERED)
        await lines.until(lambda: len(lines.received) >= MESSAGES_PER_TURN)
        if end == "gone":
            lines.peers[0].close()
            # What it had sent is delivered, and then its end.
            await lines.until(lambda: bool(lines.ended))
            return
        getattr(transport, end)()
        await lines.until(lambda: bool(lines.ended))
        assert len(lines.received) == MESSAGES_PER_TURN

    play(test)


def test_a_long_message_behind_many_short_ones_arrives_after_them() -> None:
    async def test(lines: Lines) -> None:
        lines.add(*NUMBERED, b"x" * 40000, b"last")
        await lines.until(lambda: len(lines.received) == MANY + 2)
        assert [message for _, message in lines.received] == [*NUMBERED, b"x" * 40000, b"last"]

    play(test)


class Ends:
    """Asks for the end of a turn at the first message of each connection, and notes how many messages came before."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.called: list[int] = []
        self.promised: list[bool] = []

    def ask(self, transport: TcpTransport) -> None:
        deliver = transport._receiver.on_message

        def take(inbound: InboundMessage) -> None:
            deliver(inbound)
            self.promised.append(transport.at_end_of_turn(lambda: self.called.append(len(self.lines.received))))
            if self.lines.received[-1][1] == b"abort":
                transport.abort()

        transport._receiver.on_message = take


def test_the_end_of_a_turn_comes_after_its_messages_and_before_the_next_turn() -> None:
    async def test(lines: Lines) -> None:
        ends = Ends(lines)
        for _ in range(2):
            ends.ask(lines.add(*NUMBERED))
        await lines.until(lambda: len(lines.received) == 2 * MANY)
        turns = MANY // MESSAGES_PER_TURN
        assert ends.called[: 2 * turns] == [MESSAGES_PER_TURN * number for number in range(1, 2 * turns + 1)]
        assert ends.called[-1] == 2 * MANY

    play(test)


def test_a_message_with_none_behind_it_is_promised_no_end_of_its_turn() -> None:
    async def test(lines: Lines) -> None:
        ends = Ends(lines)
        ends.ask(lines.add(b"first", b"last"))
        await lines.until(lambda: len(lines.received) == 2)
        assert ends.promised == [True, False]
        assert ends.called == [2]
        assert not lines.transports[0].at_end_of_turn(lambda: None)

    play(test)


def test_the_end_of_the_connection_ends_the_turn() -> None:
    async def test(lines: Lines) -> None:
        ends = Ends(lines)
        transport = lines.add(b"first", b"abort", b"never")
        ends.ask(transport)
        transport._sender.marks.append((1 << 60, lambda: ends.called.append(-1)))
        await lines.until(lambda: bool(lines.ended))
        assert ends.called == [2, -1]

    play(test)


def test_an_answer_with_nothing_behind_it_is_sent_at_once() -> None:
    async def test(lines: Lines) -> None:
        transport = lines.add()
        sent: list[int] = []
        answer = transport._on_message

        def take(inbound: InboundMessage) -> None:
            answer(inbound)
            sent.append(transport.counters["bytes_sent"])

        transport.show_received(None)
        transport._receiver.on_message = take
        for messages in ([b"alone"], [b"first", b"second", b"third"]):
            lines.peers[0].sendall(b"".join(map(framed, messages)))
            await lines.until(lambda: len(lines.received) in (1, 4))
        await lines.until(lambda: len(sent) == 4)
        # Those that have others behind them wait for them, and those that wait are not overtaken.
        assert sent == [9, 9, 9, 9]
        assert lines.peers[0].recv(9 + 9 + 10 + 9, socket.MSG_WAITALL) == b"".join(
            map(framed, (b"alone", b"first", b"second", b"third"))
        )

    play(test)


@pytest.mark.parametrize("long", ["messages", "answers"])
def test_an_answer_does_not_wait_for_long_messages_and_behind_long_answers(long: str) -> None:
    """The client has something to do while the server works on the next message."""

    async def test(lines: Lines) -> None:
        transport = lines.add()
        before: list[int] = []
        answer = b"short" if long == "messages" else bytes(200_000)
        messages = [bytes(40_000)] * 2 if long == "messages" else [b"first", b"second"]

        def take(inbound: InboundMessage) -> None:
            before.append(transport.counters["bytes_sent"])
            inbound.release()
            transport.send((answer,))

        transport.show_received(None)
        transport._receiver.on_message = take
        lines.peers[0].sendall(b"".join(map(framed, messages)))
        await lines.until(lambda: len(before) == 2)
        assert before[0] == 0
        assert before[1] > 0
        if long == "messages":
            assert before[1] == len(framed(answer))

    play(test)


def test_what_the_socket_does_not_accept_at_once_is_sent_later() -> None:
    async def test(lines: Lines) -> None:
        transport = lines.add()
        transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        expected = b""
        for number in range(10_000):
            message = b"%d" % number * 2000
            expected += framed(message)
            lines.peers[0].sendall(framed(message))
            await lines.until(lambda number=number: len(lines.received) == number + 1)  # type: ignore[misc]
            if transport.pending_send_bytes > 50_000:
                break
        assert transport.pending_send_bytes > 50_000
        peer = lines.peers[0]
        peer.setblocking(False)
        found = b""
        while len(found) < len(expected):
            found += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 1 << 20), 10)
        assert found == expected
        assert transport.pending_send_bytes == 0

    play(test)


def test_an_answer_that_cannot_be_sent_ends_the_connection_once() -> None:
    async def test(lines: Lines) -> None:
        transport = lines.add()
        peer = lines.peers[0]
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        def take(inbound: InboundMessage) -> None:
            peer.close()
            transport.send((b"answer",))
            transport.send((b"another",))

        transport._receiver.on_message = take
        peer.sendall(framed(b"request"))
        await lines.until(lambda: bool(lines.ended))
        assert len(lines.ended) == 1
        assert isinstance(lines.ended[0], OSError)
        assert transport.pending_send_bytes == 0

    play(test)
