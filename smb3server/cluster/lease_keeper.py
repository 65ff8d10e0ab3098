"""Renewing a membership's lease, and extending the fence with it, on a separate thread.

So a busy event loop does not lose the lease. But the thread alone would also keep the lease of a node whose event loop
hangs forever, and its services would be served by no node. So the event loop gives signs of life: in every turn
(``beat``), and within a long turn with every request and reply (``Fence.asked_at``). After ``max_stall`` seconds
without one, the lease is not renewed and expires, as on a node that was cut off. An event loop that comes back before
the deadline goes on as before.

The thread needs the interpreter's lock only for moments, and a busy event loop releases it every few milliseconds
(``sys.getswitchinterval``). Code that holds the lock forever stops this thread as well, and the lease expires.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from smb3server.persistence.store import LeaseLost, Renewer, StoreError

log = logging.getLogger(__name__)

_RENEWALS_PER_TTL = 4
_LOOKS_PER_TTL = 8
"""Beats per ``ttl``, and checks per ``ttl`` once they have stopped."""
_RETRY_DELAY = 0.1
"""Seconds after a renewal that failed."""
STALLS_PER_TTL = 3
"""Default of ``max_stall``, in units of ``ttl``."""


def boottime() -> float:
    """Return seconds of a clock that cannot be set, and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence:
    """The deadline until which this node may answer. It is checked before every request and every reply."""

    __slots__ = ("asked_at", "deadline")

    def __init__(self) -> None:
        self.deadline = 0.0
        """In seconds of ``boottime``; 0 means that it has passed."""
        self.asked_at = 0.0
        """When the event loop last checked: a sign of life."""

    def expired(self) -> bool:
        """Return whether the deadline has passed. To be called on the event loop only."""
        self.asked_at = now = boottime()
        return now >= self.deadline

    def passed(self) -> bool:
        """Return whether the deadline has passed, on any thread. This is no sign of life of the event loop."""
        return boottime() >= self.deadline


def margin_of(ttl: float) -> float:
    """Return how many seconds before the end of a lease its holder stops. ``ttl``: seconds."""
    return max(0.5, ttl / 5)


class LeaseKeeper:
    """Keeps one lease, from its grant until it is lost or revoked. ``start`` it once, ``end`` it once."""

    def __init__(
        self,
        name: str,
        renewer: Renewer,
        lease: int,
        fence: Fence,
        *,
        ttl: float,
        max_stall: float,
        granted_at: float,
        on_extended: Callable[[], None],
        on_news: Callable[[], None],
    ) -> None:
        """``ttl``, ``max_stall``: seconds. ``granted_at``: ``boottime`` from before the grant was sent.

        ``on_extended``: called on the thread whenever the fence has a new deadline. ``on_news``: called after that, and
        when the lease is lost. Neither may block or raise."""
        self.lease = lease
        self.ttl = ttl
        self.margin = margin_of(ttl)
        self.max_stall = max_stall
        self.beat_interval = ttl / _LOOKS_PER_TTL
        self._name = name
        self._renewer = renewer
        self._fence = fence
        self._on_extended = on_extended
        self._on_news = on_news
        pause = ttl / _RENEWALS_PER_TTL
        # The time between a due renewal and the deadline is divided so that we can time out on every member a quorum
        # can lose, and still make one more attempt.
        self._timeout = (ttl - self.margin - pause) / max(2, (renewer.members + 1) // 2)
        self._pause = pause
        self._alive_at = boottime()
        self._silent = False
        """Whether the event loop gave no sign of life for too long at the last check."""
        # Invariant: once ``_ended`` is set, this keeper does not change the fence.
        self._lock = threading.Lock()
        """Held while the fence is changed, so that a late answer cannot extend it again."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        fence.deadline = granted_at + ttl - self.margin

    # On the event loop

    def start(self) -> None:
        """Begin to renew the lease."""
        self._thread.start()

    def beat(self) -> None:
        """Give a sign of life of the event loop. Call it every ``beat_interval`` seconds."""
        now = boottime()
        turn, self._alive_at = now - self._alive_at, now
        if turn > self.ttl:
            log.warning("%s: a turn of the event loop took %.1f s", self._name, turn)

    def end(self) -> None:
        """Let the fence expire now, and stop renewing the lease. May be called on any thread.

        A second call does nothing, because the fence may belong to the next lease by then."""
        with self._lock:
            if not self._ended.is_set():
                self._ended.set()
                self._fence.deadline = 0.0

    def join(self) -> None:
        """Wait, after ``end``, until a renewal under way is over and all resources are released. Blocks."""
        self._thread.join()

    # On the thread

    def _run(self) -> None:
        pause = self._pause
        try:
            while not self._ended.wait(pause):
                pause = self.attempt()
        except Exception:
            log.exception("%s: the lease is no longer kept", self._name)
        finally:
            self._renewer.close()
            self.end()
            self._on_news()

    def attempt(self) -> float:
        """Renew the lease once, if the event loop is alive. Return the seconds until the next attempt."""
        if not self._is_alive():
            return self.beat_interval
        # The store counts from the moment when the renewal reaches it, which is later.
        sent_at = boottime()
        try:
            self._renewer.renew(self.lease, self._timeout)
        except LeaseLost:
            if not self._ended.is_set():
                log.error("%s: the lease is lost", self._name)
            self.end()
            return 0.0
        except StoreError as error:
            log.warning("%s: lease not renewed: %s", self._name, error)
            return _RETRY_DELAY
        if not self._extend(sent_at):
            return 0.0
        self._on_extended()
        self._on_news()
        return max(0.0, sent_at + self._pause - boottime())

    def _is_alive(self) -> bool:
        silence = boottime() - max(self._alive_at, self._fence.asked_at)
        if silence <= self.max_stall:
            self._silent = False
        elif not self._silent:
            self._silent = True
            log.error("%s: no sign of life of the event loop for %.1f s: lease not renewed", self._name, silence)
        return not self._silent

    def _extend(self, sent_at: float) -> bool:
        with self._lock:
            if not self._ended.is_set() and boottime() < self._fence.deadline:
                self._fence.deadline = sent_at + self.ttl - self.margin
                return True
        # This process was stopped for too long: another node may have taken over meanwhile.
        self.end()
        return False
