"""Data transfer: MS-SMBD 3.1.4.2, 3.1.5.4, 3.1.5.5, 3.1.5.8, and keepalive, 3.1.2.2 and 3.1.6.2."""

from __future__ import annotations

import pytest

from smbdirect.core.connection import Keepalive, Role
from smbdirect.core.messages import DATA_TRANSFER, MessageReceived
from smbdirect.core.settings import Settings
from smbdirect.errors import TimerExpired
from tests.lab.cores import START, Subject, client, data, server

RULE = "3.1.5.8"
MAX_RECEIVE = 1024
MAX_FRAGMENTED = 131_072


def small() -> Subject:
    """A server that receives 1024 bytes a message and 128 KiB a fragmented one, as the published cases have it."""
    return server(Settings(max_receive_size=MAX_RECEIVE, max_fragmented_receive_size=MAX_FRAGMENTED))


def payload(event: object) -> bytes:
    assert isinstance(event, MessageReceived)
    content = bytes(event.view)
    if event.buffer is not None:
        event.buffer.release()
    return content


# -- receiving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 8, 500, 1000])
def test_bvt_smbd_data_transfer_basic_send_small_bytes_of_data(size: int) -> None:
    subject = small()
    event = subject.receive(data(bytes(range(250)) * 4)[: 24 + size] if size > 999 else data(b"x" * size))
    assert len(payload(event)) == size
    assert isinstance(event, MessageReceived)
    assert event.buffer is None


def test_single_fragment_is_not_copied() -> None:
    subject = small()
    receive = memoryview(bytearray(data(b"payload")))
    event = subject.core.receive_message(receive, START)
    assert isinstance(event, MessageReceived)
    assert event.view.obj is receive.obj


def fragments(content: bytes, size: int) -> list[bytes]:
    messages = []
    for start in range(0, len(content), size):
        piece = content[start : start + size]
        messages.append(data(piece, granted=1, remaining=len(content) - start - len(piece)))
    return messages


@pytest.mark.parametrize("size", [1000, 999, 17])
def test_bvt_smbd_data_transfer_basic_send_moderate_bytes_data(size: int) -> None:
    subject = small()
    content = bytes(index & 0xFF for index in range(20_000))
    events = []
    for message in fragments(content, size):
        events.append(subject.receive(message))
        subject.pump()
    assert events[:-1] == [None] * (len(events) - 1)
    assert payload(events[-1]) == content
    assert subject.pool.lent == 0


def test_smbd_data_transfer_variable_length_segment() -> None:
    subject = small()
    content = bytes(index * 3 & 0xFF for index in range(6000))
    position = 0
    event = None
    for size in (1, 1000, 3, 512, 999, 1000, 8, 1000, 1000, 477):
        piece = content[position : position + size]
        position += size
        event = subject.receive(data(piece, granted=1, remaining=len(content) - position))
        subject.pump()
    assert payload(event) == content


def test_smbd_data_transfer_small_length_segment() -> None:
    subject = small()
    event = None
    for message in fragments(b"one byte at a time", 1):
        event = subject.receive(message)
        subject.pump()
    assert payload(event) == b"one byte at a time"


def test_smbd_data_transfer_redundancy() -> None:
    """Bytes behind the payload are ignored."""
    subject = small()
    assert payload(subject.receive(data(b"payload") + b"redundant")) == b"payload"


def test_smbd_data_transfer_receive_max_receive_size() -> None:
    subject = small()
    assert len(payload(subject.receive(data(bytes(MAX_RECEIVE - 24))))) == 1000


@pytest.mark.parametrize("length", [0, 1, 19])
def test_smbd_data_transfer_uncompleted_message(length: int) -> None:
    small().refuses(data(b"payload")[:length], RULE)


def test_shortest_message() -> None:
    assert small().receive(data()) is None


@pytest.mark.parametrize("offset", [1, 4, 20, 23, 25, 31])
def test_smbd_data_transfer_negative_parameter_data_offset_against_8_byte_aligned(offset: int) -> None:
    small().refuses(data(b"x" * 64, data_offset=offset, data_length=1), RULE)
    small().refuses(data(data_offset=offset), RULE)


@pytest.mark.parametrize("offset", [0, 8, 16])
def test_data_offset_inside_the_header(offset: int) -> None:
    """2.2.3: the payload follows the header."""
    small().refuses(data(b"x" * 64, data_offset=offset), "2.2.3")


@pytest.mark.parametrize("offset", [24, 32, 80])
def test_data_offset_may_lie_further_behind(offset: int) -> None:
    message = data(b"abcdefgh" * 8, data_offset=offset, data_length=8)
    assert payload(small().receive(message)) == b"abcdefgh"


@pytest.mark.parametrize("offset", [96, 1024, 0xFFFFFFF8])
def test_smbd_data_transfer_negative_parameter_data_offset_against_message_length(offset: int) -> None:
    small().refuses(data(b"x" * 64, data_offset=offset), RULE)


