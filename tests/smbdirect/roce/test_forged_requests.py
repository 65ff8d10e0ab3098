"""Connection requests that may be forged: no more comes back than went in, and they keep nobody out."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref

import pytest

from smbdirect.core.settings import Settings
from smbdirect.providers.roce.cm import MAX_PENDING, REMEMBERED, Outcome, State
from smbdirect.providers.roce.cm_messages import ANSWER, Answer, Attribute, Reason, mad_bytes
from smbdirect.providers.roce.headers import BTH, DETH, ICRC_LENGTH, Bth, Deth, Opcode
from smbdirect.providers.roce.provider import DATAGRAMS_PER_PEER, DATAGRAMS_PER_TURN, RoceProvider
from smbdirect.providers.roce.sockets import Route
from smbdirect.transport.listen import listen
from tests.lab.roce_cm import CLIENT_SIDE, SERVER_SIDE, End, Pair, request_bytes_fast
from tools.support.ports import free_port


def run(end: End, now: float, until: float) -> list[tuple[object, bytes]]:
    """What ``end`` sends by itself until then."""
    sent = end.take(now)
    while (deadline := end.manager.next_deadline) is not None and deadline <= until:
        end.manager.handle_timer(deadline)
        sent += end.take(deadline)
    return sent


@pytest.mark.parametrize("repeats", [1, 2, 7])
def test_a_request_brings_no_more_than_one_datagram(repeats: int) -> None:
    server = End(1)
    mad = request_bytes_fast(5)
    sent = []
    for index in range(repeats):
        server.manager.receive(memoryview(mad), "victim", index * 0.5)
        sent += server.take(index * 0.5)
    sent += run(server, repeats * 0.5, 60.0)
    assert 1 <= len(sent) <= repeats
    assert {len(datagram) for _, datagram in sent} == {len(mad)}
    assert len(server.manager) == 0


@pytest.mark.parametrize("what", ["accepted", "rejected", "given-up", "ended"])
def test_whatever_becomes_of_it(what: str) -> None:
    server = End(1)
    server.accept = False
    server.manager.receive(memoryview(request_bytes_fast(5)), "victim", 0.0)
    sent = server.take(0.0)
    connection = server.events[0].connection
    if what == "rejected":
        server.manager.reject(connection, Reason.CONSUMER)
    elif what != "given-up":
        server.manager.accept(connection, SERVER_SIDE, b"", 0.0)
        sent += server.take(0.0)
        if what == "ended":
            server.manager.disconnect(connection, 1.0)
    sent += run(server, 0.0, 60.0)
    assert len(sent) == 1
    assert len(server.manager) == 0


def test_other_messages_bring_no_more_than_they_are() -> None:
    server = End(1)
    for attribute in Attribute:
        server.manager.receive(memoryview(mad_bytes(attribute, 1, ANSWER.pack(Answer(1, 2)))), "victim", 0.0)
        assert len(run(server, 0.0, 60.0)) <= 1


def test_a_guessed_identifier_proves_nothing() -> None:
    server = End(1)
    server.manager.receive(memoryview(request_bytes_fast(5)), "victim", 0.0)
    server.take(0.0)
    connection = server.events[0].connection
    rng = random.Random(3)
    for _ in range(1000):
        guess = rng.getrandbits(32)
        assert guess != connection.local_id
        rtu = mad_bytes(Attribute.RTU, connection.transaction, ANSWER.pack(Answer(5, guess)))
        server.manager.receive(memoryview(rtu), "victim", 0.0)
    assert connection.state is State.REP_SENT
    assert not run(server, 0.0, 60.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_client_that_repeats_its_request_gets_in_over_a_bad_link(seed: int) -> None:
    """Every third datagram is lost: a lost reply comes with the next request."""
    rng = random.Random(seed)
    pair = Pair(seed)
    pair.carry = lambda mad: [] if rng.random() < 0.33 else [mad]
    connection = pair.connect()
    pair.settle(20)
    if connection.state is State.ESTABLISHED:
        server = pair.server.events[-1].connection
        if server.state is State.REP_SENT:
            # Its RTU was lost; data says as much.
            pair.server.manager.established(server)
        assert Outcome.ESTABLISHED in pair.client.outcomes
    else:
        # Six requests, and of each it or its reply was lost.
        assert pair.client.outcomes == [Outcome.TIMED_OUT]
    assert seed > 2 or connection.state is State.ESTABLISHED


def test_who_has_shown_that_it_receives_is_repeated_to() -> None:
    pair = Pair()
    first = pair.connect()
    pair.settle()
    assert first.state is State.ESTABLISHED
    for now, most in ((1.0, 6), (1.0 + REMEMBERED * 2, 1)):
        request = request_bytes_fast(int(now))
        pair.server.manager.receive(memoryview(request), "path", now)
        assert len(run(pair.server, now, now + 30)) == most


@pytest.mark.parametrize("sources", [1, 8, 100_000], ids=["one", "eight", "all"])
def test_a_flood_keeps_nobody_out(sources: int) -> None:
    """1000 requests a second that are never answered, and an innocent client that repeats its own."""
    server = End(1)
    client = End(2)
    now = 0.0
    number = 0
    connection = None
    rng = random.Random(4)
    while now < 6.0:
        now += 0.001
        number += 1
        mad = request_bytes_fast(number)
        server.manager.receive(memoryview(mad), f"attacker {rng.randrange(sources)}", now)
        server.take(now)
        if connection is None and now > 2.0:
            connection = client.manager.connect(
                "innocent", 5445, 40000, (b"\x0a\0\0\1", b"\x0a\0\0\2"), CLIENT_SIDE, b"", now
            )
        if connection is not None:
            client.manager.handle_timer(now)
            for _, datagram in client.take(now):
                server.manager.receive(memoryview(datagram), "innocent", now)
            for path, datagram in server.take(now):
                if path == "innocent":
                    client.manager.receive(memoryview(datagram), "innocent", now)
        assert len(server.manager) <= MAX_PENDING + 1
    assert connection is not None
    assert connection.state is State.ESTABLISHED


def test_a_turn_of_the_event_loop_takes_few_datagrams() -> None:
    """However many arrive at once, those of others get their turn; what waits is bounded, and shared among peers."""

    async def body() -> None:
        provider = RoceProvider(free_port())
        taken: list[bytes] = []

        def take(datagram: memoryview, route: object, now: float) -> None:
            assert isinstance(route, Route)
            taken.append(route.peer)

        provider._manager.receive = take  # type: ignore[method-assign]
        packet = BTH.pack(Bth(Opcode.UD_SEND_ONLY, 0, 0xFFFF, 1, 1)) + DETH.pack(Deth(0x80010000, 1))
        packet += bytes(256 + ICRC_LENGTH)

        def arrive(peer: int) -> None:
            route = Route(None, b"\x7f\0\0\1", bytes((10, 0, 0, peer)), 0)  # type: ignore[arg-type]
            provider.on_packet(route, memoryview(packet), False)

        for _ in range(1000):
            arrive(1)
        arrive(2)
        assert len(taken) == DATAGRAMS_PER_TURN
        assert len(provider._datagrams) == DATAGRAMS_PER_PEER + 1
        before = len(taken)
        while provider._datagrams:
            await asyncio.sleep(0)
            assert len(taken) - before <= DATAGRAMS_PER_TURN
            before = len(taken)
        assert taken[-1] == bytes((10, 0, 0, 2))
        assert provider.counters["dropped_datagrams"] == 1000 - DATAGRAMS_PER_TURN - DATAGRAMS_PER_PEER
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        arrive(3)
        assert taken[-1] == bytes((10, 0, 0, 3))
        assert not provider._waiting_by_peer

    asyncio.run(body())


def test_a_request_whose_reply_is_not_answered_leaves_nothing_behind() -> None:
    """The negotiation's time is over before the connection manager has sent its reply as often as it may."""

    async def body() -> None:
        provider = RoceProvider(free_port())
        transports: list[object] = []
        listener = await listen(
            provider, "127.0.0.1", 5445, transports.append, Settings(negotiation_timeout_passive=0.2)
        )
        (port,) = provider._ports.values()
        for peer in range(1, 9):
            route = port._route(b"\x7f\0\0\1", bytes((127, 0, 1, peer)))
            provider._take_datagram(route, memoryview(request_bytes_fast(peer)))
        endpoints = [weakref.ref(endpoint) for endpoint in provider.endpoints.values()]
        assert len(endpoints) == 8
        # Strangers decide how often this happens: the memory must not wait for the garbage collector.
        gc.collect()
        gc.disable()
        async with asyncio.timeout(20):
            while listener.transports or listener._accepting:
                await asyncio.sleep(0.05)
        assert not provider._waiting
        assert not provider.endpoints
        assert not len(provider._manager)
        await asyncio.sleep(0.05)
        assert not [endpoint for endpoint in endpoints if endpoint() is not None]
        await listener.close()

    try:
        asyncio.run(body())
    finally:
        gc.enable()
