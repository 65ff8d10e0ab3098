"""A whole SMB Direct session between two Linux rxe peers as oracle: every packet decodes, re-encodes and has the ICRC
that we compute; our queue pair, in the server's place, understands the client and sends what the server sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scapy.layers.inet import IP, UDP
from scapy.utils import rdpcap

from smbdirect.providers.base import Operation, Status
from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.cm_messages import ANSWER, CMA, DREQ, REJ, REP, REQ, Attribute, mad_bytes
from smbdirect.providers.roce.headers import (
    ACK_REQUEST,
    AETH,
    BTH,
    DETH,
    EXTENSION_LENGTH,
    MAD,
    PSN_MASK,
    RETH,
    Bth,
    Opcode,
)
from smbdirect.providers.roce.queue_pair import QueuePair
from smbdirect.providers.roce.requester import Work

CAPTURES = Path(__file__).parents[3] / "pcaps"
SESSION = "linux612-rxe-ksmbd.pcap"
CLIENT, SERVER = "10.9.0.2", "10.9.0.1"
MTU = 1024


class Packet(NamedTuple):
    source: str
    ip: bytes
    payload: bytes
    """Of the UDP datagram: BTH to ICRC."""

    @property
    def bth(self) -> Bth:
        return BTH.unpack(self.payload)

    @property
    def data(self) -> bytes:
        bth = self.bth
        return self.payload[12 + EXTENSION_LENGTH[bth.opcode] : len(self.payload) - 4 - (bth.flags >> 4 & 3)]


@cache
def packets(name: str = SESSION) -> tuple[Packet, ...]:
    return tuple(
        Packet(frame[IP].src, bytes(frame[IP]), bytes(frame[UDP].payload))
        for frame in rdpcap(str(CAPTURES / name))
        if UDP in frame and frame[UDP].dport == 4791
    )


@pytest.mark.parametrize("name", [SESSION, "linux612-rxe-cm-requests.pcap"])
def test_icrc_of_every_packet(name: str) -> None:
    assert packets(name)
    for packet in packets(name):
        buffer = bytearray(icrc.ONES) + packet.ip
        assert icrc.check_ipv4(buffer, memoryview(buffer), 0, len(buffer))
        # Any damage to what it covers shows.
        for position in (12 + 8, 28 + 5 + 8, len(buffer) - 6):
            damaged = bytearray(buffer)
            damaged[position] ^= 0x10
            assert not icrc.check_ipv4(damaged, memoryview(damaged), 0, len(damaged))


def test_icrc_that_we_send_is_the_same() -> None:
    """Computed from the addresses instead of from the header, with the sender's IP ID."""
    for packet in packets():
        ip = packet.ip
        port = int.from_bytes(ip[20:22], "big")
        identification = int.from_bytes(ip[4:6], "big")
        state = icrc.prefix(ip[12:16], ip[16:20], port, 4791, len(packet.payload), identification)
        assert icrc.of_payload(packet.payload[:-4], state) == packet.payload[-4:]


def test_headers_round_trip() -> None:
    seen: Counter[int] = Counter()
    for packet in packets():
        bth = packet.bth
        seen[bth.opcode] += 1
        raw = BTH.pack(bth)
        offset = BTH.size
        extension = {Opcode.WRITE_FIRST: RETH, Opcode.READ_REQUEST: RETH, Opcode.ACKNOWLEDGE: AETH}.get(bth.opcode)  # type: ignore[call-overload]
        if extension is not None:
            raw += extension.pack(extension.unpack(packet.payload, offset))
        assert packet.payload.startswith(raw)
    assert set(seen) == {4, 6, 7, 8, 12, 13, 14, 15, 17, 23, 100}


def test_management_datagrams_round_trip() -> None:
    codecs: dict[int, Any] = {
        Attribute.REQ: REQ,
        Attribute.REP: REP,
        Attribute.REJ: REJ,
        Attribute.DREQ: DREQ,
        Attribute.RTU: ANSWER,
        Attribute.DREP: ANSWER,
    }
    seen = Counter()
    for packet in packets():
        if packet.bth.opcode != Opcode.UD_SEND_ONLY:
            continue
        assert DETH.unpack(packet.payload, 12) == (0x80010000, 1)
        mad = packet.payload[20:-4]
        header = MAD.unpack(mad)
        codec = codecs[header.attribute]
        assert codec.size == 232
        record = codec.unpack(mad, MAD.size)
        assert mad_bytes(Attribute(header.attribute), header.transaction_id, codec.pack(record)) == mad
        seen[header.attribute] += 1
        if header.attribute == Attribute.REQ:
            assert record.service_id >> 16 == 0x106
            assert (record.qpn & 0xFF, record.local_eecn & 0xFF, record.path_mtu >> 4, record.path_mtu & 7) == (
                32,
                0,
                3,
                0,
            )
            cma = CMA.unpack(record.private_data)
            assert (cma.version, cma.ip_version) == (0, 0x40)
            assert cma.source == bytes(12) + bytes([10, 9, 0, 2])
    assert seen == {
        Attribute.REQ: 2,
        Attribute.REJ: 1,
        Attribute.REP: 1,
        Attribute.RTU: 1,
        Attribute.DREQ: 1,
        Attribute.DREP: 1,
    }


