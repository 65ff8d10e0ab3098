"""Sender and receiver halves of an iWARP stream, without sockets (RFC 5041, RFC 5040)."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smbdirect.providers.base import Access, Completion, Operation, Status
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import TAGGED_HEADER, UNTAGGED_HEADER, TaggedHeader, UntaggedHeader
from smbdirect.providers.iwarp.mpa import Rtr, ulpdu_for_segment
from smbdirect.providers.iwarp.operations import Operations, PendingRead
from smbdirect.providers.iwarp.rdmap import (
    READ_REQUEST,
    TERMINATE_CONTROL,
    Fault,
    Opcode,
    ReadRequest,
    TerminateError,
    describe_terminate,
)
from smbdirect.providers.iwarp.receiver import Receiver, RingPool
from smbdirect.providers.iwarp.sender import IOV_MAX, Response, Sender, Work
from smbdirect.providers.memory import RegionTable
from tests.lab.examples import examples
from tests.lab.fpdu import decode_fpdu, encode_fpdu, iter_fpdus

RIGHTS = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE


class Peer:
    """A receiver with one region, receives and a log of what it was asked."""

    def __init__(self, crc: bool = False, receives: int = 4, size: int = 2048, rtr: Rtr | None = None) -> None:
        self.regions = RegionTable()
        self.memory = bytearray(b"\xee" * 200_000)
        self.region = self.regions.register(memoryview(self.memory), RIGHTS)
        self.requests: list[tuple[ReadRequest, bytes]] = []
        self.terminates: list[bytes] = []
        self.rings = RingPool()
        self.operations = Operations(
            self.regions,
            on_read_request=lambda request, region, memory: self.requests.append((request, bytes(memory))),
            on_terminate=lambda payload: self.terminates.append(bytes(payload)),
        )
        self.operations.rtr = rtr
        self.receiver = Receiver(self.operations, self.rings, crc)
        self.buffers = [bytearray(size) for _ in range(receives)]
        for index, buffer in enumerate(self.buffers):
            self.operations.receives.append((memoryview(buffer), index))

    def fails(self, data: bytes, fault: Fault) -> TerminateError:
        """``data`` must be refused, and nothing may have been placed."""
        before = bytes(self.memory), [bytes(buffer) for buffer in self.buffers]
        with pytest.raises(TerminateError) as caught:
            self.receiver.feed(data)
        assert caught.value.fault is fault
        assert (bytes(self.memory), [bytes(buffer) for buffer in self.buffers]) == before
        layer_and_type, code, _ = fault.value
        control = TERMINATE_CONTROL.unpack(caught.value.message)
        assert (control.layer_and_type, control.code) == (layer_and_type, code)
        assert len(caught.value.message) <= rdmap.MAX_TERMINATE
        return caught.value


def tagged(opcode: int, stag: int, offset: int, payload: bytes = b"", last: bool = True, **changes: int) -> bytes:
    control = ddp.TAGGED | ddp.VERSION | (ddp.LAST if last else 0)
    header = TaggedHeader(14 + len(payload), control, rdmap.CONTROL | opcode, stag, offset)
    return encode_fpdu(header._replace(**changes), payload, crc=False)


def untagged(
    opcode: int,
    payload: bytes = b"",
    msn: int = 1,
    *,
    offset: int = 0,
    queue: int = 0,
    last: bool = True,
    **changes: int,
) -> bytes:
    control = ddp.VERSION | (ddp.LAST if last else 0)
    header = UntaggedHeader(18 + len(payload), control, rdmap.CONTROL | opcode, 0, queue, msn, offset)
    return encode_fpdu(header._replace(**changes), payload, crc=False)


def read_request(peer: Peer, msn: int = 1, **changes: int) -> bytes:
    request = ReadRequest(77, 1000, 100, peer.region.token, peer.region.address + 5)
    return untagged(Opcode.READ_REQUEST, READ_REQUEST.pack(request._replace(**changes)), msn, queue=1)


# -- what is accepted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [Opcode.SEND, Opcode.SEND_SE])
def test_send_in_several_segments(opcode: Opcode) -> None:
    peer = Peer()
    for index in range(3):
        peer.receiver.feed(untagged(opcode, bytes([index]) * 680, offset=index * 680, last=index == 2))
        assert len(peer.operations.completions) == (index == 2)
    assert peer.operations.completions == [Completion(Operation.RECEIVE, Status.OK, 0, 2040)]
    assert peer.buffers[0][:2040] == b"\0" * 680 + b"\1" * 680 + b"\2" * 680


@pytest.mark.parametrize("opcode", [Opcode.SEND_INVALIDATE, Opcode.SEND_SE_INVALIDATE])
def test_send_with_invalidate(opcode: Opcode) -> None:
    peer = Peer()
    peer.receiver.feed(untagged(opcode, b"x", invalidate_stag=peer.region.token))
    assert peer.operations.completions == [Completion(Operation.RECEIVE, Status.OK, 0, 1, peer.region.token)]
    assert not peer.region.valid
    peer.fails(untagged(opcode, msn=2, invalidate_stag=peer.region.token), Fault.CANNOT_INVALIDATE)


def test_write_up_to_the_last_byte_and_not_beyond() -> None:
    peer = Peer()
    end = peer.region.address + peer.region.length
    peer.receiver.feed(tagged(Opcode.RDMA_WRITE, peer.region.token, end - 3, b"abc"))
    assert peer.memory[-4:] == b"\xeeabc"
    peer.fails(tagged(Opcode.RDMA_WRITE, peer.region.token, end - 2, b"xyz"), Fault.TAGGED_BOUNDS)


def test_zero_length_operations_are_checked_against_nothing() -> None:
    peer = Peer()
    peer.receiver.feed(tagged(Opcode.RDMA_WRITE, 12345, 0))
    peer.receiver.feed(read_request(peer, length=0, source_stag=12345))
    assert [memory for _, memory in peer.requests] == [b""]


def test_send_as_ready_to_receive_uses_no_receive() -> None:
    for first in (bytes(8), untagged(Opcode.SEND)):
        peer = Peer(rtr=Rtr.SEND)
        peer.receiver.feed(first)
        assert len(peer.operations.receives) == 4
        peer.receiver.feed(untagged(Opcode.SEND, b"x", msn=1 if first == bytes(8) else 2))
        assert len(peer.operations.receives) == 3
        with pytest.raises(TerminateError):
            peer.receiver.feed(bytes(8))


def test_terminate_is_reported_raw() -> None:
    peer = Peer()
    peer.receiver.feed(untagged(Opcode.TERMINATE, b"\x02\x01\x00\x00", queue=2))
    assert [describe_terminate(payload) for payload in peer.terminates] == ["terminate 0x02 code 0x01"]
    assert describe_terminate(b"") == "terminate message of 0 bytes"


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, Fault]] = {
    "write: unknown token": (
        lambda p: tagged(0, p.region.token ^ 1, p.region.address, b"x"),
        Fault.TAGGED_INVALID_STAG,
    ),
    "write: below": (lambda p: tagged(0, p.region.token, p.region.address - 1, b"xy"), Fault.TAGGED_BOUNDS),
    "write: wraps": (lambda p: tagged(0, p.region.token, (1 << 64) - 1, b"xy"), Fault.TAGGED_OFFSET_WRAP),
    "response to nothing": (lambda p: tagged(2, 5, 0, b"x"), Fault.TAGGED_INVALID_STAG),
    "tagged send": (lambda p: tagged(3, p.region.token, p.region.address, b"x"), Fault.UNEXPECTED_OPCODE),
    "tagged ddp version": (lambda p: tagged(0, 0, 0, control=0xC0), Fault.TAGGED_VERSION),
    "untagged ddp version": (lambda p: untagged(3, control=0x42), Fault.UNTAGGED_VERSION),
    "rdmap version": (lambda p: untagged(3, rdmap_control=0x03), Fault.RDMAP_VERSION),
    "untagged write": (lambda p: untagged(0), Fault.UNEXPECTED_OPCODE),
    "opcode 8": (lambda p: untagged(8), Fault.UNEXPECTED_OPCODE),
    "opcode 15": (lambda p: untagged(15), Fault.UNEXPECTED_OPCODE),
    "queue 3": (lambda p: untagged(3, queue=3), Fault.INVALID_QUEUE),
    "send on the read queue": (lambda p: untagged(3, queue=1), Fault.UNEXPECTED_OPCODE),
    "terminate on the send queue": (lambda p: untagged(7, bytes(4)), Fault.UNEXPECTED_OPCODE),
    "msn 0": (lambda p: untagged(3, msn=0), Fault.MSN_RANGE),
    "msn 2": (lambda p: untagged(3, msn=2), Fault.MSN_RANGE),
    "first segment not at 0": (lambda p: untagged(3, b"x", offset=1), Fault.MESSAGE_OFFSET),
    "message of 2049 bytes": (lambda p: untagged(3, bytes(2049)), Fault.MESSAGE_TOO_LONG),
    "invalidate nothing": (lambda p: untagged(4, invalidate_stag=1), Fault.CANNOT_INVALIDATE),
    "read: unknown token": (lambda p: read_request(p, source_stag=p.region.token ^ 1), Fault.INVALID_STAG),
    "read: beyond": (lambda p: read_request(p, length=199_996), Fault.BOUNDS),
    "read: below": (lambda p: read_request(p, source_offset=p.region.address - 1), Fault.BOUNDS),
    "read: wraps": (lambda p: read_request(p, source_offset=(1 << 64) - 99), Fault.OFFSET_WRAP),
    "read: msn": (lambda p: read_request(p, msn=2), Fault.MSN_RANGE),
    "read: in two": (lambda p: untagged(1, bytes(28), queue=1, last=False), Fault.UNSPECIFIED_OPERATION),
    "read: short": (lambda p: untagged(1, bytes(27), queue=1), Fault.UNSPECIFIED_OPERATION),
    "read: long": (lambda p: untagged(1, bytes(29), queue=1), Fault.MESSAGE_TOO_LONG),
    "read: offset": (lambda p: untagged(1, bytes(28), queue=1, offset=4), Fault.MESSAGE_OFFSET),
    "terminate: long": (lambda p: untagged(7, bytes(53), queue=2), Fault.MESSAGE_TOO_LONG),
    "no ULPDU": (lambda p: bytes(8), Fault.ULPDU_LENGTH),
    "13 bytes": (lambda p: b"\0\x0d" + bytes(20), Fault.ULPDU_LENGTH),
    "untagged of 17 bytes": (lambda p: b"\0\x11\x41\x43" + bytes(20), Fault.ULPDU_LENGTH),
}


# Layer and error type, error code: RFC 5040 section 4.8 (RDMAP and DDP), RFC 5044 section 8 (MPA).
ON_THE_WIRE = {
    Fault.INVALID_STAG: "0100",
    Fault.BOUNDS: "0101",
    Fault.ACCESS_RIGHTS: "0102",
    Fault.OFFSET_WRAP: "0104",
    Fault.CANNOT_INVALIDATE: "0109",
    Fault.RDMAP_VERSION: "0205",
    Fault.UNEXPECTED_OPCODE: "0206",
    Fault.UNSPECIFIED_OPERATION: "02ff",
    Fault.TAGGED_INVALID_STAG: "1100",
    Fault.TAGGED_BOUNDS: "1101",
    Fault.TAGGED_OFFSET_WRAP: "1103",
    Fault.TAGGED_VERSION: "1104",
    Fault.INVALID_QUEUE: "1201",
    Fault.NO_BUFFER: "1202",
    Fault.MSN_RANGE: "1203",
    Fault.MESSAGE_OFFSET: "1204",
    Fault.MESSAGE_TOO_LONG: "1205",
    Fault.UNTAGGED_VERSION: "1206",
    Fault.CRC: "2002",
    Fault.ULPDU_LENGTH: "2003",
}


@pytest.mark.parametrize("fault", Fault)
def test_terminate_codes(fault: Fault) -> None:
    assert TerminateError(fault).message[:2].hex() == ON_THE_WIRE[fault]


def test_every_kind_of_fault_is_provoked_somewhere_here() -> None:
    elsewhere = {Fault.NO_BUFFER, Fault.ACCESS_RIGHTS, Fault.CRC}  # they need another set-up than ``REFUSED`` has
    assert {fault for _, fault in REFUSED.values()} | elsewhere == set(Fault)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, fault = REFUSED[name]
    peer = Peer()
    data = make(peer)
    if fault is Fault.CANNOT_INVALIDATE:
        with pytest.raises(TerminateError) as caught:
            peer.receiver.feed(data)
        assert caught.value.fault is fault
        assert not peer.operations.completions
        return
    error = peer.fails(data, fault)
    if error.header:
        assert data.startswith(error.header)
    if name.startswith("read") and fault.value[0] == 0x01:
        assert len(error.message) == 4 + 48


def test_no_receive() -> None:
    Peer(receives=0).fails(untagged(Opcode.SEND, b"x"), Fault.NO_BUFFER)


@pytest.mark.parametrize(("offset", "fault"), [(99, Fault.MESSAGE_OFFSET), (101, Fault.MESSAGE_OFFSET)])
def test_segment_out_of_place(offset: int, fault: Fault) -> None:
    peer = Peer()
    peer.receiver.feed(untagged(3, bytes(100), last=False))
    peer.fails(untagged(3, b"x", offset=offset), fault)


def test_opcode_changes_within_a_message() -> None:
    peer = Peer()
    peer.receiver.feed(untagged(3, bytes(100), last=False))
    peer.fails(untagged(4, b"x", offset=100), Fault.UNEXPECTED_OPCODE)


def test_rights_are_enforced() -> None:
    peer = Peer()
    readable = peer.regions.register(memoryview(bytearray(64)), Access.REMOTE_READ)
    peer.fails(tagged(0, readable.token, readable.address, b"x"), Fault.ACCESS_RIGHTS)
    peer = Peer()
    writable = peer.regions.register(memoryview(bytearray(64)), Access.REMOTE_WRITE)
    peer.fails(
        read_request(peer, source_stag=writable.token, source_offset=writable.address, length=1), Fault.ACCESS_RIGHTS
    )


def test_header_is_judged_before_the_payload_arrives() -> None:
    """A peer cannot make us hold what it may not send."""
    peer = Peer()
    peer.fails(untagged(3, bytes(60_000))[:24], Fault.MESSAGE_TOO_LONG)


def response(peer: Peer, payload: bytes, **changes: Any) -> bytes:
    read = peer.operations.reads[0]
    arguments = {"stag": read.stag, "offset": read.base, "last": True} | changes
    return tagged(Opcode.READ_RESPONSE, arguments["stag"], arguments["offset"], payload, arguments["last"])


@pytest.mark.parametrize(
    ("payload", "changes", "fault"),
    [
        (bytes(100), {"offset": 1}, Fault.TAGGED_BOUNDS),
        (bytes(101), {}, Fault.TAGGED_BOUNDS),
        (bytes(99), {}, Fault.TAGGED_BOUNDS),
        (bytes(100), {"last": False}, Fault.TAGGED_BOUNDS),
        (bytes(100), {"stag": 9}, Fault.TAGGED_INVALID_STAG),
    ],
)
def test_read_response_must_match_the_request(payload: bytes, changes: dict[str, Any], fault: Fault) -> None:
    peer = Peer()
    sink = bytearray(100)
    peer.operations.reads.append(PendingRead(8, [memoryview(sink)], 100))
    peer.fails(response(peer, payload, **changes), fault)
    assert sink == bytes(100)


@pytest.mark.parametrize("crc", [False, True])
def test_a_read_response_that_is_one_fpdu(crc: bool) -> None:
    done: list[PendingRead] = []
    peer = Peer(crc=crc)
    peer.operations._on_read_done = done.append
    sinks = [bytearray(100), bytearray(50)]
    reads = [PendingRead(8 + number, [memoryview(sink)], len(sink)) for number, sink in enumerate(sinks)]
    peer.operations.reads.extend(reads)
    headers = [
        TaggedHeader(14 + read.total, 0xC1, rdmap.CONTROL | Opcode.READ_RESPONSE, read.stag, 0) for read in reads
    ]
    payloads = [bytes(range(100)), 50 * b"b"]
    peer.receiver.feed(b"".join(encode_fpdu(*fpdu, crc=crc) for fpdu in zip(headers, payloads, strict=True)))
    assert done == reads and not peer.operations.reads
    assert sinks == payloads
    assert (peer.operations.fpdus, peer.operations.bytes_read) == (2, 150)


def test_a_damaged_read_response_that_is_one_fpdu_completes_nothing() -> None:
    peer = Peer(crc=True)
    sink = bytearray(100)
    peer.operations.reads.append(PendingRead(8, [memoryview(sink)], 100))
    header = TaggedHeader(14 + 100, 0xC1, rdmap.CONTROL | Opcode.READ_RESPONSE, 8, 0)
    data = bytearray(encode_fpdu(header, bytes(range(100)), crc=True))
    data[50] ^= 1
    peer.fails(bytes(data), Fault.CRC)
    assert sink == bytes(100)
    assert len(peer.operations.reads) == 1


def test_sink_token_admits_no_write() -> None:
    peer = Peer()
    peer.operations.reads.append(PendingRead(8, [memoryview(bytearray(100))], 100))
    peer.fails(tagged(Opcode.RDMA_WRITE, 8, 0, bytes(10)), Fault.TAGGED_INVALID_STAG)


@pytest.mark.parametrize("position", [0, 1, 2, 3, 17, 30, -5, -1])
def test_any_flipped_bit_is_a_crc_error_and_places_nothing(position: int) -> None:
    peer = Peer(crc=True)
    header = TaggedHeader(14 + 41, 0xC1, rdmap.CONTROL, peer.region.token, peer.region.address)
    data = bytearray(encode_fpdu(header, b"d" * 41, crc=True))
    data[position] ^= 1 if position not in (0, 1) else 0
    if position in (0, 1):
        data[1] ^= 4  # another length that still ends within what follows
        data += bytes(8)
    peer.fails(bytes(data), Fault.CRC)
    assert peer.receiver.crc_errors == 1


# -- both halves together ----------------------------------------------------------------------------------------------


def drain(sender: Sender, rng: random.Random | None = None) -> bytes:
    """Everything the sender has, taken in whole or random amounts."""
    stream = bytearray()
    while True:
        buffers = sender.buffers()
        assert len(buffers) <= IOV_MAX
        if not buffers:
            return bytes(stream)
        data = b"".join(buffers)
        count = len(data) if rng is None else rng.randint(1, len(data))
        if rng is not None and rng.random() < 0.5:
            rest = sender.rest_of_fpdu()
            assert data.startswith(rest)
        stream += data[:count]
        sender.sent(count)


requests = st.lists(
    st.tuples(
        st.sampled_from(["send", "write", "invalidate", "read", "response"]),
        st.lists(st.integers(0, 9000), max_size=4),
    ),
    max_size=12,
)


@settings(max_examples=examples(60), deadline=None)
@given(requests, st.booleans(), st.sampled_from([128, 1442, 8938, 65520]), st.integers(0, 1 << 32))
def test_what_goes_in_comes_out(operations: list[tuple[str, list[int]]], crc: bool, max_ulpdu: int, seed: int) -> None:
    rng = random.Random(seed)
    peer = Peer(crc=crc, receives=16, size=40_000)
    sent: list[Work] = []
    reads: deque[PendingRead] = deque()
    sender = Sender(max_ulpdu, crc, 16, reads)
    sender.open = True
    messages: list[tuple[bytes, int | None]] = []
    expected_memory = bytearray(peer.memory)
    responses: list[tuple[bytearray, bytes]] = []
    posted = 0
    write_at = 0
    for kind, sizes in operations:
        parts = [memoryview(rng.randbytes(size)) for size in sizes]
        data = b"".join(parts)
        if kind == "write":
            data = data[: 200_000 - write_at]
            sent.append(
                Work(
                    Operation.WRITE,
                    [memoryview(data)],
                    len(data),
                    None,
                    True,
                    stag=peer.region.token,
                    remote_offset=peer.region.address + write_at,
                )
            )
            sender.work.append(sent[-1])
            expected_memory[write_at : write_at + len(data)] = data
            write_at += len(data)
        elif kind == "read":
            length = min(len(data), 1000)
            pending = PendingRead(99, [memoryview(bytearray(length))], length)
            sender.work.append(
                Work(
                    Operation.READ,
                    (),
                    length,
                    None,
                    True,
                    stag=peer.region.token,
                    remote_offset=peer.region.address + 190_000,
                    read=pending,
                )
            )
            continue
        elif kind == "response":
            sink = bytearray(len(data))
            pieces = [memoryview(sink)[: len(data) // 3], memoryview(sink)[len(data) // 3 :]]
            stag = 1000 + len(responses)
            peer.operations.reads.append(PendingRead(stag, pieces, len(data), base=5))
            sender.respond(Response(stag, 5, None, memoryview(data)))
            responses.append((sink, data))
            continue
        else:
            token = None
            if kind == "invalidate":
                token = peer.regions.register(memoryview(bytearray(1)), RIGHTS).token
            sent.append(Work(Operation.SEND, parts, len(data), None, True, invalidate=token))
            sender.work.append(sent[-1])
            messages.append((data, token))
        posted += 1
    stream = drain(sender, rng)
    assert sender.idle
    assert len(sent) == posted
    assert all(work.done for work in sent)
    assert b"".join(encode_fpdu(fpdu.header, fpdu.payload, crc) for fpdu in iter_fpdus(stream)) == stream
    assert all(fpdu.header.ulpdu_length <= max_ulpdu for fpdu in iter_fpdus(stream))
    start = 0
    while start < len(stream):
        size = rng.choice([1, 3, 20, 1448, 70_000])
        peer.receiver.feed(stream[start : start + size])
        start += size
    assert [(c.length, c.invalidated) for c in peer.operations.completions] == [(len(d), t) for d, t in messages]
    for index, (data, _) in enumerate(messages):
        assert peer.buffers[index][: len(data)] == data
    assert peer.memory[:write_at] == expected_memory[:write_at]
    assert all(sink == data for sink, data in responses)
    assert len(peer.requests) == sum(kind == "read" for kind, _ in operations)
    assert peer.receiver.at_boundary
    assert peer.operations.fpdus == sender.fpdus


UNTAGGED_SIZE, READ_REQUEST_SIZE = 20, 48


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["send", "write", "read", "response"]), st.integers(0, 9000)), max_size=40),
    st.sampled_from([536, 1398, 1448, 8948, 65483]),
    st.booleans(),
)
def test_no_segment_ends_where_siw_cannot_take_it(operations: list[tuple[str, int]], mss: int, large: bool) -> None:
    """Untagged headers are not parted behind their first 16 bytes, and Read Requests lie in the first segment of what
    one call sends, which is the only one that a small window cannot cut."""
    sender = Sender(65520 if large else ulpdu_for_segment(mss), True, 64, deque())
    sender.open = True
    sender.segment = mss
    for kind, length in operations:
        data = memoryview(bytes(length))
        if kind == "response":
            sender.respond(Response(5, 0, None, data))
            continue
        operation = Operation[kind.upper()]
        read = PendingRead(1, [memoryview(bytearray(9))], 9) if kind == "read" else None
        sender.work.append(Work(operation, [] if read else [data], 0 if read else length, None, True, read=read))
    opcodes: list[int] = []
    while buffers := sender.buffers():
        batch = b"".join(buffers)
        sender.sent(len(batch))
        start = 0
        for fpdu in iter_fpdus(batch):
            opcodes.append(fpdu.opcode)
            headers = READ_REQUEST_SIZE if fpdu.opcode == Opcode.READ_REQUEST else UNTAGGED_SIZE
            if headers == READ_REQUEST_SIZE:
                assert start + fpdu.size <= mss
            elif not isinstance(fpdu.header, TaggedHeader):
                assert not any((start + at) % mss == 0 for at in range(17, headers))
            start += fpdu.size
    assert sender.idle
    assert opcodes.count(Opcode.READ_REQUEST) == sum(kind == "read" for kind, _ in operations)


def test_reads_beyond_the_limit_wait() -> None:
    reads: deque[PendingRead] = deque()
    sender = Sender(1442, False, 2, reads)
    sender.open = True
    for _ in range(3):
        sender.work.append(Work(Operation.READ, (), 1, None, True, read=PendingRead(1, [memoryview(bytearray(1))], 1)))
    assert len(list(iter_fpdus(drain(sender)))) == 2
    sender.respond(Response(5, 0, None, memoryview(b"not held up")))
    assert len(list(iter_fpdus(drain(sender)))) == 1
    reads.popleft()
    assert len(list(iter_fpdus(drain(sender)))) == 1
    assert sender.idle


def test_closed_sender_keeps_silent() -> None:
    sender = Sender(1442, False, 2, deque())
    sender.work.append(Work(Operation.SEND, (), 0, None, True))
    assert not sender.buffers()


def test_long_response_is_cut_only_as_it_goes_out() -> None:
    sender = Sender(128, False, 2, deque())
    sender.open = True
    sender.respond(Response(5, 0, None, memoryview(bytes(10_000_000))))
    assert len(sender.buffers()) <= IOV_MAX
    assert sender.fpdus <= IOV_MAX
    assert sender.responses == 1


def test_terminate_follows_the_fpdu_under_way() -> None:
    sender = Sender(1442, False, 2, deque())
    sender.open = True
    sender.work.append(Work(Operation.SEND, [memoryview(b"a" * 5000)], 5000, None, True))
    whole = b"".join(sender.buffers())
    first = decode_fpdu(whole)
    for count in (0, 1, 20, 100, first.size - 1, first.size, first.size + 1):
        fresh = Sender(1442, False, 2, deque())
        fresh.open = True
        fresh.work.append(Work(Operation.SEND, [memoryview(b"a" * 5000)], 5000, None, True))
        fresh.buffers()
        fresh.sent(count)
        stream = whole[:count] + fresh.rest_of_fpdu() + fresh.terminate_fpdu(b"\x12\x02\0\0")
        fpdus = list(iter_fpdus(stream))
        assert fpdus[-1].opcode == Opcode.TERMINATE
        assert len(fpdus) == 1 + -(-count // first.size)


def test_a_run_of_segments_stops_at_the_first_bad_one() -> None:
    for bad, fault in (
        ({"offset": 199_990}, Fault.TAGGED_BOUNDS),
        ({"stag": 1}, Fault.TAGGED_INVALID_STAG),
        ({"control": 0x82}, Fault.TAGGED_VERSION),
        ({"rdmap_control": 0x00}, Fault.RDMAP_VERSION),
    ):
        peer = Peer()
        token, start = peer.region.token, peer.region.address
        stream = b"".join(tagged(0, token, start + 100 * i, b"a" * 100, last=False) for i in range(2))
        changes = {k: v for k, v in bad.items() if k in ("control", "rdmap_control")}
        where = start + bad.get("offset", 200)
        stream += tagged(0, bad.get("stag", token), where, b"b" * 100, last=False, **changes)
        with pytest.raises(TerminateError) as caught:
            peer.receiver.feed(stream + tagged(0, token, start + 300, b"c" * 100))
        assert caught.value.fault is fault
        assert peer.memory[:200] == b"a" * 200
        assert set(peer.memory[200:]) == {0xEE}
        assert peer.operations.fpdus == 2


# -- fuzzing -----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_end_in_a_terminate_or_wait_for_more(data: bytes, crc: bool) -> None:
    peer = Peer(crc=crc)
    try:
        peer.receiver.feed(data)
    except TerminateError as error:
        assert len(error.message) <= rdmap.MAX_TERMINATE


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 1 << 32), st.booleans())
def test_mutated_streams_end_in_a_terminate_or_wait_for_more(seed: int, crc: bool) -> None:
    rng = random.Random(seed)
    peer = Peer(crc=crc)
    sender = Sender(1442, crc, 16, deque())
    sender.open = True
    region = peer.region
    peer.operations.reads.append(PendingRead(7, [memoryview(bytearray(3000))], 3000))
    sender.work.append(Work(Operation.SEND, [memoryview(b"s" * 2000)], 2000, None, True))
    sender.work.append(
        Work(
            Operation.WRITE,
            [memoryview(b"w" * 9000)],
            9000,
            None,
            True,
            stag=region.token,
            remote_offset=region.address,
        )
    )
    sender.respond(Response(7, 0, None, memoryview(b"r" * 3000)))
    sender.work.append(Work(Operation.SEND, [memoryview(b"s")], 1, None, True, invalidate=region.token))
    stream = bytearray(drain(sender))
    for _ in range(rng.randint(1, 3)):
        position = rng.randrange(len(stream)) if rng.random() < 0.3 else rng.randrange(40)
        action = rng.random()
        if action < 0.6:
            stream[position] = rng.randrange(256)
        elif action < 0.8:
            del stream[position : position + rng.randint(1, 8)]
        else:
            stream[position:position] = rng.randbytes(rng.randint(1, 8))
    try:
        start = 0
        while start < len(stream):
            size = rng.randint(1, 3000)
            peer.receiver.feed(stream[start : start + size])
            start += size
    except TerminateError as error:
        assert error.message
    if crc:
        assert set(peer.memory) <= {0xEE, ord("w")}


@given(st.binary(min_size=20, max_size=20))
def test_codecs_agree_with_their_layouts(data: bytes) -> None:
    for codec in (TAGGED_HEADER, UNTAGGED_HEADER):
        record = codec.unpack(data)
        parsed = codec.layout.parse(data)
        assert all(parsed[name] == value for name, value in record._asdict().items())
        assert codec.pack(record) == data[: codec.size]


FROM_LINUX_SIW = {
    "Send of 16 bytes": "00224143000000000000000000000001000000000000561371b6e470b2169300000000404aab66fb",
    "Read Response of 64 bytes": (
        "004ec142e64e5828000000000000000072646d612d70696e672d303a204142434445464748494a4b4c4d4e4f5051525354"
        "55565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f70717200343a2aca"
    ),
}
"""FPDUs that Linux 6.12 siw sent with CRC on."""


@pytest.mark.parametrize("name", FROM_LINUX_SIW)
def test_checksums_of_linux(name: str) -> None:
    data = bytes.fromhex(FROM_LINUX_SIW[name])
    fpdu = decode_fpdu(data)
    assert encode_fpdu(fpdu.header, fpdu.payload, crc=True) == data
    sink = bytearray(64)
    for position in (None, len(data) - 5):
        peer = Peer(crc=True)
        peer.operations.reads.append(PendingRead(0xE64E5828, [memoryview(sink)], 64))
        if position is None:
            peer.receiver.feed(data)
            assert peer.operations.fpdus == 1
            continue
        broken = bytearray(data)
        broken[position] ^= 0x10
        peer.fails(bytes(broken), Fault.CRC)
