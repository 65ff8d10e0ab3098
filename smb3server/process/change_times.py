"""Tells whether a file may change once more without a new time stamp: the clock behind the stamps moves in ticks."""

from __future__ import annotations

import time

_SECOND = 1_000_000_000
TICK_NS = 50_000_000
"""Nanoseconds. Longer than a tick of the kernel's clock, which is 10 ms or less."""
WHOLE_SECONDS_NS = 2 * _SECOND + TICK_NS
"""Nanoseconds. Longer than the step of a file system that stores no parts of a second: ext3, ext4 with inodes of 128
bytes, and FAT, whose step is two seconds."""


def may_hide_a_change(stamp: int) -> bool:
    """Return whether a change that is made after this call may leave ``stamp`` as it is.

    ``stamp``: nanoseconds since 1970, of a stat that was taken before. One without parts of a second may come from a
    file system that stores none."""
    return time.time_ns() - stamp < _step(stamp)


def seconds_hidden(stamp: int) -> float:
    """Return for how many seconds from now on a write may leave the last write time ``stamp`` as it is. 0 also for a
    time of the future: somebody has set it, and a write sets another one."""
    age = time.time_ns() - stamp
    return max(0, _step(stamp) - age) / _SECOND if age >= 0 else 0.0


def _step(stamp: int) -> int:
    return TICK_NS if stamp % _SECOND else WHOLE_SECONDS_NS
