"""The measurement of memory: every step is taken, and what must cost something does."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tools.bench.sizing import CREDITS, DEPTHS, QUICK, measure, table


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/PID/smaps_rollup")
def test_every_step_has_its_row() -> None:
    rows = {row.what: row for row in asyncio.run(measure(QUICK))}
    assert rows["the server itself"].kib > 10_000
    assert rows["a connection with a session (TCP)"].descriptors == 1
    assert rows["a tree connect"].descriptors == 0
    assert rows["an open of a file of its own"].kib > 0.5
    rdma = [rows[f"an SMB Direct connection of {credits} credits (iWARP)"] for credits in CREDITS]
    assert [row.descriptors for row in rdma] == [1] * len(CREDITS)
    # Each credit is a receive buffer of 1364 bytes.
    for fewer, more, first, second in zip(rdma, rdma[1:], CREDITS, CREDITS[1:], strict=False):
        assert more.kib - fewer.kib > (second - first) * 1364 / 1024 / 2
    assert rows[f"a READ of 1 MiB in flight by RDMA, queue depth {DEPTHS[-1]}"].kib > 100
    assert len(table(list(rows.values())).splitlines()) == 2 + len(rows)
