"""Two MS-SMBD cores joined by a simulated RDMA fabric on a virtual clock. Nothing sleeps; one seed decides it all.

RDMA is reliable and ordered, so the link only delays (each direction on its own) and, when told, goes silent. It
checks what a fabric would punish: a message without a posted receive, or longer than the receive.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from smbdirect.core.connection import Connection, Role
from smbdirect.core.events import Established, MessageReceived, OutgoingSend
from smbdirect.core.messages import DATA_TRANSFER, NEGOTIATE_RESPONSE
from smbdirect.core.settings import Settings
from smbdirect.errors import ProtocolError
from smbdirect.transport.pool import BufferPool


class Peer:
    """One core and the minimum around it: posts receives, hands messages up, returns their receives after a while."""

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
        """Everything this side sent."""
        self.error: ProtocolError | None = None
        self.established = False
        self.credits = 0
        """Send credits as the other side's messages tell."""
        self.silent = False
        self.on_message: Callable[[bytes], None] = lambda message: None
        self._last_arrival = 0.0

    def pump(self) -> None:
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
        """3.1.5.1, reckoned from the wire alone: the last credit goes only with a grant."""
        self.credits -= 1
        assert self.credits > 0 or (self.credits == 0 and granted > 0), f"{self.name}: {self.credits}, {granted}"

    def _arrive(self, data: bytes, token: int | None) -> None:
        assert self.other is not None
        if not self.silent:
            self.other.receive(data, token)

    def receive(self, data: bytes, token: int | None = None) -> None:
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
        try:
            self.core.handle_timer(self.link.now)
        except ProtocolError as error:
            self.error = error
            return
        self.pump()


class Link:
    """The fabric and the clock."""

    def __init__(self, seed: int, max_delay: float = 0.01) -> None:
        print(f"seed {seed}")
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.max_delay = max_delay
        self._events: list[tuple[float, int, Any]] = []
        self._order = itertools.count()

    def delay(self) -> float:
        return self.rng.random() * self.max_delay

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), action))

    def connect(self, client: Settings | None = None, server: Settings | None = None) -> tuple[Peer, Peer]:
        """A client and a server that have not exchanged anything yet; the client has started."""
        near = Peer(self, "client", Role.ACTIVE, client or Settings())
        far = Peer(self, "server", Role.PASSIVE, server or Settings())
        near.other, far.other = far, near
        far.pump()
        near.core.start()
        near.pump()
        return near, far

    def run(self, peers: tuple[Peer, ...], until: Callable[[], bool], limit: float = 3600.0) -> None:
        """Let things happen until ``until()``; fails if they have not after ``limit`` seconds of virtual time."""
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
