"""What is done for each packet of a batch, in Python and in C."""

from __future__ import annotations

import errno
import random
import socket
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from smbdirect import native
from smbdirect.providers.roce import batch_calls
from smbdirect.providers.roce.batch_calls import Awaited
from smbdirect.providers.roce.icrc import IDENTIFICATIONS

NAME = "smbdirect.providers.roce._native"
HEAD = b"\x07\x40\xff\xff\0\0\0\x11"
ASK = 0x80000000


@pytest.fixture(params=["python", "c"])
def calls(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "python":
        return batch_calls
    why = native.problem(NAME)
    if why is not None:
        pytest.skip(f"{NAME}: {why}")
    from smbdirect.providers.roce import _native

    return _native


def states(number: int) -> tuple[int, ...]:
    rng = random.Random(1)
    return tuple(rng.getrandbits(32) for _ in range(number))


def packet(psn_word: int, payload: bytes, state: int, head: bytes = HEAD) -> bytes:
    rest = psn_word.to_bytes(4, "big") + payload
    return head + rest + zlib.crc32(rest, state).to_bytes(4, "little")


@pytest.mark.parametrize(
    "mtu", [1, 3, 4, 59, 60, 61, 63, 64, 75, 76, 77, 139, 251, 252, 256, 315, 507, 700, 1024, 4096, 4097]
)
def test_packets_are_sealed(calls: ModuleType, mtu: int) -> None:
    memory = random.Random(mtu).randbytes(5 * mtu + 2)
    its_states = states(9)
    words = (0xFFFFFE, 0xFFFFFF | ASK, 0, 1 | ASK, 2)
    expected = [
        packet(word, memory[place * mtu : place * mtu + mtu], its_states[3 + place]) for place, word in enumerate(words)
    ]
    sealed = calls.seal(HEAD, 0xFFFFFE, memory, mtu, 5, its_states, 3, 1, 2)
    assert sealed == b"".join(expected)
    size = mtu + 16
    assert calls.similar(sealed, size) == (5, 0xFFFFFF | ASK)
    assert calls.intact(sealed, size, 5, its_states, 3)
    into = memoryview(bytearray(b"." * (5 * mtu + 8)))
    calls.place(sealed, mtu, size, 5, into, 4)
    assert into == b"...." + memory[: 5 * mtu] + b"...."


def test_none_asks_for_an_acknowledgement(calls: ModuleType) -> None:
    sealed = calls.seal(HEAD, 1, bytes(192), 64, 3, states(3), 0, 0, 0)
    assert calls.similar(sealed, 80) == (3, 3)


@pytest.mark.parametrize("size", [16, 20, 79, 80, 96, 4112])
def test_every_damaged_byte_is_found(calls: ModuleType, size: int) -> None:
    its_states = states(2)
    sealed = b"".join(packet(5 + place, bytes(size - 16), its_states[place]) for place in range(2))
    assert calls.intact(sealed, size, 2, its_states, 0)
    places = [*range(8, min(size, 120)), *range(size - 20, size)]
    for place in (place + start for start in (0, size) for place in places if place >= 8):
        damaged = bytearray(sealed)
        damaged[place] ^= 0x10
        assert not calls.intact(damaged, size, 2, its_states, 0), place


def test_fewer_states_than_packets(calls: ModuleType) -> None:
    its_states = states(2)
    sealed = calls.seal(HEAD, 1, bytes(128), 64, 2, its_states, 0, 0, 0)
    assert not calls.intact(sealed, 80, 2, its_states, 1)
    assert not calls.intact(sealed, 80, 2, its_states, 3)
    assert not calls.intact(sealed, 80, 2, (), 0)


def test_where_similar_packets_end(calls: ModuleType) -> None:
    other = HEAD[:-1] + b"\x12"
    one = packet(7, b"", 0)
    assert calls.similar(b"", 16) == (0, 0)
    assert calls.similar(one[:-1], 16) == (0, 0)
    assert calls.similar(one + one[:15], 16) == (1, 7)
    assert calls.similar(one + packet(8 | ASK, b"", 0) + packet(10, b"", 0), 16) == (2, 15 | ASK)
    assert calls.similar(one + packet(7, b"", 0), 16) == (1, 7)
    assert calls.similar(one + packet(8, b"", 0, other), 16) == (1, 7)


@pytest.mark.parametrize(
    ("length", "stride", "number", "position"),
    [
        (-1, 32, 1, 0),
        (16, 0, 2, 0),
        (16, -32, 2, 0),
        (16, 32, -1, 0),
        (16, 32, 4, 0),
        (16, 35, 3, 0),
        (53, 96, 2, 0),
        (85, 96, 1, 0),
        (16, 32, 3, 17),
        (16, 32, 3, -1),
        (16, 32, 1, 65),
        (16, 2**62, 3, 0),
        (2**62, 1, 3, 0),
        (16, 1, 2**62, 0),
        (0, 1, 2**62, 0),
    ],
)
def test_nothing_is_placed_outside(calls: ModuleType, length: int, stride: int, number: int, position: int) -> None:
    memory = memoryview(bytearray(64))
    with pytest.raises(ValueError, match="outside of the memory"):
        calls.place(b"x" * 96, length, stride, number, memory, position)
    assert memory == bytes(64)


def test_nothing_is_placed_in_memory_that_is_only_read(calls: ModuleType) -> None:
    with pytest.raises((TypeError, BufferError)):
        calls.place(b"x" * 96, 16, 32, 3, memoryview(bytes(64)), 0)


@pytest.mark.parametrize(("size", "number", "index"), [(15, 1, 0), (0, 1, 0), (-80, 1, 0), (80, 3, 0), (80, -1, 0)])
def test_no_packets_outside_are_checked(calls: ModuleType, size: int, number: int, index: int) -> None:
    with pytest.raises(ValueError, match="not so many packets"):
        calls.intact(bytes(160), size, number, states(9), index)
    if size < 16:
        with pytest.raises(ValueError, match="no packet is that short"):
            calls.similar(bytes(160), size)


@pytest.mark.parametrize(
    ("head", "mtu", "number", "index", "ask"),
    [
        (HEAD[1:], 64, 1, 0, 0),
        (HEAD, 0, 1, 0, 0),
        (HEAD, -1, 1, 0, 0),
        (HEAD, 0x10000, 1, 0, 0),
        (HEAD, 64, 5, 0, 0),
        (HEAD, 64, -1, 0, 0),
        (HEAD, 64, 2, 1, 0),
        (HEAD, 64, 1, -1, 0),
        (HEAD, 64, 1, 0, -1),
        (HEAD, 1, 129, 0, 0),
    ],
)
def test_nothing_outside_is_sealed(calls: ModuleType, head: bytes, mtu: int, number: int, index: int, ask: int) -> None:
    with pytest.raises(ValueError, match="not so many packets"):
        calls.seal(head, 1, bytes(256), mtu, number, states(2 if number < 129 else 200), index, ask, 1)


def test_a_state_that_is_no_number(calls: ModuleType) -> None:
    with pytest.raises(TypeError):
        calls.seal(HEAD, 1, bytes(128), 64, 2, (1, "x"), 0, 0, 0)


# -- packets in the middle of a message


def batch_of(memory: bytes, size: int, psn: int, its_states: tuple[int, ...], ask: int = 0) -> bytes:
    return batch_calls.seal(HEAD, psn, memory, size, len(memory) // size, its_states, 0, 0, ask)


def awaiting(memory: Any, **changes: Any) -> Awaited:
    return Awaited(HEAD, 5, memoryview(memory), 0, 64, len(memory) // 64, states(9))._replace(**changes)


def test_what_is_awaited_is_placed(calls: ModuleType) -> None:
    data = random.Random(1).randbytes(5 * 64)
    batch = batch_of(data, 64, 0xFFFFFE, states(9), ask=2)
    into = bytearray(b"." * (5 * 64 + 8))
    awaited = awaiting(into, psn=0xFFFFFE + (1 << 24), position=4, number=5)
    assert calls.follow(batch, 80, awaited) == (5, 0xFFFFFF | ASK)
    assert into == b"...." + data + b"...."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 5),
        ({"number": 3}, 3),
        ({"number": 0}, 0),
        ({"psn": 6}, 0),
        ({"psn": 4}, 0),
        ({"head": HEAD[:-1] + b"\x12"}, 0),
        ({"size": 32}, 0),
        ({"states": states(9)[:2]}, 2),
        ({"states": ()}, 0),
        ({"states": states(9)[1:]}, 0),
    ],
)
def test_nothing_else_is_placed(calls: ModuleType, changes: dict[str, Any], expected: int) -> None:
    data = random.Random(2).randbytes(5 * 64)
    into = bytearray(5 * 64)
    count, _ = calls.follow(batch_of(data, 64, 5, states(9)), 80, awaiting(into, **changes))
    assert count == expected
    assert into == data[: 64 * count] + bytes(64 * (5 - count))


