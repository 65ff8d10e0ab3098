"""What is done for each packet of a batch, in Python and in C."""

from __future__ import annotations

import random
import zlib
from types import ModuleType

import pytest

from smbdirect import native
from smbdirect.providers.roce import batch_calls

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
    return tuple(random.Random(number).getrandbits(32) for _ in range(number))


def packet(psn_word: int, payload: bytes, state: int, head: bytes = HEAD) -> bytes:
    rest = psn_word.to_bytes(4, "big") + payload
    return head + rest + zlib.crc32(rest, state).to_bytes(4, "little")


@pytest.mark.parametrize("mtu", [1, 3, 4, 59, 60, 61, 63, 64, 75, 76, 77, 139, 256, 1024, 4096, 4097])
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
        (HEAD, 64, 3, 0, 0),
        (HEAD, 64, -1, 0, 0),
        (HEAD, 64, 2, 1, 0),
        (HEAD, 64, 1, -1, 0),
        (HEAD, 64, 1, 0, -1),
    ],
)
def test_nothing_outside_is_sealed(calls: ModuleType, head: bytes, mtu: int, number: int, index: int, ask: int) -> None:
    with pytest.raises(ValueError, match="not so many packets"):
        calls.seal(head, 1, bytes(128), mtu, number, states(2), index, ask, 1)


def test_a_state_that_is_no_number(calls: ModuleType) -> None:
    with pytest.raises(TypeError):
        calls.seal(HEAD, 1, bytes(128), 64, 2, (1, "x"), 0, 0, 0)
