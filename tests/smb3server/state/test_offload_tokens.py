"""Tokens of offloaded transfers: who made them, and for how long they are valid. [MS-FSCC 2.1.11]"""

from __future__ import annotations

from smb3server.state.offload_tokens import DEFAULT_LIFE, LONGEST_LIFE, Grant, OffloadTokens
from smb3server.wire.offload import TOKEN, ZERO_DATA, ZERO_TOKEN

GRANT = Grant(open_id=7, offset=4096, length=8192, changed=1_700_000_000_000_000_000, size=20_000)


class Clock:
    def __init__(self) -> None:
        self.now = 5_000_000_000

    def __call__(self) -> int:
        return self.now


def test_a_token_says_what_it_stands_for() -> None:
    tokens = OffloadTokens()
    token = tokens.make(GRANT, 0)
    assert len(token) == 512
    assert TOKEN.unpack(token).token_id_length == 504
    assert TOKEN.unpack(token).token_type < ZERO_DATA
    grant = tokens.read(token)
    assert grant is not None
    assert grant._replace(expires=0) == GRANT


def test_every_damaged_byte_is_noticed() -> None:
    tokens = OffloadTokens()
    token = tokens.make(GRANT, 0)
    for index in range(len(token)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(token)
            damaged[index] ^= mask
            assert tokens.read(bytes(damaged)) is None, index
    assert tokens.read(token) is not None


def test_nobody_else_makes_tokens() -> None:
    tokens = OffloadTokens()
    for token in (OffloadTokens().make(GRANT, 0), bytes(512), b"\xff" * 512, ZERO_TOKEN):
        assert tokens.read(token) is None


def test_tokens_expire() -> None:
    clock = Clock()
    tokens = OffloadTokens(clock)
    for asked, life in ((0, DEFAULT_LIFE), (1500, 1.5), (0xFFFFFFFF, LONGEST_LIFE)):
        token, begin = tokens.make(GRANT, asked), clock.now
        clock.now = begin + int(life * 1e9) - 1
        assert tokens.read(token) is not None
        clock.now += 1
        assert tokens.read(token) is None
