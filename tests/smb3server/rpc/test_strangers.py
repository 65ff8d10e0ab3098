"""What strangers can do at the ports of RPC: guess no faster than anywhere else, and ask about nothing."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from smb3server.auth.acceptor import Acceptor
from smb3server.auth.guessing import Guesses
from smb3server.auth.users import UserDatabase
from smb3server.rpc import endpoint_mapper
from smb3server.rpc.association import AUTH3, Association, AssociationGroups
from smb3server.rpc.dcerpc import BIND, BIND_ACK, COMMON, FAULT, FAULT_BAD_STUB_DATA, NDR, REQUEST
from smb3server.rpc.security import AUTH_TRAILER, NTLM, AuthTrailer, Level
from smb3server.rpc.tcp import MAX_UNKNOWN_STUB
from tests.lab.association import Service, bind_body, pdu, request
from tests.lab.witness import Running, settings
from tools.failover import logon

LONGEST_TURN = 0.1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Guesser:
    """One association after the other, each with one password."""

    def __init__(self, guesses: Guesses, clock: Clock) -> None:
        self.service = Service()
        self.guesses = guesses
        self.clock = clock
        self.waits: list[float] = []

    def attempt(self, password: str, address: str = "192.0.2.1") -> bool:
        """Whether the caller is known afterwards."""
        service = self.service
        association = Association(
            "4711", service.interfaces, lambda: Acceptor(service.users, "S", guesses=self.guesses), service.groups
        )
        association.peer_host = address
        waits: list[float] = []
        association.on_delay = waits.append
        trailer = AUTH_TRAILER.pack(AuthTrailer(NTLM, Level.PRIVACY, 0, 0, 1))
        association.feed(pdu(BIND, bind_body((0, bytes(range(16)), NDR)), auth=trailer + logon.NEGOTIATE))
        (answer,) = association.output
        association.output.clear()
        assert COMMON.unpack(answer).type == BIND_ACK
        token = logon.Account("u", password).answer(answer)[0]
        message = token[token.index(b"NTLMSSP\0") :]
        association.feed(pdu(AUTH3, bytes(4), auth=trailer + message))
        # What follows is kept until the logon was looked at.
        association.feed(pdu(REQUEST, request(0, b"x")))
        while waits:
            assert not association.output
            assert not association.authenticated
            self.waits.append(waits[-1])
            self.clock.now += waits.pop()
            association.resume()
        assert association.output
        association.close()
        return association.authenticated


def test_guesses_are_slowed_over_associations() -> None:
    clock = Clock()
    guesser = Guesser(Guesses(per_account=3, per_address=1000, max_delay=4.0, clock=clock), clock)
    for _ in range(12):
        assert not guesser.attempt("wrong")
    assert sorted(guesser.waits) == guesser.waits
    assert guesser.waits[-1] == pytest.approx(4.0)
    # The right one waits its turn, too; then its address is known.
    assert guesser.attempt("pw")
    assert len(guesser.waits) == 9
    assert guesser.attempt("pw")
    assert len(guesser.waits) == 9


def test_guesses_at_sessions_count_here(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = Clock()
    guesses = Guesses(per_account=3, per_address=1000, max_delay=4.0, clock=clock)
    guesser = Guesser(guesses, clock)
    for _ in range(10):
        session = Acceptor(guesser.service.users, "S", guesses=guesses, address="198.51.100.9")
        clock.now += guesses.begin("u", "198.51.100.9")
        token, _ = logon.Account("u", "wrong").answer(session.step(logon.FIRST_TOKEN))
        assert token
    assert not guesser.attempt("wrong")
    assert guesser.waits
    assert any("RPC logon refused: user u from 192.0.2.1" in entry.getMessage() for entry in caplog.records)


def test_a_port_makes_guessers_wait() -> None:
    """Through sockets: the answer to what follows a delayed logon comes after it."""
    guesses = Guesses(per_account=1, per_address=1000, max_delay=0.3)
    users = UserDatabase()
    for account in Service().users:
        users.add(account)
    server = Running(settings(), new_acceptor=lambda: Acceptor(users, "FILES", guesses=guesses))
    try:
        for _ in range(3):
            guesses.begin("u", "192.0.2.200")
        trailer = AUTH_TRAILER.pack(AuthTrailer(NTLM, Level.PRIVACY, 0, 0, 1))
        with socket.create_connection(("127.0.0.1", server.service.port)) as sock:
            sock.settimeout(10)
            sock.sendall(pdu(BIND, bind_body((0, bytes(range(16)), NDR)), auth=trailer + logon.NEGOTIATE))
            answer = sock.recv(4096)
            token = logon.Account("u", "pw").answer(answer)[0]
            message = token[token.index(b"NTLMSSP\0") :]
            sock.sendall(pdu(AUTH3, bytes(4), auth=trailer + message) + pdu(REQUEST, request(0, b"x")))
            assert COMMON.unpack(sock.recv(4096)).type == FAULT
        # It was looked at, and was right.
        deadline = time.monotonic() + 10
        while ("u", "127.0.0.1") not in guesses._proven:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        server.stop()


def test_a_question_about_nothing_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """ept_map with a null tower (C706 appendix O)."""
    mapper = endpoint_mapper.EndpointMapper()
    service = Service()
    association = Association(
        "135", lambda made: [mapper.interface(made)], lambda: Acceptor(service.users, "S"), AssociationGroups()
    )
    item = struct.pack("<HBB", 0, 1, 0) + endpoint_mapper.UUID + struct.pack("<HH", 3, 0) + NDR
    association.feed(pdu(BIND, struct.pack("<HHI", 4280, 4280, 0) + b"\1\0\0\0" + item))
    association.output.clear()
    stub = bytes(4) + bytes(4) + bytes(20) + struct.pack("<I", 4)
    association.feed(pdu(REQUEST, request(3, stub)))
    (answer,) = association.output
    assert COMMON.unpack(answer).type == FAULT
    assert struct.unpack_from("<I", answer, 24)[0] == FAULT_BAD_STUB_DATA
    assert not [record for record in caplog.records if record.exc_info]


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running(settings())
    yield server
    server.stop()


def test_strangers_requests_are_short(running: Running) -> None:
    """Until the client is known it may have little under way, on every port."""
    with running.client() as client:
        client.interfaces()
        running.wait_for(lambda: {c.association.max_stub for c in running.service._listener.connections} == {1 << 16})
    with socket.create_connection(("127.0.0.1", running.service.port)):
        running.wait_for(
            lambda: [c.association.max_stub for c in running.service._listener.connections if c.association]
        )
        (connection,) = running.service._listener.connections
        assert connection.association is not None
        assert connection.association.max_stub == MAX_UNKNOWN_STUB
