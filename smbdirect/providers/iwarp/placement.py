"""Where inbound bytes go: shared receive rings, and the sinks of RDMA Reads under way. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

RING_SIZE = 256 * 1024
"""Bytes of one receive ring: several of the largest FPDUs."""


RINGS_KEPT = 4
"""Free rings that are kept: more only lie idle, as a connection holds one while it parses."""


class RingPool:
    """Receive rings shared by the connections of one thread: only one that holds most of a large FPDU keeps its own."""

    def __init__(self) -> None:
        self.free: list[bytearray] = []
        """Rings that nobody holds, at most ``RINGS_KEPT``. Who needs one takes one, or makes one if there is none; who
        has one puts it back."""
        self.allocations = 0

    def make(self) -> bytearray:
        """Return a new ring, where none is free."""
        self.allocations += 1
        return bytearray(RING_SIZE)


class PendingRead:
    """An RDMA Read of ours whose response is under way: its sink token is good for nothing else."""

    __slots__ = ("base", "owner", "passed", "received", "segments", "stag", "total")

    def __init__(self, stag: int, segments: Sequence[memoryview], total: int, base: int = 0) -> None:
        self.stag = stag
        self.base = base
        self.segments: list[memoryview] = [segment for segment in segments if len(segment)]
        self.total = total
        self.received = 0
        self.passed = 0
        """Bytes that lay in segments already full."""
        self.owner: object = None

    def targets(self, length: int) -> Sequence[memoryview]:
        """Where the next ``length`` bytes go."""
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
        self.received += length
        segments = self.segments
        while segments and self.received - self.passed >= len(segments[0]):
            self.passed += len(segments[0])
            del segments[0]
