"""Two RoCEv2 queue pairs over a link that loses, repeats, reorders and damages packets, on a virtual clock. The seed
that decides it all is printed."""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from smbdirect.providers.base import Access, CloseCause, Completion, Operation, Status
from smbdirect.providers.memory import Region
from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.arrival import runs
from smbdirect.providers.roce.batches import follow
from smbdirect.providers.roce.headers import AETH, BTH, MIGRATED, PSN_MASK, Bth, Opcode, Syndrome
from smbdirect.providers.roce.queue_pair import QueuePair
from smbdirect.providers.roce.requester import Work
from smbdirect.providers.roce.responder import MAX_PENDING_READS
from smbdirect.providers.roce.retry import FIRST_WINDOW

MTU = 256
RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE
BAD_LINK = {"loss": 0.05, "repeat": 0.05, "reorder": 0.1, "damage": 0.03}


class Wire:
    """One direction; keeps ``requester.Path``."""

    ready = True

    def __init__(self, link: Link, destination: int, receiver: Callable[[], End]) -> None:
        self.link = link
        self.destination = destination
        self.receiver = receiver
        self.batch: list[bytes] = []
        """Packets without their ICRCs."""

    def send(
        self, opcode: int, flags: int, psn: int, ack_request: bool, extension: bytes, segments: Sequence[Any], size: int
    ) -> None:
        payload = b"".join(segments)
        assert len(payload) == size <= MTU
        pad = -size & 3
        flags |= MIGRATED | pad << 4
        header = BTH.pack(Bth(opcode, flags, 0xFFFF, self.destination, psn | ack_request << 31))
        self.batch.append(header + extension + payload + bytes(pad))
        if not self.link.batches:
            self.flush()

    def flush(self) -> None:
        """Send what was collected: packets of one size together, with at most one shorter packet behind them."""
        while self.batch:
            size = len(self.batch[0])
            limit = self.link.rng.randrange(1, 64) if self.link.batches else 1
            count = 1
            while count < min(limit, len(self.batch)) and len(self.batch[count]) == size:
                count += 1
            if count < min(limit, len(self.batch)) and len(self.batch[count]) < size:
                count += 1
            packets, self.batch = self.batch[:count], self.batch[count:]
            whole = [
                packet + icrc.of_payload(packet, self.link.state(len(packet) + 4, number))
                for number, packet in enumerate(packets)
            ]
            self.link.carry(b"".join(whole), size + 4, self.receiver)

    def send_middles(
        self, opcode: int, psn: int, memory: memoryview, count: int, countdown: int = 0, ask_every: int = 0
    ) -> int:
        assert len(memory) == count * MTU
        for index in range(count):
            ask = index + 1 >= countdown > 0 and (index + 1 - countdown) % ask_every == 0
            segment = memory[index * MTU : (index + 1) * MTU]
            self.send(opcode, 0, psn + index & PSN_MASK, ask, b"", (segment,), MTU)
        return count


class End:
    """A queue pair, what it completed, and its memory."""

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.queue_pair = QueuePair(number)
        self.completions: list[Completion] = []
        self.wire: Wire | None = None
        self.received: list[bytes] = []
        self.buffers: dict[int, bytearray] = {}

    def receive(self, batch: bytes, size: int) -> None:
        """Process a batch of packets of ``size`` bytes, as a port does."""
        link, begin = self.link, 0
        awaited = self.queue_pair.awaited(link.flow)
        if awaited is not None and link.rng.random() < 0.8:
            begin, words = follow(batch, size, awaited)
            if begin:
                link.followed += 1
                self.queue_pair.on_placed(begin, words, link.now)
        for run in runs(memoryview(batch), size, link.flow, begin):
            if not run.intact:
                self.link.damaged += 1
            elif run.number > 1:
                self.link.runs += 1
                self.queue_pair.receive_run(run, self.link.now)
            else:
                self.queue_pair.receive(run.packets, self.link.now)
        self.pump()

    def pump(self) -> None:
        assert self.wire is not None
        while self.queue_pair.transmit(self.wire, self.link.now, 32):
            pass
        self.wire.flush()
        for completion in self.queue_pair.completions:
            if completion.operation is Operation.RECEIVE and completion.status is Status.OK:
                self.received.append(bytes(self.buffers[completion.context][: completion.length]))  # type: ignore[index]
        self.completions += self.queue_pair.completions
        self.queue_pair.completions.clear()

    def post_receives(self, count: int, size: int = 4096) -> None:
        for _ in range(count):
            index = len(self.buffers)
            self.buffers[index] = bytearray(size)
            self.queue_pair.responder.receives.append((memoryview(self.buffers[index]), index))

    def register(self, memory: bytearray, rights: Access = RIGHTS) -> Region:
        return self.queue_pair.regions.register(memoryview(memory), rights)

    def post(
        self,
        operation: Operation,
        data: Any,
        context: object = None,
        region: Region | None = None,
        offset: int = 0,
        invalidate: int | None = None,
    ) -> None:
        token, address = (region.token, region.address + offset) if region is not None else (0, 0)
        whole = memoryview(data)
        first = self.link.rng.randrange(len(whole) + 1)
        views = [view for view in (whole[:first], whole[first:]) if len(view)]
        work = Work(operation, views, len(data), context, True, token, address, invalidate)
        self.queue_pair.requester.post([work])

    def of(self, *operations: Operation) -> list[Completion]:
        return [completion for completion in self.completions if completion.operation in operations]

    @property
    def counters(self) -> dict[str, int]:
        return self.queue_pair.counters


