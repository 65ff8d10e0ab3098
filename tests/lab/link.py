"""Two MS-SMBD cores joined by a simulated RDMA fabric on a virtual clock. Nothing sleeps; one seed determines
everything.

RDMA is reliable and ordered, so the link only delays messages (in each direction separately) or, if ``silent`` is set,
drops them. It fails on a message without a posted receive, for which a fabric would end the connection.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from smbdirect.core.connection import Connection, Role
from smbdirect.core.messages import DATA_TRANSFER, NEGOTIATE_RESPONSE, Established, MessageReceived, OutgoingSend
from smbdirect.core.settings import Settings
from smbdirect.errors import ProtocolError
from smbdirect.rdma.pool import BufferPool


class Peer:
    """One core with the minimum around it: it posts receives and records received messages."""

    def __init__(self, link: Link, name: str, role: Role, settings: Settings) -> None:
        self.link = link
        self.name = name
        self.pool = BufferPool()
        self.core = Connection(role, settings, link.now, self.pool.acquire)
        self.other: Peer | None = None
        self.messages: list[bytes] = []
        self.invalidated: list[int | None] = []
        self.sent: list[object] = []
        self.wire: list[bytes] = []
        """Everything that this side sent."""
        self.error: ProtocolError | None = None
        self.established = False
        self.credits = 0
        """Send credits according to the messages of the other side."""
        self.silent = False
        self.on_message: Callable[[bytes], None] = lambda message: None
        self._last_arrival = 0.0

    def pump(self) -> None:
        """Post receives and send what is pending, until the core requests nothing more."""
        if self.error is not None:
            return
        more = True
        while more:
            self.core.receives_were_posted(self.core.receives_wanted)
            self._transmit(self.core.pending_sends(self.link.now))
            more = self.core.receives_wanted > 0

    def _transmit(self, sends: Sequence[OutgoingSend]) -> None:
        for item in sends:
            data = b"".join(item.segments)
            if self.core.role is Role.ESTABLISHED and self.wire:
                self._check_last_credit(DATA_TRANSFER.unpack(data).credits_granted)
            self.wire.append(data)
            if item.context is not None:
                self.sent.append(item.context)
            self._last_arrival = max(self._last_arrival, self.link.now) + self.link.delay()
            self.link.at(self._last_arrival, lambda data=data, token=item.invalidate: self._arrive(data, token))

    def _check_last_credit(self, granted: int) -> None:
        """Check from the wire alone that the last credit goes only with a grant. [MS-SMBD 3.1.5.1]"""
        self.credits -= 1
        assert self.credits > 0 or (self.credits == 0 and granted > 0), f"{self.name}: {self.credits}, {granted}"

    def _arrive(self, data: bytes, token: int | None) -> None:
        assert self.other is not None
        if not self.silent:
            self.other.receive(data, token)

    def receive(self, data: bytes, token: int | None = None) -> None:
        """Process a message that arrived, and record what came of it."""
        if self.error is not None:
            return
        assert self.core.credits.receives_posted > 0, f"{self.name}: message without a receive"
        try:
            event = self.core.receive_message(memoryview(data), self.link.now, token)
        except ProtocolError as error:
            self.error = error
            return
        if isinstance(event, Established):
            self.established = True
            if len(data) == NEGOTIATE_RESPONSE.size:
                self.credits = NEGOTIATE_RESPONSE.unpack(data).credits_granted
        else:
            self.credits += DATA_TRANSFER.unpack(data).credits_granted
        if isinstance(event, MessageReceived):
            self.messages.append(bytes(event.view))
            self.invalidated.append(event.invalidated)
            if event.buffer is not None:
                event.buffer.release()
            self.on_message(self.messages[-1])
        self.pump()

    def timer(self) -> None:
        """Handle the core's timers."""
        try:
            self.core.handle_timer(self.link.now)
        except ProtocolError as error:
            self.error = error
            return
        self.pump()


class Link:
    """The fabric and the clock of one test."""

    def __init__(self, seed: int, max_delay: float = 0.01) -> None:
        print(f"seed {seed}")
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.max_delay = max_delay
        self._events: list[tuple[float, int, Any]] = []
        self._order = itertools.count()

    def delay(self) -> float:
        """Return the delay of the next message in seconds."""
        return self.rng.random() * self.max_delay

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call ``action`` at the virtual time ``when``."""
        heapq.heappush(self._events, (when, next(self._order), action))

    def connect(self, client: Settings | None = None, server: Settings | None = None) -> tuple[Peer, Peer]:
        """Return a client, which has started, and a server. They have not exchanged anything yet."""
        near = Peer(self, "client", Role.ACTIVE, client or Settings())
        far = Peer(self, "server", Role.PASSIVE, server or Settings())
        near.other, far.other = far, near
        far.pump()
        near.core.start()
        near.pump()
        return near, far

    def run(self, peers: tuple[Peer, ...], until: Callable[[], bool], limit: float = 3600.0) -> None:
        """Run events and timers until ``until()`` is true. Fail if it is not after ``limit`` seconds of virtual
        time."""
        end = self.now + limit
        while not until():
            deadlines = [
                (deadline, peer)
                for peer in peers
                if peer.error is None and (deadline := peer.core.next_deadline()) is not None
            ]
            next_timer = min(deadlines, key=lambda item: item[0], default=None)
            if self._events and (next_timer is None or self._events[0][0] <= next_timer[0]):
                self.now, _, action = heapq.heappop(self._events)
                action()
            elif next_timer is not None:
                self.now = next_timer[0]
                next_timer[1].timer()
            else:
                raise AssertionError("nothing left to happen")
            assert self.now <= end, "took too long"
