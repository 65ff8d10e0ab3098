"""Runs of middle packets leave as the same packets sent one by one would."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.batch_calls import seal
from smbdirect.providers.roce.headers import HEAD, MIGRATED, PSN_MASK, Opcode
from smbdirect.providers.roce.path import PacketPath
from smbdirect.providers.roce.queue_pair import COUNTERS
from smbdirect.providers.roce.sockets import Port, Route

MTU = 256


class StubPort:
    """A port that keeps what it is given; it takes ``room`` datagrams, then no more."""

    def __init__(self, room: int = 1000) -> None:
        self.udp_port = 4791
        self.segmentation = True
        self.blocked = False
        self.room = room
        self.datagrams: list[tuple[bytes, bool]] = []

    def address_of(self, route: Route) -> tuple[str, int]:
        return ("192.0.2.1", self.udp_port)

    def source_control(self, route: Route) -> list[Any]:
        return []

    def launch(
        self, control: list[Any], address: Any, head: bytes, psn: int, memory: memoryview, mtu: int, number: int,
        most: int, states: tuple[int, ...], ask_at: int, ask_every: int,
    ) -> int:  # fmt: skip
        sent = 0
        while number - sent >= most and len(self.datagrams) < self.room - 1:
            asked = ask_at - sent if sent < ask_at or not ask_every else (ask_at - sent) % ask_every
            packets = seal(head, psn + sent, memory[sent * mtu :], mtu, most, states, 0, max(0, asked), ask_every)
            self.datagrams.append((packets, most > 1))
            sent += most
        return sent

    def transmit(self, data: bytes, control: list[Any], address: tuple[str, int]) -> bool:
        self.datagrams.append((data, bool(control)))
        self.blocked = len(self.datagrams) >= self.room
        return not self.blocked


def path_of(port: StubPort, batched: bool) -> PacketPath:
    route = Route(cast(Port, port), bytes([192, 0, 2, 2]), bytes([192, 0, 2, 1]))
    return PacketPath(route, 0x123456, MTU, batched, dict.fromkeys(COUNTERS, 0))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("first", [0, 7, 0xFFFFF0])
@pytest.mark.parametrize(("countdown", "every"), [(0, 0), (1, 16), (5, 16), (200, 16)])
def test_a_run_equals_single_packets(batched: bool, first: int, countdown: int, every: int) -> None:
    count = 150
    memory = memoryview(os.urandom(count * MTU))
    one_by_one, run = StubPort(), StubPort()
    path = path_of(one_by_one, batched)
    path.send(Opcode.WRITE_FIRST, 0, first, False, bytes(16), [memory[:MTU]], MTU)
    for index in range(count):
        ask = countdown > 0 and index + 1 >= countdown and (index + 1 - countdown) % every == 0
        segment = memory[index * MTU : index * MTU + MTU]
        if not index:
            path.flush()
        path.send(Opcode.WRITE_MIDDLE, 0, first + 1 + index & PSN_MASK, ask, b"", [segment], MTU)
    path.flush()
    path = path_of(run, batched)
    path.send(Opcode.WRITE_FIRST, 0, first, False, bytes(16), [memory[:MTU]], MTU)
    assert path.send_middles(Opcode.WRITE_MIDDLE, first + 1, memory, count, countdown, every) == count
    path.flush()
    assert run.datagrams == one_by_one.datagrams
    assert len(run.datagrams) == (count + 1 if not batched else 4)


@pytest.mark.parametrize("batched", [False, True])
def test_a_run_stops_where_the_socket_is_full(batched: bool) -> None:
    port = StubPort(room=1)
    path = path_of(port, batched)
    sent = path.send_middles(Opcode.WRITE_MIDDLE, 0, memoryview(bytes(150 * MTU)), 150)
    assert sent == (60 if batched else 1)
    assert len(port.datagrams) == 1
    assert path._counters["allocations"] == 1


AETH = b"\x1f\0\0\5"


def acknowledgement(path: PacketPath, number: int) -> bytes:
    """Return the packet that acknowledges PSN 7, as packet ``number`` of a batch."""
    packet = HEAD.pack(Opcode.ACKNOWLEDGE, MIGRATED, 0xFFFF, 0x123456) + bytes([0, 0, 0, 7]) + AETH
    flow = path._flow
    state = icrc.prefix(bytes([192, 0, 2, 2]), bytes([192, 0, 2, 1]), 4791, 4791, len(packet) + 4, number)
    assert flow.has_identification
    return packet + icrc.of_payload(packet, state)


def acknowledge(path: PacketPath) -> None:
    path.send(Opcode.ACKNOWLEDGE, 0, 7, False, AETH, (), 0)


def lengths(port: StubPort) -> list[int]:
    return [len(data) for data, _ in port.datagrams]


def test_an_acknowledgement_leaves_alone_where_nothing_follows() -> None:
    port = StubPort()
    path = path_of(port, True)
    acknowledge(path)
    assert not port.datagrams
    path.flush()
    path.flush()
    assert port.datagrams == [(acknowledgement(path, 0), False)]
    assert path._counters["packets_sent"] == 1


def test_an_acknowledgement_ends_the_first_batch_of_a_message() -> None:
    port = StubPort()
    path = path_of(port, True)
    acknowledge(path)
    path.send(Opcode.WRITE_FIRST, 0, 0, False, bytes(16), [bytes(MTU)], MTU)
    path.send_middles(Opcode.WRITE_MIDDLE, 1, memoryview(bytes(120 * MTU)), 120)
    path.flush()
    assert lengths(port) == [MTU + 32 + 20, 60 * (MTU + 16), 60 * (MTU + 16)]
    assert port.datagrams[0][0].endswith(acknowledgement(path, 1))
    assert [batched for _, batched in port.datagrams] == [True] * 3


def test_an_acknowledgement_ends_the_first_batch_of_middle_packets() -> None:
    port = StubPort()
    path = path_of(port, True)
    acknowledge(path)
    path.send_middles(Opcode.WRITE_MIDDLE, 1, memoryview(bytes(120 * MTU)), 120)
    assert lengths(port) == [60 * (MTU + 16) + 20, 60 * (MTU + 16)]
    assert port.datagrams[0][0].endswith(acknowledgement(path, 60))


@pytest.mark.parametrize("batched", [False, True])
def test_an_acknowledgement_is_in_front_of_a_shorter_packet(batched: bool) -> None:
    port = StubPort()
    path = path_of(port, batched)
    acknowledge(path)
    path.send(Opcode.SEND_ONLY, 0, 3, True, b"", (), 0)
    path.flush()
    assert lengths(port) == ([20 + 16] if batched else [20, 16])
    assert port.datagrams[0][0].startswith(acknowledgement(path, 0))


@pytest.mark.parametrize("batched", [False, True])
def test_packets_of_three_lengths_around_an_acknowledgement(batched: bool) -> None:
    port = StubPort()
    path = path_of(port, batched)
    acknowledge(path)
    for size in (64, 64, 8, 128):
        path.send(Opcode.SEND_ONLY, 0, 3, True, b"", (bytes(size),), size)
    acknowledge(path)
    path.flush()
    assert lengths(port) == ([80, 20, 80, 24, 144, 20] if not batched else [80 + 80 + 20, 24, 144 + 20])


def test_two_acknowledgements_both_leave() -> None:
    port = StubPort()
    path = path_of(port, True)
    acknowledge(path)
    acknowledge(path)
    path.flush()
    assert b"".join(data for data, _ in port.datagrams).count(AETH) == 2
