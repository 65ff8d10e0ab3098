"""Connection management between two managers, by hand and over a link that loses, repeats and reorders."""

from __future__ import annotations

import random
from typing import Any

import pytest

from smbdirect.providers.roce.cm import (
    ANSWER_WITHIN,
    MAX_PENDING,
    MAX_PENDING_PER_PEER,
    TRIES,
    Connection,
    Outcome,
    State,
)
from smbdirect.providers.roce.cm_messages import ANSWER, REJ, Answer, Attribute, Reason, mad_bytes
from smbdirect.providers.roce.headers import MAD
from tests.lab.roce_cm import (
    ADDRESSES,
    CLIENT_SIDE,
    PATH,
    PORT,
    SERVER_SIDE,
    End,
    Pair,
    request_bytes,
    request_bytes_fast,
)


def established(seed: int = 1) -> tuple[Pair, Connection, Connection]:
    pair = Pair(seed)
    connection = pair.connect()
    pair.settle()
    assert pair.client.outcomes == [Outcome.ESTABLISHED]
    assert pair.server.outcomes == [Outcome.REQUESTED, Outcome.ESTABLISHED]
    return pair, connection, pair.server.events[0].connection


def test_both_learn_the_others_parameters() -> None:
    pair, client, server = established()
    assert server.peer == CLIENT_SIDE
    assert client.peer == SERVER_SIDE
    assert server.private_data == b"hello"
    assert client.private_data == b"welcome"
    assert (server.port, server.client_port) == (PORT, 40000)
    assert pair.carried == [("c", Attribute.REQ), ("s", Attribute.REP), ("c", Attribute.RTU)]
    assert client.deadline is None and server.deadline is None


@pytest.mark.parametrize("who", ["client", "server"])
def test_disconnect(who: str) -> None:
    pair, client, server = established()
    ender, other = (pair.client, pair.server) if who == "client" else (pair.server, pair.client)
    ender.manager.disconnect(client if who == "client" else server, pair.now)
    pair.settle()
    assert ender.outcomes[-1] is Outcome.CLOSED
    assert other.outcomes[-1] is Outcome.CLOSED_BY_PEER
    assert len(ender.manager) == len(other.manager) == 0
    assert ender.manager.next_deadline is None


def test_both_disconnect_at_once() -> None:
    pair, client, server = established()
    pair.client.manager.disconnect(client, pair.now)
    pair.server.manager.disconnect(server, pair.now)
    pair.settle()
    assert pair.client.outcomes[-1] is pair.server.outcomes[-1] is Outcome.CLOSED
    assert len(pair.client.manager) == len(pair.server.manager) == 0


def test_disconnect_from_a_dead_peer_ends_after_limited_tries() -> None:
    pair, client, _ = established()
    pair.carried.clear()
    pair.carry = lambda mad: []
    pair.client.manager.disconnect(client, pair.now)
    sent = []
    pair.carry = lambda mad: sent.append(mad) or []  # type: ignore[func-returns-value]
    pair.settle(60)
    assert len(sent) == TRIES
    assert pair.client.outcomes[-1] is Outcome.CLOSED