class Link:
    """Both directions and the clock."""

    def __init__(
        self,
        seed: int,
        loss: float = 0,
        repeat: float = 0,
        reorder: float = 0,
        damage: float = 0,
        psn: int | None = None,
        batches: bool = False,
    ) -> None:
        """With ``batches``, packets travel, are lost and are repeated many at once."""
        print(f"seed {seed}")
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.loss, self.repeat, self.reorder, self.damage = loss, repeat, reorder, damage
        self.batches = batches
        self.damaged = 0
        self.runs = 0
        """How many runs of several packets have arrived."""
        self.followed = 0
        """How many batches began with packets in the middle of the message that was expected."""
        self.flow = icrc.Flow(b"\n\0\0\1", b"\n\0\0\2", 4791, 4791)
        self.filter: Callable[[bytes, End], bool] = lambda packet, receiver: True
        """Whether a packet is carried."""
        self._events: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._states: dict[tuple[int, int], int] = {}
        self.near, self.far = End(self, 0x11), End(self, 0x22)
        self.near.wire = Wire(self, 0x22, lambda: self.far)
        self.far.wire = Wire(self, 0x11, lambda: self.near)
        first = self.rng.getrandbits(24) if psn is None else psn
        second = self.rng.getrandbits(24) if psn is None else psn
        self.near.queue_pair.start(first, second, MTU, 4, 6)
        self.far.queue_pair.start(second, first, MTU, 4, 6)
        self.near.queue_pair.ready_to_send = self.far.queue_pair.ready_to_send = True

    def state(self, length: int, ip_id: int) -> int:
        if (length, ip_id) not in self._states:
            self._states[length, ip_id] = icrc.prefix(b"\n\0\0\1", b"\n\0\0\2", 4791, 4791, length, ip_id)
        return self._states[length, ip_id]

    def carry(self, batch: bytes, size: int, receiver: Callable[[], End]) -> None:
        rng = self.rng
        if not self.filter(batch, receiver()) or rng.random() < self.loss:
            return
        for _ in range(2 if rng.random() < self.repeat else 1):
            carried = batch
            if rng.random() < self.damage:
                position = rng.randrange(len(batch))
                if position % size != icrc.BTH_MASKED_BYTE:
                    changed = batch[position] ^ 1 << rng.randrange(8)
                    carried = batch[:position] + bytes([changed]) + batch[position + 1 :]
            delay = 0.001 + (rng.random() * 0.004 if rng.random() < self.reorder else 0)
            self.at(self.now + delay, lambda carried=carried: receiver().receive(carried, size))

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), action))

    def run(self, until: Callable[[], object], limit: float = 600.0) -> None:
        """Until the condition holds; fails after ``limit`` virtual seconds or when nothing is left to happen."""
        end = self.now + limit
        for side in (self.near, self.far):
            side.pump()
        while not until():
            timers = [
                (side.queue_pair.next_deadline, index)
                for index, side in enumerate((self.near, self.far))
                if side.queue_pair.next_deadline is not None and side.queue_pair.failure is None
            ]
            timer = min(timers, default=None)
            if self._events and (timer is None or self._events[0][0] <= timer[0]):
                self.now, _, action = heapq.heappop(self._events)
                action()
            elif timer is not None:
                self.now = max(self.now, timer[0])
                side = (self.near, self.far)[timer[1]]
                side.queue_pair.handle_timer(self.now)
                side.pump()
            else:
                raise AssertionError("nothing left to happen")
            assert self.now < end, "took too long"

    def settle(self) -> None:
        """Let everything under way arrive."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()


SEND_QUEUE = (Operation.SEND, Operation.WRITE, Operation.READ)


def mixed_load(link: Link, messages: int) -> None:
    """Sends both ways, and Writes and Reads of odd lengths, all of whose bytes are checked."""
    rng, near, far = link.rng, link.near, link.far
    target, source = bytearray(60_000), bytearray(rng.randbytes(60_000))
    writable, readable = far.register(target), far.register(source)
    near.post_receives(messages)
    far.post_receives(messages)
    expected = bytearray(target)
    sent: list[list[bytes]] = [[], []]
    reads: list[tuple[bytearray, int]] = []
    count = 0
    for index in range(messages):
        length, offset = rng.randrange(0, 5000), rng.randrange(0, 55_000)
        data = rng.randbytes(length)
        near.post(Operation.WRITE, data, count, writable, offset)
        expected[offset : offset + length] = data
        local = bytearray(rng.randrange(0, 5000))
        reads.append((local, offset))
        near.post(Operation.READ, local, count + 1, readable, offset)
        for side, who in ((near, 0), (far, 1)):
            message = rng.randbytes(rng.randrange(0, 1400))
            sent[who].append(message)
            side.post(Operation.SEND, message, count + 2 if side is near else index)
        count += 3
    link.run(lambda: len(near.of(*SEND_QUEUE)) >= count and len(far.of(Operation.SEND)) >= messages)
    link.run(lambda: len(far.received) >= messages and len(near.received) >= messages)
    assert [item.status for item in near.completions + far.completions] == [Status.OK] * len(
        near.completions + far.completions
    )
    assert [item.context for item in near.of(*SEND_QUEUE)] == list(range(count))
    assert far.received == sent[0]
    assert near.received == sent[1]
    assert target == expected
    for local, offset in reads:
        assert local == source[offset : offset + len(local)]
    link.settle()
    assert target == expected


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("batches", [False, True])
def test_everything_arrives_over_a_bad_link(seed: int, batches: bool) -> None:
    link = Link(seed, **BAD_LINK, batches=batches)
    mixed_load(link, 40)
    assert bool(link.runs) is batches
    assert link.followed > 0
    assert link.near.counters["retransmissions"] > 0
    assert link.far.counters["duplicates"] > 0
    assert link.damaged > 0


@pytest.mark.parametrize("batches", [False, True])
def test_nothing_is_sent_twice_over_a_good_link(batches: bool) -> None:
    link = Link(1, batches=batches)
    mixed_load(link, 40)
    for side in (link.near, link.far):
        for name in ("retransmissions", "duplicates", "naks_sent", "timeouts", "rnr_sent", "malformed"):
            assert side.counters[name] == 0, name


@pytest.mark.parametrize("behind", [0, 1, 2, 3, 17, 100])
@pytest.mark.parametrize("faults", [{}, BAD_LINK], ids=["good", "bad"])
@pytest.mark.parametrize("batches", [False, True])
def test_sequence_numbers_wrap(behind: int, faults: dict[str, float], batches: bool) -> None:
    mixed_load(Link(behind, psn=PSN_MASK - behind, batches=batches, **faults), 15)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fault", ["loss", "repeat", "reorder", "damage"])
@pytest.mark.parametrize("batches", [False, True])
def test_each_fault_alone_and_severe(seed: int, fault: str, batches: bool) -> None:
    mixed_load(Link(seed, batches=batches, **{fault: 0.25}), 15)


def test_a_lost_tail_is_found_by_the_timer() -> None:
    link = Link(3)
    link.far.post_receives(1)
    dropped: list[bytes] = []
    link.filter = lambda packet, receiver: bool(dropped) or dropped.append(packet) is not None  # type: ignore[func-returns-value]
    link.near.post(Operation.SEND, b"x" * 100)
    start = link.now
    link.run(lambda: link.near.of(Operation.SEND))
    assert link.near.counters["timeouts"] == 1
    assert 0.2 < link.now - start < 0.5


def test_a_dead_peer_ends_the_connection_after_limited_retries() -> None:
    link = Link(4)
    link.filter = lambda packet, receiver: False
    link.near.post(Operation.SEND, b"anybody?", "lost")
    link.run(lambda: link.near.queue_pair.failure)
    failure = link.near.queue_pair.failure
    assert failure is not None and failure.cause is CloseCause.TIMEOUT
    link.near.pump()
    assert link.near.completions == [Completion(Operation.SEND, Status.RETRY_EXCEEDED, "lost")]
    assert 5 < link.now - 1000 < 30


def test_receiver_not_ready_is_waited_for() -> None:
    link = Link(5)
    link.near.post(Operation.SEND, b"early")
    link.at(link.now + 0.02, lambda: link.far.post_receives(1))
    link.run(lambda: link.far.received)
    assert link.far.received == [b"early"]
    assert link.far.counters["rnr_sent"] == link.near.counters["rnr_received"] > 0
    assert not link.far.queue_pair.responder.starved


def test_receiver_never_ready_ends_the_connection() -> None:
    link = Link(6)
    link.near.post(Operation.SEND, b"early", "lost")
    link.run(lambda: link.near.queue_pair.failure)
    link.near.pump()
    assert link.near.completions == [Completion(Operation.SEND, Status.RECEIVE_NOT_READY, "lost")]
    assert link.far.queue_pair.responder.starved


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batches", [False, True])
def test_a_region_invalidated_under_a_write_is_not_changed_any_more(seed: int, batches: bool) -> None:
    link = Link(seed, **BAD_LINK, batches=batches)
    memory = bytearray(2_000_000)
    region = link.far.register(memory)
    link.near.post(Operation.WRITE, b"\xee" * len(memory), None, region)
    snapshot: list[bytes] = []

    def invalidate() -> None:
        region.invalidate()
        snapshot.append(bytes(memory))

    link.at(link.now + 0.03, invalidate)
    link.run(lambda: link.near.queue_pair.failure or link.far.queue_pair.failure)
    link.settle()
    assert snapshot and bytes(memory) == snapshot[0] != b"\xee" * len(memory)
    failure = link.far.queue_pair.failure
    assert failure is not None and failure.cause is CloseCause.REMOTE_ACCESS


def test_a_region_invalidated_under_a_read_is_not_served_any_more() -> None:
    link = Link(9)
    region = link.far.register(bytearray(2_000_000))
    link.near.post(Operation.READ, bytearray(2_000_000), "read", region)
    link.at(link.now + 0.01, region.invalidate)
    link.run(lambda: link.near.queue_pair.failure)
    link.near.pump()
    assert link.near.completions == [Completion(Operation.READ, Status.REMOTE_ACCESS, "read")]


@pytest.mark.parametrize("seed", range(4))
def test_send_with_invalidate_is_carried_out_once(seed: int) -> None:
    link = Link(seed, repeat=0.3, loss=0.1)
    regions = [link.far.register(bytearray(64)) for _ in range(20)]
    link.far.post_receives(20)
    for region in regions:
        link.near.post(Operation.SEND, b"done", invalidate=region.token)
    link.run(lambda: len(link.far.received) == 20)
    received = link.far.of(Operation.RECEIVE)
    assert [item.invalidated for item in received] == [region.token for region in regions]
    assert not any(region.valid for region in regions)


def test_congestion_marks_are_reported_and_slow_the_sender() -> None:
    link = Link(10)
    link.far.post_receives(400)
    for _ in range(400):
        link.near.post(Operation.SEND, b"x" * 200)
    link.run(lambda: len(link.far.received) > 50)
    before = link.near.queue_pair.requester.window.size
    link.far.queue_pair.congestion_seen(link.now)
    link.far.queue_pair.congestion_seen(link.now)
    link.far.pump()
    link.run(lambda: link.near.counters["cnp_received"])
    assert link.far.counters["cnp_sent"] == 1
    assert link.far.counters["ecn_marks"] == 2
    assert link.near.queue_pair.requester.window.size < before
    link.run(lambda: len(link.far.received) == 400)


def test_at_most_the_agreed_reads_are_outstanding() -> None:
    link = Link(11)
    outstanding: list[int] = [0]
    worst = [0]

    def watch(packet: bytes, receiver: End) -> bool:
        if packet[0] == 0x0C:
            outstanding[0] += 1
        elif packet[0] in (0x0F, 0x10):
            outstanding[0] -= 1
        worst[0] = max(worst[0], outstanding[0])
        return True

    link.filter = watch
    region = link.far.register(bytearray(100_000))
    for index in range(20):
        link.near.post(Operation.READ, bytearray(100_000), index, region)
    link.run(lambda: len(link.near.of(Operation.READ)) == 20)
    assert worst[0] == 4


def test_window_bounds_what_is_in_flight() -> None:
    link = Link(12)
    link.filter = lambda packet, receiver: receiver is link.far
    region = link.far.register(bytearray(1 << 20))
    link.near.post(Operation.WRITE, bytes(1 << 20), None, region)
    link.near.pump()
    assert link.near.counters["retransmissions"] == 0
    assert len(link._events) <= FIRST_WINDOW
    assert any(event[2].__defaults__[0][8] & 0x80 for event in link._events[:-1]), (
        "acknowledgement asked for on the way"
    )


class Number:
    """A region of the far end with one number in it, and atomic operations on it."""

    def __init__(self, link: Link, rights: Access = RIGHTS | Access.REMOTE_ATOMIC) -> None:
        self.near, self.memory = link.near, bytearray(24)
        self.region = link.far.register(self.memory, rights)
        self.found: list[bytearray] = []

    def __int__(self) -> int:
        return int.from_bytes(self.memory[8:16], sys.byteorder)

    def change(self, operand: int, compare: int | None = None, offset: int = 8) -> None:
        into = bytearray(b"\xee" * 8)
        self.found.append(into)
        work = Work(Operation.READ, [memoryview(into)], 0, len(self.found) - 1, True, self.region.token,
                    self.region.address + offset, atomic=(compare, operand))  # fmt: skip
        self.near.queue_pair.requester.post([work])

    def results(self) -> list[int]:
        assert [item.context for item in self.near.of(Operation.READ) if isinstance(item.context, int)] == list(
            range(len(self.found))
        )
        return [int.from_bytes(into, sys.byteorder) for into in self.found]


def atomic_load(link: Link, operations: int) -> None:
    """Additions, swaps that succeed and fail, Writes and Reads beside them. Each is carried out once, in order."""
    number, rng = Number(link), link.rng
    other, expected, value = bytearray(9000), [], 0
    region = link.far.register(other)
    for index in range(operations):
        expected.append(value)
        kind = rng.randrange(4)
        if kind == 0:
            swapped = rng.getrandbits(64)
            number.change(swapped, compare=value)
            value = swapped
        elif kind == 1:
            number.change(5, compare=value ^ 1)
        else:
            added = rng.choice([1, 3, (1 << 64) - 2])
            number.change(added)
            value = (value + added) & 0xFFFFFFFFFFFFFFFF
        if rng.random() < 0.3:
            link.near.post(Operation.WRITE, rng.randbytes(3000), f"write {index}", region)
        if rng.random() < 0.3:
            link.near.post(Operation.READ, bytearray(5000), f"read {index}", region)
    link.run(lambda: link.near.queue_pair.requester.idle)
    assert number.results() == expected
    link.settle()
    assert int(number) == value, "a repeated request that comes late changes nothing"
    assert number.memory[:8] == number.memory[16:] == bytes(8)
    assert link.far.counters["changes"] == operations


@pytest.mark.parametrize("seed", range(10))
def test_atomic_operations_are_carried_out_once_over_a_bad_link(seed: int) -> None:
    link = Link(seed, **BAD_LINK)
    atomic_load(link, 120)
    assert link.near.counters["retransmissions"] > 0
    assert link.far.counters["duplicates"] > 0


@pytest.mark.parametrize("fault", ["loss", "repeat", "reorder", "damage"])
@pytest.mark.parametrize("behind", [3, 40])
def test_atomic_operations_under_each_fault_and_where_numbers_wrap(fault: str, behind: int) -> None:
    atomic_load(Link(behind, psn=PSN_MASK - behind, **{fault: 0.25}), 60)


def test_a_lost_answer_of_an_atomic_operation_is_sent_again_and_nothing_is_added() -> None:
    link = Link(1)
    number = Number(link)
    lost: list[bytes] = []

    def carry(packet: bytes, receiver: End) -> bool:
        if packet[0] == Opcode.ATOMIC_ACKNOWLEDGE and not lost:
            lost.append(packet)
            return False
        return True

    link.filter = carry
    number.change(3)
    number.change(4)
    link.run(lambda: link.near.queue_pair.requester.idle)
    assert lost and number.results() == [0, 3] and int(number) == 7
    assert link.far.counters["duplicates"] > 0 and link.far.counters["changes"] == 2


def test_an_atomic_operation_that_is_not_remembered_is_dropped() -> None:
    """A request from long ago, which its sender has had answered: no answer, no change. [IBTA 9.7.5.1.4]"""
    link = Link(1)
    number = Number(link)
    requests: list[bytes] = []
    link.filter = lambda packet, receiver: receiver is link.near or requests.append(packet) is None
    for _ in range(MAX_PENDING_READS + 1):
        number.change(1)
    link.run(lambda: link.near.queue_pair.requester.idle)
    link.settle()
    answers: list[bytes] = []
    link.filter = lambda packet, receiver: answers.append(packet) is None
    link.far.receive(requests[0], len(requests[0]))
    link.settle()
    assert not answers and int(number) == MAX_PENDING_READS + 1
    link.far.receive(requests[1], len(requests[1]))
    link.settle()
    (answer,) = answers
    assert answer[0] == Opcode.ATOMIC_ACKNOWLEDGE and answer[16:24] == (1).to_bytes(8, "big")
    assert int(number) == MAX_PENDING_READS + 1


@pytest.mark.parametrize(
    ("offset", "rights", "status", "syndrome"),
    [
        (4, RIGHTS | Access.REMOTE_ATOMIC, Status.REMOTE_ERROR, Syndrome.INVALID_REQUEST),
        (8, RIGHTS, Status.REMOTE_ACCESS, Syndrome.REMOTE_ACCESS),
        (24, RIGHTS | Access.REMOTE_ATOMIC, Status.REMOTE_ACCESS, Syndrome.REMOTE_ACCESS),
    ],
)
def test_an_atomic_operation_that_is_not_allowed(offset: int, rights: Access, status: Status, syndrome: int) -> None:
    link = Link(1)
    number = Number(link, rights)
    naks: list[int] = []
    link.filter = lambda packet, receiver: receiver is link.far or naks.append(packet[12]) is None
    number.change(1, offset=offset)
    link.run(lambda: link.near.queue_pair.failure)
    assert naks == [syndrome] and link.near.of(Operation.READ)[0].status is status
    assert number.memory == bytes(24) and link.far.queue_pair.failure is not None


@pytest.mark.parametrize("answer", ["read response", "atomic acknowledge for a read", "unasked"])
def test_an_answer_of_the_other_kind_is_not_taken(answer: str) -> None:
    link = Link(1)
    number, sent = Number(link), []
    link.filter = lambda packet, receiver: receiver is link.near or sent.append(packet) is not None  # type: ignore[func-returns-value]
    local = bytearray(b"\xee" * 8)
    if answer == "read response":
        number.change(1)
    else:
        link.near.post(Operation.READ, local, "read", number.region)
    link.near.pump()
    psn = BTH.unpack(sent[0]).psn & PSN_MASK
    acknowledge = (AETH.pack_fields(Syndrome.ACK << 24), (7).to_bytes(8, "big"))
    assert link.far.wire is not None
    if answer == "read response":
        link.far.wire.send(Opcode.READ_RESPONSE_ONLY, 0, psn, False, acknowledge[0], (), 0)
        link.run(lambda: link.near.queue_pair.failure)
        assert link.near.of(Operation.READ)[0].status is Status.REMOTE_ERROR
        return
    link.far.wire.send(Opcode.ATOMIC_ACKNOWLEDGE, 0, psn + (answer == "unasked"), False, b"".join(acknowledge), (), 0)
    link.settle()
    assert link.near.counters["duplicates"] == 1 and not link.near.completions and local == b"\xee" * 8
