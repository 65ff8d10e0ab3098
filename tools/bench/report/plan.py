"""What the report measures: sections of points, each one case on one server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from smb3server.lab.bench.cases import CASES, CROWDS, Case, bulk, small

TCP, SAMBA, IMPACKET = "smb3server", "Samba", "impacket"
IWARP, ROCE, LOOPBACK = "iWARP", "RoCEv2", "loopback"
ALONE = (TCP, IWARP, ROCE, LOOPBACK)
"""Our server, over everything that runs without a special kernel."""
EVERYONE = (TCP, SAMBA, IMPACKET, IWARP, ROCE, LOOPBACK)
SIZES = tuple(1024 << shift for shift in range(0, 16, 2))
"""Block sizes, in bytes."""
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
BLOCKS_AT_ONCE = 4
"""Blocks in flight where the block size changes."""


class Point(NamedTuple):
    """One case on one server. ``section``, ``series`` and ``x`` say where in the report it belongs."""

    section: str
    series: str
    x: int
    target: str
    case: Case


class Section(NamedTuple):
    """Points that are measured alike."""

    name: str
    share: float
    """Seconds of one measurement, as a share of those of the table."""
    rounds: float
    """Rounds, as a share of those of the table."""
    points: tuple[Point, ...]


def _sizes(name: str, test: str, targets: Iterable[str]) -> Section:
    points = (
        Point(name, target, size, target, bulk(test, size, BLOCKS_AT_ONCE)) for size in SIZES for target in targets
    )
    return Section(name, 0.6, 0.6, tuple(points))


def _protected(targets: Sequence[str]) -> Section:
    """Return reads that are signed and encrypted; the plain ones are those of "sizes, read"."""
    points = []
    for size in SIZES[1::2]:
        for protection in ("GMAC", "AES-128-GCM"):
            for target in targets:
                series = f"{target} {protection}"
                points.append(Point("protection", series, size, target, bulk("read", size, BLOCKS_AT_ONCE, protection)))
    return Section("protection", 0.6, 0.6, tuple(points))


def _touched() -> Section:
    """Return reads whose data stays where it came, and reads whose data the client copies out."""
    plain = bulk("read", 1 << 20, BLOCKS_AT_ONCE)
    copied = plain._replace(name=f"{plain.name}, touched", options=(*plain.options, "-R"))
    cases = (plain, copied)
    points = (
        Point("touched", case.name, 0, target, case) for target in (TCP, SAMBA, IWARP, ROCE, LOOPBACK) for case in cases
    )
    return Section("touched", 0.6, 0.6, tuple(points))


def sections() -> dict[str, Section]:
    """Return all sections by name, in the order in which they are measured."""
    found = (
        Section(
            "table",
            1,
            1,
            tuple(Point("table", target, 0, target, case) for case in CASES.values() for target in (TCP, SAMBA)),
        ),
        _sizes("sizes, read", "read", EVERYONE),
        _sizes("sizes, write", "write", EVERYONE),
        _protected((TCP, SAMBA)),
        Section(
            "depth",
            0.6,
            0.6,
            tuple(Point("depth", target, depth, target, small(depth)) for depth in DEPTHS for target in EVERYONE),
        ),
        _touched(),
        Section(
            "connections",
            1,
            0.6,
            tuple(Point("connections", target, 0, target, case) for case in CROWDS.values() for target in (TCP, SAMBA)),
        ),
    )
    return {section.name: section for section in found}