@pytest.mark.parametrize("seed", range(30))
def test_over_a_bad_link(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    held: list[bytes] = []

    def carry(mad: bytes) -> list[bytes]:
        out = [mad] * rng.choice([0, 1, 1, 2])
        if held and rng.random() < 0.5:
            out.append(held.pop())
        if rng.random() < 0.2:
            held.append(mad)
        return out

    pair = Pair(seed)
    pair.carry = carry
    connection = pair.connect()
    pair.settle(20)
    # With every second datagram lost at worst, the handshake completes or both sides know that it did not.
    if Outcome.ESTABLISHED in pair.client.outcomes:
        assert pair.server.outcomes.count(Outcome.ESTABLISHED) <= 1
        pair.client.manager.disconnect(connection, pair.now)
        pair.settle(pair.now + 60)
    pair.settle(pair.now + 60)
    assert len(pair.client.manager) == 0
    assert all(c.state in (State.ESTABLISHED, State.CLOSED) for c in pair.server.manager._connections.values())
    for end in (pair.client, pair.server):
        assert end.outcomes.count(Outcome.REQUESTED) <= 2
        assert end.manager.next_deadline is None


def test_nobody_listens() -> None:
    pair = Pair()
    pair.client.manager.connect(PATH, 446, 40000, ADDRESSES, CLIENT_SIDE, b"", 0.0)
    pair.settle()
    assert pair.client.outcomes == [Outcome.REJECTED]
    assert "8" in pair.client.events[0].detail
    assert len(pair.client.manager) == len(pair.server.manager) == 0


def test_rejected_by_the_application() -> None:
    pair = Pair()
    pair.server.accept = False
    pair.connect()
    pair.settle()
    pair.server.manager.reject(pair.server.events[0].connection, Reason.CONSUMER, b"no")
    pair.settle()
    assert pair.client.outcomes == [Outcome.REJECTED]
    assert pair.client.events[0].connection.private_data == b"no"
    assert len(pair.server.manager) == 0


def test_application_that_never_answers() -> None:
    pair = Pair()
    pair.server.accept = False
    pair.connect()
    pair.settle(ANSWER_WITHIN + 1)
    assert pair.server.outcomes == [Outcome.REQUESTED, Outcome.TIMED_OUT]
    assert pair.client.outcomes == [Outcome.TIMED_OUT]
    assert len(pair.server.manager) == 0


def test_a_request_that_comes_again_gets_the_same_reply() -> None:
    pair, _, server = established()
    request = Pair()
    request.connect()
    (_, mad), *_ = request.client.take(0.0)
    pair.server.manager.receive(memoryview(mad), PATH, 0.0)
    pair.settle()
    assert pair.server.outcomes == [Outcome.REQUESTED, Outcome.ESTABLISHED]
    assert server.state is State.ESTABLISHED


def test_lost_rtu_is_made_up_for_by_data_or_by_the_repeated_reply() -> None:
    pair = Pair()
    pair.carry = lambda mad: [] if MAD.unpack(mad).attribute == Attribute.RTU else [mad]
    pair.connect()
    pair.settle()
    server = pair.server.events[0].connection
    assert server.state is State.REP_SENT
    pair.server.manager.established(server)
    assert pair.server.manager.events[-1].outcome is Outcome.ESTABLISHED

    # A reply is repeated to those who have shown that they receive it.
    again, before, _ = established()
    again.client.manager.disconnect(before, again.now)
    again.settle()
    again.client.events.clear()
    lost: list[bytes] = []
    again.carry = lambda mad: [mad] if lost or MAD.unpack(mad).attribute != Attribute.RTU else lost.append(mad) or []  # type: ignore[func-returns-value]
    again.connect()
    again.settle(10)
    assert again.server.outcomes[-1] is Outcome.ESTABLISHED
    assert again.client.outcomes == [Outcome.ESTABLISHED]


def test_wait_request_is_tolerated() -> None:
    pair = Pair()
    connection = pair.connect()
    pair.client.take(0.0)
    answer = Answer(77, connection.local_id, bytes([0, 24 << 3]) + bytes(222))
    mad = mad_bytes(Attribute.MRA, connection.transaction, ANSWER.pack(answer))
    pair.client.manager.receive(memoryview(mad), PATH, 0.0)
    assert connection.deadline is not None and connection.deadline >= 2.0
    assert connection.state is State.REQ_SENT


def test_reply_that_nobody_waits_for_is_rejected() -> None:
    pair = Pair()
    connection = pair.connect()
    ((_, request),) = pair.client.take(0.0)
    pair.server.manager.receive(memoryview(request), PATH, 0.0)
    pair.client.manager.disconnect(connection, 0.0)
    assert connection.state is State.CLOSED
    pair.settle()
    assert Outcome.REJECTED in pair.server.outcomes
    assert len(pair.server.manager) == 0


def test_restarted_peer_takes_the_place_of_its_old_self() -> None:
    """Linux numbers queue pairs from 0x11 after each boot; the old connection ends when the new one is established."""
    pair, _, old = established()
    reborn = End(99)
    connection = reborn.manager.connect(PATH, PORT, 40001, ADDRESSES, CLIENT_SIDE, b"", 0.0)
    pair.client = reborn
    pair.step()
    assert old.state is State.ESTABLISHED, "a forged request must not end a connection"
    pair.settle()
    assert connection.state is State.ESTABLISHED
    assert old.state is State.CLOSED
    assert [e.outcome for e in pair.server.events if e.connection is old][-1] is Outcome.CLOSED_BY_PEER


def test_messages_from_elsewhere_do_not_touch_a_connection() -> None:
    pair, client, server = established()
    pair.client.manager.disconnect(client, 0.0)
    ((_, mad),) = pair.client.take(0.0)
    pair.server.manager.receive(memoryview(mad), "another path", 0.0)
    assert server.state is State.ESTABLISHED
    # A queue pair number that is not ours, or identifiers that do not belong together, are not obeyed either.
    for position in (24 + 3, 24 + 10):
        wrong = bytearray(mad)
        wrong[position] ^= 1
        pair.server.manager.receive(memoryview(wrong), PATH, 0.0)
        assert server.state is State.ESTABLISHED
    pair.server.manager.receive(memoryview(mad), PATH, 0.0)
    assert server.state is State.CLOSED  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"service_id": 0x1060000 | 446}, Reason.INVALID_SERVICE_ID),
        ({"service_id": 0x1110000 | PORT}, Reason.INVALID_SERVICE_ID),
        ({"qpn": 0}, Reason.INVALID_TRANSPORT),
        ({"qpn": 1 << 8}, Reason.INVALID_TRANSPORT),
        ({"remote_eecn": 3 << 1}, Reason.INVALID_TRANSPORT),
        ({"path_mtu": 0}, Reason.INVALID_MTU),
        ({"path_mtu": 6 << 4}, Reason.INVALID_MTU),
        ({"private_data": b"\x10\x40" + bytes(90)}, Reason.UNSUPPORTED_REQUEST),
        ({"private_data": bytes(92)}, Reason.UNSUPPORTED_REQUEST),
    ],
)
def test_bad_requests_are_rejected_with_their_reason(changes: dict[str, Any], reason: Reason) -> None:
    server = End(2)
    server.manager.receive(memoryview(request_bytes(**changes)), PATH, 0.0)
    ((_, mad),) = server.take(0.0)
    assert MAD.unpack(mad).attribute == Attribute.REJ
    assert REJ.unpack(mad, MAD.size).reason == reason
    assert not server.events
    assert len(server.manager) == 0