def test_a_batch_that_ends_in_a_packet(calls: ModuleType) -> None:
    batch = batch_of(bytes(3 * 64), 64, 5, states(9))
    into = bytearray(b"." * 3 * 64)
    assert calls.follow(batch[:-1], 80, awaiting(into))[0] == 2
    assert calls.follow(batch[:79], 80, awaiting(into))[0] == 0
    assert calls.follow(b"", 80, awaiting(into)) == (0, 0)
    assert into == bytes(2 * 64) + b"." * 64


def test_placing_ends_at_a_damaged_packet(calls: ModuleType) -> None:
    """Every byte but the one that the ICRC does not cover, which is compared instead."""
    data = random.Random(3).randbytes(3 * 64)
    batch = batch_of(data, 64, 5, states(9))
    for place in range(80, 160):
        damaged = bytearray(batch)
        damaged[place] ^= 0x20
        into = bytearray(3 * 64)
        assert calls.follow(damaged, 80, awaiting(into))[0] == 1, place
        assert into == data[:64] + bytes(2 * 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"head": HEAD[1:]},
        {"position": -1},
        {"position": 1},
        {"position": 321},
        {"size": 0},
        {"size": -64},
        {"size": 0x10000, "number": 0},
        {"number": 6},
        {"number": -1},
        {"number": 2**62},
    ],
)
def test_nothing_is_awaited_outside(calls: ModuleType, changes: dict[str, Any]) -> None:
    into = bytearray(5 * 64)
    with pytest.raises(ValueError, match="outside of the memory"):
        calls.follow(batch_of(b"x" * 5 * 64, 64, 5, states(9)), 80, awaiting(into, **changes))
    assert into == bytes(5 * 64)


