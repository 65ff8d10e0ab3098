"""A whole session between two Linux siw peers as oracle: every byte decodes, re-encodes and passes our receiver."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP
from scapy.utils import rdpcap

from smbdirect.providers.base import Access, CloseCause
from smbdirect.providers.iwarp import ddp, mpa
from smbdirect.providers.iwarp.ddp import TaggedHeader
from smbdirect.providers.iwarp.mpa import FRAME_HEADER
from smbdirect.providers.iwarp.operations import Operations, PendingRead
from smbdirect.providers.iwarp.rdmap import READ_REQUEST, Opcode, ReadRequest
from smbdirect.providers.iwarp.receiver import Receiver, RingPool
from smbdirect.providers.memory import Region, RegionTable
from tests.lab.fpdu import Fpdu, encode_fpdu, iter_fpdus

CAPTURE = Path(__file__).parents[3] / "pcaps" / "linux612-siw-ksmbd-mtu1500.pcap"
PORT = 5445


@cache
def directions() -> dict[str, bytes]:
    """Reassembled TCP payload of the session by direction."""
    parts: dict[str, dict[int, bytes]] = {"client": {}, "server": {}}
    starts: dict[str, int] = {}
    for packet in rdpcap(str(CAPTURE)):
        if TCP not in packet:
            continue
        segment = packet[TCP]
        side = "client" if segment.dport == PORT else "server"
        if segment.flags.S:
            starts[side] = segment.seq + 1
        size = packet[IP].len - packet[IP].ihl * 4 - segment.dataofs * 4
        if size:
            payload = bytes(segment.payload)[:size]
            offset = (segment.seq - starts[side]) & 0xFFFFFFFF
            parts[side][offset] = max(payload, parts[side].get(offset, b""), key=len)
    streams = {}
    for side, found in parts.items():
        stream = bytearray()
        for offset in sorted(found):
            assert offset <= len(stream), f"{side}: gap at {offset}"
            stream[offset:] = found[offset] if offset + len(found[offset]) > len(stream) else stream[offset:]
        streams[side] = bytes(stream)
    return streams


def split(side: str) -> tuple[mpa.Frame, bytes, bytes]:
    """MPA frame (decoded and raw) and FPDU stream of one direction."""
    stream = directions()[side]
    key = mpa.REQUEST_KEY if side == "client" else mpa.REPLY_KEY
    size = FRAME_HEADER.size + mpa.decode_header(stream, key).private_data_length
    return mpa.decode_frame(stream[:size], key), stream[:size], stream[size:]


@pytest.mark.parametrize("side", ["client", "server"])
def test_set_up_frames_reencode_to_the_same_bytes(side: str) -> None:
    frame, raw, _ = split(side)
    assert frame.revision == 2
    assert frame.limits is not None
    assert mpa.encode_frame(mpa.REQUEST_KEY if side == "client" else mpa.REPLY_KEY, frame) == raw


def test_our_reply_to_the_captured_request() -> None:
    request, _, _ = split("client")
    mpa.check_request(request)
    reply, agreed = mpa.accept_frame(request, b"", crc=False)
    assert reply.limits == mpa.ReadLimits(16, 16)
    assert agreed == mpa.Parameters(2, False, 16, 16, None)


@pytest.mark.parametrize("side", ["client", "server"])
def test_every_fpdu_reencodes_to_the_same_bytes(side: str) -> None:
    _, _, stream = split(side)
    rebuilt = b"".join(encode_fpdu(fpdu.header, fpdu.payload, crc=False) for fpdu in iter_fpdus(stream))
    assert rebuilt == stream
    kinds = Counter(fpdu.opcode for fpdu in iter_fpdus(stream))
    expected = {
        "client": {Opcode.SEND, Opcode.READ_RESPONSE},
        "server": {Opcode.SEND, Opcode.SEND_INVALIDATE, Opcode.RDMA_WRITE, Opcode.READ_REQUEST},
    }
    assert set(kinds) == expected[side]


def read_requests(side: str) -> list[ReadRequest]:
    return [READ_REQUEST.unpack(f.payload) for f in iter_fpdus(split(side)[2]) if f.opcode == Opcode.READ_REQUEST]


def region_at(table: RegionTable, token: int, start: int, end: int) -> Region:
    """A region as the captured peer had it."""
    region = Region(table, token, start, memoryview(bytearray(end - start)), Access.REMOTE_READ | Access.REMOTE_WRITE)
    table._regions[token] = region
    return region


def prepared(side: str, fpdus: list[Fpdu]) -> tuple[Receiver, Operations, list[ReadRequest]]:
    """A receiver with its operations, in the state of the peer that received ``side``'s bytes."""
    other = "server" if side == "client" else "client"
    table = RegionTable()
    ranges: dict[int, tuple[int, int]] = {}
    spans = [
        (f.header.stag, f.header.tagged_offset, len(f.payload))
        for f in fpdus
        if isinstance(f.header, TaggedHeader) and f.opcode == Opcode.RDMA_WRITE
    ] + [(r.source_stag, r.source_offset, r.length) for r in read_requests(side)]
    for stag, start, length in spans:
        low, high = ranges.get(stag, (start, start))
        ranges[stag] = (min(low, start), max(high, start + length))
    for fpdu in fpdus:
        if fpdu.opcode == Opcode.SEND_INVALIDATE and not isinstance(fpdu.header, TaggedHeader):
            # The last READ is answered by END_OF_FILE: its region is invalidated without having been written.
            ranges.setdefault(fpdu.header.invalidate_stag, (0, 4096))
    for stag, (low, high) in ranges.items():
        region_at(table, stag, low, high)
    seen: list[ReadRequest] = []
    operations = Operations(table, on_read_request=lambda request, region, memory: seen.append(request))
    for request in read_requests(other):
        sink = memoryview(bytearray(request.length))
        operations.reads.append(PendingRead(request.sink_stag, [sink], request.length, request.sink_offset))
    for index in range(1000):
        operations.receives.append((memoryview(bytearray(8192)), index))
    return Receiver(operations, RingPool()), operations, seen


@pytest.mark.parametrize("chunk", [1, 7, 1448, 100_000])
@pytest.mark.parametrize("side", ["client", "server"])
def test_receiver_takes_the_whole_session(side: str, chunk: int) -> None:
    stream = split(side)[2]
    if chunk == 1:
        stream = b"".join(encode_fpdu(f.header, f.payload, False) for f in list(iter_fpdus(stream))[:150])
    fpdus = list(iter_fpdus(stream))
    receiver, operations, seen = prepared(side, fpdus)
    for start in range(0, len(stream), chunk):
        receiver.feed(stream[start : start + chunk])
    assert operations.fpdus == len(fpdus)
    assert receiver.at_boundary
    messages = [f for f in fpdus if f.opcode in (Opcode.SEND, Opcode.SEND_INVALIDATE) and f.header.control & ddp.LAST]
    assert len(operations.completions) == len(messages)
    assert [c.invalidated for c in operations.completions] == [
        f.header.invalidate_stag if f.opcode == Opcode.SEND_INVALIDATE else None
        for f in messages
        if not isinstance(f.header, TaggedHeader)
    ]
    if chunk > 1:
        assert seen == read_requests(side)
        assert not operations.reads


def test_close_causes_have_a_meaning_for_every_fault() -> None:
    from smbdirect.providers.iwarp.rdmap import Fault

    assert {fault.cause for fault in Fault} == {
        CloseCause.REMOTE_ACCESS,
        CloseCause.PROTOCOL,
        CloseCause.NO_RECEIVE,
        CloseCause.CRC,
    }