@pytest.mark.parametrize("length", [65, 1000, 0xFFFFFFE8, 0xFFFFFFFF])
def test_smbd_data_transfer_negative_parameter_data_length_against_message_length(length: int) -> None:
    small().refuses(data(b"x" * 64, data_length=length), RULE)


def test_smbd_data_transfer_negative_parameter_data_length_against_max_receive_size() -> None:
    small().refuses(data(bytes(MAX_RECEIVE - 24 + 1)), "3.1.5.4")


@pytest.mark.parametrize("remaining", [MAX_FRAGMENTED - 64 + 1, MAX_FRAGMENTED, 0xFFFFFFFF])
def test_smbd_data_transfer_negative_parameter_against_max_fragmented_size(remaining: int) -> None:
    small().refuses(data(b"x" * 64, remaining=remaining), RULE)


def test_largest_message() -> None:
    subject = small()
    assert subject.receive(data(b"x" * 64, remaining=MAX_FRAGMENTED - 64)) is None
    assert subject.pool.lent == MAX_FRAGMENTED
    subject.core.close()
    assert subject.pool.lent == 0


@pytest.mark.parametrize("remaining", [MAX_FRAGMENTED + 1, 0xFFFFFFFF])
def test_smbd_data_transfer_negative_parameter_remaining_data_length_against_max_fragmented_size(
    remaining: int,
) -> None:
    small().refuses(data(remaining=remaining), RULE)


@pytest.mark.parametrize("length", [1, 99, 101])
def test_smbd_data_transfer_negative_parameter_remaining_data_length_zero(length: int) -> None:
    """The last fragment must complete the message."""
    subject = small()
    subject.receive(data(b"x" * 100, remaining=100))
    subject.pump()
    subject.refuses(data(b"x" * length), RULE)


@pytest.mark.parametrize("remaining", [99, 101, 200])
def test_smbd_data_transfer_negative_parameter_remaining_data_length_against_fragment_reassembly_remaining(
    remaining: int,
) -> None:
    subject = small()
    subject.receive(data(b"x" * 100, remaining=200))
    subject.pump()
    subject.refuses(data(b"x" * 100, remaining=remaining), RULE)


def test_credits_requested_zero() -> None:
    small().refuses(data(b"x", requested=0), RULE)
    small().refuses(data(requested=0), RULE)


def test_empty_message_between_fragments_carries_only_credits() -> None:
    """Linux may send one there; it neither ends nor breaks the message."""
    subject = small()
    subject.receive(data(b"first ", remaining=6))
    subject.pump()
    before = subject.core.credits.send_credits
    assert subject.receive(data(granted=3)) is None
    assert subject.core.credits.send_credits == before + 3
    assert payload(subject.receive(data(b"second"))) == b"first second"


def test_local_limit_is_checked_before_anything_is_stored() -> None:
    """Not in spec: what an unauthenticated peer may make us hold."""
    subject = small()
    subject.core.max_message_size = 4096
    subject.receive(data(b"x" * 96, remaining=4000))
    subject.pump()
    assert subject.pool.lent == 4096
    other = small()
    other.core.max_message_size = 4096
    other.refuses(data(b"x" * 97, remaining=4000), "local")


def test_reserved_and_unknown_flags_are_ignored() -> None:
    subject = small()
    assert payload(subject.receive(data(b"x", reserved=0xFFFF, flags=0xFFFE))) == b"x"
    assert not subject.core.send_immediate


def test_invalidated_token_is_passed_up_and_cleared() -> None:
    """3.1.5.8: with any fragment, the last one wins, once."""
    subject = small()
    subject.receive(data(b"a", remaining=2), invalidated=1)
    subject.receive(data(b"b", remaining=1), invalidated=2)
    event = subject.receive(data(b"c"))
    assert isinstance(event, MessageReceived)
    assert event.invalidated == 2
    assert payload(event) == b"abc"
    event = subject.receive(data(b"d"))
    assert isinstance(event, MessageReceived)
    assert event.invalidated is None


# -- sending -----------------------------------------------------------------------------------------------------------


def test_data_offset_24_and_padding_zero() -> None:
    subject = server()
    subject.core.send_message([b"pay", b"load"])
    (message,) = subject.pump()
    header = DATA_TRANSFER.unpack(message)
    assert (header.data_offset, header.data_length, header.remaining_data_length) == (24, 7, 0)
    assert (header.flags, header.reserved) == (0, 0)
    assert message[20:24] == bytes(4)
    assert message[24:] == b"payload"


@pytest.mark.parametrize(("size", "count"), [(999, 1), (1000, 1), (1001, 2), (2000, 2), (2001, 3)])
def test_fragments_fill_max_send_size(size: int, count: int) -> None:
    """3.1.5.4."""
    subject = server(grant=50)
    content = bytes(index & 0xFF for index in range(size))
    subject.core.send_message([content[:10], content[10:]], invalidate=99)
    messages = subject.pump()
    assert len(messages) == count
    assert all(len(message) <= 1024 for message in messages)
    headers = subject.headers(messages)
    left = size
    for header in headers:
        left -= header.data_length
        assert header.remaining_data_length == left
        assert header.data_offset == 24
    assert left == 0
    assert b"".join(message[24:] for message in messages) == content
    # "with exactly one segment"
    assert subject.tokens[-count:] == [None] * (count - 1) + [99]


