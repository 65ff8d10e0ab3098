"""Packets that a raw socket receives many at once come out as runs, and only those that are intact are taken."""

from __future__ import annotations

import errno
import random
import socket
import struct
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.arrival import MAX_PACKET, SLOTS, STRIDE, Arrived, Slots, take_apart
from smbdirect.providers.roce.headers import ACK_REQUEST, HEAD, PSN_MASK, Opcode
from tests.lab.examples import examples

SOURCE, OTHER, LOCAL = bytes([192, 0, 2, 1]), bytes([192, 0, 2, 9]), bytes([192, 0, 2, 2])
MIDDLE = HEAD.pack(Opcode.WRITE_MIDDLE, 0x40, 0xFFFF, 0x123456)
IP = struct.Struct(">BBHHHBBH4s4s")


def packet(
    head: bytes, word: int, body: bytes, ip_id: int = 0, source: bytes = SOURCE, tos: int = 2, damage: int = 0
) -> bytes:
    """An IPv4 packet without a UDP checksum."""
    whole = head + word.to_bytes(4, "big") + body
    length = len(whole) + 4
    right = icrc.of_payload(whole, icrc.prefix(source, LOCAL, 4000, 4791, length, ip_id))
    ip = IP.pack(0x45, tos, 28 + length, ip_id, 0x4000, 64, 17, 0x1234, source, LOCAL)
    udp = struct.pack(">HHHH", 4000, 4791, 8 + length, 0)
    return ip + udp + whole + (int.from_bytes(right, "little") ^ damage).to_bytes(4, "little")


def arrive(packets: list[bytes]) -> list[Arrived | None]:
    buffer = bytearray(b"".join((icrc.ONES + each).ljust(STRIDE, b"\xaa") for each in packets))
    return list(take_apart(buffer, memoryview(buffer), [len(each) for each in packets]))


def masked(each: bytes) -> bytes:
    """What is left of a packet after its check, from its BTH on."""
    return each[28:32] + b"\xff" + each[33:]


heads = st.sampled_from([HEAD.pack(opcode, 0x40, 0xFFFF, number) for opcode in (7, 8) for number in (5, 0x4000_0005)])


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_packets_come_out_in_runs(data: st.DataObject) -> None:
    """With any identifications, sources, lengths, congestion marks and damages."""
    draw = data.draw
    head, psn, source, tos, size = draw(heads), draw(st.integers(0, PSN_MASK)), SOURCE, 2, 8
    packets: list[bytes] = []
    fates: list[tuple[bytes, int, bytes, int, int, str]] = []
    for _ in range(draw(st.integers(0, SLOTS))):
        match draw(st.integers(0, 15)):
            case 0:
                head = draw(heads)
            case 1:
                psn = draw(st.integers(0, PSN_MASK))
            case 2:
                source = OTHER if source == SOURCE else SOURCE
            case 3:
                tos = draw(st.sampled_from([2, 3]))
            case 4:
                size = draw(st.sampled_from([0, 8, 64]))
        word = psn | draw(st.sampled_from([0, ACK_REQUEST]))
        fate = draw(st.sampled_from(["intact"] * 12 + ["damaged", "malformed"]))
        damage = 0x80 if fate == "damaged" else 0
        body = draw(st.binary(min_size=size, max_size=size))
        each = packet(head, word, body, draw(st.integers(0, 0xFFFF)), source, tos, damage)
        if fate == "malformed":
            each = draw(st.sampled_from([each[:-1], b"\x46" + each[1:], each[:40], b"", each + b"\0"]))
        packets.append(each)
        fates.append((head, word, source, tos, len(each) - 28, fate))
        psn = psn + 1 & PSN_MASK
    found = arrive(packets)
    index = 0
    for arrived in found:
        if arrived is None:
            assert fates[index][5] == "malformed"
            index += 1
            continue
        run = arrived.run
        assert run.intact or run.number == 1
        for number, payload in enumerate(run.split()):
            head, word, source, tos, size, fate = fates[index]
            assert fate == ("intact" if run.intact else "damaged")
            assert bytes(payload) == masked(packets[index])
            assert (run.head, arrived.source, arrived.local, arrived.marked) == (head, source, LOCAL, tos == 3)
            assert (word & PSN_MASK, size) == (run.psn + number & PSN_MASK, run.size)
            assert bool(run.words & ACK_REQUEST) or not word & ACK_REQUEST
            index += 1
    assert index == len(packets)
    for one, two in pairwise(found):
        if one is not None and two is not None and one.run.intact and two.run.intact:
            # As long as possible: the next one could not have been a part of it.
            continues = two.run.psn == one.run.psn + one.run.number & PSN_MASK
            kinds = [(each.run.head, each.source, each.marked, each.run.size) for each in (one, two)]
            assert not continues or kinds[0] != kinds[1]


def test_payloads_are_placed_one_behind_the_other() -> None:
    payloads = [bytes([value]) * 32 for value in range(1, 11)]
    (arrived,) = arrive([packet(MIDDLE, 7 + index, payload, 99 * index) for index, payload in enumerate(payloads)])
    assert arrived is not None
    memory = bytearray(400)
    arrived.run.place(memoryview(memory), 40)
    assert memory == bytes(40) + b"".join(payloads) + bytes(40)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    near.setblocking(False)
    with near, far:
        yield near, far


def test_many_packets_by_one_call(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    rng = random.Random(1)
    slots = Slots()
    assert slots.receive(near) is None
    for count in (1, SLOTS - 1, SLOTS):
        packets = [packet(MIDDLE, psn, rng.randbytes(4096), rng.getrandbits(16)) for psn in range(count)]
        far.settimeout(1)
        received = []
        for start in range(0, count, 5):
            for each in packets[start : start + 5]:
                far.send(each)
            found = slots.receive(near)
            assert found is not None
            (arrived,) = found
            assert arrived is not None
            received += [bytes(each) for each in arrived.run.split()]
        assert received == [masked(each) for each in packets]
        assert slots.receive(near) is None


def test_a_packet_that_is_too_long(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    far.send(packet(MIDDLE, 5, bytes(MAX_PACKET - 28 - 16)))
    far.send(packet(MIDDLE, 6, bytes(MAX_PACKET - 28 - 15)))
    found = Slots().receive(near)
    assert found is not None
    first, second = found
    assert first is not None and first.run.intact
    assert second is None


def test_an_error_of_the_socket_is_raised() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.close()
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            Slots().receive(sock)
    assert caught.value.errno == errno.EBADF
