"""MD4 and RC4, which NTLM needs and OpenSSL no longer has. Nothing else may use them. [RFC 1320, MS-NLMP 6]"""

from __future__ import annotations

import struct

_START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_ORDERS = (
    tuple(range(16)),
    (0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
    (0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15),
)
"""The word of a block that each step of a round takes."""
_SHIFTS = ((3, 7, 11, 19), (3, 5, 9, 13), (3, 9, 11, 15))
_ADDED = (0, 0x5A827999, 0x6ED9EBA1)
_MASK = 0xFFFFFFFF


def md4(data: bytes) -> bytes:
    """Return the MD4 digest. [RFC 1320 3]"""
    padded = data + b"\x80" + bytes(-(len(data) + 9) % 64) + struct.pack("<Q", 8 * len(data))
    state = _START
    for words in struct.iter_unpack("<16I", padded):
        a, b, c, d = state
        for number, (order, shifts, added) in enumerate(zip(_ORDERS, _SHIFTS, _ADDED, strict=True)):
            for step, word in enumerate(order):
                if number == 0:
                    mixed = b & c | ~b & d
                elif number == 1:
                    mixed = b & c | b & d | c & d
                else:
                    mixed = b ^ c ^ d
                total = (a + mixed + words[word] + added) & _MASK
                shift = shifts[step % 4]
                a, b, c, d = d, (total << shift | total >> 32 - shift) & _MASK, b, c
        state = tuple(old + new & _MASK for old, new in zip(state, (a, b, c, d), strict=True))  # type: ignore[assignment]
    return struct.pack("<4I", *state)


def rc4(key: bytes, data: bytes) -> bytes:
    """Return ``data`` encrypted, or decrypted, with the beginning of the key's stream. [MS-NLMP 6, RC4K]"""
    box = list(range(256))
    j = 0
    for i in range(256):
        j = (j + box[i] + key[i % len(key)]) & 255
        box[i], box[j] = box[j], box[i]
    i = j = 0
    made = bytearray()
    for byte in data:
        i = (i + 1) & 255
        j = (j + box[i]) & 255
        box[i], box[j] = box[j], box[i]
        made.append(byte ^ box[(box[i] + box[j]) & 255])
    return bytes(made)
