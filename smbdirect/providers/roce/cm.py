"""InfiniBand connection management on QP1, with the private-data header of the RDMA IP CM service.

No I/O, no clock, no randomness: management datagrams in, datagrams and events out.
[IBTA volume 1, chapter 12, annex A11]

A starting PSN in a message is the first number with which the *receiver* of the message must send. Management datagrams
are unacknowledged, so each request is repeated until it is answered, and each answer is repeated when its request is.

Source addresses of requests can be forged. A sender proves that it receives datagrams at its address by an identifier
that only the reply contains (in an RTU, or data on the queue pair). Before that, it gets no more datagrams than came
from its address, all of one size: a lost reply is repeated only when the request is. To a source that has proved its
address within ``REMEMBERED`` seconds, the reply is repeated by the timer. A cookie instead of a table is not possible:
an RTU repeats nothing of the request.
"""

from __future__ import annotations

import enum
import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import NamedTuple

from smbdirect.errors import DecodeError
from smbdirect.providers.roce.cm_messages import (
    ANSWER,
    CMA,
    CMA_SIZE,
    DREQ,
    REJ,
    REP,
    REQ,
    Answer,
    Attribute,
    CmaHeader,
    Dreq,
    Reason,
    Rej,
    Rep,
    Req,
    mad_bytes,
)
from smbdirect.providers.roce.headers import MAD, PATH_MTUS, PSN_MASK, Mad
from smbdirect.unauthenticated import UnauthenticatedPeer, UnauthenticatedPeers, source_of

SERVICE_PREFIX = 0x0000000001060000
"""Service IDs of the RDMA IP CM service for TCP port numbers are prefix | port (A11.2)."""
QUEUE_KEY = 0x80010000
MAX_PENDING = 256
"""Most connection requests that are not yet established. One more evicts the oldest of the source that has most."""
MAX_PENDING_PER_PEER = 64
"""Most such requests of one source. One more evicts its own oldest."""
GRACE = 0.25
"""Seconds during which a newcomer whose source has as many requests cannot evict one. An answer takes far less. It also
limits the number of queue pairs that are set up per second."""
REMEMBERED = 600.0
"""Seconds for which a source counts as one that has proved its address."""
MAX_REMEMBERED = 1024
REPEAT_AFTER = 0.2
"""Seconds until a message is repeated for the first time; doubled each time up to ``REPEAT_AT_MOST``."""
REPEAT_AT_MOST = 2.0
TRIES = 6
ANSWER_WITHIN = 30.0
"""Seconds within which the application must accept or reject."""
MAX_PRIVATE_DATA = 56
REPLY_PRIVATE_DATA = 196
REJECT_PRIVATE_DATA = 148


class State(enum.Enum):
    """The state of one end of a connection, reduced to what RC with active and passive roles needs. [IBTA 12.9.5]"""

    REQ_SENT = enum.auto()
    REQ_RECEIVED = enum.auto()
    REP_SENT = enum.auto()
    ESTABLISHED = enum.auto()
    DREQ_SENT = enum.auto()
    CLOSED = enum.auto()


class Parameters(NamedTuple):
    """The parameters of its queue pair that one end sends to the other."""

    queue_pair: int
    psn: int
    """The other end starts with this number."""
    mtu_code: int
    """Path MTU code, ``headers.PATH_MTUS``."""
    responder_resources: int
    """RDMA Reads that this end serves at the same time."""
    initiator_depth: int
    """RDMA Reads that this end has outstanding at the same time."""
    rnr_retry: int
    """How often the other end shall retry after an RNR NAK; 7 means no limit."""


class Outcome(enum.Enum):
    """Kinds of ``Event``."""

    REQUESTED = enum.auto()
    ESTABLISHED = enum.auto()
    REJECTED = enum.auto()
    TIMED_OUT = enum.auto()
    CLOSED_BY_PEER = enum.auto()
    CLOSED = enum.auto()


class Event(NamedTuple):
    """A change of a connection that the user of the manager must handle."""

    outcome: Outcome
    connection: Connection
    detail: str = ""


