"""Loss and congestion: the send window, the retransmission timer and the rate of congestion notifications.

InfiniBand leaves round-trip estimation to the implementer (IBTA 9.7.6.1.3 gives only a time-out). The timer follows RFC
6298; the window uses additive increase and multiplicative decrease. No I/O, no clock: ``now`` is in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_WINDOW = 256
"""Most packets in flight: 1 MiB with the largest packets. A new connection has fewer, until as many as it has arrive
without a loss."""
MIN_WINDOW = 16
"""The response packets of one RDMA Read request always fit."""
FIRST_WINDOW = 64
FIRST_TIMEOUT = 0.25
MIN_TIMEOUT = 0.03
MAX_TIMEOUT = 3.0
MAX_RETRIES = 8
"""Consecutive time-outs without progress, about ten seconds, after which the connection ends."""
MAX_NAKS = 100
"""Consecutive negative acknowledgements without progress after which the connection ends: otherwise a peer could cause
retransmissions forever."""
CNP_INTERVAL = 0.001
"""Seconds between two congestion notifications of a connection, at least (IBTA A17.9.3 leaves the interval open)."""


class Window:
    """The send window of one connection: ``size`` packets may be unacknowledged."""

    __slots__ = ("_cut_until", "_grown", "_threshold", "limit", "size")

    def __init__(self, limit: int = MAX_WINDOW) -> None:
        self.limit = limit
        self.size = min(FIRST_WINDOW, limit)
        self._threshold = float(limit)
        self._cut_until = 0.0
        self._grown = 0.0
        """The fraction of a packet by which ``size`` may grow further."""

    def acknowledged(self, packets: int) -> None:
        """Grow the window after ``packets`` more were acknowledged."""
        if self.size >= self.limit:
            return
        whole, self._grown = divmod(self._grown + (packets if self.size < self._threshold else packets / self.size), 1)
        self.size = min(self.limit, self.size + int(whole))

    def cut(self, now: float, round_trip: float) -> None:
        """Halve the window after a loss or a congestion notification, at most once per round trip."""
        if now < self._cut_until:
            return
        self._cut_until = now + max(round_trip, CNP_INTERVAL)
        self._threshold = self.size = max(MIN_WINDOW, self.size // 2)


@dataclass(slots=True)
class RetryTimer:
    """The retransmission time-out of one connection, with its estimator and the counters of failed attempts."""

    round_trip: float = 0.0
    """The smoothed round-trip time in seconds; 0 while unknown."""
    _variation: float = 0.0
    _backoff: int = 1
    retries: int = 0
    naks: int = 0

    @property
    def timeout(self) -> float:
        """The retransmission time-out in seconds."""
        base = self.round_trip + 4 * self._variation if self.round_trip else FIRST_TIMEOUT
        return min(MAX_TIMEOUT, max(MIN_TIMEOUT, base) * self._backoff)

    def measured(self, sample: float) -> None:
        """Note the round-trip time of a packet that was sent only once. [RFC 6298 section 2 and Karn's rule]"""
        if self.round_trip:
            self._variation += (abs(sample - self.round_trip) - self._variation) / 4
            self.round_trip += (sample - self.round_trip) / 8
        else:
            self.round_trip = max(sample, 1e-6)
            self._variation = sample / 2

    def progress(self) -> None:
        """Reset the back-off and the counters: the peer acknowledged something."""
        self._backoff = 1
        self.retries = self.naks = 0

    def expired(self) -> bool:
        """Count a time-out. Return whether there were too many."""
        self.retries += 1
        self._backoff *= 2
        return self.retries > MAX_RETRIES

    def refused(self) -> bool:
        """Count a sequence NAK. Return whether there were too many."""
        self.naks += 1
        return self.naks > MAX_NAKS
