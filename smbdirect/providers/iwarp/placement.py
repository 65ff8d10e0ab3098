"""The memory for inbound bytes: shared receive rings, and the sinks of RDMA Reads under way. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

RING_SIZE = 256 * 1024
"""Bytes of one receive ring: room for several of the largest FPDUs."""


RINGS_KEPT = 4
"""Free rings that are kept. More would stay unused, since a connection holds a ring only while it parses."""


class RingPool:
    """The receive rings that the connections of one thread share. Only a connection that holds a large part of an FPDU
    keeps its ring."""

    def __init__(self) -> None:
        self.free: list[memoryview] = []
        """Invariant: rings that no connection holds, at most ``RINGS_KEPT``. Users take a ring from here, or make one
        if there is none, and put it back."""
        self.allocations = 0

    def make(self) -> memoryview:
        """Return a new ring; to be called if none is free."""
        self.allocations += 1
        return memoryview(bytearray(RING_SIZE))


class PendingRead:
    """One RDMA Read of ours whose response is outstanding. Its sink token is valid only for that response."""

    __slots__ = ("base", "irregular", "owner", "passed", "received", "segments", "stag", "total")

    def __init__(self, stag: int, segments: Sequence[memoryview], total: int, base: int = 0) -> None:
        self.stag = stag
        self.base = base
        self.segments: list[memoryview] = [segment for segment in segments if len(segment)]
        self.total = total
        # Invariant: ``received - passed`` is the fill position in the first of ``segments``.
        self.received = 0
        self.passed = 0
        """Bytes of the segments that are full, which were removed from ``segments``."""
        self.irregular = False
        """Whether the response was not as a ``Layout`` expected it."""
        self.owner: object = None

    def targets(self, length: int) -> Sequence[memoryview]:
        """Return the memory for the next ``length`` bytes."""
        start = self.received - self.passed
        found = []
        for segment in self.segments:
            part = segment[start : start + length]
            found.append(part)
            length -= len(part)
            if not length:
                break
            start = 0
        return found

    def advance(self, length: int) -> None:
        """Note that ``length`` more bytes were placed."""
        self.received += length
        segments = self.segments
        while segments and self.received - self.passed >= len(segments[0]):
            self.passed += len(segments[0])
            del segments[0]
