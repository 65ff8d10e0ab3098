"""Batches of packets are taken apart into what was put into them, wherever they are cut and whatever is damaged."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smbdirect.providers.roce import icrc
from smbdirect.providers.roce.arrival import Run, is_intact, runs
from smbdirect.providers.roce.headers import ACK_REQUEST, HEAD, PSN_MASK, Opcode
from tests.lab.examples import examples

IPV4 = bytes([192, 0, 2, 1]), bytes([192, 0, 2, 2])
IPV6 = bytes(range(16)), bytes(range(1, 17))
PORTS = 50_000, 4791
MIDDLE = HEAD.pack(Opcode.WRITE_MIDDLE, 0x40, 0xFFFF, 0x123456)


def flow(addresses: tuple[bytes, bytes] = IPV4) -> icrc.Flow:
    return icrc.Flow(*addresses, *PORTS)


def packet(
    head: bytes, word: int, body: bytes, ip_id: int = 0, addresses: tuple[bytes, bytes] = IPV4, damage: int = 0
) -> bytes:
    whole = head + word.to_bytes(4, "big") + body
    right = icrc.of_payload(whole, icrc.prefix(*addresses, *PORTS, len(whole) + 4, ip_id))
    return whole + (int.from_bytes(right, "little") ^ damage).to_bytes(4, "little")


def split(found: Sequence[Run]) -> list[bytes]:
    return [bytes(each) for run in found for each in run.split()]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[tuple[bytes, int, bytes]], int, bool]:
    """Heads, words and bodies of the packets of a batch, their size, and whether over IPv6."""
    body = draw(st.integers(0, 40))
    count = draw(st.integers(1, 40))
    heads = [HEAD.pack(opcode, 0x40, 0xFFFF, number) for opcode in (7, 8, 0x0E) for number in (5, 0x4000_0005)]
    psn = draw(st.integers(0, PSN_MASK))
    packets = []
    head = draw(st.sampled_from(heads))
    for _ in range(count):
        if draw(st.integers(0, 9)) == 0:
            head = draw(st.sampled_from(heads))
        if draw(st.integers(0, 9)) == 0:
            psn = draw(st.integers(0, PSN_MASK))
        packets.append(
            (head, psn | draw(st.sampled_from([0, ACK_REQUEST])), draw(st.binary(min_size=body, max_size=body)))
        )
        psn = psn + 1 & PSN_MASK
    if draw(st.booleans()) and body:
        packets.append((head, psn, draw(st.binary(max_size=body - 1))))
    return packets, body + 16, draw(st.booleans())


@settings(max_examples=examples(300), deadline=None)
@given(batches(), st.integers(0, 0xFFFF), st.data())
def test_a_batch_comes_apart_into_its_packets(
    batch: tuple[list[tuple[bytes, int, bytes]], int, bool], first_id: int, data: st.DataObject
) -> None:
    """With identifications as Linux numbers them, and with others. The damaged ones are those that were damaged."""
    contents, size, ipv6 = batch
    addresses = IPV6 if ipv6 else IPV4
    first = data.draw(st.sampled_from([0, first_id]))
    damaged = data.draw(st.sets(st.integers(0, len(contents) - 1), max_size=3))
    packets = [
        packet(*parts, (first + index) & 0xFFFF, addresses, 0xDEADBEEF if index in damaged else 0)
        for index, parts in enumerate(contents)
    ]
    found = list(runs(memoryview(b"".join(packets)), size, flow(addresses)))
    assert split(found) == packets
    index = 0
    for run in found:
        places = range(index, index + run.number)
        assert run.intact is not any(place in damaged for place in places)
        assert run.intact or run.number == 1
        words = [contents[place][1] for place in places]
        assert all(contents[place][0] == run.head for place in places)
        assert [word & PSN_MASK for word in words] == [run.psn + k & PSN_MASK for k in range(run.number)]
        assert bool(run.words & ACK_REQUEST) is any(word & ACK_REQUEST for word in words)
        index += run.number
    if not damaged and not first:
        # As long as possible: the next one could not have been a part of it.
        for one, two in pairwise(found):
            fits = one.head == two.head and one.size == two.size and two.psn == one.psn + one.number & PSN_MASK
            assert not fits


@pytest.mark.parametrize("cut", range(1, 48))
def test_a_batch_that_was_cut_off(cut: int) -> None:
    """Whole packets are taken; what is left of the last one is damaged."""
    packets = [packet(MIDDLE, psn, bytes(8), psn) for psn in range(4)]
    found = list(runs(memoryview(b"".join(packets)[:-cut]), 24, flow()))
    whole = 4 - -(-cut // 24)
    assert split([run for run in found if run.intact]) == packets[:whole]
    assert len([run for run in found if not run.intact]) == (cut % 24 != 0)


def test_more_packets_than_linux_puts_together() -> None:
    packets = [packet(MIDDLE, psn, b"", psn) for psn in range(4000)]
    found = list(runs(memoryview(b"".join(packets)), 16, flow()))
    assert split(found) == packets
    assert all(run.intact for run in found)


def test_payloads_are_placed_one_behind_the_other() -> None:
    payloads = [bytes([value]) * 32 for value in range(1, 11)]
    batch = b"".join(packet(MIDDLE, 7 + index, payload, index) for index, payload in enumerate(payloads))
    (run,) = runs(memoryview(batch), 48, flow())
    memory = bytearray(400)
    assert run.payload_length() == 32
    run.place(memoryview(memory), 40)
    assert memory == bytes(40) + b"".join(payloads) + bytes(40)


@pytest.mark.parametrize("size", [16, 20, 280, 4128])
def test_the_identification_that_explains_a_crc(size: int) -> None:
    rng = random.Random(size)
    body = rng.randbytes(size - 16)
    state = flow().state(size, MIDDLE)
    for ip_id in [*range(200), *(rng.getrandbits(16) for _ in range(200))]:
        whole = packet(MIDDLE, 5, body, ip_id)
        assert icrc.identification(icrc.crc32(whole[8:], state) ^ icrc.RESIDUE, size) == ip_id
        assert is_intact(memoryview(whole), flow())


@pytest.mark.parametrize("addresses", [IPV4, IPV6])
def test_damage_is_not_explained(addresses: tuple[bytes, bytes]) -> None:
    """Every single bit of a packet, except for those that the ICRC does not cover."""
    whole = packet(MIDDLE, 5, bytes(range(64)), 0, addresses)
    for bit in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        assert is_intact(memoryview(changed), flow(addresses)) is (bit // 8 == icrc.BTH_MASKED_BYTE)


def test_ipv6_has_no_identification_to_explain_anything() -> None:
    whole = packet(MIDDLE, 5, bytes(8), 0, IPV6)
    effect = icrc.crc32(packet(MIDDLE, 5, bytes(8), 3)[8:], flow().state(24, MIDDLE)) ^ icrc.RESIDUE
    assert icrc.identification(effect, 24) == 3
    other = whole[:-4] + (int.from_bytes(whole[-4:], "little") ^ effect).to_bytes(4, "little")
    assert not is_intact(memoryview(other), flow(IPV6))


@pytest.mark.parametrize("addresses", [IPV4, IPV6])
@pytest.mark.parametrize("size", [16, 20, 1040, 4128])
def test_states_of_a_flow(addresses: tuple[bytes, bytes], size: int) -> None:
    for number, state in enumerate(flow(addresses).states(size, MIDDLE)):
        masked = MIDDLE[:4] + b"\xff" + MIDDLE[5:]
        assert state == zlib.crc32(masked, icrc.prefix(*addresses, *PORTS, size, number))


@given(st.binary(max_size=5000), st.integers(0, 0xFFFFFFFF))
def test_both_implementations_of_the_crc(data: bytes, state: int) -> None:
    assert icrc.crc32(data, state) == zlib.crc32(data, state)
    assert icrc.crc32(data + zlib.crc32(data).to_bytes(4, "little")) == icrc.RESIDUE


def test_without_isal() -> None:
    program = """
import sys, zlib
sys.modules["isal"] = None
from smbdirect.providers.roce import icrc
assert icrc.crc32 is zlib.crc32
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
