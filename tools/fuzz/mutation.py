"""Changes to bytes that are hard on parsers."""

from __future__ import annotations

import random

_BYTES = (0, 1, 2, 7, 8, 0x10, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS = (0, 1, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
_LONG = (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def mutate(chance: random.Random, data: bytes, most: int = 3) -> bytes:
    """Return ``data`` with one to ``most`` changes: of bits, bytes, numbers and lengths, or with parts removed or
    inserted.
    """
    changed = bytearray(data)
    for _ in range(chance.randint(1, most)):
        if not changed:
            changed += chance.randbytes(4)
        at = chance.randrange(len(changed))
        match chance.randrange(9):
            case 0 | 1:
                changed[at] = chance.choice(_BYTES)
            case 2:
                changed[at] ^= 1 << chance.randrange(8)
            case 3:
                at &= ~3
                changed[at : at + 4] = chance.choice(_NUMBERS).to_bytes(4, chance.choice(("little", "big")))
            case 4:
                at &= ~7
                number = chance.choice((*_LONG, chance.getrandbits(64)))
                changed[at : at + 8] = number.to_bytes(8, "little")
            case 5:
                del changed[at : at + chance.randint(1, 16)]
            case 6:
                changed[at:at] = chance.randbytes(chance.randint(1, 16))
            case 7:
                at &= ~1
                number = chance.choice((0, 1, 64, len(changed), len(changed) + 1, 0xFFFE, 0xFFFF))
                changed[at : at + 2] = (number & 0xFFFF).to_bytes(2, "little")
            case _:
                length = chance.randint(1, 64)
                changed[at:at] = changed[max(0, at - length) : at]
    return bytes(changed)
