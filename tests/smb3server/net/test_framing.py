"""Messages in a stream of bytes, without a socket."""

from __future__ import annotations

import random

import pytest

from smb3server.net.framing import LARGE_MESSAGE, MESSAGES_PER_TURN, Receiver
from smbdirect.message_transport import InboundMessage
from smbdirect.rdma.pool import BufferPool

LIMIT = 1 << 20


class Stream:
    """Gives a receiver bytes in pieces, as a socket or another stream does."""

    def __init__(self, pieces: list[bytes], trusted: bool = True) -> None:
        self.pieces = pieces
        self.found: list[bytes] = []
        self.turns = 0
        self.receiver = Receiver("192.0.2.1", BufferPool(), 4096, None, self._next_turn, self._abort)
        self.receiver.on_message = self._take
        self.receiver.delivering = True
        if trusted:
            self.receiver.trust(LIMIT)

    def _take(self, message: InboundMessage) -> None:
        self.found.append(bytes(message.view))
        message.release()

    def _next_turn(self) -> None:
        self.turns += 1

    def _abort(self, reason: str) -> None:
        raise AssertionError(reason)

    def _receive_into(self, room: memoryview) -> int:
        if not self.pieces:
            return 0
        piece = self.pieces[0][: len(room)]
        room[: len(piece)] = piece
        self.pieces[0] = self.pieces[0][len(piece) :]
        if not self.pieces[0]:
            del self.pieces[0]
        return len(piece)

    def run(self) -> None:
        """Receive to the end."""
        while True:
            self.receiver.left = MESSAGES_PER_TURN
            if self.receiver.end - self.receiver.start >= 4:
                self.receiver.deliver()
            self.receiver.receive(self._receive_into)


def framed(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_messages_are_the_same_however_the_stream_is_cut(seed: int, trusted: bool) -> None:
    draw = random.Random(seed)
    largest = 3 * LARGE_MESSAGE if trusted else 4096
    messages = [draw.randbytes(draw.choice([0, 1, 68, 300, draw.randrange(largest)])) for _ in range(200)]
    data = framed(*messages)
    pieces = []
    while data:
        count = draw.choice([1, 3, 4, 5, 100, 5000, 70_000])
        pieces.append(data[:count])
        data = data[count:]
    stream = Stream(pieces, trusted)
    with pytest.raises(EOFError):
        stream.run()
    assert stream.found == messages
    assert stream.receiver.bytes_received == len(framed(*messages))


@pytest.mark.parametrize("data", [b"\0", framed(b"abc")[:-1], framed(bytes(LARGE_MESSAGE))[:-1]])
def test_an_end_within_a_message_is_an_error(data: bytes) -> None:
    stream = Stream([framed(b"first") + data])
    with pytest.raises(ConnectionResetError):
        stream.run()
    assert stream.found == [b"first"]


@pytest.mark.parametrize(("limit", "fits"), [(LIMIT, True), (LIMIT + 1, False)])
def test_the_longest_message(limit: int, fits: bool) -> None:
    stream = Stream([framed(bytes(limit))])
    with pytest.raises(EOFError if fits else ConnectionAbortedError):
        stream.run()
    assert len(stream.found) == fits


def test_what_is_no_direct_tcp_message() -> None:
    with pytest.raises(ConnectionAbortedError, match="not a direct-TCP message"):
        Stream([b"GET / HTTP/1.1\r\n"]).run()


def test_a_turn_has_an_end() -> None:
    stream = Stream([framed(*[b"x"] * (2 * MESSAGES_PER_TURN + 1))])
    stream.receiver.left = MESSAGES_PER_TURN
    assert stream.receiver.receive(stream._receive_into) is False
    assert (len(stream.found), stream.turns, stream.receiver.can_go_on) == (MESSAGES_PER_TURN, 1, True)


def test_nothing_is_delivered_to_who_wants_nothing() -> None:
    stream = Stream([framed(b"a", b"b")])
    stream.receiver.left = MESSAGES_PER_TURN
    stream.receiver.delivering = False
    stream.receiver.receive(stream._receive_into)
    assert stream.found == [] and stream.receiver.can_go_on
    stream.receiver.delivering = True
    stream.receiver.deliver()
    assert stream.found == [b"a", b"b"]


def test_a_single_message_is_left_to_who_wants_nothing() -> None:
    stream = Stream([framed(b"a")])
    stream.receiver.left = MESSAGES_PER_TURN
    stream.receiver.delivering = False
    stream.receiver.receive(stream._receive_into)
    assert stream.found == [] and stream.receiver.can_go_on


def test_single_messages_end_a_turn_as_well() -> None:
    stream = Stream([framed(b"x")] * (MESSAGES_PER_TURN + 1))
    stream.receiver.left = MESSAGES_PER_TURN
    for _ in range(MESSAGES_PER_TURN + 1):
        stream.receiver.receive(stream._receive_into)
    assert (len(stream.found), stream.turns, stream.receiver.can_go_on) == (MESSAGES_PER_TURN, 1, True)


def test_a_message_is_alone_if_it_came_whole_and_nothing_came_with_it() -> None:
    one, two, cut = framed(b"one"), framed(b"two", b"three"), framed(b"four")
    stream = Stream([one, two, cut[:6], cut[6:], one])
    receiver, alone = stream.receiver, []

    def take(message: InboundMessage) -> None:
        alone.append((bytes(message.view), receiver.alone))

    receiver.on_message = take
    with pytest.raises(EOFError):
        stream.run()
    assert alone == [(b"one", True), (b"two", False), (b"three", False), (b"four", False), (b"one", True)]
    assert not receiver.alone


def test_a_message_that_fails_is_not_delivered_again() -> None:
    stream = Stream([framed(b"bad"), framed(b"good")])
    receiver, take = stream.receiver, stream.receiver.on_message

    def fail(message: InboundMessage) -> None:
        receiver.on_message = take
        raise ValueError

    receiver.on_message, receiver.left = fail, MESSAGES_PER_TURN
    with pytest.raises(ValueError):
        receiver.receive(stream._receive_into)
    assert not receiver.alone
    receiver.receive(stream._receive_into)
    assert stream.found == [b"good"]
