"""The time that a server has for an answer. [MS-SMB2 3.2.6.1]

It counts for each answer by itself. A request waits behind the earlier ones of its connection, so the time counts from
when it is the oldest. The interim response of a request that the server works on is an answer, and its time counts
anew. CHANGE_NOTIFY and LOCK may then take as long as they like: while nothing else is asked, ECHO finds out whether the
server is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from smb3server.client.protocol.messages import Call
from smb3server.wire.header import Command

_LASTING = frozenset([Command.CHANGE_NOTIFY, Command.LOCK])
_LOOKS = 4
"""How often one looks within the time for an answer."""


class Silence:
    """Notices that a connection's server does not answer. A timer runs while requests wait, one for all of them."""

    def __init__(
        self, calls: Mapping[int, Call], probe: Callable[[], Call | None], give_up: Callable[[str], None]
    ) -> None:
        """``calls`` are the requests without a final response, the oldest first. ``probe`` sends an ECHO if it can.
        ``give_up`` ends the connection, and is told why.
        """
        self._calls = calls
        self._probe = probe
        self._give_up = give_up
        self._limit = 0.0
        self.sleeps = False
        """Whether nobody looks after the requests, and there is a limit: ``begin`` wants to be called."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._quiet_since = 0.0

    def limit(self, seconds: float) -> None:
        """Give the server so many seconds for each answer from now on; 0 for as long as it likes."""
        self.stop()
        self._limit = seconds
        self.sleeps = bool(seconds)
        for call in self._calls.values():
            call.since = 0.0
        if self.sleeps and self._calls:
            self.begin()

    def stop(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> None:
        """Look after the requests from now on: there are some."""
        self._arm(self._loop.time() + self._limit / _LOOKS)

    def interim(self, call: Call) -> None:
        """Note that the server works on a request."""
        if self._limit:
            call.since = self._loop.time()

    def _arm(self, when: float) -> None:
        self.sleeps = False
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._calls:
            self.sleeps = True
            return
        now = self._loop.time()
        next_look = now + self._limit / _LOOKS
        oldest = True
        for call in self._calls.values():
            if call.async_id:
                if call.header.command in _LASTING:
                    continue
            elif oldest:
                oldest = False
                call.since = call.since or now
            else:
                continue
            if now >= call.since + self._limit:
                self._give_up(f"no answer in {self._limit:g} seconds")
                return
            next_look = min(next_look, call.since + self._limit)
        if not oldest:
            self._quiet_since = 0.0
        elif not self._quiet_since:
            self._quiet_since = now
        elif now >= self._quiet_since + self._limit:
            self._quiet_since = 0.0
            if (probe := self._probe()) is not None:
                probe.since = now
        self._arm(next_look)
