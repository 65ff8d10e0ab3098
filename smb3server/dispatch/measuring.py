"""What is measured of requests: how long they take, and which of them hold up all others.

While nothing is measured, ``Measuring.observer`` is None, and a request pays for that look alone. It may change while
the server runs.

The time of a request goes from the beginning of its work to its answer, with what it waits for: a disk, its client's
memory, another client that acknowledges a break. CHANGE_NOTIFY is not timed, because its answer comes when something
changes. Times fall into classes of powers of two: to count one costs no more than an addition.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from smb3server.dispatch.request import Pending
from smb3server.process.words import endpoint
from smb3server.state.events import command_name, status_name
from smb3server.wire.create import parse_request
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import DecodeError

if TYPE_CHECKING:
    from smb3server.backends.base import Path
    from smb3server.dispatch.fetch import Fetch
    from smb3server.dispatch.request import Request, Response
    from smb3server.dispatch.watchdog import Watchdog
from smb3server.state.objects import Connection, TreeConnect

requests_log = logging.getLogger("smb3server.files.requests")
"""One line for each request, at the level debug."""

CLASSES = 26
"""Class n has the requests of less than 2**n microseconds that are in no lower class. The last one has all longer ones:
of 17 seconds and more."""
COMMANDS = 19
"""Commands are below this number. [MS-SMB2 2.2.1.2]"""
READS, WRITES, OTHERS = 0, 1, 2
"""Indexes of ``Timings.of_shares``."""
_READ, _WRITE, _CREATE, _NOTIFY = map(int, (Command.READ, Command.WRITE, Command.CREATE, Command.CHANGE_NOTIFY))

Start = tuple[float, float]
"""Seconds of the monotonic clock, and of the thread's processor time; the latter is 0 without a watchdog."""


class Timings:
    """The times and results of all requests since the start."""

    def __init__(self) -> None:
        self.classes = [[0] * CLASSES for _ in range(COMMANDS)]
        """By command and class: the number of requests."""
        self.seconds = [0.0] * COMMANDS
        """By command: the sum of all times."""
        self.errors: Counter[tuple[int, int]] = Counter()
        """By command and status: requests that failed."""
        self.of_shares: dict[str, list[int]] = {}
        """By share: the numbers of READs, WRITEs and other requests that were answered."""
        self.seconds_of_shares: dict[str, list[float]] = {}
        """By share: the sums of their times. Those of CHANGE_NOTIFY are not in it."""
        self.opened: Counter[str] = Counter()
        """By share: CREATEs that succeeded."""

    def note(self, command: int, status: int, share: str, seconds: float) -> None:
        """Count a request. ``share``: empty if it has none."""
        if command >= COMMANDS:
            return
        if command != _NOTIFY:
            size = int(seconds * 1e6).bit_length()
            self.classes[command][size if size < CLASSES else CLASSES - 1] += 1
            self.seconds[command] += seconds
        if status:
            self.errors[command, status] += 1
        if share:
            counts = self.of_shares.get(share)
            if counts is None:
                counts = self.of_shares[share] = [0, 0, 0]
                self.seconds_of_shares[share] = [0.0, 0.0, 0.0]
            kind = READS if command == _READ else WRITES if command == _WRITE else OTHERS
            counts[kind] += 1
            if command != _NOTIFY:
                self.seconds_of_shares[share][kind] += seconds
            if command == _CREATE and not status:
                self.opened[share] += 1