def test_message_longer_than_the_peer_reassembles() -> None:
    """3.1.4.2: a local error, and nothing is queued."""
    subject = server()
    with pytest.raises(ValueError):
        subject.core.send_message([bytes(131_072), b"x"])
    assert not subject.core.send_queue
    assert subject.core.send_message([bytes(131_072)]) == 131_072


def test_empty_upper_layer_message() -> None:
    """3.1.5.4: no padding, no buffer, offsets zero."""
    subject = server()
    subject.core.send_message([])
    (message,) = subject.pump()
    assert len(message) == 20
    header = DATA_TRANSFER.unpack(message)
    assert (header.remaining_data_length, header.data_offset, header.data_length) == (0, 0, 0)


def test_more_pieces_than_a_send_may_have() -> None:
    subject = server(Settings(max_send_segments=3), grant=50)
    subject.core.send_message([b"a", b"", b"b", b"c", b"", b"d", b"e", b""])
    messages = subject.pump()
    assert [message[24:] for message in messages] == [b"ab", b"cd", b"e"]


def test_messages_keep_their_order() -> None:
    subject = server(grant=50)
    for index in range(10):
        subject.core.send_message([b"%d" % index], context=index)
    assert [message[24:] for message in subject.pump()] == [b"%d" % index for index in range(10)]


# -- keepalive ---------------------------------------------------------------------------------------------------------


def test_smbd_data_transfer_idle_connection_client() -> None:
    """3.1.5.8: a keepalive is answered promptly, though nothing else is to be sent."""
    subject = server()
    assert subject.receive(data(flags=1)) is None
    (header,) = subject.headers(subject.pump())
    assert (header.data_length, header.remaining_data_length) == (0, 0)
    assert header.flags == 0
    assert subject.pump() == []


def test_keepalive_is_answered_by_waiting_data() -> None:
    subject = server()
    subject.receive(data(flags=1))
    subject.core.send_message([b"data"])
    (message,) = subject.pump()
    assert message[24:] == b"data"
    assert not subject.core.send_immediate


@pytest.mark.parametrize("make", [server, client])
def test_smbd_data_transfer_idle_connection_server(make: type) -> None:
    """3.1.6.2: after KeepaliveInterval a message asks for a response; any message answers."""
    subject: Subject = make()
    assert subject.core.next_deadline() == START + 120
    subject.core.handle_timer(START + 119.9)
    assert subject.pump() == []
    subject.now = START + 120
    subject.core.handle_timer(subject.now)
    (header,) = subject.headers(subject.pump())
    assert header.flags == 1
    assert header.data_length == 0
    assert subject.core.keepalive_requested is Keepalive.SENT
    assert subject.core.next_deadline() == START + 125
    subject.now = START + 124.9
    subject.receive(data())
    assert subject.core.keepalive_requested is Keepalive.NONE
    assert subject.core.next_deadline() == START + 124.9 + 120


def test_smbd_data_transfer_idle_connection_server_timeout() -> None:
    """3.1.6.2: unanswered, the connection is terminated."""
    subject = server()
    subject.now = START + 120
    subject.core.handle_timer(subject.now)
    subject.pump()
    subject.core.handle_timer(START + 124.9)
    with pytest.raises(TimerExpired):
        subject.core.handle_timer(START + 125)
    assert subject.core.role is Role.CLOSED


def test_keepalive_goes_with_queued_data() -> None:
    subject = server()
    subject.now = START + 120
    subject.core.handle_timer(subject.now)
    subject.core.send_message([b"data"])
    subject.core.send_message([b"more"])
    assert [header.flags for header in subject.headers(subject.pump())] == [1, 0]


def test_every_message_restarts_the_idle_timer() -> None:
    """3.1.5.5."""
    subject = server()
    subject.now = START + 100
    subject.receive(data(b"x"))
    assert subject.core.next_deadline() == START + 220


def test_shorter_keepalive_interval_counts_at_once_and_a_longer_one_later() -> None:
    """3.1.6.2 leaves the interval to the implementation: it is short while other connections stand in for this one."""
    subject = server()
    subject.core.set_keepalive_interval(10.0, START + 5)
    assert subject.core.next_deadline() == START + 15
    subject.now = START + 15
    subject.core.handle_timer(subject.now)
    (header,) = subject.headers(subject.pump())
    assert header.flags == 1
    # A keepalive under way keeps its own time-out.
    subject.core.set_keepalive_interval(1.0, START + 16)
    assert subject.core.next_deadline() == START + 20
    subject.now = START + 17
    subject.receive(data())
    assert subject.core.next_deadline() == START + 18
    subject.core.set_keepalive_interval(120.0, START + 17)
    assert subject.core.next_deadline() == START + 18
    subject.receive(data())
    assert subject.core.next_deadline() == START + 137
