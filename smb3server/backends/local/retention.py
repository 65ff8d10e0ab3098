"""Which files of a share are retained: nobody may change them any more, nor delete them before their time.

A file is retained once it has not changed for the grace period. What counts is ``st_ctime``, which no client can set.
As soon as the server sees that a file is retained, it stores so in an extended attribute of its own, with the time of
the last change. From then on neither a change on the host nor a clock that is set back makes the file free again.

Clocks may be set while the server runs. A file is retained as early as one of two clocks says it, and deletable as late
as both do: that of the host, and that of the server's start, which only ever runs forward.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from smb3server.backends.local.metadata import MetadataStore, Reference
from smb3server.backends.local.syscalls import Statx

log = logging.getLogger(__name__)

_STAMP = struct.Struct("<Bxxxxxxxq")
"""Version, and the time of the last change in nanoseconds since 1970."""
_VERSION = 1
_SKEW = 2 * 10**9
"""Nanoseconds that a file may be ahead of the clock: clocks of the kernel differ a little. A file that is further ahead
counts as retained until the clock is there: it may have been set back."""


class Clock:
    """The time by two clocks, in nanoseconds since 1970."""

    def __init__(
        self,
        wall: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._start = wall() - steady()

    def latest(self) -> int:
        """Return the later of the two."""
        return max(self._wall(), self._start + self._steady())

    def earliest(self) -> int:
        """Return the earlier of the two."""
        return min(self._wall(), self._start + self._steady())


_CLOCK = Clock()


class State(NamedTuple):
    """What is known of one file."""

    retained: bool
    since: int
    """When it was changed last, in nanoseconds since 1970."""
    stored: bool = False
    """Whether its attribute says so."""
    lasting: bool = True
    """Whether it stays retained. False: its times are ahead of the clock."""


class Retention:
    """The rule of one share."""

    def __init__(self, grace: int, keep: int | None, clock: Clock = _CLOCK) -> None:
        """``grace``: nanoseconds without a change after which a file is retained. ``keep``: nanoseconds since the last
        change after which it may be deleted. None means never."""
        self.grace = grace
        self.keep = keep
        self.clock = clock

    def judge(self, stamp: bytes | None, changed: int) -> State:
        """Return the state of a file. ``stamp``: its attribute. ``changed``: its ``st_ctime``.

        A stamp that cannot be read retains the file from its last change on."""
        if stamp is not None:
            valid = len(stamp) == _STAMP.size and stamp[0] == _VERSION
            return State(True, _STAMP.unpack(stamp)[1] if valid else changed, True)
        now = self.clock.latest()
        if changed > now + _SKEW:
            return State(True, changed, lasting=False)
        return State(now - changed >= self.grace, changed)

    def look(self, store: MetadataStore, reference: Reference, stat: Statx) -> State:
        """Return the state of a regular file, and store it if it is retained. Raises ``OSError``."""
        found = self.judge(store.retention(reference, stat), stat.ctime)
        if found.retained and found.lasting and not found.stored:
            try:
                store.retain(reference, _STAMP.pack(_VERSION, found.since))
            except OSError as error:
                # It stays retained by its change time.
                log.info("that a file is retained cannot be stored: %s", error)
        return found

    def may_delete(self, found: State) -> bool:
        """Return whether the time of a retained file is over."""
        return self.keep is not None and found.lasting and self.clock.earliest() - found.since >= self.keep