class Observer:
    """Is told of the beginning and the end of the work on each request."""

    __slots__ = ("_log", "_timings", "_waiting", "_watchdog")

    def __init__(self, watchdog: Watchdog | None, timings: Timings | None, log: bool, waiting: Waiting) -> None:
        self._watchdog = watchdog
        self._timings = timings
        self._log = log
        self._waiting = waiting

    def began(self) -> Start:
        """Return the time at which the work on a request begins."""
        return time.monotonic(), time.thread_time() if self._watchdog is not None else 0.0

    def answered(
        self, command: int, connection: Connection, tree: TreeConnect | None, path: Path, start: Start, status: int = 0
    ) -> None:
        """Note that a request was answered in the turn in which its work began. ``path``: that of its open, if it has
        one."""
        if self._watchdog is not None:
            self._watchdog.finished(command, connection.client_name, lambda: path, start)
        self._note(command, connection, tree, path, start[0], status)

    def ran(self, request: Request, result: Response | StatusError | Pending, start: Start) -> None:
        """Note that the work on a request has ended for this turn."""
        command, connection = request.header.command, request.connection
        if self._watchdog is not None:
            self._watchdog.finished(command, connection.client_name, lambda: _path(request), start)
        if isinstance(result, Pending):
            self._waiting[result] = start[0]
        else:
            path = _path(request) if self._log else ()
            self._note(command, connection, request.tree, path, start[0], result.status)

    def finished(self, request: Request, status: int) -> None:
        """Note that a request which had to wait is answered."""
        began = self._waiting.pop(request.pending, None) if request.pending is not None else None
        if began is not None:
            path = _path(request) if self._log else ()
            self._note(request.header.command, request.connection, request.tree, path, began, status)

    def fetches(self, fetch: Fetch, connection: Connection, start: Start) -> None:
        """Note that a request waits for its data, without an object of its own."""
        if self._watchdog is not None:
            self._watchdog.finished(fetch.header.command, connection.client_name, lambda: fetch.open.path, start)
        self._waiting[fetch] = start[0]

    def settled(self, fetch: Fetch, pending: Pending) -> None:
        """Note that such a request has objects from now on."""
        began = self._waiting.pop(fetch, None)
        if began is not None:
            self._waiting[pending] = began

    def fetched(self, fetch: Fetch, connection: Connection) -> None:
        """Note that such a request is answered."""
        began = self._waiting.pop(fetch, None)
        if began is not None:
            self._note(fetch.header.command, connection, fetch.tree, fetch.open.path, began, NtStatus.SUCCESS)

    def _note(
        self,
        command: int,
        connection: Connection,
        tree: TreeConnect | None,
        path: Sequence[str],
        began: float,
        status: int,
    ) -> None:
        seconds = time.monotonic() - began
        share = tree.share.name if tree is not None else ""
        if self._timings is not None:
            self._timings.note(command, status, share, seconds)
        if self._log:
            requests_log.debug(
                "%s %s%s%s: %s, %.3f ms",
                endpoint(connection.transport.peer_address),
                command_name(command),
                f" {share}" if share else "",
                f" {'/'.join(path)!r}" if path else "",
                status_name(status),
                seconds * 1000,
            )


Waiting = dict["Pending | Fetch", float]
"""When the work began on the requests that are not answered yet, in monotonic seconds."""


class Measuring:
    """What is measured of one server's requests."""

    __slots__ = ("_timings", "_waiting", "_watchdog", "observer")

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self.observer: Observer | None = None
        self._watchdog = watchdog
        self._timings: Timings | None = None
        self._waiting: Waiting = {}
        self.update()

    @property
    def watchdog(self) -> Watchdog | None:
        """Names requests that hold up all others; None if nothing does."""
        return self._watchdog

    @watchdog.setter
    def watchdog(self, watchdog: Watchdog | None) -> None:
        self._watchdog = watchdog
        self.update()

    @property
    def timings(self) -> Timings | None:
        """Counts requests; None if nobody has asked for that."""
        return self._timings

    def waiting(self) -> Counter[tuple[str, int]]:
        """Return how many requests are not answered yet, by share and kind (``READS``, ``WRITES``, ``OTHERS``).

        CHANGE_NOTIFY is not among them: it waits for others by its nature."""
        found: Counter[tuple[str, int]] = Counter()
        for entry in self._waiting:
            request = entry.request if isinstance(entry, Pending) else entry
            command, tree = request.header.command, request.tree
            if tree is not None and command != _NOTIFY:
                kind = READS if command == _READ else WRITES if command == _WRITE else OTHERS
                found[tree.share.name, kind] += 1
        return found

    def count(self) -> Timings:
        """Count requests from now on."""
        if self._timings is None:
            self._timings = Timings()
            self.update()
        return self._timings

    def update(self) -> None:
        """Measure what is asked for now. Call it when levels of the log have changed."""
        log = requests_log.isEnabledFor(logging.DEBUG)
        if self._watchdog is None and self._timings is None and not log:
            self.observer = None
            self._waiting.clear()
        else:
            self.observer = Observer(self._watchdog, self._timings, log, self._waiting)


def _path(request: Request) -> Sequence[str]:
    """Return the path of the request's file, as far as it is known."""
    return request.open.path if request.open is not None else named_path(request.header.command, request.message)


def named_path(command: int, message: memoryview) -> Path:
    """Return the path that a CREATE names, as the client wrote it; () for other commands."""
    if command == _CREATE:
        try:
            return tuple(parse_request(message)[1].split("\\"))
        except (StatusError, DecodeError):
            return ()
    return ()