@pytest.mark.parametrize("seed", range(40))
def test_both_place_the_same(seed: int) -> None:
    if native.problem(NAME) is not None:
        pytest.skip("not built")
    from smbdirect.providers.roce import _native

    rng = random.Random(seed)
    size, number = rng.choice([1, 5, 64, 256, 300]), rng.randrange(1, 60)
    its_states = tuple(rng.getrandbits(32) for _ in range(rng.choice([number, IDENTIFICATIONS, 200])))
    batch = bytearray(
        batch_of(rng.randbytes(size * number), size, rng.choice([7, 0xFFFFF0]), its_states, rng.randrange(9))
    )
    for _ in range(rng.choice([0, 0, 1, 2])):
        batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
    batch = batch[: rng.choice([len(batch), rng.randrange(len(batch) + 1)])]
    found = []
    position, most = rng.randrange(9), rng.choice([number, rng.randrange(number + 1)])
    psn = rng.choice([7, 0xFFFFF0])
    for module in (batch_calls, _native):
        into = bytearray(9 + size * number)
        awaited = Awaited(HEAD, psn, memoryview(into), position, size, most, its_states)
        found.append((module.follow(batch, size + 16, awaited), into))
    assert found[0] == found[1]


# -- through sockets

PAYLOAD = 256


class Ends:
    """Two UDP sockets, of which one receives."""

    def __init__(self, host: str, everywhere: str, gro: bool) -> None:
        ipv6 = ":" in host
        family = socket.AF_INET6 if ipv6 else socket.AF_INET
        self.near, self.far = (socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) for _ in range(2))
        if gro:
            self.far.setsockopt(socket.IPPROTO_UDP, batch_calls.UDP_GRO, 1)
        if ipv6:
            self.far.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
            self.far.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, int(everywhere != host))
        else:
            self.far.setsockopt(socket.IPPROTO_IP, 13, 1)
            self.far.setsockopt(socket.IPPROTO_IP, batch_calls.IP_PKTINFO, int(everywhere != host))
        self.near.bind((host, 0))
        self.far.bind((everywhere, 0))
        self.sender: Any = self.near.getsockname()
        self.to: Any = (host, *self.far.getsockname()[1:])
        self.local = socket.inet_pton(family, host)
        self.told = self.local if everywhere != host else None
        self.body = memoryview(bytearray(65536))
        self.mark = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if ipv6 else (socket.IPPROTO_IP, socket.IP_TOS)
        self.refused = (socket.IPPROTO_IPV6, 26) if ipv6 else (socket.SOL_SOCKET, 11)

    def launch(self, calls: ModuleType, data: bytes, psn: int, most: int, ask_at: int = 0, ask_every: int = 0) -> int:
        number = len(data) // PAYLOAD
        sent = calls.launch(
            self.near, [], self.to, HEAD, psn, data, PAYLOAD, number, most, states(60), ask_at, ask_every
        )
        assert isinstance(sent, int)
        return sent

    def take(self, calls: ModuleType, awaited: Awaited | None, budget: int = 1 << 20, sender: Any = None) -> Any:
        return calls.take(self.far, self.body, budget, sender or self.sender, self.local, awaited)