class Recorder:
    """A path that remembers."""

    ready = True

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes, bytes]] = []

    def send(
        self, opcode: int, flags: int, psn: int, ack_request: bool, extension: bytes, segments: Sequence[Any], size: int
    ) -> None:
        payload = b"".join(segments)
        assert len(payload) == size
        self.sent.append((opcode, psn, extension, payload))

    def send_middles(
        self, opcode: int, psn: int, memory: memoryview, count: int, countdown: int = 0, ask_every: int = 0
    ) -> int:
        for index in range(count):
            segment = memory[index * MTU : (index + 1) * MTU]
            self.send(opcode, 0, psn + index & PSN_MASK, False, b"", (segment,), MTU)
        return count


def test_our_queue_pair_in_the_servers_place() -> None:
    data = [packet for packet in packets() if packet.bth.opcode != Opcode.UD_SEND_ONLY]
    first = {side: next(p.bth.psn & PSN_MASK for p in data if p.source == side) for side in (CLIENT, SERVER)}
    first[SERVER] = next(p.bth.psn & PSN_MASK for p in data if p.source == SERVER and p.bth.opcode == Opcode.SEND_ONLY)
    server = QueuePair(0x11)
    server.start(first[SERVER], first[CLIENT], MTU, 64, 0)
    server.ready_to_send = True
    window = server.requester.window
    window.size = window.limit = 1000
    buffers = [bytearray(4096) for _ in range(200)]
    for index, buffer in enumerate(buffers):
        server.responder.receives.append((memoryview(buffer), index))
    path = Recorder()
    reads: list[tuple[int, bytearray]] = []
    write: list[bytes] = []
    reth = RETH.unpack(bytes(16))
    expected: list[tuple[int, int, bytes, bytes]] = []
    arrived: list[bytes] = []
    read_data: dict[int, bytearray] = {}
    posted = 0
    now = 0.0
    for packet in data:
        now += 0.001
        bth, psn = packet.bth, packet.bth.psn & PSN_MASK
        if packet.source == CLIENT:
            if bth.opcode == Opcode.SEND_ONLY:
                arrived.append(packet.data)
            elif bth.opcode in range(Opcode.READ_RESPONSE_FIRST, Opcode.READ_RESPONSE_ONLY + 1):
                read_data[psn] = bytearray(packet.data)
            server.receive(memoryview(packet.payload), now)
        elif bth.opcode != Opcode.ACKNOWLEDGE:
            extension = packet.payload[12 : 12 + EXTENSION_LENGTH[bth.opcode]]
            if bth.opcode != Opcode.READ_REQUEST:
                expected.append((bth.opcode, psn, extension, packet.data))
            work = None
            if bth.opcode in (Opcode.SEND_ONLY, Opcode.SEND_ONLY_INVALIDATE):
                token = int.from_bytes(extension, "big") if extension else None
                work = Work(Operation.SEND, [memoryview(packet.data)], len(packet.data), None, True, invalidate=token)
            elif bth.opcode == Opcode.READ_REQUEST:
                remote = RETH.unpack(extension)
                memory = bytearray(remote.length)
                reads.append((psn, memory))
                work = Work(Operation.READ, [memoryview(memory)], len(memory), None, True, remote.token, remote.address)
            elif bth.opcode == Opcode.WRITE_FIRST:
                reth, write = RETH.unpack(extension), [packet.data]
            elif bth.opcode == Opcode.WRITE_MIDDLE:
                write.append(packet.data)
            elif bth.opcode == Opcode.WRITE_LAST:
                whole = b"".join([*write, packet.data])
                work = Work(Operation.WRITE, [memoryview(whole)], len(whole), None, True, reth.token, reth.address)
            if work is not None:
                posted += 1
                server.requester.post([work])
        while server.transmit(path, now, 1000):
            pass
        assert server.failure is None
    completions = server.completions
    received = [c for c in completions if c.operation is Operation.RECEIVE]
    assert [bytes(buffers[c.context][: c.length]) for c in received] == arrived  # type: ignore[index]
    done = [c for c in completions if c.operation is not Operation.RECEIVE]
    assert len(done) == posted
    assert all(c.status is Status.OK for c in completions)
    assert [item for item in path.sent if item[0] not in (Opcode.ACKNOWLEDGE, Opcode.READ_REQUEST)] == expected
    for psn, memory in reads:
        assert memory == b"".join(read_data[psn + i] for i in range(-(-len(memory) // MTU)))
    assert server.counters["malformed"] == server.counters["duplicates"] == server.counters["retransmissions"] == 0
    acknowledged = [psn for opcode, psn, _, _ in path.sent if opcode == Opcode.ACKNOWLEDGE]
    assert acknowledged[-1] == max(p.bth.psn & PSN_MASK for p in data if p.source == CLIENT and p.bth.opcode == 4)
    assert any(p.bth.psn & ACK_REQUEST for p in data)
