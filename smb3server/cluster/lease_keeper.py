"""Keeps a membership's lease, and the fence with it, on a thread of its own: no event loop is too busy for that.

A thread would also keep the lease of a node whose event loop hangs for good, and with it services that nobody serves.
So the event loop shows signs of life: in every turn (``beat``), and in one that takes long, with every request and
reply (``Fence.asked_at``). Without any for ``max_stall`` seconds the lease is not renewed: it runs out by itself, as
that of a node that was cut off. A loop that comes back before the deadline goes on as before.

The thread needs the interpreter's lock for moments only, and a busy event loop has to leave it every few milliseconds
(``sys.getswitchinterval``). Code that holds it for good stops this thread, too, and the lease runs out.
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
"""Signs of life, and how often one is looked for once they have stopped."""
_RETRY_DELAY = 0.1
STALLS_PER_TTL = 3
"""What a node bears if it is not told otherwise."""


def boottime() -> float:
    """Seconds; goes on while the machine is suspended, and no one can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence:
    """Whether this node may still answer. Asked before every request and every reply."""

    __slots__ = ("asked_at", "deadline")

    def __init__(self) -> None:
        self.deadline = 0.0
        self.asked_at = 0.0
        """When the event loop last asked: a sign of life."""

    def expired(self) -> bool:
        """On the event loop."""
        self.asked_at = now = boottime()
        return now >= self.deadline


def margin_of(ttl: float) -> float:
    """Seconds before the end of a lease at which its holder stops."""
    return max(0.5, ttl / 5)


class LeaseKeeper:
    """Of one lease, from its grant until it is lost or given back. ``start`` it once, ``end`` it once.

    ``granted_at``: CLOCK_BOOTTIME before the grant was sent. ``on_extended`` is called on the thread whenever the
    fence has a new deadline, ``on_news`` after that and when the lease is lost: neither may block or raise.
    """

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
        # What is left when a renewal is due must do for every member that a quorum bears to be silent, and one more.
        self._timeout = (ttl - self.margin - pause) / max(2, (renewer.members + 1) // 2)
        self._pause = pause
        self._alive_at = boottime()
        self._silent = False
        """Has been found without a sign of life for too long."""
        self._lock = threading.Lock()
        """What the fence is changed under, so that no late answer opens it again."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        fence.deadline = granted_at + ttl - self.margin

    # On the event loop

    def start(self) -> None:
        self._thread.start()

    def beat(self) -> None:
        """The event loop is alive. Every ``beat_interval`` seconds."""
        now = boottime()
        turn, self._alive_at = now - self._alive_at, now
        if turn > self.ttl:
            log.warning("%s: a turn of the event loop took %.1f s", self._name, turn)

    def end(self) -> None:
        """From now on this node is behind its fence, and the lease is not renewed. From any thread; what comes second
        does nothing, since the fence may be that of the next lease by then."""
        with self._lock:
            if not self._ended.is_set():
                self._ended.set()
                self._fence.deadline = 0.0

    def join(self) -> None:
        """Wait, once it was ended, until a renewal under way is over, and nothing is in use any more."""
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
        """Renew once, if the event loop lives; the seconds until the next time."""
        if not self._is_alive():
            return self.beat_interval
        # The store counts from when the renewal reaches it, which is later.
        sent_at = boottime()
        try:
            self._renewer.renew(self.lease, self._timeout)
        except LeaseLost:
            if not self._ended.is_set():
                log.error("%s: the lease is gone", self._name)
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
        # Stopped for too long: who knows what happened meanwhile.
        self.end()
        return False
