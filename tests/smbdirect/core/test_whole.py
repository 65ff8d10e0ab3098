"""The short way for whole messages does what the general one does, and leaves alone what it does not know."""

from __future__ import annotations

import random
from typing import Any

import pytest

from smbdirect.core.connection import Role
from smbdirect.core.messages import DATA_TRANSFER, DataTransfer, MessageReceived
from smbdirect.core.settings import Settings
from smbdirect.errors import ProtocolError
from tests.lab.cores import Subject, acceptor, data, server


def pair() -> list[Subject]:
    return [server(Settings(max_receive_size=1024, max_fragmented_receive_size=131_072)) for _ in range(2)]


def state(subject: Subject) -> dict[str, Any]:
    """Everything that a message may change."""
    core, credits = subject.core, subject.core.credits
    found: dict[str, Any] = {name: getattr(credits, name) for name in credits.__slots__}
    names = ("role", "keepalive_requested", "send_immediate", "invalidated_token", "_idle_deadline", "_credit_deadline")
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


def test_both_ways_agree() -> None:
    chance = random.Random(4)
    taken = 0
    for _ in range(1500):
        short, general = pair()
        for subject in (short, general):
            subject.now += 1
        for _ in range(chance.randrange(1, 5)):
            message = memoryview(bytearray(a_message(chance, short)))
            before = state(short)
            found = short.core.receive_whole(message, len(message), short.now)
            try:
                event = general.core.receive_message(message, general.now)
            except ProtocolError:
                assert found is None
                assert state(short) == before
                break
            if found is None:
                assert state(short) == before
                short.core.receive_message(message, short.now)
            else:
                taken += 1
                assert isinstance(event, MessageReceived)
                assert (event.view, event.buffer, event.invalidated) == (found, None, None)
                assert found.obj is message.obj
            assert state(short) == state(general)
            assert short.pump() == general.pump()
    assert taken > 500


@pytest.mark.parametrize("message", [data(b"x", remaining=5), data(b""), data(b"x")[:20], b""])
def test_what_is_no_whole_message(message: bytes) -> None:
    assert pair()[0].core.receive_whole(memoryview(message), len(message), 2000.0) is None


def test_what_makes_a_whole_message_unusual() -> None:
    message = memoryview(data(b"x"))
    for name, value in (("role", Role.CLOSED), ("invalidated_token", 7), ("max_message_size", 0)):
        subject = pair()[0]
        setattr(subject.core, name, value)
        assert subject.core.receive_whole(message, len(message), 2000.0) is None
    subject = pair()[0]
    subject.receive(data(b"x", remaining=1))
    assert subject.core.receive_whole(message, len(message), 2000.0) is None
    assert acceptor().core.receive_whole(message, len(message), 2000.0) is None