@dataclass(slots=True, eq=False)
class Connection:
    """One end of a connection, identified by ``local_id``. ``owner`` belongs to the user of the manager."""

    path: Hashable
    state: State
    local_id: int
    remote_id: int = 0
    transaction: int = 0
    parameters: Parameters | None = None
    peer: Parameters | None = None
    port: int = 0
    client_port: int = 0
    private_data: bytes = b""
    message: bytes = b""
    deadline: float | None = None
    expires: float | None = None
    interval: float = REPEAT_AFTER
    tries: int = 0
    owed: int | None = None
    """Datagrams that may still be sent to a peer that has not proved its address. None means no limit: it has, or this
    side made the request."""
    place: UnauthenticatedPeer | None = None
    """Its entry in the table of requests that are not established."""
    owner: object = None


class ConnectionManager:
    """All connections of one provider.

    ``random_bits`` makes identifiers. ``listening`` returns whether a port is served. ``address_of`` returns the peer's
    address of a path, by which requests are counted.

    Outgoing datagrams are collected in ``outbox`` as (path, 256 bytes), events in ``events``; the user must take both
    after each call. A path is any hashable value that identifies both ends. Datagrams for a connection from another
    path are ignored.
    """

    def __init__(
        self,
        random_bits: Callable[[int], int],
        listening: Callable[[Hashable, int], bool],
        address_of: Callable[[Hashable], str] = str,
    ) -> None:
        self._random_bits = random_bits
        self._listening = listening
        self._address_of = address_of
        self._now = 0.0
        self.pending = UnauthenticatedPeers(MAX_PENDING, MAX_PENDING_PER_PEER, GRACE, lambda: self._now)
        """Requests of peers that are not established, by the peer's source."""
        self._proven: OrderedDict[str, float] = OrderedDict()
        """When each source proved its address for the last time. Invariant: the oldest first, at most
        ``MAX_REMEMBERED``."""
        self.ended: list[Connection] = []
        """Connections that are closed; the user must take them."""
        self.outbox: list[tuple[Hashable, bytes]] = []
        self.events: list[Event] = []
        self.counters = dict.fromkeys(("malformed", "dropped_requests", "repeats", "unknown", "unproved"), 0)
        self._connections: dict[int, Connection] = {}
        """By ``local_id``. Invariant: no closed connection is in it."""
        self._passive: dict[tuple[Hashable, int], Connection] = {}
        """Connections that the peer requested, by path and the peer's identifier."""
        self._by_peer: dict[tuple[Hashable, int], Connection] = {}
        """Established connections by path and the peer's queue pair."""
        self._timed: set[Connection] = set()
        self._timers: list[tuple[float, int, Connection]] = []
        """A heap. An outdated entry (the connection has other times now) stays in it until it is the first."""
        self._armed = 0

    def __len__(self) -> int:
        return len(self._connections)

    # -- what the user does --------------------------------------------------------------------------------------

    def connect(
        self,
        path: Hashable,
        port: int,
        client_port: int,
        addresses: tuple[bytes, bytes],
        parameters: Parameters,
        private_data: bytes,
        now: float,
    ) -> Connection:
        """Request a connection from the other end of ``path``. ``addresses`` are the packed local and remote ones."""
        connection = self._new(path, State.REQ_SENT)
        connection.transaction = self._random_bits(64)
        connection.port, connection.client_port = port, client_port
        connection.parameters = parameters
        local, remote = (ip_address(a) for a in addresses)
        version, pad = (0x40, bytes(12)) if local.version == 4 else (0x60, b"")
        gids = tuple(bytes(10) + b"\xff\xff" + a if len(a) == 4 else a for a in addresses)
        header = CMA.pack(CmaHeader(0, version, client_port, pad + local.packed, pad + remote.packed))
        request = Req(
            local_id=connection.local_id,
            service_id=SERVICE_PREFIX | port,
            ca_guid=parameters.queue_pair << 32 | connection.local_id,
            qpn=parameters.queue_pair << 8 | parameters.responder_resources,
            local_eecn=parameters.initiator_depth,
            psn=parameters.psn << 8 | 20 << 3 | 7,
            path_mtu=parameters.mtu_code << 4 | parameters.rnr_retry,
            local_gid=gids[0],
            remote_gid=gids[1],
            private_data=(header + private_data).ljust(92, b"\0"),
        )
        self._send(connection, Attribute.REQ, REQ.pack(request))
        self._repeat(connection, now)
        return connection

    def accept(self, connection: Connection, parameters: Parameters, private_data: bytes, now: float) -> bool:
        """Reply to a request. Return False if it was dropped meanwhile."""
        if connection.state is not State.REQ_RECEIVED:
            return False
        connection.parameters = parameters
        reply = Rep(
            local_id=connection.local_id,
            remote_id=connection.remote_id,
            qpn=parameters.queue_pair << 8,
            psn=parameters.psn << 8,
            responder_resources=parameters.responder_resources,
            initiator_depth=parameters.initiator_depth,
            ack_delay=15 << 3,
            rnr_retry=parameters.rnr_retry << 5,
            ca_guid=parameters.queue_pair << 32 | connection.local_id,
            private_data=private_data.ljust(REPLY_PRIVATE_DATA, b"\0"),
        )
        connection.state = State.REP_SENT
        connection.expires = None
        self._send(connection, Attribute.REP, REP.pack(reply))
        self._repeat(connection, now)
        return True

    def reject(self, connection: Connection, reason: Reason, private_data: bytes = b"") -> None:
        """Reject a request, or a connection that is not established yet, and forget it."""
        if connection.state in (State.REQ_RECEIVED, State.REP_SENT):
            rejection = Rej(
                local_id=connection.local_id,
                remote_id=connection.remote_id,
                message=0,
                reason=reason,
                private_data=private_data.ljust(REJECT_PRIVATE_DATA, b"\0"),
            )
            self._send(connection, Attribute.REJ, REJ.pack(rejection))
        self._forget(connection)

    def established(self, connection: Connection) -> None:
        """Note that data arrived on the queue pair, which has the same meaning as a lost RTU. [IBTA 12.9.7.2]"""
        if connection.state is State.REP_SENT:
            self._establish(connection)

    def disconnect(self, connection: Connection, now: float) -> None:
        """End the connection. If it was established, ``CLOSED`` follows when the peer has answered or does not answer
        in time."""
        if connection.state is State.ESTABLISHED:
            connection.state = State.DREQ_SENT
            connection.transaction = self._random_bits(64)
            connection.tries, connection.interval = 0, REPEAT_AFTER
            assert connection.peer is not None
            body = Dreq(connection.local_id, connection.remote_id, connection.peer.queue_pair << 8)
            self._send(connection, Attribute.DREQ, DREQ.pack(body))
            self._repeat(connection, now)
        elif connection.state is State.REP_SENT:
            self.reject(connection, Reason.CONSUMER)
        elif connection.state is not State.DREQ_SENT:
            self._forget(connection)

    # -- datagrams in --------------------------------------------------------------------------------------------

    def receive(self, datagram: memoryview, path: Hashable, now: float) -> None:
        """Process one 256-byte management datagram. A malformed datagram, or one for no known connection, changes
        nothing."""
        self._now = now
        try:
            header = MAD.unpack(datagram)
            if len(datagram) != 256 or header[:4] != (1, 7, 2, 3):
                raise DecodeError("not a CM datagram")
            handler = _HANDLERS.get(header.attribute)
            if handler is None:
                self.counters["unknown"] += 1
                return
            handler(self, header, datagram[MAD.size :], path, now)
        except DecodeError:
            self.counters["malformed"] += 1

    def _find(self, local_id: int, remote_id: int, path: Hashable) -> Connection | None:
        """Return the connection that both identifiers and the path name, or None."""
        connection = self._connections.get(local_id)
        if connection is None or connection.path != path:
            return None
        if connection.remote_id not in (0, remote_id):
            return None
        return connection

    def _answered(self, body: memoryview, path: Hashable) -> tuple[Connection | None, Answer]:
        """Return an answer, and the connection that it names."""
        answer = ANSWER.unpack(body)
        return self._find(answer.remote_id, answer.local_id, path), answer

    def _on_req(self, header: Mad, body: memoryview, path: Hashable, now: float) -> None:
        request = REQ.unpack(body)
        known = self._passive.get((path, request.local_id))
        if known is not None:
            # 12.9.8.3: a repeated request. Its reply, if there is one, was lost.
            if known.owed is not None:
                known.owed += 1
            if known.state is State.REP_SENT:
                self._repeat_message(known)
            return
        port = request.service_id & 0xFFFF
        queue_pair, mtu_code = request.qpn >> 8, request.path_mtu >> 4
        cma = CMA.unpack(request.private_data)
        reason = None
        if request.service_id - port != SERVICE_PREFIX or not self._listening(path, port):
            reason = Reason.INVALID_SERVICE_ID
        elif request.remote_eecn >> 1 & 3 or queue_pair < 2:
            reason = Reason.INVALID_TRANSPORT
        elif mtu_code not in PATH_MTUS:
            reason = Reason.INVALID_MTU
        elif cma.version >> 4 or cma.ip_version not in (0x40, 0x60):
            reason = Reason.UNSUPPORTED_REQUEST
        if reason is not None:
            self._refuse(header, request.local_id, path, reason)
            return
        connection = self._new(path, State.REQ_RECEIVED)
        address = self._address_of(path)
        connection.place = self.pending.enter(address, partial(self._give_way, connection))
        if connection.place is None:
            self.counters["dropped_requests"] += 1
            del self._connections[connection.local_id]
            return
        proven = self._proven.get(source_of(address))
        if proven is None or now - proven > REMEMBERED:
            connection.owed = 1
        connection.remote_id = request.local_id
        connection.transaction = header.transaction_id
        connection.port, connection.client_port = port, cma.port
        connection.peer = Parameters(
            queue_pair=queue_pair,
            psn=request.psn >> 8 & PSN_MASK,
            mtu_code=mtu_code,
            responder_resources=request.qpn & 0xFF,
            initiator_depth=request.local_eecn & 0xFF,
            rnr_retry=request.path_mtu & 7,
        )
        connection.private_data = bytes(request.private_data[CMA_SIZE:]).rstrip(b"\0")
        connection.expires = now + ANSWER_WITHIN
        self._arm(connection, connection.expires)
        self._passive[path, request.local_id] = connection
        self.events.append(Event(Outcome.REQUESTED, connection))

    def _on_rep(self, header: Mad, body: memoryview, path: Hashable, now: float) -> None:
        reply = REP.unpack(body)
        connection = self._find(reply.remote_id, reply.local_id, path)
        if connection is None:
            # This side no longer waits for the reply: the peer must not wait either (12.9.8.3.1).
            self._refuse(header, reply.local_id, path, Reason.INVALID_COMMUNICATION_ID, 1, reply.remote_id)
            return
        if connection.state is State.REQ_SENT:
            assert connection.parameters is not None
            queue_pair = reply.qpn >> 8
            if queue_pair < 2:
                raise DecodeError("reply without a queue pair")
            connection.remote_id = reply.local_id
            connection.peer = Parameters(
                queue_pair=queue_pair,
                psn=reply.psn >> 8 & PSN_MASK,
                mtu_code=connection.parameters.mtu_code,
                responder_resources=reply.responder_resources,
                initiator_depth=reply.initiator_depth,
                rnr_retry=reply.rnr_retry >> 5,
            )
            connection.private_data = bytes(reply.private_data).rstrip(b"\0")
            connection.state = State.ESTABLISHED
            self._stop_timer(connection)
            self._replace_stale(connection)
            self._send(connection, Attribute.RTU, ANSWER.pack(Answer(connection.local_id, connection.remote_id)))
            self.events.append(Event(Outcome.ESTABLISHED, connection))
        elif connection.state is State.ESTABLISHED:
            self._repeat_message(connection)

    def _on_rtu(self, header: Mad, body: memoryview, path: Hashable, now: float) -> None:
        connection, _ = self._answered(body, path)
        if connection is not None:
            self.established(connection)

    def _on_rej(self, header: Mad, body: memoryview, path: Hashable, now: float) -> None:
        rejection = REJ.unpack(body)
        connection = self._find(rejection.remote_id, rejection.local_id, path)
        if connection is None and rejection.local_id:
            # The peer abandoned its own request (time-out): it knows our identifier only after a reply.
            connection = self._passive.get((path, rejection.local_id))
            if connection is not None and rejection.remote_id not in (0, connection.local_id):
                connection = None
        if connection is None or connection.state in (State.ESTABLISHED, State.DREQ_SENT):
            return
        connection.private_data = bytes(rejection.private_data).rstrip(b"\0")
        self._end(connection, Outcome.REJECTED, f"rejected with reason {rejection.reason}")

    def _on_mra(self, header: Mad, body: memoryview, path: Hashable, now: float) -> None:
        """Delay the next repetition: the peer has received the message and needs time. [IBTA 12.6.6]"""
        connection, answer = self._answered(body, path)
        if connection is not None and connection.deadline is not None:
            delay = 4.096e-6 * (1 << (answer.rest[1] >> 3))
            connection.deadline = now + min(max(delay, REPEAT_AT_MOST), ANSWER_WITHIN)
            self._arm(connection, connection.deadline)

    def _on_dreq(self, header: Mad, body: memoryview, path: Hashable, now: float) -> None:
        request = DREQ.unpack(body)
        connection = self._find(request.remote_id, request.local_id, path)
        # Answered even if the connection is not known: the answer confirms that it no longer exists (12.10.9).
        answer = Answer(request.remote_id, request.local_id)
        self.outbox.append((path, mad_bytes(Attribute.DREP, header.transaction_id, ANSWER.pack(answer))))
        if connection is None or connection.state in (State.REQ_SENT, State.REQ_RECEIVED):
            return
        parameters = connection.parameters
        if parameters is None or request.remote_qpn >> 8 != parameters.queue_pair:
            return
        self._end(connection, Outcome.CLOSED if connection.state is State.DREQ_SENT else Outcome.CLOSED_BY_PEER)

    def _on_drep(self, header: Mad, body: memoryview, path: Hashable, now: float) -> None:
        connection, _ = self._answered(body, path)
        if connection is not None and connection.state is State.DREQ_SENT:
            self._end(connection, Outcome.CLOSED)

    # -- time ----------------------------------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float | None:
        """When to call ``handle_timer``, or None."""
        timers = self._timers
        while timers and self._is_stale(timers[0]):
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def _is_stale(self, timer: tuple[float, int, Connection]) -> bool:
        time, _, connection = timer
        return connection not in self._timed or time not in (connection.deadline, connection.expires)

    def _arm(self, connection: Connection, time: float) -> None:
        """Have ``handle_timer`` handle the connection at ``time``, which is its ``deadline`` or ``expires``."""
        self._timed.add(connection)
        self._armed += 1
        heapq.heappush(self._timers, (time, self._armed, connection))

    def handle_timer(self, now: float) -> None:
        """Handle the connections whose times have come: repeat messages, or end the connection."""
        self._now = now
        timers = self._timers
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)
            if self._is_stale(timer):
                continue
            connection = timer[2]
            if connection.expires is not None and now >= connection.expires:
                self.reject(connection, Reason.TIMEOUT)
                self.events.append(Event(Outcome.TIMED_OUT, connection, "not answered by the application"))
            elif connection.deadline is not None and now >= connection.deadline:
                if connection.tries < TRIES:
                    self.counters["repeats"] += 1
                    self._repeat_message(connection)
                    self._repeat(connection, now)
                elif connection.state is State.DREQ_SENT:
                    self._end(connection, Outcome.CLOSED)
                else:
                    self._end(connection, Outcome.TIMED_OUT, "no answer")

    # -- helpers -------------------------------------------------------------------------------------------------

    def _new(self, path: Hashable, state: State) -> Connection:
        local_id = self._random_bits(32)
        while not local_id or local_id in self._connections:
            local_id = self._random_bits(32)
        connection = self._connections[local_id] = Connection(path, state, local_id)
        return connection

    def _send(self, connection: Connection, attribute: Attribute, body: bytes) -> None:
        """Send a message, and keep it for repetitions."""
        connection.message = mad_bytes(attribute, connection.transaction, body)
        self._repeat_message(connection)

    def _repeat_message(self, connection: Connection) -> None:
        """Send the last message again, unless the peer has used up its datagrams (``owed``)."""
        if connection.owed is not None:
            if not connection.owed:
                self.counters["unproved"] += 1
                return
            connection.owed -= 1
        self.outbox.append((connection.path, connection.message))

    def _repeat(self, connection: Connection, now: float) -> None:
        """Arm the timer for the next repetition."""
        connection.tries += 1
        connection.deadline = now + connection.interval
        connection.interval = min(2 * connection.interval, REPEAT_AT_MOST)
        self._arm(connection, connection.deadline)

    def _stop_timer(self, connection: Connection) -> None:
        connection.deadline = connection.expires = None
        self._timed.discard(connection)

    def _no_longer_pending(self, connection: Connection) -> None:
        place, connection.place = connection.place, None
        if place is not None:
            place.leave()

    def _give_way(self, connection: Connection) -> None:
        """Drop a request that was evicted from the table; its peer may request again."""
        self.counters["dropped_requests"] += 1
        self._end(connection, Outcome.TIMED_OUT, "too many requests")

    def _establish(self, connection: Connection) -> None:
        self._no_longer_pending(connection)
        connection.owed = None
        source = source_of(self._address_of(connection.path))
        self._proven[source] = self._now
        self._proven.move_to_end(source)
        if len(self._proven) > MAX_REMEMBERED:
            self._proven.popitem(last=False)
        connection.state = State.ESTABLISHED
        self._stop_timer(connection)
        self._replace_stale(connection)
        self.events.append(Event(Outcome.ESTABLISHED, connection))

    def _replace_stale(self, connection: Connection) -> None:
        """End an older connection with the queue pair that the peer uses for this one: the peer was restarted. Linux
        numbers queue pairs from 0x11 after each boot. The old connection ends only after the peer has answered, not at
        its request, which could be forged."""
        assert connection.peer is not None
        key = connection.path, connection.peer.queue_pair
        stale = self._by_peer.get(key)
        if stale is not None:
            ended = stale.state is State.ESTABLISHED
            self._forget(stale)
            if ended:
                self.events.append(Event(Outcome.CLOSED_BY_PEER, stale, "the peer was restarted"))
        self._by_peer[key] = connection

    def _end(self, connection: Connection, outcome: Outcome, detail: str = "") -> None:
        """Forget a connection, and report that."""
        self._forget(connection)
        self.events.append(Event(outcome, connection, detail))

    def _forget(self, connection: Connection) -> None:
        if connection.state is State.CLOSED:
            return
        self._no_longer_pending(connection)
        connection.state = State.CLOSED
        self.ended.append(connection)
        self._stop_timer(connection)
        self._connections.pop(connection.local_id, None)
        if self._passive.get((connection.path, connection.remote_id)) is connection:
            del self._passive[connection.path, connection.remote_id]
        if connection.peer is not None:
            key = connection.path, connection.peer.queue_pair
            if self._by_peer.get(key) is connection:
                del self._by_peer[key]

    def _refuse(
        self, header: Mad, remote_id: int, path: Hashable, reason: Reason, message: int = 0, local_id: int = 0
    ) -> None:
        """Send a rejection without keeping any state."""
        rejection = Rej(local_id=local_id, remote_id=remote_id, message=message << 6, reason=reason)
        self.outbox.append((path, mad_bytes(Attribute.REJ, header.transaction_id, REJ.pack(rejection))))


_HANDLERS: dict[int, Callable[[ConnectionManager, Mad, memoryview, Hashable, float], None]] = {
    Attribute.REQ: ConnectionManager._on_req,
    Attribute.REP: ConnectionManager._on_rep,
    Attribute.RTU: ConnectionManager._on_rtu,
    Attribute.REJ: ConnectionManager._on_rej,
    Attribute.MRA: ConnectionManager._on_mra,
    Attribute.DREQ: ConnectionManager._on_dreq,
    Attribute.DREP: ConnectionManager._on_drep,
}
