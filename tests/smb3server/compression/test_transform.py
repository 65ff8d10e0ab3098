"""Compressed messages: what is accepted, what is refused before memory is taken, and when compression stops."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smb3server.compression.benefit import FIRST_PAUSE, LONGEST_PAUSE, Benefit, Counts
from smb3server.compression.transform import Agreement, CompressionError, agree
from smb3server.wire.compression import CompressionAlgorithm
from smb3server.wire.header import PROTOCOL_ID
from tests.lab.examples import examples

LEAD = PROTOCOL_ID + bytes(76)
LZ77, LZ4, PATTERN = CompressionAlgorithm.LZ77, CompressionAlgorithm.LZ4, CompressionAlgorithm.PATTERN_V1
TEXT = b"".join(b"line %d of a text\n" % number for number in range(400))
LIMIT = 1 << 20


def packed(agreed: Agreement, data: bytes) -> bytes:
    found = agreed.pack(memoryview(data))
    assert found is not None
    message = b"".join(found.message([LEAD[:64], LEAD[64:]]))
    assert len(message) < len(LEAD) + len(data)
    return message


@pytest.mark.parametrize("algorithm", [a for a in CompressionAlgorithm if a not in (0, PATTERN)])
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("data", [TEXT, bytes(300) + TEXT + b"\xff" * 500, bytes(5000)])
def test_round_trip(algorithm: int, chained: bool, data: bytes) -> None:
    agreed = Agreement((algorithm, PATTERN), chained)
    assert agreed.unpack(memoryview(packed(agreed, data)), LIMIT) == LEAD + data


def test_patterns_alone() -> None:
    agreed = Agreement((PATTERN,), True)
    assert agreed.unpack(memoryview(packed(agreed, bytes(5000) + b"x")), LIMIT) == LEAD + bytes(5000) + b"x"
    assert Agreement((PATTERN,), False).pack(bytes(5000)) is None


def test_data_that_does_not_shrink_is_left_alone() -> None:
    noise = bytes(range(256))
    assert Agreement((LZ77, PATTERN), True).pack(noise) is None
    assert Agreement((LZ77,)).pack(noise) is None
    assert Agreement((LZ4,)).pack(b"") is None


def unchained(original: int, algorithm: int, offset: int = 0, flags: int = 0, data: bytes = b"") -> bytes:
    return struct.pack("<4sIHHI", b"\xfcSMB", original, algorithm, flags, offset) + data


def chain(original: int, *payloads: tuple[int, bytes]) -> bytes:
    parts = [
        struct.pack("<HHI", algorithm, not number, len(data)) + data
        for number, (algorithm, data) in enumerate(payloads)
    ]
    return struct.pack("<4sI", b"\xfcSMB", original) + b"".join(parts)


def pattern(count: int) -> tuple[int, bytes]:
    return PATTERN, struct.pack("<BBHI", 0, 0, 0, count)


REFUSED = {
    "short": b"\xfcSMB" + bytes(8),
    "bomb": unchained(1 << 31, LZ77, data=bytes(100)),
    "bomb by offset": unchained(LIMIT, LZ77, 64, data=bytes(100)),
    "bomb of a chain": chain(1 << 31, pattern(1 << 31)),
    "another algorithm": unchained(100, CompressionAlgorithm.LZNT1, data=bytes(100)),
    "no algorithm": unchained(100, 0, data=bytes(100)),
    "pattern without a chain": unchained(100, PATTERN, data=pattern(100)[1]),
    "unknown flags": unchained(100, LZ77, flags=2, data=bytes(100)),
    "offset behind the end": unchained(100, LZ77, 1000, data=bytes(100)),
    "pattern too long": chain(100, (0, LEAD), pattern(21)),
    "pattern too short": chain(100, (0, LEAD), pattern(19)),
    "pattern of a wrong length": chain(100, (0, LEAD), (PATTERN, bytes(7))),
    "as it is, too long": chain(60, (0, LEAD)),
    "payload without its size": chain(100, (0, LEAD), (LZ77, b"\1")),
    "payload too large": chain(100, (0, LEAD), (LZ77, struct.pack("<I", 1 << 31))),
    "payload of another algorithm": chain(100, (0, LEAD), (LZ4, bytes(20))),
    "cut off": chain(100, (0, LEAD), pattern(20))[:-3],
    "too many payloads": chain(80, *[(0, b"")] * 300, (0, LEAD)),
    "compressed twice": chain(100, (0, b"\xfcSMB" + bytes(96))),
    "shorter than a header": chain(40, (0, LEAD[:40])),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    with pytest.raises(CompressionError):
        Agreement((LZ77, PATTERN), True).unpack(memoryview(REFUSED[what]), LIMIT)


def test_a_chain_that_was_not_agreed_upon() -> None:
    message = memoryview(chain(100, (0, LEAD), pattern(20)))
    assert Agreement((LZ77, PATTERN), True).unpack(message, LIMIT) == LEAD + bytes(20)
    with pytest.raises(CompressionError):
        Agreement((LZ77, PATTERN), False).unpack(message, LIMIT)


@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_anything_is_unpacked_or_refused(data: bytes, chained: bool) -> None:
    agreed = Agreement((LZ77, PATTERN), True)
    message = struct.pack("<4sI", b"\xfcSMB", len(data)) + (b"\0\0\1\0" if chained else b"") + data
    try:
        assert len(agreed.unpack(memoryview(message), 5000)) <= 5000
    except CompressionError:
        pass


def test_one_algorithm_is_chosen_and_patterns() -> None:
    everything = tuple(CompressionAlgorithm)[1:]
    assert agree((LZ4, LZ77, PATTERN), everything, True) == Agreement((LZ4, PATTERN), True)
    assert agree((LZ4, 99), (LZ77,), True) is None
    assert agree((0,), everything, True) is None


def test_a_pause_after_data_that_did_not_shrink() -> None:
    benefit = Benefit()
    assert benefit.tries(1)
    benefit.judge(False)
    assert not benefit.tries(FIRST_PAUSE)
    assert benefit.tries(1)
    for _ in range(10):
        benefit.judge(False)
    assert not benefit.tries(LONGEST_PAUSE)
    assert benefit.tries(1)
    benefit.judge(True)
    assert benefit.tries(LONGEST_PAUSE)
    assert benefit.tries(1)


def test_counts_of_the_whole() -> None:
    whole = Counts()
    for _ in range(2):
        part = Counts(whole)
        part.sends(10, 3)
        part.receives(20, 4)
    assert (whole.sent, whole.sent_compressed, whole.received, whole.received_compressed) == (20, 6, 40, 8)
