"""Runs of middle packets leave as the same packets sent one by one would."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from smbdirect.providers.roce.batch_calls import seal
from smbdirect.providers.roce.headers import PSN_MASK, Opcode
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
