"""Inputs of several messages: each has a length of two bytes in front. The fuzzer's changes stay within one of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

MOST = 32
"""Messages of one input."""


def split(data: bytes) -> list[bytes]:
    """Return the messages. Any input has some: the last one may be shorter than its length says."""
    found: list[bytes] = []
    at = 0
    while at + 2 <= len(data) and len(found) < MOST:
        length = int.from_bytes(data[at : at + 2], "little")
        found.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    return found


def join(messages: Sequence[bytes]) -> bytes:
    """Return the input of these messages."""
    return b"".join(len(message).to_bytes(2, "little") + message for message in messages)


def mutate(data: bytes, size: int, chance: random.Random, change: Callable[[bytes], bytes]) -> bytes:
    """Change one message with ``change``, or repeat, drop or move one. Implements ``target.Mutate``."""
    messages = split(data)
    if not messages:
        return join([change(data) or b"\0"])
    at = chance.randrange(len(messages))
    match chance.randrange(8):
        case 0:
            messages.insert(chance.randint(0, len(messages)), messages[at])
        case 1 if len(messages) > 1:
            del messages[at]
        case 2 if len(messages) > 1:
            messages.insert(chance.randrange(len(messages)), messages.pop(at))
        case _:
            messages[at] = change(messages[at]) if messages[at] else chance.randbytes(4)
    while len(messages) > MOST or sum(map(len, messages)) + 2 * len(messages) > size:
        messages.pop()
    return join(messages)


def mutate_behind(
    head: int,
) -> Callable[[bytes, int, random.Random, Callable[[bytes], bytes]], bytes]:
    """Return ``mutate`` for inputs whose messages follow ``head`` bytes of choices."""

    def run(data: bytes, size: int, chance: random.Random, change: Callable[[bytes], bytes]) -> bytes:
        start = data[:head].ljust(head, b"\0")
        if chance.randrange(16) == 0:
            start = chance.randbytes(head)
        return start + mutate(data[head:], size - head, chance, change)

    return run
