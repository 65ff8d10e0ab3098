"""LZNT1: chunks of 4 KiB, each for itself. [MS-XCA 2.5]"""

from __future__ import annotations

import struct

from smb3server.compression.matches import MIN_MATCH, Finder, repeat

CHUNK = 4096
_WORD = struct.Struct("<H")
_COMPRESSED = 0x8000
_SIGNATURE = 0x3000
_SIGNATURE_MASK = 0x7000
_SIZE_MASK = 0x0FFF


def _displacement_bits(done: int) -> int:
    """Return how many bits of a compressed word are its displacement, ``done`` bytes after the start of the chunk.
    [MS-XCA 2.5.1.4]"""
    return min(max((done - 1).bit_length(), 4), 12)


def _pack_chunk(finder: Finder, data: bytes, start: int, end: int) -> bytes:
    """Return the flag groups of one chunk. [MS-XCA 2.5.1.3]"""
    out, at, group = bytearray(), start, 0
    count = 8
    while at < end:
        if count == 8:
            group, count = len(out), 0
            out.append(0)
        bits = _displacement_bits(at - start)
        length, distance = finder.longest(at, start, CHUNK, min(end - at, (1 << (16 - bits)) + 2))
        if length:
            out += _WORD.pack((distance - 1) << (16 - bits) | (length - MIN_MATCH))
            out[group] |= 1 << count
            at += length
        else:
            out.append(data[at])
            at += 1
        count += 1
    return bytes(out)


def compress(data: bytes) -> bytes:
    """Return the compressed data. No terminator is written: the length of the whole is known. [MS-XCA 2.5.1.2]"""
    finder, out = Finder(data), bytearray()
    for start in range(0, len(data), CHUNK):
        end = min(start + CHUNK, len(data))
        packed = _pack_chunk(finder, data, start, end)
        if len(packed) < end - start:
            out += _WORD.pack(_COMPRESSED | _SIGNATURE | (len(packed) - 1)) + packed
        else:
            out += _WORD.pack(_SIGNATURE | (end - start - 1)) + data[start:end]
    return bytes(out)


def _unpack_chunk(data: memoryview, into: memoryview, start: int) -> int:
    """Decompress the flag groups of one chunk to ``into`` from ``start`` on. Return where that ends, -1 if the data is
    malformed."""
    at, done = 0, start
    end = min(len(into), start + CHUNK)
    while at < len(data):
        flags = data[at]
        at += 1
        for bit in range(8):
            if at == len(data):
                break
            if not flags >> bit & 1:
                if done == end:
                    return -1
                into[done] = data[at]
                at, done = at + 1, done + 1
                continue
            if at + 2 > len(data):
                return -1
            bits = _displacement_bits(done - start)
            (word,) = _WORD.unpack_from(data, at)
            at += 2
            length = (word & (1 << (16 - bits)) - 1) + MIN_MATCH
            if not repeat(into[start:end], done - start, (word >> (16 - bits)) + 1, length):
                return -1
            done += length
    return done


def decompress(data: memoryview, into: memoryview) -> bool:
    """Decompress ``data`` to ``into``. Return whether it is well-formed and has exactly that length."""
    at = done = 0
    while at + 2 <= len(data):
        (header,) = _WORD.unpack_from(data, at)
        at += 2
        if not header:
            return done == len(into)
        end = at + (header & _SIZE_MASK) + 1
        if header & _SIGNATURE_MASK != _SIGNATURE or end > len(data):
            return False
        if header & _COMPRESSED:
            done = _unpack_chunk(data[at:end], into, done)
            if done < 0:
                return False
        else:
            if end - at > len(into) - done:
                return False
            into[done : done + end - at] = data[at:end]
            done += end - at
        at = end
    return at == len(data) and done == len(into)
