"""Long tagged messages, which are received by an expected layout, cut and split in every way (RFC 5041, RFC 5040)."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import random
import socket
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smbdirect.providers.base import Access, Operation
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import TaggedHeader, UntaggedHeader
from smbdirect.providers.iwarp.operations import Operations, PendingRead
from smbdirect.providers.iwarp.rdmap import Fault, Opcode, TerminateError
from smbdirect.providers.iwarp.receiver import RING_SIZE, Receiver, RingPool
from smbdirect.providers.iwarp.sender import Response, Sender, Work
from smbdirect.providers.memory import Region, RegionTable
from tests.lab.examples import examples
from tests.lab.fpdu import encode_fpdu

Sockets = tuple[socket.socket, socket.socket]
UNTOUCHED = 0xEE
STAG, BASE = 77, 5
MARGIN = 1000
"""Bytes of a region before and behind what is written."""


RESERVED = {(2, 2), (2, 3), (2, 4), (2, 5), (3, 4), (3, 5)}
"""Byte and bit in a tagged header: these are ignored (RFC 5041 section 4.2, RFC 5040 section 4.1)."""


class Peer:
    """A receiver with a region, a Read under way, and receives."""

    def __init__(self, crc: bool, region: int, sink: list[int], sockets: Sockets | None = None) -> None:
        self.socket = sockets
        self.regions = RegionTable()
        self.memory = bytearray([UNTOUCHED]) * region
        self.region = self.regions.register(memoryview(self.memory), Access.REMOTE_WRITE)
        self.done: list[PendingRead] = []
        self.operations = Operations(self.regions, on_read_done=self.done.append)
        self.receiver = Receiver(self.operations, RingPool(), crc)
        self.sink = [memoryview(bytearray(size)) for size in sink]
        self.operations.reads.append(PendingRead(STAG, self.sink, sum(sink), BASE))
        self.buffers = [bytearray(4) for _ in range(1500)]
        for index, buffer in enumerate(self.buffers):
            self.operations.receives.append((memoryview(buffer), index))

    def pour(self, stream: bytes, sizes: Iterator[int]) -> Iterator[int]:
        """Let the next of ``sizes`` bytes of ``stream`` arrive, as ``recvmsg`` would place them, again and again. Yield
        after each how many have arrived."""
        position = 0
        while position < len(stream):
            if self.socket and self.receiver.one_by_one:
                theirs, ours = self.socket
                count = theirs.send(stream[position : position + next(sizes)])
                got = 0
                while self.receiver.one_by_one and got < count:
                    got += self.receiver.pull(ours.fileno(), 100_000)[0]
                position += got
                with contextlib.suppress(BlockingIOError):
                    while ours.recv(1 << 20):
                        pass  # what belongs elsewhere comes once more
                yield position
                continue
            buffers = self.receiver.buffers()
            count = left = min(next(sizes), sum(map(len, buffers)), len(stream) - position)
            for buffer in buffers:
                part = stream[position : position + min(left, len(buffer))]
                buffer[: len(part)] = part
                position += len(part)
                left -= len(part)
            self.receiver.received(count)
            yield position


@pytest.fixture(scope="module", params=[False, True])
def sockets(request: pytest.FixtureRequest) -> Iterator[Sockets | None]:
    """What long messages are received from FPDU by FPDU, or None: then all is received as ``buffers`` says."""
    if not request.param:
        yield None
        return
    theirs, ours = socket.socketpair()
    with theirs, ours:
        for each in (theirs, ours):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        yield theirs, ours


class Piece(NamedTuple):
    """One FPDU of a stream."""

    data: bytes
    start: int
    """Where its payload begins in the message; -1 for a Send."""
    payload: bytes


def tagged(operation: int, stag: int, offset: int, payload: bytes, last: bool, crc: bool) -> bytes:
    control = ddp.TAGGED | ddp.VERSION | (ddp.LAST if last else 0)
    return encode_fpdu(TaggedHeader(14 + len(payload), control, rdmap.CONTROL | operation, stag, offset), payload, crc)


def send(msn: int, crc: bool) -> bytes:
    header = UntaggedHeader(18 + 4, ddp.VERSION | ddp.LAST, rdmap.CONTROL | Opcode.SEND, 0, 0, msn, 0)
    return encode_fpdu(header, msn.to_bytes(4, "big"), crc)


def cut(data: bytes, sizes: Iterator[int], sends: Iterator[bool], make: tuple[int, int, int], crc: bool) -> list[Piece]:
    """``data`` as a message of FPDUs with payloads of ``sizes``; in front of each, a Send if ``sends`` says so.
    ``make``: operation, token and offset of the first byte."""
    pieces: list[Piece] = []
    operation, stag, base = make
    start, msn = 0, 0
    while start < len(data):
        if next(sends):
            msn += 1
            pieces.append(Piece(send(msn, crc), -1, b""))
        payload = data[start : start + next(sizes)]
        end = start + len(payload)
        pieces.append(Piece(tagged(operation, stag, base + start, payload, end == len(data), crc), start, payload))
        start = end
    return pieces


def forever(rng: random.Random, *choices: int) -> Iterator[int]:
    while True:
        yield rng.choice(choices)


def cuts(rng: random.Random, payload: int, odd: float) -> Iterator[int]:
    """Sizes of payloads: mostly ``payload``, and others with the probability ``odd``."""
    while True:
        yield (
            payload
            if rng.random() >= odd
            else rng.choice([1, 7, 100, payload // 2, payload - 1, min(payload + 1, 65_521), 60_000])
        )


PAYLOADS = st.sampled_from([1428, 4096, 8924, 16_384, 30_001, 65_506, 65_521])
AMOUNTS = st.sampled_from([(1 << 20,), (1 << 20, 70_000), (1, 3, 16, 20, 1 << 20), (1448, 65_536), (4096, 5)])


@settings(max_examples=examples(80), deadline=None)
@given(
    PAYLOADS,
    st.lists(st.integers(0, 400_000), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.0, 0.1, 0.6]),
    st.sampled_from([0.0, 0.0, 0.3]),
    st.booleans(),
    AMOUNTS,
    st.integers(0, 1 << 32),
)
def test_response_cut_in_any_way(
    sockets: Sockets | None,
    payload: int,
    sink: list[int],
    odd: float,
    sends: float,
    crc: bool,
    amounts: tuple[int, ...],
    seed: int,
) -> None:
    rng = random.Random(seed)
    peer = Peer(crc, 1, sink, sockets)
    data = rng.randbytes(sum(sink))
    pieces = cut(
        data, cuts(rng, payload, odd), iter(lambda: rng.random() < sends, None), (Opcode.READ_RESPONSE, STAG, BASE), crc
    )
    pieces.append(Piece(send(1 + sum(piece.start < 0 for piece in pieces), crc), -1, b""))
    stream = b"".join(piece.data for piece in pieces)
    for _ in peer.pour(stream, forever(rng, *amounts)):
        pass
    if not data:
        pieces = pieces[-1:]  # a response of nothing is one FPDU, which this stream has not
        peer.operations.reads.clear()
    assert b"".join(peer.sink) == data
    assert len(peer.done) == bool(data)
    receiver, operations = peer.receiver, peer.operations
    assert operations.bytes_read == len(data) >= receiver.bytes_direct
    assert operations.fpdus == len(pieces)
    assert [completion.length for completion in operations.completions] == [4] * sum(
        piece.start < 0 for piece in pieces
    )
    assert all(
        buffer[:4] == number.to_bytes(4, "big")
        for number, buffer in enumerate(peer.buffers[: len(operations.completions)], 1)
    )
    assert receiver.at_boundary
    assert not receiver.midway


@settings(max_examples=examples(80), deadline=None)
@given(
    PAYLOADS,
    st.integers(1, 500_000),
    st.sampled_from([0.0, 0.0, 0.1, 0.6]),
    st.sampled_from([0.0, 0.0, 0.3]),
    st.booleans(),
    AMOUNTS,
    st.integers(0, 1 << 32),
)
def test_write_touches_only_what_it_says(
    sockets: Sockets | None,
    payload: int,
    total: int,
    odd: float,
    sends: float,
    crc: bool,
    amounts: tuple[int, ...],
    seed: int,
) -> None:
    """Whatever has arrived, the region holds bytes of payloads that have arrived, and is else as it was: the bytes
    behind the Write also."""
    rng = random.Random(seed)
    peer = Peer(crc, MARGIN + total + rng.choice([MARGIN, 200_000]), [], sockets)
    data = bytes(rng.choices(range(1, 200), k=1000)) * (total // 1000 + 1)
    data = data[:total]
    address = peer.region.address + MARGIN
    pieces = cut(
        data,
        cuts(rng, payload, odd),
        iter(lambda: rng.random() < sends, None),
        (Opcode.RDMA_WRITE, peer.region.token, address),
        crc,
    )
    pieces.append(Piece(send(1 + sum(piece.start < 0 for piece in pieces), crc), -1, b""))
    stream = b"".join(piece.data for piece in pieces)
    number, end = 0, 0
    placed = 0
    for arrived in peer.pour(stream, forever(rng, *amounts)):
        while number < len(pieces) and end + len(pieces[number].data) <= arrived:
            end += len(pieces[number].data)
            if pieces[number].start >= 0:
                placed = pieces[number].start + len(pieces[number].payload)
            number += 1
        # A part of the next payload may be in place already.
        begun = max(0, arrived - end - 16) if number < len(pieces) and pieces[number].start >= 0 else 0
        reach = min(total, placed + begun)
        assert peer.memory[:MARGIN].count(UNTOUCHED) == MARGIN
        assert peer.memory[MARGIN : MARGIN + placed] == data[:placed]
        assert peer.memory.count(UNTOUCHED, MARGIN + reach) == len(peer.memory) - MARGIN - reach
    assert peer.memory[MARGIN : MARGIN + total] == data
    assert peer.operations.bytes_write == total >= peer.receiver.bytes_direct
    assert peer.operations.fpdus == len(pieces)
    assert len(peer.operations.completions) == sum(piece.start < 0 for piece in pieces)
    assert peer.receiver.at_boundary


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from([4096, 65_506]), st.booleans(), AMOUNTS, st.integers(0, 1 << 32))
def test_a_broken_response_completes_no_read(
    sockets: Sockets | None, payload: int, crc: bool, amounts: tuple[int, ...], seed: int
) -> None:
    """With CRC no error passes. Without it none in a header does."""
    rng = random.Random(seed)
    peer = Peer(crc, 1, [300_000], sockets)
    data = rng.randbytes(300_000)
    pieces = cut(data, cuts(rng, payload, 0), iter(bool, True), (Opcode.READ_RESPONSE, STAG, BASE), crc)
    stream = bytearray(b"".join(piece.data for piece in pieces))
    position, bit = rng.randrange(len(stream)), rng.randrange(8)
    if not crc:
        place, bit = rng.choice(
            [(place, bit) for place in range(16) for bit in range(8) if (place, bit) not in RESERVED]
        )
        position = sum(len(piece.data) for piece in pieces[: rng.randrange(len(pieces))]) + place
    stream[position] ^= 1 << bit
    # What follows: a length that is too large must not make the receiver wait for ever.
    stream += send(1, crc) * 4000
    with pytest.raises(TerminateError) as caught:
        for _ in peer.pour(bytes(stream), forever(rng, *amounts)):
            pass
    assert not peer.done
    assert not peer.operations.completions
    if crc:
        assert caught.value.fault is Fault.CRC
        assert peer.receiver.crc_errors == 1


def message(size: int, opcode: int, crc: bool, region: Region) -> bytes:
    """A long message and a Send, as our own sender cuts them for a peer on the loopback interface."""
    sender = Sender(65_520, crc, 16, deque())
    sender.open = True
    data = memoryview(bytes(size))
    if opcode == Opcode.READ_RESPONSE:
        sender.respond(Response(STAG, BASE, None, data))
    else:
        address = region.address
        sender.work.append(Work(Operation.WRITE, [data], size, None, True, stag=region.token, remote_offset=address))
    first = b"".join(sender.buffers())
    sender.sent(len(first))
    assert not sender.buffers()
    sender.work.append(Work(Operation.SEND, [memoryview(b"done")], 4, None, True))
    return first + b"".join(sender.buffers())


def test_a_write_and_its_send_go_out_with_one_call() -> None:
    """Each FPDU is two buffers: the trailer of the one before with its header, and its payload."""
    sender = Sender(65_520, False, 16, deque())
    sender.open = True
    data = memoryview(bytes(1 << 19))
    sender.work.append(Work(Operation.WRITE, [data], len(data), None, True, stag=1, remote_offset=BASE))
    sender.work.append(Work(Operation.SEND, [memoryview(b"done")], 4, None, True))
    buffers = list(sender.buffers())
    fpdus = -(-len(data) // 65_506)
    assert len(buffers) == 2 * fpdus + 1 + 1  # the last trailer, and the Send
    assert all(buffer.obj is data.obj for buffer in buffers[1 : 2 * fpdus : 2] if isinstance(buffer, memoryview))
    assert sender.sent(sum(map(len, buffers)))
    assert not sender.buffers()
    assert sender.fpdus == fpdus + 1


@pytest.mark.parametrize(
    ("opcode", "crc", "calls"),
    [
        (Opcode.READ_RESPONSE, False, 9),
        (Opcode.RDMA_WRITE, False, 9),
        # The ring is full after four FPDUs.
        (Opcode.RDMA_WRITE, True, 3),
    ],
)
def test_system_calls_of_a_long_message(opcode: int, crc: bool, calls: int) -> None:
    """The first finds out that the message is long, if the one before was: else it takes what fits the ring."""
    peer = Peer(crc, 1 << 19, [1 << 19])
    for number in range(3):
        stream = message(1 << 19, opcode, crc, peer.region)
        if number:
            peer.operations.reads.append(PendingRead(STAG, peer.sink, 1 << 19, BASE))
            peer.operations._send_msn = ddp.FIRST_MSN
        made = sum(1 for _ in peer.pour(stream, forever(random.Random(1), 1 << 20)))
        assert made <= calls
        assert len(peer.operations.completions) == number + 1


def test_where_a_ring_begins() -> None:
    """Far from the begin of a page, where the kernel's data mostly begins: a copy to a place just behind it is slow."""
    ring = RingPool().make()
    assert len(ring) == RING_SIZE
    assert 64 <= ctypes.addressof(ctypes.c_char.from_buffer(ring)) % mmap.PAGESIZE <= mmap.PAGESIZE - 64