@pytest.fixture(params=[("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("127.0.0.1", "0.0.0.0"), ("::1", "::")])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    both = Ends(*request.param, gro=True)
    yield both
    both.near.close()
    both.far.close()


def message(calls: ModuleType, number: int = 60) -> tuple[bytes, bytearray, Awaited]:
    """Return data, memory for it, and what is awaited there."""
    data, into = random.Random(number).randbytes(number * PAYLOAD), bytearray(number * PAYLOAD)
    return data, into, awaiting(into, psn=0xFFFFF8, size=PAYLOAD, number=number, states=states(60))


NOTHING = (0, -errno.EAGAIN, 0, False, None, None)


@pytest.mark.parametrize("most", [15, 60, 1])
def test_packets_arrive_in_their_place(calls: ModuleType, ends: Ends, most: int) -> None:
    data, into, awaited = message(calls)
    assert ends.launch(calls, data, awaited.psn, most, ask_at=20, ask_every=25) == 60
    taken = ends.take(calls, awaited)
    assert taken[0] == 60 and taken[1] & ASK
    assert taken[2:] == NOTHING
    assert into == data


def test_only_full_batches_are_sent(calls: ModuleType, ends: Ends) -> None:
    data, into, awaited = message(calls, 50)
    assert ends.launch(calls, data, awaited.psn, 20) == 40
    assert ends.take(calls, awaited)[0] == 40
    assert into == data[: 40 * PAYLOAD] + bytes(10 * PAYLOAD)
    assert ends.launch(calls, data[: 19 * PAYLOAD], awaited.psn, 20) == 0


def test_packets_leave_as_they_are_sealed(calls: ModuleType, ends: Ends) -> None:
    data = random.Random(5).randbytes(40 * PAYLOAD)
    for ask_at, ask_every in ((0, 0), (0, 1), (5, 7), (25, 3), (100, 3)):
        assert ends.launch(calls, data, 9, 20, ask_at, ask_every) == 40
        got = b"".join(bytes(ends.body[: ends.take(batch_calls, None)[3]]) for _ in range(2))
        whole = batch_calls.seal(HEAD, 9, data, PAYLOAD, 40, states(60)[:20] * 2, 0, ask_at, ask_every)
        assert got == whole


def test_what_is_not_awaited_is_left(calls: ModuleType, ends: Ends) -> None:
    data, into, awaited = message(calls)
    ends.launch(calls, data, awaited.psn, 30)
    taken = ends.take(calls, awaited._replace(number=40))
    assert taken[0] == 40 and taken[2:6] == (10, 30 * (PAYLOAD + 16), PAYLOAD + 16, False)
    assert taken[6] == ends.told and taken[7] == ends.sender
    assert into == data[: 40 * PAYLOAD] + bytes(20 * PAYLOAD)
    rest = ends.body[10 * (PAYLOAD + 16) : taken[3]]
    assert rest == batch_calls.seal(HEAD, awaited.psn + 40, data[40 * PAYLOAD :], PAYLOAD, 20, states(60), 10, 0, 0)
    assert ends.take(calls, None) == (0, 0, *NOTHING)


def test_a_shorter_packet_behind_them(calls: ModuleType, ends: Ends) -> None:
    data, into, awaited = message(calls, 3)
    batch = batch_of(data, PAYLOAD, awaited.psn, states(60)) + b"x" * 24
    segment = (socket.IPPROTO_UDP, batch_calls.UDP_SEGMENT, (PAYLOAD + 16).to_bytes(2, "little"))
    ends.near.sendmsg([batch], [segment], 0, ends.to)
    taken = ends.take(calls, awaited)
    assert (taken[0], taken[2], taken[3]) == (3, 3, len(batch))
    assert into == data


@pytest.mark.parametrize("what", ["another sender", "another address", "a congestion mark", "a damaged packet"])
def test_such_packets_are_not_placed(calls: ModuleType, ends: Ends, what: str) -> None:
    data, into, awaited = message(calls, 2)
    if what == "a congestion mark":
        ends.near.setsockopt(*ends.mark, 3)
    ends.launch(calls, data, awaited.psn, 2)
    sender = ends.sender
    if what == "another sender":
        sender = (sender[0], sender[1] ^ 1, *sender[2:])
    elif what == "another address":
        if ends.told is None:
            sender = ("192.0.2.1" if len(sender) == 2 else "2001:db8::1", *sender[1:])
        else:
            ends.local = bytes(len(ends.local))
    elif what == "a damaged packet":
        awaited = awaited._replace(states=(1, *states(60)[1:]))
    taken = ends.take(calls, awaited, sender=sender)
    assert taken[:5] == (0, 0, 0, 2 * (PAYLOAD + 16), PAYLOAD + 16)
    assert taken[5] is (what == "a congestion mark")
    assert into == bytes(2 * PAYLOAD)


def test_no_more_than_the_budget(calls: ModuleType, ends: Ends) -> None:
    data, into, awaited = message(calls)
    ends.launch(calls, data, awaited.psn, 20)
    assert ends.take(calls, awaited, budget=0) == (0, 0, *NOTHING)
    first = ends.take(calls, awaited, budget=20 * (PAYLOAD + 16) + 1)
    assert first[0] == 40 and first[2:] == NOTHING
    awaited = awaited._replace(psn=awaited.psn + 40, position=40 * PAYLOAD, number=20)
    assert ends.take(calls, awaited)[0] == 20
    assert into == data


def test_an_empty_datagram(calls: ModuleType, ends: Ends) -> None:
    ends.near.sendto(b"", ends.to)
    assert ends.take(calls, message(calls)[2])[:6] == (0, 0, 0, 0, 0, False)


def test_an_error_of_the_socket(calls: ModuleType, ends: Ends) -> None:
    """Nobody receives what the socket has sent."""
    ends.far.connect(ends.sender)
    ends.near.close()
    ends.far.send(b"x")
    assert ends.take(calls, message(calls)[2]) == (0, 0, 0, -errno.ECONNREFUSED, 0, False, None, None)


def test_nothing_is_sent_where_batches_are_refused(calls: ModuleType, ends: Ends) -> None:
    """Linux refuses UDP_SEGMENT where no checksums are sent. Single packets leave."""
    if len(ends.local) == 16:
        pytest.skip("IPv6 needs checksums")
    ends.near.setsockopt(*ends.refused, 1)
    data, into, awaited = message(calls, 10)
    assert ends.launch(calls, data, awaited.psn, 5) == 0
    assert ends.take(calls, awaited) == (0, 0, *NOTHING)
    assert ends.launch(calls, data, awaited.psn, 1) == 10
    while awaited.number:
        (count, *_) = ends.take(calls, awaited)
        assert count
        awaited = awaited._replace(
            psn=awaited.psn + count, position=awaited.position + count * PAYLOAD, number=awaited.number - count
        )
    assert into == data


def test_the_source_address_is_passed_on(calls: ModuleType) -> None:
    ends = Ends("127.0.0.1", "0.0.0.0", gro=True)
    with ends.near, ends.far, socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as near:
        near.bind(("0.0.0.0", 0))
        control = [(socket.IPPROTO_IP, batch_calls.IP_PKTINFO, bytes(4) + bytes([127, 0, 0, 9]) + bytes(4))]
        data = bytes(4 * PAYLOAD)
        sent = calls.launch(near, control, ends.to, HEAD, 1, data, PAYLOAD, 4, 4, states(60), 0, 0)
        assert sent == 4
        assert ends.take(calls, None)[7] == ("127.0.0.9", near.getsockname()[1])


@pytest.mark.parametrize(
    ("head", "mtu", "number", "most", "known", "ask"),
    [
        (HEAD[1:], 64, 2, 1, 9, 0),
        (HEAD, 0, 2, 1, 9, 0),
        (HEAD, -1, 2, 1, 9, 0),
        (HEAD, 0x10000, 0, 1, 9, 0),
        (HEAD, 64, 5, 1, 9, 0),
        (HEAD, 64, -1, 1, 9, 0),
        (HEAD, 64, 2, 0, 9, 0),
        (HEAD, 64, 2, 3, 2, 0),
        (HEAD, 64, 2, 129, 200, 0),
        (HEAD, 0xFFFF, 0, 1, 9, 0),
        (HEAD, 4096, 0, 16, 60, 0),
        (HEAD, 64, 2, 1, 9, -1),
    ],
)
def test_nothing_outside_is_sent(
    calls: ModuleType, ends: Ends, head: bytes, mtu: int, number: int, most: int, known: int, ask: int
) -> None:
    with pytest.raises(ValueError, match="not so many packets"):
        calls.launch(ends.near, [], ends.to, head, 1, bytes(256), mtu, number, most, states(known), ask, 1)
    with pytest.raises(ValueError, match="not so many packets"):
        calls.launch(ends.near, [], ends.to, HEAD, 1, bytes(256), 64, 2, 1, states(9), 0, -1)
    assert ends.take(calls, None) == (0, 0, *NOTHING)
