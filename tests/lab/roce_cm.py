"""Two RoCEv2 connection managers whose datagrams the test carries."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from smbdirect.providers.roce.cm import (
    Connection,
    ConnectionManager,
    Event,
    Outcome,
    Parameters,
)
from smbdirect.providers.roce.cm_messages import REQ, Attribute, mad_bytes
from smbdirect.providers.roce.headers import MAD

ADDRESSES = (b"\x0a\0\0\1", b"\x0a\0\0\2")


CLIENT_SIDE = Parameters(0x1234, 0xABCDEF, 3, 16, 8, 6)


SERVER_SIDE = Parameters(0x4321, 0xFFFFFF, 3, 8, 4, 6)


PATH = "path"


PORT = 5445


class End:
    """One connection manager and its user, which accepts requests if ``accept`` is set."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.manager = ConnectionManager(rng.getrandbits, lambda path, port: port == PORT)
        self.events: list[Event] = []
        self.accept = True

    def take(self, now: float) -> list[tuple[Any, bytes]]:
        """Handle the manager's events, and return its outgoing datagrams."""
        for event in self.manager.events:
            self.events.append(event)
            if event.outcome is Outcome.REQUESTED and self.accept:
                assert self.manager.accept(event.connection, SERVER_SIDE, b"welcome", now)
        self.manager.events.clear()
        out = self.manager.outbox[:]
        self.manager.outbox.clear()
        return out

    @property
    def outcomes(self) -> list[Outcome]:
        return [event.outcome for event in self.events]


class Pair:
    """A client and a server. ``carry`` returns the datagrams that arrive for a sent one: none for a loss."""

    def __init__(self, seed: int = 1) -> None:
        self.client, self.server = End(seed), End(seed + 1000)
        self.now = 0.0
        self.carry: Callable[[bytes], list[bytes]] = lambda mad: [mad]
        self.carried: list[tuple[str, int]] = []

    def connect(self, private_data: bytes = b"hello") -> Connection:
        return self.client.manager.connect(PATH, PORT, 40000, ADDRESSES, CLIENT_SIDE, private_data, self.now)

    def step(self) -> bool:
        """Carry the datagrams in both outboxes. Return whether there were any."""
        moved = False
        for sender, receiver, name in ((self.client, self.server, "c"), (self.server, self.client, "s")):
            for path, mad in sender.take(self.now):
                moved = True
                for copy in self.carry(mad):
                    self.carried.append((name, MAD.unpack(copy).attribute))
                    receiver.manager.receive(memoryview(copy), path, self.now)
        return moved

    def settle(self, until: float = 0.0) -> None:
        """Carry everything that is due now, then run the timers up to ``until``."""
        while True:
            while self.step():
                pass
            deadlines = [
                deadline
                for end in (self.client, self.server)
                if (deadline := end.manager.next_deadline) is not None and deadline <= until
            ]
            if not deadlines:
                return
            self.now = max(self.now, min(deadlines))
            for end in (self.client, self.server):
                end.manager.handle_timer(self.now)


def request_bytes(**changes: Any) -> bytes:
    """Return a REQ with changed fields."""
    pair = Pair()
    pair.connect()
    ((_, mad),) = pair.client.take(0.0)
    record = REQ.unpack(mad, MAD.size)
    return mad_bytes(Attribute.REQ, 5, REQ.pack(record._replace(**changes)))


_REQUEST = REQ.unpack(request_bytes(), MAD.size)


def request_bytes_fast(local_id: int) -> bytes:
    """Return a REQ with another identifier, without a new manager."""
    return mad_bytes(Attribute.REQ, local_id, REQ.pack(_REQUEST._replace(local_id=local_id)))
