"""Make an input smaller that shows a finding."""

from __future__ import annotations

from collections.abc import Callable

MOST_TRIES = 3000


def minimise(data: bytes, shows: Callable[[bytes], bool], most: int = MOST_TRIES) -> bytes:
    """Return a smaller input for which ``shows`` is still true: without parts, and with zeros where the value of a byte
    does not matter. ``shows`` is called at most ``most`` times."""
    tries = 0

    def still(candidate: bytes) -> bool:
        nonlocal tries
        tries += 1
        return tries <= most and shows(candidate)

    step = len(data) // 2
    while step:
        at = 0
        while at < len(data):
            candidate = data[:at] + data[at + step :]
            if still(candidate):
                data = candidate
            else:
                at += step
        step //= 2
    for at, value in enumerate(data):
        if value:
            candidate = data[:at] + b"\0" + data[at + 1 :]
            if still(candidate):
                data = candidate
    return data
