"""The algorithms of MS-XCA: the published examples, C against Python, and a decompressor that others wrote."""

import os
import random

import pytest
from dissect.util.compression import lznt1 as other_lznt1
from dissect.util.compression import lzxpress, lzxpress_huffman
from hypothesis import given, settings
from hypothesis import strategies as st

from smb3server.compression import codecs, lz77, lz77_huffman, lznt1
from smb3server.wire.compression import CompressionAlgorithm
from smbdirect import native
from tests.lab.examples import examples

LZNT1, LZ77, HUFFMAN = CompressionAlgorithm.LZNT1, CompressionAlgorithm.LZ77, CompressionAlgorithm.LZ77_HUFFMAN
PYTHON = {LZNT1: lznt1, LZ77: lz77, HUFFMAN: lz77_huffman}
OTHERS = {LZNT1: other_lznt1, LZ77: lzxpress, HUFFMAN: lzxpress_huffman}
LETTERS, ABC = bytes(range(97, 123)), b"abc" * 100
NOTES = (
    b"F# F# G A A G F# E D D E F# F# E E F# F# G A A G F# E D D E F# E D D E E F# D E F# G F# D E "
    b"F# G F# E D E A F# F# G A A G F# E D D E F# E D D\0"
)
EXAMPLES = [
    (LZ77, LETTERS, bytes.fromhex("3f000000") + LETTERS),
    (LZ77, ABC, bytes.fromhex("ffffff1f61626317000fff2601")),
    (
        HUFFMAN,
        LETTERS,
        bytes(48)
        + bytes.fromhex("50 55555555555555555555 454404")
        + bytes(66)
        + b"\4"
        + bytes(127)
        + bytes.fromhex("d8523ed794115be9195ff9d67cdf8d0400000000"),
    ),
    (
        HUFFMAN,
        ABC,
        bytes(48)
        + b"\x30\x23"
        + bytes(78)
        + b"\2"
        + bytes(14)
        + b"\x20"
        + bytes(112)
        + bytes.fromhex("a8dc0000ff2601"),
    ),
]
"""[MS-XCA 3.1, 3.2]"""
LZNT1_EXAMPLE = bytes.fromhex(
    "38b08846232000204720410010a24701a045204400084501507900c04520052413"
    "8805b4024a44ef0358028c091601484500be009e000401189000"
)
"""[MS-XCA 3.3]. Its compressor does not always take the longest match: ours makes it shorter."""

needs_c = pytest.mark.skipif(not native.available(codecs.MODULE), reason="the module in C is not built")


def unpack(module: object, algorithm: int, data: bytes, size: int) -> bytes | None:
    into = bytearray(size)
    if module is codecs:
        right = codecs.decompress(algorithm, data, memoryview(into))
    else:
        right = PYTHON[CompressionAlgorithm(algorithm)].decompress(memoryview(data), memoryview(into))
    return bytes(into) if right else None


def samples() -> list[bytes]:
    chance = random.Random(1)
    words = [chance.randbytes(chance.randint(1, 12)) for _ in range(50)]
    found = [LETTERS, ABC, NOTES]
    for size in (1, 2, 3, 31, 32, 33, 4095, 4096, 4097, 20_000, 65_535, 65_536, 65_537, 140_000):
        found.append(chance.randbytes(size))
        found.append((b"".join(chance.choices(words, k=size // 4 + 1)) + bytes(size))[:size])
        found.append(bytes(size))
    return found


@pytest.mark.parametrize(("algorithm", "plain", "packed"), EXAMPLES)
def test_published_examples(algorithm: CompressionAlgorithm, plain: bytes, packed: bytes) -> None:
    assert codecs.compress(algorithm, plain, 1000) == packed
    assert PYTHON[algorithm].compress(plain) == packed
    for module in (codecs, PYTHON):
        assert unpack(module, algorithm, packed, len(plain)) == plain


def test_the_published_example_of_lznt1() -> None:
    for module in (codecs, PYTHON):
        assert unpack(module, LZNT1, LZNT1_EXAMPLE, len(NOTES)) == NOTES
        assert unpack(module, LZNT1, LZNT1_EXAMPLE, len(NOTES) - 1) is None
        assert unpack(module, LZNT1, LZNT1_EXAMPLE, len(NOTES) + 1) is None


def test_flags_for_nothing() -> None:
    """Behind the 32nd flag: left out, ones as [MS-XCA 2.3.4] has them, and zeros as Linux 6.12 has them."""
    plain = bytes(range(32))
    for rest, right in ((b"", True), (b"\xff" * 4, True), (bytes(4), True), (bytes(5), False), (bytes(3), False)):
        for module in (codecs, PYTHON):
            assert unpack(module, LZ77, bytes(4) + plain + rest, 32) == (plain if right else None)
            assert unpack(module, LZ77, bytes(4) + plain + rest, 31) is None
            # A byte follows that is not there, or is.
            assert unpack(module, LZ77, bytes(4) + plain + rest, 33) == (plain + b"\0" if len(rest) == 5 else None)


@pytest.mark.parametrize("algorithm", PYTHON)
def test_what_one_compresses_the_others_decompress(algorithm: CompressionAlgorithm) -> None:
    for plain in samples():
        ours = codecs.compress(algorithm, plain, 2 * len(plain) + 600)
        assert ours is not None
        for packed in (ours, PYTHON[algorithm].compress(plain)):
            for module in (codecs, PYTHON):
                assert unpack(module, algorithm, packed, len(plain)) == plain
            # Not told the size, it looks for the end where there is none in a full block.
            if len(plain) < 60_000:
                theirs = OTHERS[algorithm].decompress(packed)
                both = min(len(theirs), len(plain))
                assert theirs[:both] == plain[:both]
                assert algorithm is HUFFMAN or len(theirs) == len(plain)


@pytest.mark.parametrize("algorithm", [*PYTHON, CompressionAlgorithm.LZ4])
def test_nothing_is_returned_that_takes_more_than_it_may(algorithm: CompressionAlgorithm) -> None:
    noise = os.urandom(10_000)
    assert codecs.compress(algorithm, noise, len(noise) - 1) is None
    assert codecs.compress(algorithm, b"", 100) is None


@pytest.mark.parametrize("algorithm", [*PYTHON, CompressionAlgorithm.LZ4])
@settings(max_examples=examples(300), deadline=None)
@given(data=st.binary(max_size=600), size=st.integers(0, 5000))
def test_anything_is_decompressed_or_refused(algorithm: CompressionAlgorithm, data: bytes, size: int) -> None:
    around = bytearray(b"\xee" * (size + 64))
    codecs.decompress(algorithm, data, memoryview(around)[32 : 32 + size])
    assert around[:32] == around[32 + size :] == b"\xee" * 32


@needs_c
@pytest.mark.parametrize("algorithm", PYTHON)
def test_c_and_python_agree_on_damaged_data(algorithm: CompressionAlgorithm) -> None:
    chance = random.Random(2)
    for plain in (LETTERS, ABC, NOTES, chance.randbytes(300) * 3):
        packed = codecs.compress(algorithm, plain, 2000)
        assert packed is not None
        for _ in range(300):
            damaged = bytearray(packed)
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            damaged = damaged[: chance.randint(0, len(damaged))] if chance.random() < 0.3 else damaged
            ours = unpack(codecs, algorithm, bytes(damaged), len(plain))
            assert ours == unpack(PYTHON, algorithm, bytes(damaged), len(plain))