def test_floods_stay_bounded() -> None:
    server = End(3)
    server.accept = False
    for peer in range(100):
        for index in range(100):
            server.manager.receive(memoryview(request_bytes_fast(index + 1)), f"path {peer}", 0.0)
    assert len(server.manager) == MAX_PENDING
    assert server.manager.counters["dropped_requests"] == 10_000 - MAX_PENDING
    assert len(server.manager.pending) == MAX_PENDING
    assert max(server.manager.pending.held_by(f"path {peer}") for peer in range(100)) <= MAX_PENDING_PER_PEER
    server.take(0.0)
    server.manager.handle_timer(ANSWER_WITHIN + 1)
    assert len(server.manager) == 0
    assert not server.manager.pending.taken and not server.manager._passive


@pytest.mark.parametrize("seed", range(5))
def test_random_datagrams_change_nothing(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    pair, _client, server = established(seed)
    templates = [request_bytes()]
    for _ in range(2000):
        mad = bytearray(rng.choice(templates) if rng.random() < 0.5 else rng.randbytes(256))
        mad[0:4] = bytes([1, 7, 2, 3])
        mad[16:18] = rng.choice(list(Attribute)).to_bytes(2, "big")
        if rng.random() < 0.3:
            mad[24:28] = server.local_id.to_bytes(4, "big")
            mad[28:32] = rng.randbytes(4)
        pair.server.manager.receive(memoryview(mad)[: rng.choice([256, 256, 256, rng.randrange(256)])], PATH, 0.0)
        pair.server.take(0.0)
    assert server.state is State.ESTABLISHED
    assert len(pair.server.manager) <= 1 + MAX_PENDING_PER_PEER
