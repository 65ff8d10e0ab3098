"""The short way for whole messages does what the general one does, and leaves alone what it does not know."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from smbdirect.codec import Buffer
from smbdirect.core.connection import Keepalive, Role
from smbdirect.core.messages import DATA_TRANSFER, DataTransfer, MessageReceived
from smbdirect.core.settings import Settings
from smbdirect.errors import ProtocolError
from smbdirect.providers.base import Completion, Operation, Send, Status
from tests.lab.cores import Subject, acceptor, data, server, short_calls


def pair() -> list[Subject]:
    return [server(Settings(max_receive_size=1024, max_fragmented_receive_size=131_072)) for _ in range(2)]


def state(subject: Subject) -> dict[str, Any]:
    """Everything that a message may change."""
    core, credits = subject.core, subject.core.credits
    found: dict[str, Any] = {name: getattr(credits, name) for name in credits.__slots__}
    names = ("role", "keepalive_requested", "send_immediate", "invalidated_token", "idle_deadline", "_credit_deadline")
    found.update({name: getattr(core, name) for name in names})
    return found | {"lent": subject.pool.lent, "deadline": core.next_deadline()}


def a_message(chance: random.Random, subject: Subject) -> bytes:
    """Mostly an ordinary one, and otherwise one that is nearly ordinary."""
    payload = chance.randbytes(chance.choice([0, 1, 7, 100, 1000]))
    target = subject.core.credits.receive_credit_target
    header = DataTransfer(target, chance.randrange(3), 0, 0, 0, 24, len(payload))
    if chance.random() < 0.5:
        field = chance.choice(DataTransfer._fields)
        header = header._replace(**{field: chance.choice([0, 1, 8, 20, 24, 32, 100, 1000, 2000, 0xFFFF])})
    return DATA_TRANSFER.pack(header) + bytes(4) + payload[: chance.choice([1000, 1000, 1000, 3])]


class Memory:
    """The memory of one receive."""

    def __init__(self, view: memoryview) -> None:
        self.view = view


class Taken:
    """A message that was received by the short way."""

    __slots__ = ("buffer", "invalidated", "transport", "view")

    def __init__(self, transport: object, view: memoryview, buffer: Memory, invalidated: int | None) -> None:
        self.transport, self.view, self.buffer, self.invalidated = transport, view, buffer, invalidated


KIND = Role.ESTABLISHED, Keepalive.NONE, Operation.RECEIVE, Status.OK
OTHER = Completion(Operation.SEND, Status.OK, "of a Send")


def received(message: Buffer, status: Status = Status.OK, token: int | None = None) -> Completion:
    """A completed receive in memory of 2000 bytes."""
    memory = memoryview(bytearray(bytes(message).ljust(2000, b"\xaa")))
    return Completion(Operation.RECEIVE, status, Memory(memory), len(message), token)


Take = Callable[..., list[Any]]


def taken_by(calls: ModuleType, subject: Subject, *items: Completion) -> list[Any]:
    """What is in the place of ``items`` after the short way."""
    found, count, size = calls.accepted(subject.core, KIND, items, Taken, "owner", subject.now)
    taken = [item for item in found if type(item) is Taken]
    assert (count, size) == (len(taken), sum(len(item.view) for item in taken))
    assert len(found) == len(items)
    for item, completion in zip(found, items, strict=True):
        if type(item) is Taken:
            assert (item.transport, item.buffer, item.invalidated) == ("owner", completion.context, None)
            assert item.view.obj is item.buffer.view.obj
        else:
            assert item is completion
    return found


@pytest.fixture(params=["python", "c"])
def calls(request: pytest.FixtureRequest) -> ModuleType:
    return short_calls(request.param)


@pytest.fixture
def take(calls: ModuleType) -> Take:
    return partial(taken_by, calls)


def test_both_ways_agree(take: Take) -> None:
    chance = random.Random(4)
    taken = 0
    for _ in range(1500):
        short, general = pair()
        for subject in (short, general):
            subject.now += 1
        messages = [a_message(chance, short) for _ in range(chance.randrange(1, 5))]
        before = state(short)
        found = take(short, *(received(message) for message in messages))
        if type(found[0]) is not Taken:
            assert state(short) == before
        ended = False
        for message, item in zip(messages, found, strict=True):
            try:
                event = general.core.receive_message(memoryview(bytearray(message)), general.now)
            except ProtocolError:
                assert type(item) is not Taken
                ended = True
                break
            if type(item) is Taken:
                taken += 1
                assert isinstance(event, MessageReceived)
                assert (event.view, event.buffer, event.invalidated) == (item.view, None, None)
            else:
                short.core.receive_message(item.context.view[: item.length], short.now)
        if not ended:
            assert state(short) == state(general)
            assert short.pump() == general.pump()
    assert taken > 500


@pytest.mark.parametrize("message", [data(b"x", remaining=5), data(b""), data(b"x")[:20], b"", data(bytes(1001))])
def test_what_is_no_whole_message(take: Take, message: bytes) -> None:
    subject = pair()[0]
    before = state(subject)
    assert [type(item) for item in take(subject, received(message), received(data(b"x")))] == [Completion] * 2
    assert state(subject) == before


def test_a_message_behind_another_kind_of_completion(take: Take) -> None:
    found = take(pair()[0], OTHER, received(data(b"x")), OTHER, received(data(b"yz")))
    assert [type(item) for item in found] == [Completion, Taken, Completion, Taken]
    assert [bytes(item.view) for item in (found[1], found[3])] == [b"x", b"yz"]


@pytest.mark.parametrize("item", [received(data(b"x"), Status.FLUSHED), received(data(b"x"), token=7)])
def test_what_follows_an_unusual_receive_waits_for_it(take: Take, item: Completion) -> None:
    found = take(pair()[0], received(data(b"x")), item, received(data(b"y")))
    assert [type(each) for each in found] == [Taken, Completion, Completion]


def test_no_more_messages_than_the_peer_has_credits(take: Take) -> None:
    subject = pair()[0]
    subject.core.credits.receive_credits = 2
    found = take(subject, *(received(data(b"x")) for _ in range(3)))
    assert [type(each) for each in found] == [Taken, Taken, Completion]
    assert subject.core.credits.receive_credits == 0


def test_a_receive_that_is_longer_than_its_memory(take: Take) -> None:
    subject = pair()[0]
    item = Completion(Operation.RECEIVE, Status.OK, Memory(memoryview(bytearray(data(b"x")))), 100)
    assert take(subject, item) == [item]


@pytest.mark.parametrize("item", [(), (1, 2), 7, [Operation.RECEIVE, Status.OK, None, 0, None]])
def test_what_is_no_completion(calls: ModuleType, item: object) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        calls.accepted(pair()[0].core, KIND, [item], Taken, "owner", 2000.0)


def test_what_makes_a_whole_message_unusual(take: Take) -> None:
    item = received(data(b"x"))
    for name, value in (("role", Role.CLOSED), ("invalidated_token", 7), ("max_message_size", 0)):
        subject = pair()[0]
        setattr(subject.core, name, value)
        assert take(subject, item) == [item]
    subject = pair()[0]
    subject.receive(data(b"x", remaining=1))
    assert take(subject, item) == [item]
    assert take(acceptor(), item) == [item]


@pytest.mark.parametrize("pieces", [[b"x"], [b"ab", b"", memoryview(b"cd")], [bytes(900), bytes(200)], [bytes(5000)]])
def test_a_send_has_the_message_behind_its_header(calls: ModuleType, pieces: list[Buffer]) -> None:
    """Short ones in one piece, longer ones without a copy."""
    subject = server(Settings())
    subject.core.max_send_size = 8192
    length = sum(map(len, pieces))
    found = calls.whole(subject.core, (Role.ESTABLISHED, Send), pieces, 5, print)
    assert found is not None
    send, on_done, size = found
    assert (type(send), send.context, send.invalidate, send.signalled) == (Send, None, 5, False)
    assert (on_done, size) == (print, length)
    assert b"".join(send.segments)[24:] == b"".join(pieces)
    assert DATA_TRANSFER.unpack(send.segments[0])[5:] == (24, length)
    if length <= 1024:
        assert len(send.segments) == 1
    else:
        assert all(mine is theirs for mine, theirs in zip(send.segments[1:], pieces, strict=True))


def test_credits_beyond_what_a_header_can_grant(calls: ModuleType) -> None:
    subject = server(Settings())
    credits = subject.core.credits
    credits.receives_posted = credits.receive_credits + 70_000
    send, _, _ = calls.whole(subject.core, (Role.ESTABLISHED, Send), [b"x"], None, None)
    assert DATA_TRANSFER.unpack(send.segments[0]).credits_granted == 0xFFFF
    assert credits.receives_posted - credits.receive_credits == 70_000 - 0xFFFF