def test_a_response_that_stops_is_not_lost() -> None:
    """A Send between two FPDUs, and then nothing: it is received although the layout waits for more."""
    peer = Peer(False, 1, [200_000])
    whole = cut(bytes(200_000), iter([16_384] * 99), iter(bool, True), (Opcode.READ_RESPONSE, STAG, BASE), False)
    stream = whole[0].data + whole[1].data + send(1, False)
    for _ in peer.pour(stream, iter([5000] * 99)):
        pass
    assert len(peer.operations.completions) == 1
    assert not peer.done
    for _ in peer.pour(b"".join(piece.data for piece in whole[2:]), iter([100_000] * 99)):
        pass
    assert len(peer.done) == 1


def test_a_region_is_in_use_while_a_long_write_arrives() -> None:
    peer = Peer(False, 400_000, [])
    stream = message(400_000, Opcode.RDMA_WRITE, False, peer.region)
    other = peer.regions.register(memoryview(bytearray(9)), Access.REMOTE_WRITE)
    pouring = peer.pour(stream, iter([5000, 100_000, 100_000, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20]))
    next(pouring)
    assert peer.receiver.uses(peer.region)
    assert not peer.receiver.uses(other)
    for _ in pouring:
        pass
    assert not peer.receiver.uses(peer.region)
